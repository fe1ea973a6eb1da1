// Client text in parts (separated by byte 1), trimmed, freed of </t> and joined as a template might: whatever the parts
// are, no special token comes out, and the text comes back as it was.
#include "runtime/text/special_marks.h"

#include <cstdint>
#include <cstdlib>

#include "runtime/text/added_tokens.h"
#include "runtime/text/utf8.h"

namespace {

const std::vector<std::string> kSpecial = {"<|a|>", "<s>", "</s>", "\xEF\xBD\x9C" "e\xEF\xBD\x9C"};
const std::vector<std::string> kOthers = {"</t>"};

std::string Trim(std::string text) {
  const char* kSpace = " \n\t";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void Remove(const std::string& what, std::string* text) {
  for (size_t at = text->find(what); at != std::string::npos; at = text->find(what, at)) text->erase(at, what.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  if (rt::FindInvalidUtf8(input) != std::string::npos) return 0;
  auto marks = rt::SpecialMarks::Choose(&kSpecial, &kOthers, input, size * 7919);
  if (!marks.ok()) return 0;
  std::vector<size_t> places;
  if (marks->Restore(marks->Mark(input), &places) != input) std::abort();
  std::string joined;
  for (size_t begin = 0; begin <= input.size();) {
    const size_t end = std::min(input.find('\1', begin), input.size());
    std::string part = marks->Mark(input.substr(begin, end - begin));
    Remove(kOthers[0], &part);
    joined += Trim(part);
    begin = end + 1;
  }
  places.clear();
  const std::string text = marks->Restore(joined, &places);
  rt::AddedTokenMatcher matcher;
  for (size_t i = 0; i < kSpecial.size(); ++i) {
    rt::AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.special = true;
    matcher.Add(token, kSpecial[i]);
  }
  for (const auto& span : matcher.Cut(text, true, places)) {
    if (span.id >= 0) std::abort();
  }
  return 0;
}
