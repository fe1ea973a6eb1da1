#include "runtime/text/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/text/byte_alphabet.h"
#include "runtime/text/utf8.h"

namespace rt {
namespace {

using Json = nlohmann::json;

// Larger ids would only be an attempt to make us allocate; the largest published vocabularies are near 2^18.
constexpr int64_t kMaxTokenId = (1 << 24) - 1;

const Json kNull;

const Json& Field(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

Status Unsupported(const std::string& what, const std::string& expected, const Json& found) {
  std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return {Code::kUnsupported, what + ": expected " + expected + ", found " + text};
}

// The type of a part, or "" for null; an error if it is anything else.
Result<std::string> PartType(const Json& part, const std::string& what) {
  if (part.is_null()) return std::string();
  const Json& type = part.is_object() ? Field(part, "type") : kNull;
  if (!type.is_string()) return Unsupported(what, "an object with a type, or null", part);
  return type.get<std::string>();
}

class Parser {
 public:
  explicit Parser(const Json& root) : root_(root) {}

  Result<TokenizerSpec> Parse() {
    RT_RETURN_IF_ERROR(CheckModel());
    RT_RETURN_IF_ERROR(ReadNormalizer(Field(root_, "normalizer")));
    RT_RETURN_IF_ERROR(CheckDecoder());
    RT_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(Field(root_, "pre_tokenizer")));
    RT_RETURN_IF_ERROR(ReadVocab());
    RT_RETURN_IF_ERROR(ReadMerges());
    RT_RETURN_IF_ERROR(ReadAddedTokens());
    RT_RETURN_IF_ERROR(FillBytes());
    RT_RETURN_IF_ERROR(ReadPostProcessor(Field(root_, "post_processor"), 0));
    return TokenizerSpec{std::move(token_to_id_), std::move(token_bytes_), std::move(present_),
                         std::move(merges_),      byte_ids_,               std::move(added_tokens_),
                         nfc_,                    ignore_merges_,          std::move(prefix_ids_),
                         std::move(suffix_ids_),  std::move(pre_tokenizer)};
  }

 private:
  const Json& Model() const { return Field(root_, "model"); }

  Status CheckModel() {
    const Json& model = Model();
    if (!model.is_object()) return Unsupported("model", "an object", model);
    // Old files leave the type out; what they hold is then seen by vocab and merges.
    if (const Json& type = Field(model, "type"); !type.is_null() && type != "BPE") {
      return Unsupported("model.type", "BPE", type);
    }
    if (Field(model, "byte_fallback") == true) {
      return Unsupported("model.byte_fallback", "false (byte-level BPE)", true);
    }
    if (const Json& dropout = Field(model, "dropout"); !dropout.is_null() && dropout != 0.0) {
      return Unsupported("model.dropout", "null", dropout);
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& affix = Field(model, key);
      if (!affix.is_null() && affix != "") return Unsupported(std::string("model.") + key, "null", affix);
    }
    ignore_merges_ = Field(model, "ignore_merges") == true;
    return {};
  }

  Status ReadNormalizer(const Json& part) {
    RT_ASSIGN_OR_RETURN(const std::string type, PartType(part, "normalizer"));
    if (type.empty()) return {};
    if (type == "NFC") {
      nfc_ = true;
      return {};
    }
    const Json& parts = Field(part, "normalizers");
    if (type == "Sequence" && parts.is_array()) {
      for (const Json& inner : parts) {
        if (inner != Json{{"type", "NFC"}}) return Unsupported("normalizer", "a Sequence of NFC", inner);
        nfc_ = true;
      }
      return {};
    }
    return Unsupported("normalizer", "NFC, a Sequence of NFC, or null", part);
  }

  Status CheckDecoder() {
    const Json& decoder = Field(root_, "decoder");
    RT_ASSIGN_OR_RETURN(const std::string type, PartType(decoder, "decoder"));
    if (type == "ByteLevel") return {};
    const Json& parts = Field(decoder.is_object() ? decoder : Json::object(), "decoders");
    if (type == "Sequence" && parts.is_array() && parts.size() == 1 && parts[0].is_object() &&
        Field(parts[0], "type") == "ByteLevel") {
      return {};
    }
    return Unsupported("decoder", "ByteLevel", decoder);
  }

  Status Claim(int64_t id, const std::string& token, const std::string& what) {
    if (id < 0 || id > kMaxTokenId) {
      return {Code::kDataLoss, what + ": expected an id in [0, " + std::to_string(kMaxTokenId) + "], found " +
                                   std::to_string(id)};
    }
    const auto index = static_cast<size_t>(id);
    if (index >= present_.size()) {
      present_.resize(index + 1);
      spelled_.resize(index + 1);
    }
    if (present_[index]) {
      return {Code::kDataLoss, what + ": id " + std::to_string(id) + " already belongs to \"" + spelled_[index] + "\""};
    }
    present_[index] = true;
    spelled_[index] = token;
    token_to_id_.emplace(token, static_cast<int32_t>(id));
    return {};
  }

  Status ReadVocab() {
    const Json& vocab = Field(Model(), "vocab");
    if (!vocab.is_object() || vocab.empty()) return Unsupported("model.vocab", "an object of token: id", vocab);
    token_to_id_.reserve(vocab.size() * 2);
    for (const auto& [token, id] : vocab.items()) {
      const std::string what = "model.vocab[\"" + token + "\"]";
      if (!id.is_number_integer()) return {Code::kDataLoss, what + ": expected an integer id, found " + id.dump()};
      RT_RETURN_IF_ERROR(Claim(id.get<int64_t>(), token, what));
    }
    byte_ids_.fill(BpeMerger::kNoToken);
    for (int byte = 0; byte < 256; ++byte) {
      std::string spelled;
      AppendUtf8(ByteToAlphabet(static_cast<uint8_t>(byte)), &spelled);
      const auto it = token_to_id_.find(spelled);
      if (it != token_to_id_.end()) {
        byte_ids_[static_cast<size_t>(byte)] = it->second;
      } else if (byte != 0xC0 && byte != 0xC1 && byte < 0xF5) {  // those never occur in UTF-8
        return {Code::kDataLoss, "model.vocab: expected a token for each byte, found none for byte " +
                                     std::to_string(byte) + " (\"" + spelled + "\")"};
      }
    }
    return {};
  }

  Result<int32_t> IdOf(const std::string& token, size_t rank) const {
    const auto it = token_to_id_.find(token);
    if (it != token_to_id_.end()) return it->second;
    return {Code::kDataLoss, "model.merges[" + std::to_string(rank) + "]: \"" + token + "\" is not in model.vocab"};
  }

  Status ReadMerges() {
    const Json& merges = Field(Model(), "merges");
    if (!merges.is_array()) return Unsupported("model.merges", "an array", merges);
    merges_.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      std::string left;
      std::string right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {  // files before tokenizers 0.20: "left right"
        const std::string& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      }
      if (left.empty() || right.empty()) {
        return {Code::kDataLoss, "model.merges[" + std::to_string(rank) + "]: expected \"left right\" or [left, right]"};
      }
      RT_ASSIGN_OR_RETURN(const int32_t left_id, IdOf(left, rank));
      RT_ASSIGN_OR_RETURN(const int32_t right_id, IdOf(right, rank));
      RT_ASSIGN_OR_RETURN(const int32_t merged_id, IdOf(left + right, rank));
      merges_.push_back({left_id, right_id, merged_id});
    }
    return {};
  }

  Status ReadAddedTokens() {
    const Json& tokens = Field(root_, "added_tokens");
    if (tokens.is_null()) return {};
    if (!tokens.is_array()) return Unsupported("added_tokens", "an array", tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string what = "added_tokens[" + std::to_string(i) + "]";
      const Json& entry = tokens[i];
      if (!entry.is_object() || !Field(entry, "content").is_string() || !Field(entry, "id").is_number_integer()) {
        return {Code::kDataLoss, what + ": expected an object with content and an integer id"};
      }
      AddedToken token;
      token.content = entry["content"].get<std::string>();
      if (token.content.empty()) return {Code::kDataLoss, what + ": content is empty"};
      token.special = Field(entry, "special") == true;
      token.single_word = Field(entry, "single_word") == true;
      token.lstrip = Field(entry, "lstrip") == true;
      token.rstrip = Field(entry, "rstrip") == true;
      token.normalized = Field(entry, "normalized") == true;
      const auto id = entry["id"].get<int64_t>();
      const auto known = token_to_id_.find(token.content);
      if (known == token_to_id_.end()) {
        RT_RETURN_IF_ERROR(Claim(id, token.content, what));
      } else if (known->second != id) {
        return {Code::kDataLoss, what + ": \"" + token.content + "\" has id " + std::to_string(id) + " here but " +
                                     std::to_string(known->second) + " elsewhere in the file"};
      }
      token.id = static_cast<int32_t>(id);
      added_tokens_.push_back(std::move(token));
    }
    return {};
  }

  // A vocabulary token's bytes are what its letters spell; an added token is its own text.
  Status FillBytes() {
    token_bytes_.resize(present_.size());
    for (size_t id = 0; id < present_.size(); ++id) {
      if (present_[id]) token_bytes_[id] = AlphabetToBytes(spelled_[id]).value_or(spelled_[id]);
    }
    for (const AddedToken& token : added_tokens_) token_bytes_[static_cast<size_t>(token.id)] = token.content;
    return {};
  }

  Status ReadPostProcessor(const Json& part, int depth) {
    RT_ASSIGN_OR_RETURN(const std::string type, PartType(part, "post_processor"));
    if (type.empty() || type == "ByteLevel") return {};  // ByteLevel changes offsets, not ids
    if (type == "Sequence" && depth == 0 && Field(part, "processors").is_array()) {
      for (const Json& inner : part["processors"]) RT_RETURN_IF_ERROR(ReadPostProcessor(inner, 1));
      return {};
    }
    if (type == "TemplateProcessing" && Field(part, "single").is_array()) return ReadTemplate(part["single"]);
    return Unsupported("post_processor", "ByteLevel, TemplateProcessing, a Sequence of them, or null", part);
  }

  Status ReadTemplate(const Json& single) {
    bool after_text = false;
    for (const Json& item : single) {
      const Json& special = item.is_object() ? Field(item, "SpecialToken") : kNull;
      if (item.is_object() && item.contains("Sequence")) {
        after_text = true;
      } else if (special.is_object() && Field(special, "id").is_string()) {
        const auto it = token_to_id_.find(special["id"].get<std::string>());
        if (it == token_to_id_.end()) {
          return {Code::kDataLoss, "post_processor: token " + special["id"].dump() + " does not exist"};
        }
        (after_text ? suffix_ids_ : prefix_ids_).push_back(it->second);
      } else {
        return Unsupported("post_processor TemplateProcessing", "SpecialToken or Sequence", item);
      }
    }
    return {};
  }

  const Json& root_;
  std::unordered_map<std::string, int32_t> token_to_id_;
  std::vector<std::string> token_bytes_;
  std::vector<std::string> spelled_;  // [id_limit], as in the file
  std::vector<bool> present_;
  std::vector<BpeMerger::Merge> merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<AddedToken> added_tokens_;
  bool nfc_ = false;
  bool ignore_merges_ = false;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
};

}  // namespace

Result<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return {Code::kDataLoss, "not valid JSON (" + std::to_string(json.size()) + " bytes)"};
  if (!root.is_object()) {
    return {Code::kDataLoss, std::string("expected a JSON object, found ") + root.type_name()};
  }
  return Parser(root).Parse();
}

}  // namespace rt
