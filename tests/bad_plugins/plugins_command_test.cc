// `runtime plugins` as a user runs it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <string>

namespace rt {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome RunPlugins(const std::string& arguments) {
  FILE* pipe = popen(("'" RT_RUNTIME_BINARY "' plugins " + arguments + " 2>&1").c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), count);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string Case(const std::string& name) { return RT_CASE_DIR "/librt_" + name + ".so"; }

TEST(PluginsCommand, ListsLoadedAndRefusedFiles) {
  const Outcome outcome =
      RunPlugins("list --json --plugin " + Case("good") + " --plugin " + Case("null_query"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json list = nlohmann::json::parse(outcome.output, nullptr, false);
  ASSERT_TRUE(list.is_object()) << outcome.output;
  bool found = false;
  for (const nlohmann::json& plugin : list["loaded"])
    found = found || (plugin["name"] == "good" && plugin["source"] == "command line");
  EXPECT_TRUE(found) << outcome.output;
  ASSERT_EQ(list["rejected"].size(), 1u) << outcome.output;
  EXPECT_EQ(list["rejected"][0]["reason"], "rt_plugin_query_v1 returned NULL");
}

TEST(PluginsCommand, ARequiredPluginThatIsMissingGivesExitCode3) {
  const Outcome outcome =
      RunPlugins("list --plugin " + Case("other_draft") + " --set plugins.required=[other_draft]");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.output.find("required plugin \"other_draft\" did not load"), std::string::npos)
      << outcome.output;
}

TEST(PluginsCommand, InspectShowsTheVerdict) {
  const Outcome good = RunPlugins("inspect " + Case("good"));
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_NE(good.output.find("verdict  ok"), std::string::npos) << good.output;
  const Outcome bad = RunPlugins("inspect --static " + Case("no_manifest"));
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_NE(bad.output.find("verdict  refused: no manifest"), std::string::npos) << bad.output;
  EXPECT_EQ(RunPlugins("inspect /nonexistent.so").exit_code, 3);
  EXPECT_EQ(RunPlugins("inspect").exit_code, 2);
  EXPECT_EQ(RunPlugins("").exit_code, 2);
}

}  // namespace
}  // namespace rt
