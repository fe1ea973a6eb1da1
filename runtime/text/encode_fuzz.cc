// Any bytes as text for the Qwen3.5 split pattern: ill-formed UTF-8 is refused, everything else comes back in NFC.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/stream_decoder.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace {

std::unique_ptr<rt::Tokenizer> MakeTokenizer() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    rt::AppendUtf8(rt::ByteToAlphabet(static_cast<uint8_t>(byte)), &spelled);
    vocab[spelled] = byte;
  }
  vocab["ab"] = 256;
  vocab["aba"] = 257;
  const char* pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const nlohmann::json json = {
      {"added_tokens",
       {{{"id", 300}, {"content", "<|e|>"}, {"special", true}}, {{"id", 301}, {"content", "<t>"}, {"normalized", true}}}},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab a"}}}}};
  auto tokenizer = rt::Tokenizer::FromJson(json.dump());
  if (!tokenizer.ok()) std::abort();
  return std::move(*tokenizer);
}

void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<rt::Tokenizer> tokenizer = MakeTokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ids = tokenizer->Encode(text, false);
  Check(ids.ok() == (rt::FindInvalidUtf8(text) == std::string_view::npos));
  if (!ids.ok()) return 0;
  for (const int32_t id : *ids) Check(id != 300);
  rt::StreamDecoder decoder(tokenizer.get(), false);
  std::string streamed;
  for (const int32_t id : *ids) streamed += decoder.Push(id);
  streamed += decoder.Finish();
  Check(streamed == tokenizer->Decode(*ids, false));
  // <t> is a border for normalization too, so compare only without it.
  if (text.find("<t>") == std::string_view::npos) Check(streamed == rt::ToNfc(text));
  return 0;
}
