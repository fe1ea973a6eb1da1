// Tokenizers for unit tests: the trained ones of the test data, and a small one to bend.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace rt::test {

inline std::string Spell(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) AppendUtf8(ByteToAlphabet(static_cast<uint8_t>(c)), &spelled);
  return spelled;
}

// All 256 bytes (id = byte), the merges a+b (256), ab+c (257), b+c (258), and two added tokens with a gap before them:
// <|end|> (300, special) and <think> (310, not special).
inline nlohmann::json SmallTokenizerJson() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[Spell(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  vocab["bc"] = 258;
  return {{"added_tokens",
           {{{"id", 300}, {"content", "<|end|>"}, {"special", true}}, {{"id", 310}, {"content", "<think>"}}}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c", "b c"}}}}};
}

inline std::unique_ptr<Tokenizer> FromJsonOrDie(const nlohmann::json& json) {
  auto result = Tokenizer::FromJson(json.dump());
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? std::move(*result) : nullptr;
}

#ifdef RT_TESTDATA_DIR
inline std::string ModelDir(const std::string& model) {
  return model == "tiny-gdn" ? std::string(RT_ZOO_DIR "/tiny-gdn") : RT_TESTDATA_DIR "/models/" + model;
}

inline std::unique_ptr<Tokenizer> LoadOrDie(const std::string& model) {
  auto result = Tokenizer::Load(ModelDir(model));
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? std::move(*result) : nullptr;
}

// golden/<model>/template.json: chats, tokenizer and decode_partial cases computed by another implementation.
inline nlohmann::json LoadGolden(const std::string& model) {
  std::ifstream in(RT_TESTDATA_DIR "/golden/" + model + "/template.json");
  EXPECT_TRUE(in.good()) << model;
  return nlohmann::json::parse(in);
}
#endif

}  // namespace rt::test
