#include "tests/cli/runtime_process.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace rt::testing {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "rt_explain_XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string Write(const char* name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Explain, JsonNamesEveryOpWithItsKernelAndTheReasonsOfTheOthers) {
  const RunResult run = RunRuntime(TinyArguments("explain", {"--json", "--program"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = json::parse(run.out);
  std::set<std::string> ops;
  for (const json& decision : report["decisions"]) {
    ops.insert(decision["op"]);
    EXPECT_TRUE(decision["decomposed"].get<bool>() || decision["chosen"].is_object()) << decision.dump(2);
    EXPECT_EQ(decision["requested"], "auto");
    for (const json& candidate : decision["candidates"]) {
      const bool chosen = candidate["verdict"] == "chosen";
      EXPECT_EQ(chosen, decision["chosen"].is_object() &&
                            candidate["kernel"] == decision["chosen"]["kernel"] && chosen)
          << candidate.dump();
      EXPECT_TRUE(chosen || candidate["verdict"] == "eligible" || !candidate["reasons"].empty())
          << candidate.dump();
    }
    if (decision["op"] == "linear_mixer") {
      EXPECT_EQ(decision["columns"]["head_k_dim"], "128");
    }
  }
  for (const char* op :
       {"embedding", "linear", "linear_mixer", "attention_mixer", "add_rms_norm", "gather_rows", "sample", "select_ids"}) {
    EXPECT_TRUE(ops.count(op) == 1) << op << " is not in the report";
  }
  const auto state = std::find_if(report["caches"].begin(), report["caches"].end(),
                                  [](const json& cache) { return cache["name"] == "recurrent_state"; });
  ASSERT_NE(state, report["caches"].end());
  EXPECT_EQ((*state)["dtype"], "float32");
  EXPECT_EQ((*state)["decided_by"], "model");
  EXPECT_EQ(report["device"]["threads"], 2);
  EXPECT_NE(report["program"].get<std::string>().find("linear_mixer"), std::string::npos);
}

TEST(Explain, TextTellsWhatDecidedTheState) {
  const RunResult run = RunRuntime(TinyArguments("explain", {"--set", "cache.state_dtype=bfloat16"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"linear_mixer", "requested auto", "head_k_dim", "recurrent_state", "bfloat16",
                           "decided by user", "CHOSEN", "summary"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
  EXPECT_EQ(run.out.find("\nprogram\n"), std::string::npos);
}

TEST(Explain, StartUpsThatMustFailNameTheCauseAndGiveTheirCode) {
  const Folder folder;
  const std::string empty = folder.path().string();
  const std::string unknown_key = folder.Write("bad.yaml", "model:\n  path: x\n  pth: y\n");
  const std::string wrong_type = folder.Write("type.yaml", "engine:\n  max_sequences: many\n");
  fs::create_directory(folder.path() / "foreign");
  folder.Write("foreign/config.json", R"({"architectures": ["Qwen3_5ForCausalLN"]})");
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::vector<std::string> messages;
  };
  const Case cases[] = {
      {{"explain", "--config", unknown_key},
       2,
       {"bad.yaml:3:3: unknown key \"model.pth\"; did you mean \"model.path\"?"}},
      {{"explain", "--config", wrong_type}, 2, {"type.yaml:2:18: "}},
      {{"explain"}, 2, {"model.path: expected a model folder"}},
      {TinyArguments("explain", {"--set", "log.level=loud"}), 2, {"log.level"}},
      {TinyArguments("explain", {"--set", "negotiation.pin.linear_mixer=nobody"}),
       3,
       {"linear_mixer", "nobody"}},
      {TinyArguments("explain", {"--set", "linear_attention.backend=nobody"}), 3, {"nobody"}},
      {TinyArguments("explain", {"--set", "plugins.required=[absent]"}), 3, {"absent"}},
      {TinyArguments("explain", {"--set", "negotiation.deny=[cpu]"}), 3, {"cpu", "denied"}},
      {TinyArguments("explain", {"--set", "model.path=" + empty}),
       4,
       {empty + "/config.json: cannot be read"}},
      {TinyArguments("explain", {"--set", "model.path=" + empty + "/foreign"}),
       4,
       {"Qwen3_5ForCausalLN", "nearest: Qwen3_5ForCausalLM"}},
      {TinyArguments("explain", {"--set", "model.tokenizer=" + empty}),
       4,
       {"model.tokenizer: expected tokenizer.json", empty}},
  };
  for (const Case& test : cases) {
    const RunResult run = RunRuntime(test.arguments);
    EXPECT_EQ(run.exit_code, test.exit_code) << test.messages[0] << "\n" << run.err;
    for (const std::string& message : test.messages)
      EXPECT_NE(run.err.find(message), std::string::npos) << message << "\n" << run.err;
    EXPECT_EQ(run.out, "") << test.messages[0];
  }
}

}  // namespace
}  // namespace rt::testing
