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

// `text[pos]` is the first character of some special token, `first_size` bytes long.
bool SpecialMarks::MustMark(std::string_view text, size_t pos, size_t first_size) const {
  const std::string_view rest = text.substr(pos);
  const std::string_view after = rest.substr(first_size);
  // At the end, or before what a template may cut out, the next character is not known.
  if (OnlySpace(after)) return true;
  for (const std::string& other : *others_) {
    if (after.starts_with(other)) return true;
  }
  for (const std::string& token : *special_) {
    if (!rest.starts_with(FirstCharacter(token))) continue;
    if (token.size() == first_size) return true;
    size_t second_size = 0;
    DecodeUtf8At(token, first_size, &second_size);
    if (after.starts_with(std::string_view(token).substr(first_size, second_size))) return true;
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
    out.append(mark != nullptr && MustMark(text, pos, size) ? std::string_view(*mark) : character);
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
