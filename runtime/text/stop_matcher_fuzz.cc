// First line: stop strings separated by byte 1. The rest: text, cut after each byte 2. However it is cut, the result is
// the same as in one piece, and what is shown never holds a stop string.
#include "runtime/text/stop_matcher.h"

#include <cstdint>
#include <cstdlib>

namespace {

std::vector<std::string> Cut(std::string_view text, char border) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == border) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = input.find('\n');
  if (line == std::string_view::npos) return 0;
  const std::vector<std::string> stops = Cut(input.substr(0, line), '\1');
  auto cut = rt::StopMatcher::Create(stops);
  auto whole = rt::StopMatcher::Create(stops);
  if (!cut.ok()) return 0;
  std::string shown;
  std::string text;
  for (const std::string& part : Cut(input.substr(line + 1), '\2')) {
    shown += cut->Push(part);
    text += part;
  }
  shown += cut->Finish();
  std::string expected = whole->Push(text);
  expected += whole->Finish();
  if (shown != expected || cut->matched() != whole->matched()) std::abort();
  for (const std::string& stop : stops) {
    if (shown.find(stop) != std::string::npos) std::abort();
  }
  return 0;
}
