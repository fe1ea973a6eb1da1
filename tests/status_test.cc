#include <rt/plugin/status.hpp>

#include <gtest/gtest.h>

#include <memory>

namespace rt {
namespace {

Result<std::unique_ptr<int>> MakePositive(int value) {
  if (value <= 0) return {Code::kInvalidArgument, "value: expected > 0, got " + std::to_string(value)};
  return std::make_unique<int>(value);
}

Result<int> Twice(int value) {
  RT_ASSIGN_OR_RETURN(auto owned, MakePositive(value));
  return *owned * 2;
}

TEST(Status, ResultCarriesMoveOnlyValuesThroughTheMacro) { EXPECT_EQ(Twice(21).value(), 42); }

TEST(Status, ErrorKeepsCodeAndNamesEachLayer) {
  const Status status = Twice(-1).status().Annotate("twice");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.ToString(), "INVALID_ARGUMENT: twice: value: expected > 0, got -1");
}

}  // namespace
}  // namespace rt
