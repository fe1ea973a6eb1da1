#include "tests/cli/runtime_process.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

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
  for (const char* op : {"embedding", "linear", "linear_mixer", "attention_mixer", "add_rms_norm",
                         "gather_rows", "sample", "select_ids"}) {
    EXPECT_TRUE(ops.count(op) == 1) << op << " is not in the report";
  }
  const auto state = std::find_if(report["caches"].begin(), report["caches"].end(),
                                  [](const json& cache) { return cache["name"] == "recurrent_state"; });
  ASSERT_NE(state, report["caches"].end());
  EXPECT_EQ((*state)["dtype"], "float32");
  EXPECT_EQ((*state)["decided_by"], "model");
  EXPECT_EQ(report["device"]["threads"], 1);
  EXPECT_NE(report["program"].get<std::string>().find("linear_mixer"), std::string::npos);
}

TEST(Explain, ASecondFamilyIsExplainedByTheSameWords) {
  const RunResult run = RunRuntime(TinyArguments("explain", {"--json"}, "tiny-kda"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = json::parse(run.out);
  std::set<std::string> ops, caches;
  for (const json& decision : report["decisions"]) {
    ops.insert(decision["op"]);
    EXPECT_TRUE(decision["decomposed"].get<bool>() || decision["chosen"].is_object()) << decision.dump(2);
    if (decision["op"] == "linear_mixer") {
      EXPECT_EQ(decision["columns"]["gate_width"], "128");
    }
  }
  for (const char* op : {"linear_mixer", "mla_mixer", "moe_block", "moe_router", "moe_experts"})
    EXPECT_TRUE(ops.count(op) == 1) << op << " is not in the report";
  for (const json& cache : report["caches"]) caches.insert(cache["name"]);
  EXPECT_EQ(caches, (std::set<std::string>{"conv_state", "latent_kv", "recurrent_state"}));
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

TEST(Start, StartUpsThatMustFailNameTheCauseAndGiveTheirCode) {
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

// The small model with one file changed: links to its files, and `name` holds `text` instead (removed if
// empty).
fs::path ModelWith(const Folder& folder, const std::string& name, const std::string& text) {
  static int count = 0;
  const fs::path model = folder.path() / ("model" + std::to_string(count++));
  fs::create_directory(model);
  for (const auto& file : fs::directory_iterator(RT_ZOO_DIR "/tiny-gdn")) {
    if (file.path().filename() != name) fs::create_symlink(file.path(), model / file.path().filename());
  }
  if (!text.empty()) std::ofstream(model / name, std::ios::binary) << text;
  return model;
}

std::string FileText(const std::string& name) {
  std::ifstream in(RT_ZOO_DIR "/tiny-gdn/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("the model's file holds no " + from);
  return text.replace(at, from.size(), to);
}

TEST(Start, BrokenCheckpointsAreNamedBeforeAnyWeightIsRead) {
  const Folder folder;
  const std::string shard = "model-00002-of-00002.safetensors", index = "model.safetensors.index.json";
  struct Case {
    std::string file, text;
    std::vector<std::string> messages;
  };
  const Case cases[] = {
      {"config.json", "{", {"config.json"}},
      {"config.json",
       Replaced(FileText("config.json"), "\"hidden_size\": 256", "\"hidden_size\": 0"),
       {"hidden_size"}},
      {"config.json",
       Replaced(FileText("config.json"), "\"num_hidden_layers\": 8", "\"num_hidden_layers\": \"8\""),
       {"num_hidden_layers"}},
      {shard, "", {shard}},
      {shard, FileText(shard).substr(0, 4000), {shard}},
      {shard, FileText(shard).substr(0, 500000), {shard}},
      {index, "[]", {index}},
      {index,
       Replaced(FileText(index), shard, "model-00009-of-00002.safetensors"),
       {"model-00009-of-00002.safetensors"}},
      {"tokenizer.json", "{}", {"tokenizer.json"}},
      {"tokenizer.json",
       Replaced(FileText("tokenizer.json"), "\"BPE\"", "\"Unigram\""),
       {"tokenizer.json", "Unigram"}},
      {"generation_config.json", R"({"temperature": "hot"})", {"generation_config.json", "temperature"}},
      {"tokenizer_config.json", "{", {"tokenizer_config.json"}},
  };
  for (const Case& test : cases) {
    const fs::path model = ModelWith(folder, test.file, test.text);
    const RunResult run = RunRuntime(TinyArguments("explain", {"--set", "model.path=" + model.string()}));
    EXPECT_EQ(run.exit_code, 4) << test.file << "\n" << run.err;
    for (const std::string& message : test.messages)
      EXPECT_NE(run.err.find(message), std::string::npos) << message << "\n" << run.err;
    EXPECT_EQ(run.out, "") << test.file;
  }
}

// What only the loading of weights can see; `generate` stops there.
TEST(Start, WrongTensorsAreNamedAndGiveTheCheckpointsCode) {
  const Folder folder;
  const std::string gate = "model.layers.0.linear_attn.A_log";
  const std::string shard = json::parse(FileText("model.safetensors.index.json"))["weight_map"][gate];
  std::string nan = FileText(shard);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, nan.data(), sizeof header_bytes);
  const json header = json::parse(nan.substr(8, header_bytes));
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(nan.data() + 8 + header_bytes + header[gate]["data_offsets"][0].get<size_t>() + sizeof(float),
              &not_a_number, sizeof not_a_number);
  const std::string misspelt = "model.layers.0.linear_attn.A_loh";

  const fs::path with_nan = ModelWith(folder, shard, nan);
  const fs::path renamed = ModelWith(folder, shard, Replaced(FileText(shard), gate, misspelt));
  fs::remove(renamed / "model.safetensors.index.json");
  std::ofstream(renamed / "model.safetensors.index.json")
      << Replaced(FileText("model.safetensors.index.json"), gate, misspelt);
  const std::pair<fs::path, std::vector<std::string>> cases[] = {{with_nan, {gate, "NaN"}},
                                                                 {renamed, {gate, misspelt}}};
  for (const auto& [model, messages] : cases) {
    const RunResult run =
        RunRuntime(TinyArguments("generate", {"--ids", "1", "--set", "model.path=" + model.string()}));
    EXPECT_EQ(run.exit_code, 4) << run.err;
    for (const std::string& message : messages)
      EXPECT_NE(run.err.find(message), std::string::npos) << message << "\n" << run.err;
    EXPECT_EQ(run.out, "");
  }
}

}  // namespace
}  // namespace rt::testing
