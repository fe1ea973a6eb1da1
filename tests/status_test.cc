#include <rt/plugin/plugin.hpp>
#include <rt/plugin/status.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

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

// A caller built against newer headers: the same struct with a tail.
struct NewerDesc {
  rt_backend_desc known;
  unsigned char tail[16];
};

TEST(StructSize, ZeroTailOfANewerCallerIsAcceptedAndASetOneRefused) {
  NewerDesc desc = {};
  desc.known.struct_size = sizeof desc;
  EXPECT_TRUE(plugin::CheckStruct(&desc.known, "rt_backend_desc").ok());
  desc.tail[3] = 1;
  const Status status = plugin::CheckStruct(&desc.known, "rt_backend_desc");
  EXPECT_EQ(status.code(), Code::kUnsupportedStruct);
  EXPECT_EQ(status.message(), "rt_backend_desc: byte 35 is set; this side knows 32 bytes");
}

TEST(StructSize, TooSmallTooLargeAndMissingStructsAreRefused) {
  rt_backend_desc desc = {};
  for (const uint32_t size : {0u, 4u, 31u, 65537u}) {
    desc.struct_size = size;
    EXPECT_EQ(plugin::CheckStruct(&desc, "rt_backend_desc").code(), Code::kBadStruct) << size;
  }
  EXPECT_EQ(plugin::CheckStruct<rt_backend_desc>(nullptr, "rt_backend_desc").code(), Code::kInvalidArgument);
}

TEST(Trampoline, ExceptionsBecomeCodesAndLongTextsAreCutOnACharacter) {
  rt_error error = {};
  error.struct_size = sizeof error;
  EXPECT_EQ(plugin::Guard(&error, []() -> Status { throw std::runtime_error("boom"); }), RT_INTERNAL);
  EXPECT_STREQ(error.message, "exception in plugin: boom");
  EXPECT_EQ(plugin::Guard(&error, []() -> Status { throw 7; }), RT_INTERNAL);
  EXPECT_EQ(plugin::Guard(&error, []() -> Status { throw std::bad_alloc(); }), RT_RESOURCE_EXHAUSTED);
  char small[5];
  plugin::CopyText(small, sizeof small, "ab\xC3\xA9\xC3\xA9");
  EXPECT_STREQ(small, "ab\xC3\xA9");
  char cut[4];
  plugin::CopyText(cut, sizeof cut, "ab\xC3\xA9");
  EXPECT_STREQ(cut, "ab");
}

}  // namespace
}  // namespace rt
