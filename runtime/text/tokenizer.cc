#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>

#include "runtime/text/tokenizer_json.h"
#include "runtime/text/utf8.h"

namespace rt {
namespace {

// Tokens of recent short words. Direct-mapped: most of a text is few words, and a miss only costs the merging.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 23;
  static constexpr size_t kMaxTokens = 7;

  struct Entry {
    char word[kMaxWordBytes];
    uint8_t word_size = 0;  // 0: unused
    uint8_t num_tokens = 0;
    int32_t tokens[kMaxTokens];
  };

  Entry& SlotFor(std::string_view word) {
    return entries_[std::hash<std::string_view>{}(word) & (kEntries - 1)];
  }
  static bool Hit(const Entry& entry, std::string_view word) {
    return entry.word_size == word.size() && std::memcmp(entry.word, word.data(), word.size()) == 0;
  }
  static void Store(std::string_view word, std::span<const int32_t> tokens, Entry* entry) {
    if (tokens.size() > kMaxTokens) return;
    std::memcpy(entry->word, word.data(), word.size());
    entry->word_size = static_cast<uint8_t>(word.size());
    entry->num_tokens = static_cast<uint8_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), entry->tokens);
  }

 private:
  static constexpr size_t kEntries = 1 << 14;  // 896 KiB: fits the L2 of the machines we measured
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

// What one Encode call needs beside the tables; kept in a pool, so that calls from many threads do not share any.
struct Scratch {
  PreTokenizer::Scratch matcher;
  WordCache cache;
};

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {Code::kNotFound, path.string() + ": cannot be opened"};
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return {Code::kDataLoss, path.string() + ": cannot be read"};
  return std::move(text).str();
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec s) : spec(std::move(s)), merger(spec.merges, spec.byte_ids) {
    num_tokens = static_cast<size_t>(std::count(spec.present.begin(), spec.present.end(), true));
    special.resize(spec.present.size());
    for (const AddedToken& token : spec.added_tokens) {
      special[static_cast<size_t>(token.id)] = token.special;
      if (token.normalized) {
        normalized_matcher.Add(token, spec.nfc ? ToNfc(token.content) : token.content);
      } else {
        raw_matcher.Add(token, token.content);
      }
    }
    if (!spec.ignore_merges) return;
    for (size_t id = 0; id < spec.present.size(); ++id) {
      if (spec.present[id]) whole_words.emplace(spec.token_bytes[id], static_cast<int32_t>(id));
    }
    // An added token is made from text by the matchers alone.
    for (const AddedToken& token : spec.added_tokens) whole_words.erase(token.content);
  }

  std::unique_ptr<Scratch> Take() {
    const std::lock_guard lock(pool_mutex);
    if (pool.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(pool.back());
    pool.pop_back();
    return scratch;
  }
  void GiveBack(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(pool_mutex);
    pool.push_back(std::move(scratch));
  }

  bool Known(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < spec.present.size() && spec.present[static_cast<size_t>(id)];
  }

  Status EncodeSpans(std::string_view text, bool allow_special, std::span<const size_t> protected_bytes,
                     Scratch* scratch, std::vector<int32_t>* ids) const;
  Status EncodeRaw(std::string_view text, bool allow_special, std::span<const size_t> protected_bytes,
                   Scratch* scratch, std::vector<int32_t>* ids) const;
  Status EncodeNormalized(std::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const;
  void EncodeWord(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const;
  void MergeWord(std::string_view word, std::vector<int32_t>* ids) const;

  TokenizerSpec spec;
  BpeMerger merger;
  size_t num_tokens = 0;
  std::vector<bool> special;  // [id_limit]
  AddedTokenMatcher raw_matcher;
  AddedTokenMatcher normalized_matcher;
  std::unordered_map<std::string, int32_t> whole_words;  // only with ignore_merges

  std::mutex pool_mutex;
  std::vector<std::unique_ptr<Scratch>> pool;
};

Status Tokenizer::Impl::EncodeSpans(std::string_view text, bool allow_special, std::span<const size_t> protected_bytes,
                                    Scratch* scratch, std::vector<int32_t>* ids) const {
  for (const AddedTokenMatcher::Span& span : raw_matcher.Cut(text, allow_special, protected_bytes)) {
    if (span.id >= 0) {
      ids->push_back(span.id);
      continue;
    }
    const auto first = std::lower_bound(protected_bytes.begin(), protected_bytes.end(), span.begin);
    const auto last = std::lower_bound(first, protected_bytes.end(), span.end);
    std::vector<size_t> inside(first, last);
    for (size_t& offset : inside) offset -= span.begin;
    RT_RETURN_IF_ERROR(
        EncodeRaw(text.substr(span.begin, span.end - span.begin), allow_special, inside, scratch, ids));
  }
  return {};
}

Status Tokenizer::Impl::EncodeRaw(std::string_view text, bool allow_special, std::span<const size_t> protected_bytes,
                                  Scratch* scratch, std::vector<int32_t>* ids) const {
  std::string normalized;
  const bool changes = spec.nfc && !IsTriviallyNfc(text);
  if (normalized_matcher.empty()) {
    if (changes) normalized = ToNfc(text);
    return EncodeNormalized(changes ? std::string_view(normalized) : text, scratch, ids);
  }
  // Protected bytes move with normalization: normalize up to each of them, so that its new place is known.
  std::vector<size_t> moved;
  size_t done = 0;
  for (const size_t offset : protected_bytes) {
    normalized += spec.nfc ? ToNfc(text.substr(done, offset - done)) : std::string(text.substr(done, offset - done));
    moved.push_back(normalized.size());
    done = offset;
  }
  normalized += spec.nfc ? ToNfc(text.substr(done)) : std::string(text.substr(done));
  for (const AddedTokenMatcher::Span& span : normalized_matcher.Cut(normalized, allow_special, moved)) {
    if (span.id >= 0) {
      ids->push_back(span.id);
    } else {
      const auto part = std::string_view(normalized).substr(span.begin, span.end - span.begin);
      RT_RETURN_IF_ERROR(EncodeNormalized(part, scratch, ids));
    }
  }
  return {};
}

Status Tokenizer::Impl::EncodeNormalized(std::string_view text, Scratch* scratch, std::vector<int32_t>* ids) const {
  return spec.pre_tokenizer.ForEachWord(text, &scratch->matcher, [&](std::string_view word) {
    EncodeWord(word, &scratch->cache, ids);
  });
}

void Tokenizer::Impl::EncodeWord(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const {
  if (word.size() > WordCache::kMaxWordBytes) return MergeWord(word, ids);
  WordCache::Entry& entry = cache->SlotFor(word);
  if (WordCache::Hit(entry, word)) {
    ids->insert(ids->end(), entry.tokens, entry.tokens + entry.num_tokens);
    return;
  }
  const size_t before = ids->size();
  MergeWord(word, ids);
  WordCache::Store(word, std::span(*ids).subspan(before), &entry);
}

void Tokenizer::Impl::MergeWord(std::string_view word, std::vector<int32_t>* ids) const {
  if (!whole_words.empty()) {
    if (const auto it = whole_words.find(std::string(word)); it != whole_words.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  merger.Encode(word, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& path) {
  std::error_code error;
  const auto file = std::filesystem::is_directory(path, error) ? path / "tokenizer.json" : path;
  RT_ASSIGN_OR_RETURN(const std::string json, ReadFile(file));
  auto result = FromJson(json);
  if (!result.ok()) return result.status().Annotate(file.string());
  return result;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view json) {
  RT_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(spec))));
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool allow_special,
                                               std::span<const size_t> protected_bytes) const {
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos) {
    return {Code::kInvalidArgument, "text: expected UTF-8, found an ill-formed sequence at byte " + std::to_string(bad)};
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  std::unique_ptr<Scratch> scratch = impl_->Take();
  const Status status = impl_->EncodeSpans(text, allow_special, protected_bytes, scratch.get(), &ids);
  impl_->GiveBack(std::move(scratch));
  if (!status.ok()) return status;
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  LossyUtf8Decoder decoder;
  for (const int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) decoder.Push(TokenBytes(id), &text);
  }
  decoder.Finish(&text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return impl_->Known(id) ? std::string_view(impl_->spec.token_bytes[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::HasToken(int32_t id) const { return impl_->Known(id); }

bool Tokenizer::IsSpecial(int32_t id) const { return impl_->Known(id) && impl_->special[static_cast<size_t>(id)]; }

int32_t Tokenizer::TokenToId(std::string_view token) const {
  const auto it = impl_->spec.token_to_id.find(std::string(token));
  return it == impl_->spec.token_to_id.end() ? -1 : it->second;
}

size_t Tokenizer::num_tokens() const { return impl_->num_tokens; }
int32_t Tokenizer::id_limit() const { return static_cast<int32_t>(impl_->spec.present.size()); }
const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->spec.added_tokens; }
const std::vector<int32_t>& Tokenizer::prefix_ids() const { return impl_->spec.prefix_ids; }
const std::vector<int32_t>& Tokenizer::suffix_ids() const { return impl_->spec.suffix_ids; }

}  // namespace rt
