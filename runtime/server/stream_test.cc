// Server-sent events: framing, usage, errors, clients that leave or are slow, many at once, drain.
#include "runtime/server/server_fixture.h"

#include "runtime/server/json_reader.h"

#include <atomic>
#include <thread>

namespace rt::server {
namespace {

using StreamTest = ServerFixture;
constexpr char kChatPath[] = "/v1/chat/completions";
constexpr char kTextPath[] = "/v1/completions";

// All remaining events of a response whose header has been read.
std::string RestOfStream(HttpTestClient& client) {
  std::string all;
  for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent()) all += event;
  return all;
}

// The text of choice `index` put together again.
std::string TextOf(const std::vector<std::string>& events, int index) {
  std::string text;
  for (const std::string& data : events) {
    if (data == "[DONE]") continue;
    const auto parsed = ParseStrictJson(data, 20);
    if (!parsed.ok() || !parsed->contains("choices")) return "BAD EVENT: " + data;
    for (const Json& choice : (*parsed)["choices"]) {
      if (choice["index"] != index) continue;
      if (choice.contains("text")) text += choice["text"].get<std::string>();
      if (choice.contains("delta")) text += choice["delta"].value("content", "");
    }
  }
  return text;
}

TEST_F(StreamTest, ChatEventsAreByteExact) {
  StartServer(Mode::kManual);
  HttpTestClient client(port());
  client.Post(kChatPath, R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  service_->WaitForSubmissions(1);
  const std::string head = R"(data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[)";
  service_->Emit(1, Text("Hé", 2));
  const HttpResponse header = client.ReadHeader();
  EXPECT_EQ(header.status, 200);
  EXPECT_EQ(header.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(header.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(header.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(Neutral(client.ReadEvent()),
            head + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})" + "\n\n");
  EXPECT_EQ(Neutral(client.ReadEvent()),
            head + R"({"index":0,"delta":{"content":"Hé"},"logprobs":null,"finish_reason":null}]})" + "\n\n");
  service_->Emit(1, Text("", 3));  // a token whose text is held back shows nothing
  service_->Emit(1, Last("\n\"", 4, FinishReason::kLength));
  EXPECT_EQ(Neutral(client.ReadEvent()),
            head + R"({"index":0,"delta":{"content":"\n\""},"logprobs":null,"finish_reason":"length"}]})" + "\n\n");
  EXPECT_EQ(client.ReadEvent(), "data: [DONE]\n\n");
  EXPECT_EQ(client.ReadEvent(), "");
  client.SendRequest("GET", "/health");
  EXPECT_EQ(client.ReadResponse().status, 200) << "the connection goes on after a stream";
}

TEST_F(StreamTest, CompletionEventsCarryTokenIdsAndLogprobsAsAsked) {
  StartServer(Mode::kManual);
  HttpTestClient client(port());
  client.Post(kTextPath, R"({"prompt":[7,8],"stream":true,"return_token_ids":true,"logprobs":0})");
  service_->WaitForSubmissions(1);
  GenerationDelta delta = Text("", 1);
  delta.token_ids = {195};
  delta.logprobs = {{195, -0.25f, {}}};
  service_->Emit(1, delta);
  client.ReadHeader();
  const std::string head = R"(data: {"id":"ID","object":"text_completion","created":0,"model":"tiny","choices":[{"index":0,)";
  EXPECT_EQ(Neutral(client.ReadEvent()),
            head + R"("text":"","logprobs":{"tokens":["bytes:\\xc3"],"token_logprobs":[-0.25],"top_logprobs":[{"bytes:\\xc3":-0.25}],)"
                   R"("text_offset":[0]},"finish_reason":null,"token_ids":[195],"prompt_token_ids":[7,8]}]})" + "\n\n");
  GenerationDelta last = Last("é", 2, FinishReason::kStop);
  last.token_ids = {169};
  last.logprobs = {{169, -1.0f, {}}};
  service_->Emit(1, last);
  EXPECT_EQ(Neutral(client.ReadEvent()),
            head + R"("text":"é","logprobs":{"tokens":["bytes:\\xa9"],"token_logprobs":[-1.0],"top_logprobs":[{"bytes:\\xa9":-1.0}],)"
                   R"("text_offset":[1]},"finish_reason":"stop","token_ids":[169]}]})" + "\n\n");
  EXPECT_EQ(client.ReadEvent(), "data: [DONE]\n\n");
}

// include_usage on and off x n = 1, 2 x finished and aborted by the runtime.
TEST_F(StreamTest, UsageChunkHasTheSpecifiedFormAndDoneIsLast) {
  for (const bool usage : {false, true}) {
    for (const int n : {1, 2}) {
      for (const bool aborted : {false, true}) {
        SCOPED_TRACE("usage " + std::to_string(usage) + ", n " + std::to_string(n) + ", aborted " + std::to_string(aborted));
        StartServer(Mode::kManual);
        HttpTestClient client(port());
        client.Post(kTextPath, R"({"prompt":"abc","stream":true,"n":)" + std::to_string(n) +
                                   (usage ? R"(,"stream_options":{"include_usage":true}})" : "}"));
        service_->WaitForSubmissions(static_cast<size_t>(n));
        for (int i = 1; i <= n; ++i) service_->Emit(static_cast<SequenceId>(i), Text("hi", 2));
        client.ReadHeader();
        for (int i = 1; i <= n; ++i) {
          GenerationDelta last = Last("", 5, aborted ? FinishReason::kAbort : FinishReason::kStop);
          last.num_cached_prompt_tokens = 2;
          service_->Emit(static_cast<SequenceId>(i), last);
        }
        std::vector<std::string> events = SseData(RestOfStream(client));
        ASSERT_GE(events.size(), 3u);
        EXPECT_EQ(events.back(), "[DONE]");
        events.pop_back();
        const bool has_usage_chunk = events.back().find("\"choices\":[]") != std::string::npos;
        EXPECT_EQ(has_usage_chunk, usage);
        if (usage && !aborted) {
          EXPECT_EQ(Neutral(events.back()),
                    R"({"id":"ID","object":"text_completion","created":0,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,)"
                    R"("completion_tokens":)" + std::to_string(5 * n) + R"(,"total_tokens":)" + std::to_string(3 + 5 * n) +
                        R"(,"prompt_tokens_details":{"cached_tokens":2}}})");
        }
        if (usage) events.pop_back();
        EXPECT_EQ(events.back().find("\"error\"") != std::string::npos, aborted) << events.back();
        if (aborted) events.pop_back();
        for (const std::string& data : events) {
          EXPECT_EQ(data.find("\"usage\":null") != std::string::npos, usage) << data;
        }
        for (int i = 0; i < n; ++i) EXPECT_EQ(TextOf(events, i), "hi");
        client.Close();
        TearDown();
      }
    }
  }
}

TEST_F(StreamTest, AFailureInTheMiddleIsAnErrorEventThenDone) {
  StartServer(Mode::kManual);
  HttpTestClient client(port());
  client.Post(kChatPath, R"({"messages":[{"role":"user","content":"x"}],"stream":true})");
  service_->WaitForSubmissions(1);
  service_->Emit(1, Text("a", 1));
  client.ReadHeader();
  GenerationDelta failed;
  failed.finish_reason = FinishReason::kError;
  failed.error = Status(Code::kDeviceLost, "device 0 is lost");
  service_->Emit(1, failed);
  const std::vector<std::string> events = SseData(RestOfStream(client));
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(events[events.size() - 2],
            R"({"error":{"message":"device 0 is lost","type":"server_error","param":null,"code":"device_lost"}})");
}

TEST_F(StreamTest, Http10ClientsGetAStreamWithoutChunks) {
  StartServer();
  HttpTestClient client(port());
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n"
              R"({"prompt":"abc","stream":true})");
  const HttpResponse response = client.ReadResponse();
  EXPECT_EQ(response.headers.count("transfer-encoding"), 0u);
  const std::vector<std::string> events = SseData(response.body);
  EXPECT_EQ(TextOf(events, 0), "abc");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(StreamTest, AClientThatLeavesAbortsItsSequencesAtAnyPhase) {
  StartServer(Mode::kManual);
  const std::string stream = R"({"prompt":"a","n":2,"stream":true})", whole = R"({"prompt":"a","n":2})";
  size_t submitted = 0, aborted = 0;
  for (const bool streaming : {false, true}) {
    for (const bool after_output : {false, true}) {
      for (const bool reset : {false, true}) {
        HttpTestClient client(port());
        client.Post(kTextPath, streaming ? stream : whole);
        submitted += 2;
        service_->WaitForSubmissions(submitted);
        if (after_output) service_->Emit(submitted, Text("x", 1));
        if (after_output && streaming) client.ReadHeader();
        reset ? client.CloseWithReset() : client.Close();
        aborted += 2;
        EXPECT_TRUE(service_->WaitForAborts(aborted)) << "streaming " << streaming << ", after output " << after_output;
      }
    }
  }
}

TEST_F(StreamTest, PipelinedBytesAreNotMistakenForALeavingClient) {
  StartServer(Mode::kManual);
  HttpTestClient client(port());
  client.Post(kTextPath, R"({"prompt":"a"})");
  service_->WaitForSubmissions(1);
  client.SendRequest("GET", "/health");
  service_->Emit(1, Text("x", 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  service_->Emit(1, Last("y", 2, FinishReason::kStop));
  EXPECT_NE(client.ReadResponse().body.find("\"xy\""), std::string::npos);
  EXPECT_EQ(client.ReadResponse().body, R"({"status":"ok"})");
}

TEST_F(StreamTest, ASlowReaderBlocksNobodyAndMissesNothing) {
  StartServer(Mode::kManual);
  HttpTestClient slow(port());
  slow.Post(kTextPath, R"({"prompt":"a","stream":true,"max_tokens":90000})");
  service_->WaitForSubmissions(1);
  std::string said;
  for (int i = 0; i < 80; ++i) {  // 8 MB, more than the sockets hold of a client that does not read
    const std::string piece(100000, static_cast<char>('a' + i % 26));
    said += piece;
    service_->Emit(1, Text(piece, i + 1));
  }
  service_->Emit(1, Last("", 80, FinishReason::kStop));
  // The engine's side is through although nothing has been read; other clients are served meanwhile.
  EXPECT_EQ(Get("/health").status, 200);
  slow.ReadHeader();
  EXPECT_TRUE(TextOf(SseData(RestOfStream(slow)), 0) == said);
}

TEST_F(StreamTest, AClientThatReadsNothingIsGivenUp) {
  config_.write_timeout = std::chrono::milliseconds(100);
  StartServer(Mode::kManual);
  HttpTestClient stuck(port());
  stuck.Post(kTextPath, R"({"prompt":"a","stream":true,"max_tokens":90000})");
  service_->WaitForSubmissions(1);
  for (int i = 0; i < 200 && service_->num_active() > 0; ++i) service_->Emit(1, Text(std::string(100000, 'x'), i + 1));
  EXPECT_TRUE(service_->WaitForAborts(1));
}

TEST_F(StreamTest, AHundredStreamsAtOnceEachGetTheirOwnText) {
  config_.io_threads = 2;
  config_.worker_threads = 2;
  StartServer();
  constexpr int kClients = 100;
  std::atomic<int> correct{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([this, i, &correct] {
      HttpTestClient client(port());
      const std::string prompt = "client-" + std::to_string(i) + "-" + std::string(static_cast<size_t>(i), 'z');
      client.Post(kTextPath, R"({"stream":true,"n":2,"max_tokens":500,"prompt":")" + prompt + "\"}");
      if (i % 10 == 3) return client.CloseWithReset();  // some hang up
      const HttpResponse response = client.ReadResponse();
      const std::vector<std::string> events = SseData(response.body);
      const bool good = response.complete && !events.empty() && events.back() == "[DONE]" && TextOf(events, 0) == prompt &&
                        TextOf(events, 1) == prompt;
      correct += good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(correct, kClients - kClients / 10);
}

TEST_F(StreamTest, DrainFinishesWhatRunsAndRefusesWhatIsNew) {
  StartServer(Mode::kManual);
  HttpTestClient running(port());
  running.Post(kTextPath, R"({"prompt":"a","stream":true})");
  service_->WaitForSubmissions(1);
  std::thread drain([this] { server_->Drain(std::chrono::steady_clock::now() + FakeGenerationService::kPatience); });
  HttpResponse ready;
  do ready = Get("/ready");
  while (ready.status == 200);
  EXPECT_EQ(ready.body, R"({"status":"draining"})");
  EXPECT_EQ(Get("/health").status, 200);
  const HttpResponse refused = Post(kTextPath, R"({"prompt":"b"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("shutting down"), std::string::npos);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  service_->Emit(1, Last("bye", 1, FinishReason::kStop));
  drain.join();
  const std::vector<std::string> events = SseData(running.ReadResponse().body);
  EXPECT_EQ(TextOf(events, 0), "bye");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(StreamTest, DrainDeadlineAbortsAndSaysSo) {
  StartServer(Mode::kManual);
  HttpTestClient streaming(port()), waiting(port());
  streaming.Post(kTextPath, R"({"prompt":"a","stream":true})");
  waiting.Post(kTextPath, R"({"prompt":"b"})");
  service_->WaitForSubmissions(2);
  const SequenceId streamed = service_->WaitForSubmissions(2)[0].prompt_ids[0] == 'a' ? 1 : 2;
  service_->Emit(streamed, Text("x", 1));
  streaming.ReadHeader();
  server_->Drain(std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  const std::vector<std::string> events = SseData(RestOfStream(streaming));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_NE(events[events.size() - 2].find("\"aborted\""), std::string::npos);
  EXPECT_EQ(waiting.ReadResponse().status, 503);
}

TEST_F(StreamTest, StopWithClientsInEveryStateLeavesNothingRunning) {
  StartServer();
  HttpTestClient idle(port()), half(port()), streaming(port());
  half.Send("POST /v1/completions HTTP/1.1\r\nHos");
  streaming.Post(kTextPath, R"({"prompt":"abc","stream":true,"ignore_eos":true,"max_tokens":99000})");
  streaming.ReadHeader();
  server_->Stop();
  EXPECT_TRUE(service_->WaitForAborts(1));
  server_->Stop();
}

}  // namespace
}  // namespace rt::server
