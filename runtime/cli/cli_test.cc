// Runs the `runtime` binary as a user does: exit codes, both option forms, suggestions.
#include "runtime/cli/exit_codes.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace rt {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string output;  // both streams
};

Outcome RunRuntime(const std::string& arguments) {
  const std::string command = "'" RT_RUNTIME_BINARY "' " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), count);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "rt_cli_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ / "good.yaml") << "server:\n  port: 81\n";
    std::ofstream(folder_ / "bad.yaml") << "server:\n  prot: 81\n";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string File(const char* name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST_F(Cli, HelpAndVersionEndWell) {
  EXPECT_EQ(RunRuntime("--help").exit_code, 0);
  EXPECT_EQ(RunRuntime("config --help").exit_code, 0);
  const Outcome version = RunRuntime("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(Contains(version.output, "runtime ")) << version.output;
}

TEST_F(Cli, WrongUsageGivesExitCode2AndASuggestion) {
  EXPECT_EQ(RunRuntime("").exit_code, 2);
  const Outcome command = RunRuntime("confg");
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_TRUE(Contains(command.output, "\"confg\": did you mean \"config\"?")) << command.output;
  const Outcome option = RunRuntime("config --confg=x");
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_TRUE(Contains(option.output, "\"--confg\": did you mean \"--config\"?")) << option.output;
}

TEST_F(Cli, BothFormsOfConfigAreTheSame) {
  const Outcome spaced = RunRuntime("config --config " + File("good.yaml"));
  const Outcome joined = RunRuntime("config --config=" + File("good.yaml"));
  EXPECT_EQ(spaced.exit_code, 0);
  EXPECT_EQ(joined.exit_code, 0);
  EXPECT_EQ(spaced.output, joined.output);
  EXPECT_TRUE(Contains(spaced.output, "server.port = 81 (" + File("good.yaml") + ":2)\n")) << spaced.output;
  EXPECT_TRUE(Contains(spaced.output, "server.host = \"127.0.0.1\" (default)\n")) << spaced.output;
}

TEST_F(Cli, TwoConfigFilesAreRefused) {
  EXPECT_EQ(RunRuntime("config --config " + File("good.yaml") + " --config " + File("good.yaml")).exit_code,
            2);
}

TEST_F(Cli, SetWinsOverTheFileInEitherOrder) {
  const std::string file = "--config " + File("good.yaml");
  for (const std::string& arguments : {"--set server.port=9 " + file, file + " --set=server.port=9"}) {
    const Outcome outcome = RunRuntime("config " + arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_TRUE(Contains(outcome.output, "server.port = 9 (--set)\n")) << outcome.output;
  }
  const Outcome two = RunRuntime("config --set server.port=9 --set log.level=warn");
  EXPECT_TRUE(Contains(two.output, "log.level = \"warn\" (--set)\n")) << two.output;
}

TEST_F(Cli, ConfigurationMistakesGiveExitCode2) {
  const Outcome bad = RunRuntime("config --config " + File("bad.yaml"));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.output, "runtime: " + File("bad.yaml") +
                            ":2:3: unknown key \"server.prot\"; did you mean \"server.port\"?\n");
  const Outcome absent = RunRuntime("config --config " + File("absent.yaml"));
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_EQ(absent.output, "runtime: " + File("absent.yaml") + ": no such file\n");
}

TEST_F(Cli, JsonNamesEverySource) {
  const Outcome outcome = RunRuntime("config --json --set server.port=9");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(Contains(outcome.output, "\"source\": \"--set\"")) << outcome.output;
}

TEST_F(Cli, TheDocumentationShowsTheCodesAndKeysOfTheSource) {
  std::ifstream in(RT_SOURCE_DIR "/docs/cli.md");
  std::stringstream text;
  text << in.rdbuf();
#define RT_CHECK_(name, value, meaning) \
  EXPECT_TRUE(Contains(text.str(), "| " + std::to_string(value) + " | " meaning " |")) << meaning;
  RT_EXIT_CODES(RT_CHECK_)
#undef RT_CHECK_
  std::ifstream reference(RT_SOURCE_DIR "/docs/configuration.md");
  std::stringstream keys;
  keys << reference.rdbuf();
  const Outcome outcome = RunRuntime("config --keys");
  EXPECT_TRUE(Contains(keys.str(), outcome.output))
      << "update docs/configuration.md from `runtime config --keys`";
}

}  // namespace
}  // namespace rt
