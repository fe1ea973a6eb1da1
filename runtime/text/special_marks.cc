#include "runtime/text/special_marks.h"

#include <nlohmann/json.hpp>
#include <set>

#include "runtime/text/utf8.h"

namespace rt {
namespace {

using Json = nlohmann::ordered_json;

// The private-use planes without their last two code points, which are noncharacters.
constexpr char32_t kPlaneSize = 0xFFFE;
constexpr char32_t kCandidates = 2 * kPlaneSize;

char32_t Candidate(uint64_t n) {
  const auto i = static_cast<char32_t>(n % kCandidates);
  return i < kPlaneSize ? 0xF0000 + i : 0x100000 + (i - kPlaneSize);
}

std::string_view FirstCharacter(std::string_view text) {
  size_t size = 0;
  DecodeUtf8At(text, 0, &size);
  return text.substr(0, size);
}

std::set<char32_t> PrivateUseIn(std::string_view text) {
  std::set<char32_t> found;
  for (size_t pos = 0, size = 0; pos < text.size(); pos += size) {
    const char32_t cp = DecodeUtf8At(text, pos, &size);
    if (cp >= 0xF0000) found.insert(cp);
  }
  return found;
}

// Bytes of the characters that both begin with.
size_t CommonPrefix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  const auto splits = [&n](std::string_view text) {
    return n < text.size() && (static_cast<uint8_t>(text[n]) & 0xC0) == 0x80;
  };
  while (n > 0 && (splits(a) || splits(b))) --n;
  return n;
}

bool IsTagCharacter(char32_t cp) { return cp == '/' || IsUnicodeWord(cp); }

bool OnlySpace(std::string_view text) {
  for (size_t pos = 0, size = 0; pos < text.size(); pos += size) {
    if (!IsUnicodeSpace(DecodeUtf8At(text, pos, &size))) return false;
  }
  return true;
}

}  // namespace

Result<SpecialMarks> SpecialMarks::Choose(const std::vector<std::string>* special, const std::vector<std::string>* others,
                                          std::string_view used, uint64_t seed) {
  SpecialMarks marks;
  marks.special_ = special;
  marks.others_ = others;
  std::set<char32_t> taken = PrivateUseIn(used);
  uint64_t next = seed % kCandidates;
  for (const std::string& token : *special) {
    const std::string first(FirstCharacter(token));
    if (marks.mark_of_.count(first) != 0) continue;
    marks.first_bytes_[static_cast<uint8_t>(first[0])] = true;
    if (taken.size() >= kCandidates) {
      return {Code::kInvalidArgument, "messages: use every private-use character, so that none is left for us"};
    }
    while (taken.count(Candidate(next)) != 0) ++next;
    taken.insert(Candidate(next));
    AppendUtf8(Candidate(next), &marks.mark_of_[first]);
  }
  return marks;
}

const std::string* SpecialMarks::MarkOf(std::string_view character) const {
  if (!first_bytes_[static_cast<uint8_t>(character[0])]) return nullptr;
  const auto it = mark_of_.find(character);
  return it == mark_of_.end() ? nullptr : &it->second;
}

// True if the character that begins `rest` might come to begin a special token in the rendered text. Templates look for
// strings in messages ("</think>"), so what cannot become a token must not be marked.
bool SpecialMarks::MustMark(std::string_view rest) const {
  for (const std::string& token : *special_) {
    const size_t common = CommonPrefix(rest, token);
    if (common == 0) continue;
    if (common == token.size()) return true;
    // A beginning of a token, at the end or before what a template may cut out: what will follow is not known.
    const std::string_view after = rest.substr(common);
    if (OnlySpace(after) || StartsWithOther(after)) return true;
    // "<|": only control tokens look like that, so be strict. "</" and "<s" are other people's tags as well.
    const size_t first = FirstCharacter(token).size();
    size_t size = 0;
    if (common > first && !IsTagCharacter(DecodeUtf8At(token, first, &size))) return true;
  }
  return false;
}

bool SpecialMarks::StartsWithOther(std::string_view text) const {
  for (const std::string& other : *others_) {
    if (text.starts_with(other)) return true;
  }
  return false;
}

std::string SpecialMarks::Mark(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0, size = 0; pos < text.size(); pos += size) {
    DecodeUtf8At(text, pos, &size);
    const std::string_view character = text.substr(pos, size);
    const std::string* mark = MarkOf(character);
    out.append(mark != nullptr && MustMark(text.substr(pos)) ? std::string_view(*mark) : character);
  }
  return out;
}

void SpecialMarks::MarkAll(Json* value) const {
  if (value->is_string()) {
    *value = Mark(value->get_ref<const std::string&>());
  } else if (value->is_array()) {
    for (Json& item : *value) MarkAll(&item);
  } else if (value->is_object()) {
    Json marked = Json::object();
    for (auto& [key, item] : value->items()) {
      MarkAll(&item);
      marked[Mark(key)] = std::move(item);
    }
    *value = std::move(marked);
  }
}

std::string SpecialMarks::Restore(std::string_view text, std::vector<size_t>* places) const {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0, size = 0; pos < text.size(); pos += size) {
    const bool supplementary = static_cast<uint8_t>(text[pos]) >= 0xF3;  // the private-use planes begin with F3 B0
    DecodeUtf8At(text, pos, &size);
    const std::string_view character = text.substr(pos, size);
    bool restored = false;
    if (supplementary) {
      for (const auto& [first, mark] : mark_of_) {
        if (mark != character) continue;
        places->push_back(out.size());
        out += first;
        restored = true;
      }
    }
    if (!restored) out += character;
  }
  return out;
}

std::string SpecialMarks::Marks() const {
  std::string all;
  for (const auto& [first, mark] : mark_of_) all += mark;
  return all;
}

}  // namespace rt
