// Reads tokenizer.json into checked tables.
#pragma once

#include <array>
#include <cstdint>
#include <rt/plugin/status.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/pre_tokenizer.h"

namespace rt {

struct TokenizerSpec {
  std::unordered_map<std::string, int32_t> token_to_id;  // as spelled in the file, added tokens included
  std::vector<std::string> token_bytes;                  // [id_limit]
  std::vector<bool> present;                             // [id_limit]
  std::vector<BpeMerger::Merge> merges;                  // in rank order
  std::array<int32_t, 256> byte_ids;                     // token of each single byte
  std::vector<AddedToken> added_tokens;
  bool nfc = false;
  bool ignore_merges = false;  // a whole word that is a token is taken without merging
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
  PreTokenizer pre_tokenizer;
};

// Unknown kinds of parts are kUnsupported; broken JSON and contradictions are kDataLoss.
Result<TokenizerSpec> ParseTokenizerJson(std::string_view json);

}  // namespace rt
