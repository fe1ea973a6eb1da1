// Everything a front end needs to speak text: tokenizer, end tokens, sampling defaults and chat template of
// the configured checkpoint. A checkpoint without a tokenizer still serves token ids; the stack then says why
// there is no text.
#pragma once

#include "runtime/config/config.h"
#include "runtime/engine/generation.h"
#include "runtime/engine/text_decoder.h"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

class ChatEncoder;
class Tokenizer;

class TextStack {
 public:
  // Reads model.tokenizer, or the model folder. No tokenizer.json in the model folder is not an error; one
  // that is named and absent, or that cannot be used, is.
  static Result<std::unique_ptr<TextStack>> Load(const Config& config);
  ~TextStack();
  TextStack(const TextStack&) = delete;

  bool has_text() const { return no_text_reason_.empty(); }
  const std::string& no_text_reason() const { return no_text_reason_; }
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  const SamplingParams& default_sampling() const { return default_sampling_; }
  // One more than the largest id with a token, for Session::set_vocab_limit; 0 without a tokenizer.
  int32_t vocab_limit() const;
  // For Session::StartEngine; null without a tokenizer.
  TextDecoderFactory* decoder_factory() const;
  // Null without a tokenizer.
  const Tokenizer* tokenizer() const;

  // The chat template in its resident child, started by the first call. Unavailable: what to install;
  // NotFound: the checkpoint has none. Thread-safe; every call gives the first one's answer.
  Result<const ChatEncoder*> Chat();

  // Prompts (runtime/text/prompt.h). Without a tokenizer FailedPrecondition with the reason.
  Result<std::vector<int32_t>> EncodeText(std::string_view text) const;
  // Text in the form that a chat template writes: special tokens in it count, and nothing is added around it.
  Result<std::vector<int32_t>> EncodeRendered(std::string_view text) const;
  Result<std::vector<int32_t>> EncodeChat(const nlohmann::ordered_json& messages,
                                          const nlohmann::ordered_json& options);

 private:
  struct Parts;  // what exists only with a tokenizer

  TextStack();
  Status NoText() const { return {Code::kFailedPrecondition, no_text_reason_}; }

  std::string no_text_reason_;
  std::vector<int32_t> eos_ids_;
  SamplingParams default_sampling_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace rt
