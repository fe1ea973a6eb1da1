#include "tests/cli/runtime_process.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace rt::testing {
namespace {

using nlohmann::json;

std::string Join(const json& ids) {
  std::string text;
  for (const json& id : ids) text += (text.empty() ? "" : ",") + id.dump();
  return text;
}

std::vector<json> JsonLines(const std::string& text) {
  std::vector<json> values;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) values.push_back(json::parse(line, nullptr, false));
  return values;
}

// "</think>…" of the golden continues past the end token; the answer of a chat ends there.
const char kSumAnswer[] =
    "<think>\nones: 2 + 5 + 0 = 7\ntens: 1 + 4 + 0 = 5\nhundreds: 0 + 3 + 0 = 3\n</think>\n\n12 + 345 = 357";

class GenerateOfFamily : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, GenerateOfFamily, ::testing::Values("tiny-gdn", "tiny-kda"),
                         [](const auto& info) { return info.index == 0 ? "gdn" : "kda"; });

TEST_P(GenerateOfFamily, IdsGiveTheGoldenTokens) {
  const json golden = GoldenPrompt("add", GetParam());
  const RunResult run =
      RunRuntime(TinyArguments("generate",
                               {"--ids", Join(golden["input_ids"]), "--greedy", "--max-tokens", "48",
                                "--ignore-eos", "--json", "--logprobs", "2"},
                               GetParam()));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer["token_ids"], golden["tokens"]) << answer["text"];
  EXPECT_EQ(answer["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], golden["input_ids"].size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 48);
  EXPECT_GT(answer["timings"]["decode_tokens_per_s"], 0);
  ASSERT_EQ(answer["logprobs"].size(), 48u);
  for (size_t i = 0; i < 48; ++i) {
    // 1e-3: the goldens' float32 logits differ from ours by far less; a wrong distribution by far more.
    EXPECT_NEAR(answer["logprobs"][i]["logprob"].get<double>(), golden["steps"][i]["logprob"].get<double>(),
                1e-3)
        << "token " << i;
    EXPECT_EQ(answer["logprobs"][i]["top"].size(), 2u);
  }
}

TEST(Generate, AChatIsAnsweredOnStandardOutputAndNothingElse) {
  const RunResult run = RunRuntime(TinyArguments("generate", {"--greedy", "--chat", "What is 12 + 345?"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, std::string(kSumAnswer) + "\n");
  EXPECT_EQ(run.err, "");
}

TEST(Generate, EverySourceOfAPromptGivesTheSameAnswer) {
  const json golden = GoldenPrompt("add");
  const std::string question = "What is 12 + 345?";
  const json messages = json::array({{{"role", "user"}, {"content", question}}});
  struct Case {
    std::vector<std::string> arguments;
    std::string input;
  };
  const Case cases[] = {
      {{"--messages", messages.dump()}, ""},
      {{"--as-chat", "--prompt", question}, ""},
      {{"--as-chat"}, question + "\n"},
      {{"--raw", "--file", "-"}, golden["text"].get<std::string>()},
  };
  for (const Case& test : cases) {
    std::vector<std::string> arguments =
        TinyArguments("generate", {"--greedy", "--json", "--max-tokens", "8"});
    arguments.insert(arguments.end(), test.arguments.begin(), test.arguments.end());
    const RunResult run = RunRuntime(arguments, test.input);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json answer = json::parse(run.out);
    EXPECT_EQ(answer["token_ids"],
              json(std::vector<int>(golden["tokens"].begin(), golden["tokens"].begin() + 8)))
        << test.arguments[0];
    EXPECT_EQ(answer["usage"]["prompt_tokens"], golden["input_ids"].size()) << test.arguments[0];
  }
}

TEST(Generate, LinesRunAsOneBatchAndAreAnsweredInOrder) {
  const RunResult run = RunRuntime(
      TinyArguments("generate",
                    {"--greedy", "--json", "--lines", "--as-chat", "--stop", "Oslo", "--stop", "zz"}),
      "What is the capital of Norway?\n\nWhat is 12 + 345?\nWhat is the capital of Norway?\n");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::vector<json> answers = JsonLines(run.out);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]["text"], "The capital of Norway is ");
  EXPECT_EQ(answers[0]["finish_reason"], "stop");
  EXPECT_EQ(answers[0]["stop_string"], "Oslo");
  EXPECT_EQ(answers[1]["text"], kSumAnswer);
  EXPECT_EQ(answers[1]["prompt_idx"], 1);
  EXPECT_EQ(answers[2]["token_ids"], answers[0]["token_ids"]);
}

TEST(Generate, ASeedRepeatsAndTheCheckpointsSamplingIsTheDefault) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments =
        TinyArguments("generate", {"--json", "--max-tokens", "24", "--chat", "Tell me a story about a fox."});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult run = RunRuntime(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(run.out)["token_ids"];
  };
  const json drawn = answer({"--seed", "5", "--temperature", "3", "--top-k", "0", "--top-p", "1"});
  EXPECT_EQ(drawn, answer({"--seed", "5", "--temperature", "3", "--top-k", "0", "--top-p", "1"}));
  const json golden = GoldenPrompt("story")["tokens"];
  const json greedy(std::vector<int>(golden.begin(), golden.begin() + 24));
  EXPECT_NE(drawn, greedy);
  EXPECT_EQ(answer({"--top-k", "1", "--seed", "5"}), greedy) << "top-k 1 is greedy at any temperature";
}

TEST(Generate, AModelWithoutATokenizerAnswersIdsAndSaysWhyNotText) {
  const std::vector<std::string> random = {"--set", "model.weights=random:3", "--set",
                                           "model.path=" RT_NO_TOKENIZER_DIR};
  std::vector<std::string> arguments =
      TinyArguments("generate", {"--greedy", "--max-tokens", "4", "--ids", "1,2,3"});
  arguments.insert(arguments.end(), random.begin(), random.end());
  const RunResult ids = RunRuntime(arguments);
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), ','), 3) << ids.out;
  arguments = TinyArguments("generate", {"--prompt", "x"});
  arguments.insert(arguments.end(), random.begin(), random.end());
  const RunResult text = RunRuntime(arguments);
  EXPECT_EQ(text.exit_code, 4);
  EXPECT_NE(text.err.find("no tokenizer.json in " RT_NO_TOKENIZER_DIR), std::string::npos) << text.err;
}

TEST(Generate, WithoutJinja2ChatSaysWhatToInstallAndTextWorks) {
  const std::vector<std::string> python = {"--set", "text.python=/bin/false"};
  std::vector<std::string> arguments = TinyArguments("generate", {"--chat", "x"});
  arguments.insert(arguments.end(), python.begin(), python.end());
  const RunResult chat = RunRuntime(arguments);
  EXPECT_EQ(chat.exit_code, 5) << chat.err;
  EXPECT_NE(chat.err.find("python3-jinja2"), std::string::npos) << chat.err;
  arguments = TinyArguments("generate", {"--prompt", "Once", "--greedy", "--max-tokens", "3"});
  arguments.insert(arguments.end(), python.begin(), python.end());
  EXPECT_EQ(RunRuntime(arguments).exit_code, 0);
}

TEST(Generate, WrongUsageIsNamedBeforeTheModelLoads) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const Case cases[] = {
      {{"--ids", "1,x,3"}, "--ids: expected token ids such as 1,2,3, found \"x\""},
      {{"--ids", "4096"}, "prompt: expected token ids in [0, 4096), got 4096"},
      {{"--prompt", "a", "--chat", "b"}, "--chat"},
      {{"--prompt", "a", "--lines"}, "--lines: only --file and standard input have lines"},
      {{"--messages", "{}"}, "--messages: expected a JSON array of messages"},
      {{"--chat", "a", "--template-options", "[]"}, "--template-options: expected a JSON object"},
      {{"--prompt", "a", "--temperature", "-1"}, "temperature: expected a finite number >= 0"},
      {{"--prompt", "a", "--max-tokens", "9000"}, "expected at most 8192 tokens"},
      {{"--prompt", ""}, "prompt: expected at least one token, got none"},
      {{"--file", "/absent/file"}, "/absent/file: cannot be read"},
  };
  for (const Case& test : cases) {
    const RunResult run = RunRuntime(TinyArguments("generate", test.arguments));
    EXPECT_EQ(run.exit_code, 2) << test.message << "\n" << run.err;
    EXPECT_NE(run.err.find(test.message), std::string::npos) << run.err;
    EXPECT_EQ(run.out, "");
  }
}

}  // namespace
}  // namespace rt::testing
