// What a checkpoint folder says about text beside tokenizer.json: end tokens, special tokens, chat templates, defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <rt/plugin/status.hpp>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace rt {

struct TextConfig {
  // generation_config.json's suggestions; unset where the file says nothing.
  struct SamplingDefaults {
    std::optional<bool> do_sample;
    std::optional<double> temperature;
    std::optional<double> top_p;
    std::optional<double> min_p;
    std::optional<int64_t> top_k;
    std::optional<double> repetition_penalty;
    std::optional<double> presence_penalty;
    std::optional<double> frequency_penalty;
  };

  // Ends a sequence: the union of generation_config.json, config.json (top level and text_config) and the tokenizer's
  // eos_token, in that order, each once. Published files often list only one of several.
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  bool add_bos_token = false;
  std::optional<int64_t> model_max_length;  // tokens; unset for the huge "no limit" values some files hold
  SamplingDefaults sampling;

  // bos_token, eos_token, ...: name to text, as templates see them. Absent ones are left out (undefined in a template).
  std::map<std::string, std::string> special_tokens;
  // Name to Jinja2 source. The unnamed one is "default". Empty: the checkpoint has no chat format.
  std::map<std::string, std::string> chat_templates;

  // Reads config.json and generation_config.json of `model_dir`, tokenizer_config.json, special_tokens_map.json,
  // chat_template.jinja and additional_chat_templates/*.jinja of `tokenizer_dir`. Each file may be absent; a file that
  // is not JSON or holds a field of the wrong type is kDataLoss naming file and field. `tokenizer` (may be null) turns
  // token texts into ids. Ids are taken as the files give them: a model's vocabulary may exceed its tokenizer's.
  static Result<TextConfig> Load(const std::filesystem::path& model_dir, const std::filesystem::path& tokenizer_dir,
                                 const Tokenizer* tokenizer);
  static Result<TextConfig> Load(const std::filesystem::path& dir, const Tokenizer* tokenizer) {
    return Load(dir, dir, tokenizer);
  }
};

}  // namespace rt
