#include "runtime/text/added_tokens.h"

#include <algorithm>

#include "runtime/text/utf8.h"

namespace rt {
namespace {

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  size_t size = 0;
  if (begin > 0 && IsUnicodeWord(DecodeUtf8Before(text, begin, &size))) return true;
  return end < text.size() && IsUnicodeWord(DecodeUtf8At(text, end, &size));
}

size_t SkipSpaceBefore(std::string_view text, size_t begin, size_t limit) {
  size_t size = 0;
  while (begin > limit && IsUnicodeSpace(DecodeUtf8Before(text, begin, &size))) begin -= size;
  return std::max(begin, limit);
}

size_t SkipSpaceAfter(std::string_view text, size_t end) {
  size_t size = 0;
  while (end < text.size() && IsUnicodeSpace(DecodeUtf8At(text, end, &size))) end += size;
  return end;
}

bool Holds(std::span<const size_t> sorted, size_t begin, size_t end) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), begin);
  return it != sorted.end() && *it < end;
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, std::string content) {
  const auto first = static_cast<uint8_t>(content[0]);
  if (!is_first_byte_[first]) ++num_first_bytes_;
  is_first_byte_[first] = true;
  std::vector<uint32_t>& bucket = by_first_byte_[first];
  const auto index = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back({token, std::move(content)});
  const auto longer = [this](uint32_t a, uint32_t b) { return tokens_[a].content.size() > tokens_[b].content.size(); };
  bucket.insert(std::upper_bound(bucket.begin(), bucket.end(), index, longer), index);
}

// The next position whose byte begins some token. Mostly all tokens begin with '<', which memchr finds fastest.
size_t AddedTokenMatcher::NextCandidate(std::string_view text, size_t pos) const {
  if (num_first_bytes_ == 1) return std::min(text.find(tokens_[0].content[0], pos), text.size());
  while (pos < text.size() && !is_first_byte_[static_cast<uint8_t>(text[pos])]) ++pos;
  return pos;
}

const AddedTokenMatcher::Pattern* AddedTokenMatcher::LongestAt(std::string_view text, size_t pos) const {
  for (const uint32_t index : by_first_byte_[static_cast<uint8_t>(text[pos])]) {
    if (text.compare(pos, tokens_[index].content.size(), tokens_[index].content) == 0) return &tokens_[index];
  }
  return nullptr;
}

std::vector<AddedTokenMatcher::Span> AddedTokenMatcher::Cut(std::string_view text, bool allow_special,
                                                            std::span<const size_t> protected_bytes) const {
  std::vector<Span> spans;
  size_t done = 0;
  for (size_t pos = NextCandidate(text, 0); pos < text.size(); pos = NextCandidate(text, pos)) {
    const Pattern* found = LongestAt(text, pos);
    if (found == nullptr) {
      ++pos;
      continue;
    }
    const AddedToken& token = found->token;
    size_t begin = pos;
    size_t end = pos + found->content.size();
    const bool refused = token.special && (!allow_special || Holds(protected_bytes, begin, end));
    if (refused || (token.single_word && TouchesWord(text, begin, end))) {
      ++pos;
      continue;
    }
    if (token.lstrip) begin = SkipSpaceBefore(text, begin, done);
    if (token.rstrip) end = SkipSpaceAfter(text, end);
    if (begin > done) spans.push_back({done, begin, -1});
    spans.push_back({begin, end, token.id});
    pos = done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), -1});
  return spans;
}

}  // namespace rt
