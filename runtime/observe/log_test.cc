#include "runtime/observe/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

namespace rt {
namespace {

TEST(Log, LevelDecidesWhatIsWrittenToStandardError) {
  ASSERT_TRUE(InitLogging({"warn"}).ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("quiet {}", 1);
  spdlog::warn("loud {}", 2);
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(output.find("quiet"), std::string::npos) << output;
  EXPECT_NE(output.find("loud 2"), std::string::npos) << output;
}

TEST(Log, UnknownLevelIsNamed) {
  const Status status = InitLogging({"verbose"});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("\"verbose\""), std::string::npos) << status.message();
}

}  // namespace
}  // namespace rt
