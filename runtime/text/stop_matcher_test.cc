#include "runtime/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rt {
namespace {

StopMatcher Make(std::vector<std::string> stops) {
  auto matcher = StopMatcher::Create(std::move(stops));
  EXPECT_TRUE(matcher.ok());
  return std::move(*matcher);
}

// What is shown of `text`, by definition: up to the start of the stop that is complete first, the longest of equals.
std::string Reference(const std::vector<std::string>& stops, const std::string& text, bool* stopped) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return *stopped = true, text.substr(0, end - longest);
  }
  return *stopped = false, text;
}

TEST(StopMatcher, AStopIsFoundAcrossAnyBorder) {
  const std::vector<std::vector<std::string>> cuts = {
      {"xE", "NDy"}, {"xEN", "Dy"}, {"x", "E", "N", "D", "y"}, {"xENDy"}, {"x", "END"}, {"xE", "", "ND"}};
  for (const auto& pieces : cuts) {
    StopMatcher matcher = Make({"END"});
    std::string shown;
    for (const std::string& piece : pieces) shown += matcher.Push(piece);
    EXPECT_EQ(shown + matcher.Finish(), "x");
    EXPECT_EQ(matcher.matched(), 0);
  }
}

TEST(StopMatcher, AStopAtTheFirstTokenShowsNothing) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Push("END and more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Push("ignored"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, AHalfStopIsShownAtTheEnd) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Push("the EN"), "the ");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  EXPECT_EQ(matcher.Finish(), "EN");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, OnlyARealPrefixIsHeld) {
  StopMatcher matcher = Make({"\n\nUser:", "</s>"});
  EXPECT_EQ(matcher.Push("a\n"), "a");
  EXPECT_EQ(matcher.Push("b"), "\nb");
  EXPECT_EQ(matcher.Push("\n\n\n"), "\n");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  EXPECT_EQ(matcher.Push("User"), "");
  EXPECT_EQ(matcher.Push("s <"), "\n\nUsers ");
  EXPECT_EQ(matcher.Finish(), "<");
}

TEST(StopMatcher, AStopThatOverlapsItselfIsFoundAtItsFirstEnd) {
  StopMatcher matcher = Make({"aab"});
  EXPECT_EQ(matcher.Push("aaa"), "a");
  EXPECT_EQ(matcher.Push("b"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopMatcher, OfStopsThatEndTogetherTheLongestWins) {
  StopMatcher matcher = Make({"D", "END"});
  EXPECT_EQ(matcher.Push("the END"), "the ");
  EXPECT_EQ(matcher.matched(), 1);
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, AnEmptyStopIsRefusedByIndex) {
  const auto result = StopMatcher::Create({"a", ""});
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(result.status().message(), "stop[1]: expected text, found \"\"");
}

TEST(StopMatcher, ResultDoesNotDependOnHowTextIsCut) {
  std::mt19937 random(17);
  const std::string letters[] = {"a", "b", "\u65E5", "\U0001F600"};
  const auto word = [&](size_t max) {
    std::string text;
    for (size_t n = 1 + random() % max; n > 0; --n) text += letters[random() % 4];
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(30);
    bool stopped = false;
    const std::string expected = Reference(stops, text, &stopped);
    StopMatcher matcher = Make(stops);
    std::string shown;
    for (size_t pos = 0; pos < text.size();) {
      size_t size = 1 + random() % 6;
      while (pos + size < text.size() && (static_cast<uint8_t>(text[pos + size]) & 0xC0) == 0x80) ++size;
      shown += matcher.Push(std::string_view(text).substr(pos, size));
      ASSERT_EQ(shown, expected.substr(0, shown.size())) << "round " << round;
      pos += size;
    }
    ASSERT_EQ(shown + matcher.Finish(), expected) << "round " << round;
    ASSERT_EQ(matcher.stopped(), stopped);
  }
}

}  // namespace
}  // namespace rt
