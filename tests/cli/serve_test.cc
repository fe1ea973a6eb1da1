#include "runtime/server/http_test_client.h"
#include "tests/cli/runtime_process.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace rt::testing {
namespace {

using nlohmann::json;
using server::Fetch;
using server::HttpResponse;
using server::HttpTestClient;

constexpr char kChatPath[] = "/v1/chat/completions";
constexpr char kTextPath[] = "/v1/completions";

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Serve, AnswersChatsStreamsAndTokenIdsAndReportsOnItself) {
  ServeProcess serve;
  ASSERT_NE(serve.port(), 0) << serve.Errors();
  ASSERT_TRUE(serve.WaitReady()) << serve.Errors();
  EXPECT_EQ(Fetch(serve.port(), "GET", "/ready").status, 200);

  const HttpResponse chat = Fetch(
      serve.port(), "POST", kChatPath,
      R"({"model":"tiny-gdn","messages":[{"role":"user","content":"What is 12 + 345?"}],"temperature":0})");
  ASSERT_EQ(chat.status, 200) << chat.body;
  const json message = json::parse(chat.body)["choices"][0];
  EXPECT_TRUE(message["message"]["content"].get<std::string>().ends_with("12 + 345 = 357")) << chat.body;
  EXPECT_EQ(message["finish_reason"], "stop");

  const HttpResponse stream = Fetch(
      serve.port(), "POST", kChatPath,
      R"({"messages":[{"role":"user","content":"What is 12 + 345?"}],"temperature":0,"stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(stream.status, 200) << stream.body;
  std::string streamed;
  bool usage = false;
  const std::vector<std::string> events = server::SseData(stream.body);
  ASSERT_GT(events.size(), 3u) << stream.body;
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i]);
    if (event.contains("usage") && event["usage"].is_object()) usage = event["usage"]["prompt_tokens"] == 19;
    if (!event["choices"].empty()) streamed += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, message["message"]["content"]);
  EXPECT_TRUE(usage);

  const json golden = GoldenPrompt("add");
  const json body = {{"prompt", golden["input_ids"]},
                     {"max_tokens", 48},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"return_token_ids", true}};
  const HttpResponse ids = Fetch(serve.port(), "POST", kTextPath, body.dump());
  ASSERT_EQ(ids.status, 200) << ids.body;
  EXPECT_EQ(json::parse(ids.body)["choices"][0]["token_ids"], golden["tokens"]);

  EXPECT_EQ(json::parse(Fetch(serve.port(), "GET", "/v1/models").body)["data"][0]["id"], "tiny-gdn");
  const json kernels = json::parse(Fetch(serve.port(), "GET", "/v1/runtime/kernels").body);
  EXPECT_FALSE(kernels["decisions"].empty());
  // The engine settles a step after its last token was delivered.
  std::string metrics;
  for (int i = 0; i < 400 && !Contains(metrics, "rt_requests_running 0\n"); ++i) {
    metrics = Fetch(serve.port(), "GET", "/metrics").body;
    usleep(5000);
  }
  for (const char* name : {"rt_kv_blocks_total ", "rt_kv_blocks_free ", "rt_state_slots_total ",
                           "rt_state_slots_free ", "rt_requests_running 0", "rt_requests_waiting 0",
                           "rt_tokens_total{phase=\"decode\"}", "rt_tokens_total{phase=\"prefill\"}",
                           "rt_builds_after_ready_total 0", "rt_ledger_violations_total 0"}) {
    EXPECT_TRUE(Contains(metrics, name)) << name << "\n" << metrics;
  }
  EXPECT_TRUE(Contains(metrics, "rt_kernel_info{") && Contains(metrics, "op=\"linear_mixer\"")) << metrics;

  const HttpResponse unknown = Fetch(serve.port(), "POST", kTextPath, R"({"prompt":"a","max_tokns":3})");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_TRUE(Contains(unknown.body, "max_tokens")) << unknown.body;
  serve.Signal(SIGTERM);
  EXPECT_EQ(serve.Wait(), 0) << serve.Errors();
}

// A model whose weights take a while: the embedding of a large vocabulary, made from a seed, over four small layers.
std::filesystem::path WriteSlowModel() {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / ("slow_model_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  json config = {{"architectures", {"Qwen3_5ForCausalLM"}}, {"model_type", "qwen3_5_text"}, {"vocab_size", 248320}, {"hidden_size", 1024}, {"intermediate_size", 256},
                 {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"num_key_value_heads", 1}, {"head_dim", 64}, {"full_attention_interval", 4},
                 {"linear_conv_kernel_dim", 4}, {"linear_key_head_dim", 32}, {"linear_value_head_dim", 32}, {"linear_num_key_heads", 4}, {"linear_num_value_heads", 4},
                 {"rms_norm_eps", 1e-6}, {"tie_word_embeddings", true}};
  std::ofstream(folder / "config.json") << config.dump();
  return folder;
}

TEST(Serve, WhileWeightsLoadItIsAliveAndNotReady) {
  const std::filesystem::path model = WriteSlowModel();
  ServeProcess serve({"--set", "model.path=" + model.string(), "--set", "model.weights=random:1", "--set", "model.compute_dtype=bfloat16", "--set", "model.max_context=256"});
  ASSERT_NE(serve.port(), 0) << serve.Errors();
  // The socket is open before the weights are there.
  const HttpResponse early = Fetch(serve.port(), "GET", "/ready");
  EXPECT_EQ(early.status, 503) << early.body;
  EXPECT_EQ(Fetch(serve.port(), "GET", "/health").status, 200);
  EXPECT_EQ(Fetch(serve.port(), "POST", kTextPath, R"({"prompt":[1,2,3],"max_tokens":2})").status, 503);
  ASSERT_TRUE(serve.WaitReady()) << serve.Errors();
  EXPECT_EQ(Fetch(serve.port(), "GET", "/ready").status, 200);
  const HttpResponse answer = Fetch(serve.port(), "POST", kTextPath, R"({"prompt":[1,2,3],"max_tokens":2,"temperature":0,"ignore_eos":true,"return_token_ids":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(json::parse(answer.body)["choices"][0]["token_ids"].size(), 2u) << answer.body;
  serve.Signal(SIGTERM);
  EXPECT_EQ(serve.Wait(), 0) << serve.Errors();
  std::filesystem::remove_all(model);
}

TEST(Serve, SigtermLetsAnOpenStreamFinishAndRefusesNewRequests) {
  ServeProcess serve({"--set", "server.drain_timeout_s=280"});  // a busy machine may need long
  ASSERT_TRUE(serve.port() != 0 && serve.WaitReady()) << serve.Errors();
  HttpTestClient client(serve.port());
  client.Post(kTextPath,
              R"({"prompt":"Once","max_tokens":600,"ignore_eos":true,"temperature":0,"stream":true})");
  ASSERT_EQ(client.ReadHeader().status, 200);
  EXPECT_NE(client.ReadEvent(), "");
  serve.Signal(SIGTERM);
  HttpResponse refused;
  for (int i = 0; i < 400 && refused.status != 503; ++i) {
    refused = Fetch(serve.port(), "GET", "/ready");
    usleep(5000);
  }
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Fetch(serve.port(), "POST", kTextPath, R"({"prompt":"a"})").status, 503);
  std::string all, last;
  for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent())
    all += last = event;
  EXPECT_EQ(last, "data: [DONE]\n\n");
  EXPECT_TRUE(Contains(all, "\"finish_reason\":\"length\"")) << "the stream was cut short";
  EXPECT_EQ(serve.Wait(), 0) << serve.Errors();
}

TEST(Serve, WhenTheDrainTimeIsOverTheStreamIsAborted) {
  ServeProcess serve({"--set", "server.drain_timeout_s=0.2"});
  ASSERT_TRUE(serve.port() != 0 && serve.WaitReady()) << serve.Errors();
  HttpTestClient client(serve.port());
  client.Post(kTextPath,
              R"({"prompt":"Once","max_tokens":4000,"ignore_eos":true,"temperature":0,"stream":true})");
  ASSERT_EQ(client.ReadHeader().status, 200);
  EXPECT_NE(client.ReadEvent(), "");
  serve.Signal(SIGINT);
  EXPECT_EQ(serve.Wait(), 0) << serve.Errors();
}

TEST(Serve, ASecondSignalEndsTheProcessAtOnce) {
  ServeProcess serve({"--set", "server.drain_timeout_s=60"});
  ASSERT_TRUE(serve.port() != 0 && serve.WaitReady()) << serve.Errors();
  HttpTestClient client(serve.port());
  client.Post(kTextPath,
              R"({"prompt":"Once","max_tokens":4000,"ignore_eos":true,"temperature":0,"stream":true})");
  ASSERT_EQ(client.ReadHeader().status, 200);
  serve.Signal(SIGTERM);
  for (int i = 0; i < 400 && Fetch(serve.port(), "GET", "/ready").status != 503; ++i) usleep(5000);
  serve.Signal(SIGTERM);
  EXPECT_EQ(serve.Wait(), -SIGTERM) << serve.Errors();
}

TEST(Serve, HealthIsGreenAndReadyRedBeforeAFailedStartGivesItsCode) {
  // The folder exists and is empty: the failure comes after the socket is open.
  ServeProcess serve({"--set", "model.path=" RT_NO_TOKENIZER_DIR});
  EXPECT_NE(serve.port(), 0) << serve.Errors();
  EXPECT_EQ(serve.Wait(), 4) << serve.Errors();
  EXPECT_TRUE(Contains(serve.Errors(), RT_NO_TOKENIZER_DIR)) << serve.Errors();
}

TEST(Serve, WithoutATokenizerIdsAreServedAndTextSaysWhy) {
  ServeProcess serve({"--set", "model.weights=random:3", "--set", "model.path=" RT_NO_TOKENIZER_DIR});
  ASSERT_TRUE(serve.port() != 0 && serve.WaitReady()) << serve.Errors();
  const HttpResponse ids =
      Fetch(serve.port(), "POST", kTextPath,
            R"({"prompt":[1,2],"max_tokens":3,"ignore_eos":true,"return_token_ids":true})");
  ASSERT_EQ(ids.status, 200) << ids.body;
  EXPECT_EQ(json::parse(ids.body)["choices"][0]["token_ids"].size(), 3u) << ids.body;
  const HttpResponse text = Fetch(serve.port(), "POST", kTextPath, R"({"prompt":"a"})");
  EXPECT_EQ(text.status, 400);
  EXPECT_TRUE(Contains(text.body, "no tokenizer.json in")) << text.body;
}

TEST(Serve, ATakenPortIsNamed) {
  ServeProcess first;
  ASSERT_NE(first.port(), 0) << first.Errors();
  const RunResult second =
      RunRuntime(TinyArguments("serve", {"--set", "server.port=" + std::to_string(first.port())}));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(Contains(second.err, "cannot listen on 127.0.0.1:" + std::to_string(first.port())))
      << second.err;
}

}  // namespace
}  // namespace rt::testing
