#include "runtime/text/special_marks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/text/utf8.h"

namespace rt {
namespace {

const std::vector<std::string> kSpecial = {"<|im_end|>", "<|im_start|>", "\uFF5Cend\uFF5C", "<s>", "</s>"};
const std::vector<std::string> kOthers = {"</think>"};

SpecialMarks Choose(std::string_view used = "", uint64_t seed = 5) {
  auto marks = SpecialMarks::Choose(&kSpecial, &kOthers, used, seed);
  EXPECT_TRUE(marks.ok());
  return std::move(*marks);
}

TEST(SpecialMarks, EveryPossibleStartOfASpecialTokenIsMarkedAndComesBack) {
  const SpecialMarks marks = Choose();
  const std::vector<std::pair<std::string, std::vector<size_t>>> cases = {
      {"a<|im_end|>b<|im_start|>", {1, 12}},
      {"<|im_", {0}},                // another part may follow
      {"< \n", {0}},                 // a template may trim
      {"<</think>|im_end|>", {0}},   // a template may cut </think> out; the < of </think> itself stays
      {"\uFF5Cend\uFF5C", {0, 6}},
      {"<s></s>", {0, 3}},
      {"<s", {0}},
      {"<|im_</think>end|>", {0}},
      {"<|other|>", {0}},            // looks like a control token
      {"a < b, <b>, <script>, </think>, </section>, <think>", {}},
      {"plain", {}},
  };
  for (const auto& [text, expected] : cases) {
    const std::string marked = marks.Mark(text);
    std::vector<size_t> places;
    EXPECT_EQ(marks.Restore(marked, &places), text);
    EXPECT_EQ(places, expected) << text;
    EXPECT_EQ(marked == text, expected.empty());
  }
}

TEST(SpecialMarks, ChosenCodePointsOccurNowhereElse) {
  std::string used;
  for (char32_t cp = 0xF0000; cp < 0xFFFFE; ++cp) AppendUtf8(cp, &used);
  for (char32_t cp = 0x100000; cp < 0x10FFF0; ++cp) AppendUtf8(cp, &used);
  const SpecialMarks marks = Choose(used, 77);
  std::vector<size_t> places;
  EXPECT_EQ(marks.Restore(used, &places), used);
  EXPECT_TRUE(places.empty());
  for (char32_t cp = 0x10FFF0; cp < 0x10FFFE; ++cp) AppendUtf8(cp, &used);
  EXPECT_EQ(SpecialMarks::Choose(&kSpecial, &kOthers, used, 77).status().code(), Code::kInvalidArgument);
}

TEST(SpecialMarks, KeysAndNestedStringsAreMarkedAndTheirOrderStays) {
  const SpecialMarks marks = Choose();
  nlohmann::ordered_json value = {{"z<|im_end|>", {"<s>", 1, nullptr}}, {"a", {{"b", "<|im_end|>"}}}};
  const std::string before = value.dump();
  marks.MarkAll(&value);
  EXPECT_EQ(value.dump().find("<|"), std::string::npos);
  std::vector<size_t> places;
  EXPECT_EQ(marks.Restore(value.dump(), &places), before);
  EXPECT_EQ(places.size(), 3u);
}

}  // namespace
}  // namespace rt
