// Endpoints, error answers and HTTP behaviour; streaming is in stream_test.cc.
#include "runtime/server/server_fixture.h"

#include "runtime/server/json_reader.h"

#include <thread>

namespace rt::server {
namespace {

using ServerTest = ServerFixture;
constexpr char kChatPath[] = "/v1/chat/completions";
constexpr char kTextPath[] = "/v1/completions";

std::string ErrorCode(const HttpResponse& response) {
  const auto body = ParseStrictJson(response.body, 10);
  if (!body.ok()) return "not JSON: " + response.body;
  const Json& error = (*body)["error"];
  for (const char* key : {"message", "type", "param", "code"}) {
    if (!error.contains(key)) return std::string("no ") + key;
  }
  return error["code"].is_null() ? "null" : error["code"].get<std::string>();
}

TEST_F(ServerTest, ChatCompletionHasTheOpenAiForm) {
  StartServer();
  const HttpResponse response = Post(kChatPath, R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  EXPECT_EQ(response.headers.at("x-request-id").rfind("chatcmpl-", 0), 0u);
  EXPECT_EQ(Neutral(response.body),
            R"({"id":"ID","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,)"
            R"("message":{"role":"assistant","content":"user:hi\n","refusal":null},"logprobs":null,)"
            R"("finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":8,"total_tokens":16,)"
            R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST_F(ServerTest, CompletionOfABatchOfTokenIdsReturnsIdsForEachChoice) {
  StartServer();
  const HttpResponse response =
      Post(kTextPath, R"({"prompt":[[104,105],[120]],"n":2,"max_tokens":3,"ignore_eos":true,"return_token_ids":true})");
  EXPECT_EQ(Neutral(response.body),
            R"({"id":"ID","object":"text_completion","created":0,"model":"tiny","choices":[)"
            R"({"index":0,"text":"hih","logprobs":null,"finish_reason":"length","token_ids":[104,105,104],"prompt_token_ids":[104,105]},)"
            R"({"index":1,"text":"hih","logprobs":null,"finish_reason":"length","token_ids":[104,105,104],"prompt_token_ids":[104,105]},)"
            R"({"index":2,"text":"xxx","logprobs":null,"finish_reason":"length","token_ids":[120,120,120],"prompt_token_ids":[120]},)"
            R"({"index":3,"text":"xxx","logprobs":null,"finish_reason":"length","token_ids":[120,120,120],"prompt_token_ids":[120]}],)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":12,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST_F(ServerTest, WhatTheRequestSaysReachesTheEngine) {
  StartServer();
  Post(kTextPath, R"({"prompt":"ab","n":2,"seed":7,"temperature":0.25,"stop":"END","max_tokens":5})");
  const std::vector<GenerationRequest> submitted = service_->WaitForSubmissions(2);
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_EQ(submitted[0].sampling.seed, 7u);
  EXPECT_EQ(submitted[1].sampling.seed, 8u);
  EXPECT_EQ(submitted[1].sampling.temperature, 0.25f);
  EXPECT_EQ(submitted[1].stop.stop_strings, std::vector<std::string>{"END"});
  EXPECT_EQ(submitted[1].stop.max_tokens, 5);
  EXPECT_EQ(submitted[1].prompt_ids, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_NE(submitted[0].request_id, submitted[1].request_id);
  Post(kTextPath, R"({"prompt":"ab"})");
  EXPECT_EQ(service_->WaitForSubmissions(3)[2].sampling.temperature, 0.6f) << "the model's own default";
}

TEST_F(ServerTest, LogprobsHaveTheFormOfTheirEndpoint) {
  StartServer();
  const HttpResponse chat = Post(
      kChatPath, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":1,"logprobs":true,"top_logprobs":2})");
  EXPECT_NE(chat.body.find(R"("logprobs":{"content":[{"token":"u","logprob":-0.5,"bytes":[117],"top_logprobs":[)"
                           R"({"token":"u","logprob":-0.5,"bytes":[117]},{"token":"v","logprob":-1.5,"bytes":[118]}]}],"refusal":null})"),
            std::string::npos)
      << chat.body;
  const HttpResponse text = Post(kTextPath, R"({"prompt":[97,255],"max_tokens":2,"logprobs":1})");
  EXPECT_NE(text.body.find(R"("logprobs":{"tokens":["a","bytes:\\xff"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[)"
                           R"({"a":-0.5},{"bytes:\\xff":-0.5}],"text_offset":[0,1]})"),
            std::string::npos)
      << text.body;
}

TEST_F(ServerTest, InformationEndpointsAnswer) {
  StartServer();
  EXPECT_EQ(Get("/health").body, R"({"status":"ok"})");
  EXPECT_EQ(Get("/ready").body, R"({"status":"ready"})");
  EXPECT_EQ(Get("/v1/runtime/kernels").body, R"({"kernels":[]})");
  const std::string model =
      R"({"id":"tiny","object":"model","created":0,"owned_by":"deltart","max_context_tokens":100000})";
  EXPECT_EQ(Neutral(Get("/v1/models").body), R"({"object":"list","data":[)" + model + "]}");
  EXPECT_EQ(Neutral(Get("/v1/models/tiny").body), model);
  EXPECT_EQ(Neutral(Get("/v1/models/t%69ny?x=1").body), model);
  const HttpResponse unknown = Get("/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorCode(unknown), "model_not_found");
  const HttpResponse head = Fetch(port(), "HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "15");
}

TEST_F(ServerTest, MetricsTellWhatTheServerDid) {
  StartServer();
  Post(kTextPath, R"({"prompt":"abc"})");
  Post(kTextPath, R"({"prompt":5})");
  const HttpResponse metrics = Get("/metrics");
  EXPECT_EQ(metrics.headers.at("content-type").rfind("text/plain; version=0.0.4", 0), 0u);
  for (const char* line : {"rt_tokens_total{phase=\"prefill\"} 3\n", "rt_tokens_total{phase=\"decode\"} 3\n",
                           "rt_kv_blocks_total 64\n", "rt_builds_after_ready_total 0\n",
                           "rt_http_requests_total{code=\"200\",endpoint=\"/v1/completions\"} 1\n",
                           "rt_http_requests_total{code=\"400\",endpoint=\"/v1/completions\"} 1\n",
                           "rt_time_to_first_token_seconds_count{endpoint=\"/v1/completions\"} 1\n",
                           "rt_kernel_info{kernel=\"k1\",op=\"gemm\",phase=\"decode\"} 1\n", "rt_http_connections "}) {
    EXPECT_NE(metrics.body.find(line), std::string::npos) << "no \"" << line << "\" in\n" << metrics.body;
  }
}

TEST_F(ServerTest, ReadyIsRedUntilTheEngineIs) {
  StartServer();
  service_->SetReady(false);
  EXPECT_EQ(Get("/health").status, 200);
  const HttpResponse ready = Get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, R"({"status":"starting"})");
  const HttpResponse early = Post(kTextPath, R"({"prompt":"a"})");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(ErrorCode(early), "not_ready");
  EXPECT_EQ(early.headers.at("retry-after"), "1");
  service_->SetReady(true);
  EXPECT_EQ(Get("/ready").status, 200);
}

TEST_F(ServerTest, WrongPathsMethodsAndTypesAreNamed) {
  StartServer();
  struct Case {
    const char* request;
    int status;
    const char* code;
    const char* message;
  };
  const Case cases[] = {
      {"GET /v1/modells HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not_found", "did you mean \\\"/v1/models\\\"?"},
      {"POST /v2/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 404, "not_found", "/v2/x"},
      {"GET /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed", "expected POST, got GET"},
      {"DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed", "expected GET, HEAD"},
      {"BREW /health HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed", "got BREW"},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 415, "unsupported_media_type", "got none"},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415,
       "unsupported_media_type", "got \\\"text/plain\\\""},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
       "Content-Length: 2\r\n\r\n{}",
       415, "unsupported_media_type", "Content-Encoding: expected none, got \\\"gzip\\\""},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\r\n", 400, "invalid_json", "got nothing"},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
       400, "missing_field", "prompt: required"},
      {"nonsense\r\n\r\n", 400, "bad_request", "malformed HTTP"},
      {"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: two\r\n\r\n", 400, "bad_request", "malformed HTTP"},
      {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_request",
       "malformed HTTP"},
  };
  for (const Case& test : cases) {
    HttpTestClient client(port());
    client.Send(test.request);
    const HttpResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, test.status) << test.request << response.body;
    EXPECT_EQ(ErrorCode(response), test.code) << test.request;
    EXPECT_NE(response.body.find(test.message), std::string::npos) << test.request << response.body;
    EXPECT_EQ(response.headers.count("allow"), test.status == 405 ? 1u : 0u) << test.request;
  }
}

TEST_F(ServerTest, FieldErrorsReachTheClientWithTheirName) {
  StartServer();
  const HttpResponse response = Post(kChatPath, R"({"messages":[{"role":"user","content":"x"}],"max_tokns":5})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.body,
            R"({"error":{"message":"unknown field \"max_tokns\"; did you mean \"max_tokens\"?",)"
            R"("type":"invalid_request_error","param":"max_tokns","code":"unknown_field"}})");
}

TEST_F(ServerTest, OversizedBodiesAndHeadersAreRefusedAndTheClientSeesIt) {
  config_.max_body_bytes = 1000;
  config_.max_header_bytes = 2000;
  StartServer();
  const HttpResponse declared = Post(kTextPath, "{\"prompt\":\"" + std::string(3000000, 'a') + "\"}");
  EXPECT_EQ(declared.status, 413);
  EXPECT_EQ(ErrorCode(declared), "body_too_large");
  EXPECT_NE(declared.body.find("1000 bytes"), std::string::npos);
  EXPECT_EQ(declared.headers.at("connection"), "close");

  HttpTestClient chunked(port());
  chunked.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "1f4\r\n" + std::string(500, ' ') + "\r\n";
  for (int i = 0; i < 4; ++i) chunked.Send(chunk);
  EXPECT_EQ(chunked.ReadResponse().status, 413);

  HttpTestClient header(port());
  header.Send("GET /health HTTP/1.1\r\nX: " + std::string(5000, 'a') + "\r\n\r\n");
  EXPECT_EQ(ErrorCode(header.ReadResponse()), "header_too_large");
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerTest, RequestsInSplitPacketsChunksAndPipelinesAreServedInOrder) {
  StartServer();
  HttpTestClient client(port());
  const std::string body = R"({"prompt":"split"})";
  const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  for (const char byte : request) client.Send(std::string(1, byte));
  EXPECT_NE(client.ReadResponse().body.find("\"split\""), std::string::npos);

  client.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
              "b\r\n{\"prompt\":\"\r\n8\r\nchunked\"\r\n1\r\n}\r\n0\r\n\r\n");
  EXPECT_NE(client.ReadResponse().body.find("\"chunked\""), std::string::npos);

  client.Send(request + "GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + request);
  EXPECT_NE(client.ReadResponse().body.find("\"split\""), std::string::npos);
  EXPECT_EQ(client.ReadResponse().body, R"({"status":"ok"})");
  EXPECT_NE(client.ReadResponse().body.find("\"split\""), std::string::npos);
}

TEST_F(ServerTest, ExpectContinueIsAnsweredBeforeTheBody) {
  StartServer();
  HttpTestClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n"
              "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadHeader().status, 100);
  client.Send(R"({"prompt":"a"})");
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST_F(ServerTest, OldAndClosingClientsGetTheConnectionClosed) {
  StartServer();
  HttpTestClient old(port());
  old.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.ReadResponse().status, 200);
  EXPECT_TRUE(old.AtEof());
  HttpTestClient closing(port());
  closing.SendRequest("GET", "/health", "", "Connection: close\r\n");
  EXPECT_EQ(closing.ReadResponse().headers.at("connection"), "close");
  EXPECT_TRUE(closing.AtEof());
}

TEST_F(ServerTest, SlowRequestsGet408AndIdleConnectionsEnd) {
  config_.idle_timeout = std::chrono::milliseconds(100);
  config_.header_timeout = std::chrono::milliseconds(100);
  config_.body_timeout = std::chrono::milliseconds(100);
  StartServer();
  HttpTestClient slow_header(port());
  slow_header.Send("GET /health HT");
  EXPECT_EQ(slow_header.ReadResponse().status, 408);
  HttpTestClient slow_body(port());
  slow_body.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{");
  const HttpResponse response = slow_body.ReadResponse();
  EXPECT_EQ(response.status, 408);
  EXPECT_EQ(ErrorCode(response), "request_timeout");
  HttpTestClient idle(port());
  EXPECT_TRUE(idle.AtEof());
}

TEST_F(ServerTest, GenerationMayTakeLongerThanAnyTimeOut) {
  config_.idle_timeout = config_.header_timeout = config_.body_timeout = config_.write_timeout =
      std::chrono::milliseconds(50);
  StartServer(Mode::kManual);
  HttpTestClient client(port());
  client.Post(kTextPath, R"({"prompt":"a","stream":true})");
  service_->WaitForSubmissions(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  service_->Emit(1, Text("x", 1));
  EXPECT_EQ(client.ReadHeader().status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  service_->Emit(1, Last("y", 2, FinishReason::kStop));
  std::string all;
  for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent()) all += event;
  EXPECT_EQ(SseData(all).back(), "[DONE]");
}

TEST_F(ServerTest, EngineRefusalsBecomeTheirStatusAndNothingStaysBehind) {
  StartServer(Mode::kManual);
  service_->RefuseAfter(2, Status(Code::kResourceExhausted, "the queue is full (2 sequences)"));
  const HttpResponse full = Post(kTextPath, R"({"prompt":"a","n":3})");
  EXPECT_EQ(full.status, 429);
  EXPECT_NE(full.body.find("the queue is full"), std::string::npos);
  EXPECT_EQ(full.headers.at("retry-after"), "1");
  EXPECT_TRUE(service_->WaitForAborts(2)) << "the two accepted sequences must be aborted";
  service_->RefuseAfter(0, Status(Code::kInvalidArgument, "max_tokens: too large"));
  EXPECT_EQ(Post(kTextPath, R"({"prompt":"a"})").status, 400);
}

TEST_F(ServerTest, AFailedSequenceIsAServerErrorWithItsReason) {
  StartServer(Mode::kManual);
  for (const char* stream : {"false", "true"}) {
    HttpTestClient client(port());
    client.Post(kTextPath, std::string(R"({"prompt":"a","n":2,"stream":)") + stream + "}");
    const size_t submitted = service_->WaitForSubmissions(stream[0] == 't' ? 4 : 2).size();
    GenerationDelta failed;
    failed.finish_reason = FinishReason::kError;
    failed.error = Status(Code::kInternal, "layer 3: non-finite logits at step 17");
    service_->Emit(submitted - 1, std::move(failed));
    const HttpResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, 500);
    EXPECT_NE(response.body.find("layer 3: non-finite logits at step 17"), std::string::npos) << response.body;
    EXPECT_TRUE(service_->WaitForAborts(submitted / 2)) << "its sibling must not run on";
  }
}

TEST_F(ServerTest, WithoutATokenizerTokenIdsAreServed) {
  config_.no_text_reason = "no tokenizer.json in /models/x";
  StartServer(Mode::kEcho, false);
  const HttpResponse chat = Post(kChatPath, R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(chat.status, 400);
  EXPECT_NE(chat.body.find("no tokenizer.json in /models/x"), std::string::npos);
  const HttpResponse ids = Post(kTextPath, R"({"prompt":[1,2],"return_token_ids":true,"logprobs":0})");
  EXPECT_EQ(ids.status, 200);
  EXPECT_NE(ids.body.find(R"("token_ids":[1,2])"), std::string::npos) << ids.body;
  EXPECT_NE(ids.body.find(R"("tokens":["token_id:1","token_id:2"])"), std::string::npos) << ids.body;
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitAreToldSo) {
  config_.max_connections = 2;
  StartServer();
  {
    HttpTestClient first(port()), second(port());
    for (HttpTestClient* client : {&first, &second}) {
      client->SendRequest("GET", "/health");
      EXPECT_EQ(client->ReadResponse().status, 200);
    }
    HttpTestClient third(port());
    const HttpResponse refused = third.ReadResponse();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(ErrorCode(refused), "too_many_connections");
  }
  HttpResponse later;
  for (int i = 0; i < 400 && later.status != 200; ++i) later = Get("/health");
  EXPECT_EQ(later.status, 200) << "closed connections make room";
}

TEST_F(ServerTest, AddressThatCannotBeUsedIsNamed) {
  StartServer();
  ServerConfig taken = config_;
  taken.port = port();
  Server second(taken, service_.get(), nullptr, {});
  const Status in_use = second.Start();
  EXPECT_EQ(in_use.code(), Code::kUnavailable);
  EXPECT_NE(in_use.message().find("127.0.0.1:" + std::to_string(port())), std::string::npos) << in_use.message();
  ServerConfig bad = config_;
  bad.host = "999.1.1.1";
  Server third(bad, service_.get(), nullptr, {});
  EXPECT_EQ(third.Start().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace rt::server
