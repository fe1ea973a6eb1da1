#include "runtime/observe/log.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <sstream>
#include <string>

namespace rt {
namespace {

TEST(Log, LevelDecidesWhatIsWrittenToStandardError) {
  ASSERT_TRUE(InitLogging({"warn", "text"}).ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("quiet {}", 1);
  spdlog::warn("loud {}", 2);
  const std::string output = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(output.find("quiet"), std::string::npos) << output;
  EXPECT_NE(output.find("loud 2"), std::string::npos) << output;
}

TEST(Log, JsonFormIsOneObjectALineWhateverTheMessageHolds) {
  ASSERT_TRUE(InitLogging({"info", "json"}).ok());
  ::testing::internal::CaptureStderr();
  spdlog::info("two\nlines, a \"quote\" and a bad byte \xff");
  spdlog::warn("second");
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line, nullptr, false);
  EXPECT_EQ(first.value("message", ""), "two\nlines, a \"quote\" and a bad byte \xef\xbf\xbd") << line;
  EXPECT_EQ(first.value("level", ""), "info");
  EXPECT_EQ(first.value("time", "").size(), std::string("2026-01-02T03:04:05.678Z").size()) << line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line, nullptr, false).value("level", ""), "warning");
}

TEST(Log, UnknownLevelAndFormatAreNamed) {
  const Status level = InitLogging({"verbose", "text"});
  EXPECT_EQ(level.code(), Code::kInvalidArgument);
  EXPECT_NE(level.message().find("\"verbose\""), std::string::npos) << level.message();
  const Status format = InitLogging({"info", "xml"});
  EXPECT_EQ(format.code(), Code::kInvalidArgument);
  EXPECT_NE(format.message().find("\"xml\""), std::string::npos) << format.message();
}

}  // namespace
}  // namespace rt
