// Beast's parser, Asio's coroutines. All coroutines of a connection run on its strand, so its members need no locks; the
// engine's thread reaches it only through DeltaMailbox and its wake channel.
#include "runtime/server/connection.h"

#include "runtime/server/delta_mailbox.h"
#include "runtime/server/responses.h"
#include "runtime/server/routes.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/concurrent_channel.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace rt::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
// Capacity 1: a full channel means that a wake-up is already on its way, and what happened is kept as state elsewhere.
using WakeChannel = asio::experimental::concurrent_channel<void(error_code)>;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 4096;
// Requests that a client sends ahead while one is answered wait here; beyond it they wait in the socket.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// One write is one time-out, so a slow but reading client is not cut off by a large merged delta.
constexpr size_t kWriteBytes = 64 << 10;
// After an early error answer: how much of the refused body is still read, and for how long, so that the client sees the
// answer instead of a reset.
constexpr size_t kMaxDrainedBytes = 16 << 20;
constexpr std::chrono::seconds kDrainTime{2};
constexpr std::string_view kLastChunk = "0\r\n\r\n";

struct Answer {
  int http_status = 200;
  std::string body;
  const char* content_type = "application/json";
  const char* allow = "";         // Allow header of a 405
  bool retry_after = false;
  std::string request_id;
};

Answer ErrorAnswer(const ApiError& error) {
  Answer answer;
  answer.http_status = error.http_status;
  answer.body = ErrorBody(error);
  answer.retry_after = error.http_status == 503 || error.http_status == 429;
  return answer;
}

ApiError ErrorOfParser(const error_code& ec, const ServerConfig& config) {
  if (ec == http::error::body_limit) {
    return {413, "request body: larger than " + std::to_string(config.max_body_bytes) + " bytes", "", "body_too_large"};
  }
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return {431, "request header: larger than " + std::to_string(config.max_header_bytes) + " bytes", "",
            "header_too_large"};
  }
  return {400, "malformed HTTP request: " + ec.message(), "", "bad_request"};
}

int64_t NowUnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// "application/json", any parameters.
bool IsJson(beast::string_view content_type) {
  beast::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return beast::iequals(type, "application/json");
}

class HttpConnection : public Connection, public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(asio::ip::tcp::socket socket, ServerState& state)
      : state_(state), socket_(std::move(socket)), deadline_timer_(socket_.get_executor()) {
    state_.metrics.SetOpenConnections(++state_.num_connections);
  }
  ~HttpConnection() override { state_.metrics.SetOpenConnections(--state_.num_connections); }

  void Start() {
    asio::co_spawn(
        socket_.get_executor(), [self = shared_from_this()] { return self->Run(); }, asio::detached);
  }

  void Close() override {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->closing_ = true;
      self->ClientGone();
      error_code ignored;
      self->socket_.close(ignored);
      self->deadline_timer_.cancel();
    });
  }

 private:
  // ---- life of the connection ----

  awaitable<void> Run() {
    bool more = true;
    while (more && !closing_) {
      try {
        more = co_await ServeOne();
      } catch (const std::exception& e) {  // out of memory, at worst: this connection ends, the others go on
        spdlog::error("connection closed after an exception: {}", e.what());
        more = false;
      }
    }
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    deadline_timer_.cancel();
  }

  // One request and its answer. False: the connection ends.
  awaitable<bool> ServeOne() {
    error_code ec;
    is_head_ = false;
    if (buffer_.size() == 0) {
      SetDeadline(state_.config.idle_timeout);
      const size_t num_bytes =
          co_await socket_.async_read_some(buffer_.prepare(kReadBytes), redirect_error(use_awaitable, ec));
      if (ec) co_return false;
      buffer_.commit(num_bytes);
    }
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(state_.config.max_header_bytes));
    parser.body_limit(state_.config.max_body_bytes);
    SetDeadline(state_.config.header_timeout);
    co_await http::async_read_header(socket_, buffer_, parser, redirect_error(use_awaitable, ec));
    if (ec) co_return co_await RefuseUnread(ec);
    keep_alive_ = parser.keep_alive();
    http_version_ = parser.get().version();

    const auto& header = parser.get();
    const RouteMatch route = MatchRoute(std::string_view(header.method_string().data(), header.method_string().size()),
                                        std::string_view(header.target().data(), header.target().size()));
    is_head_ = header.method() == http::verb::head;
    if (const MaybeError error = CheckHeader(parser, route)) {
      Answer answer = ErrorAnswer(*error);
      if (error->http_status == 405) answer.allow = route.allow;
      co_return co_await RefuseBeforeBody(parser, route, std::move(answer));
    }
    if (!parser.is_done()) {
      if (beast::iequals(header[http::field::expect], "100-continue")) co_await Write("HTTP/1.1 100 Continue\r\n\r\n");
      SetDeadline(state_.config.body_timeout);
      co_await http::async_read(socket_, buffer_, parser, redirect_error(use_awaitable, ec));
      if (ec) co_return co_await RefuseUnread(ec);
    }
    ClearDeadline();
    if (route.takes_body) co_return co_await Generate(route, std::move(parser.get().body()));
    co_return co_await Send(route.name, AnswerGet(route));
  }

  MaybeError CheckHeader(const Parser& parser, const RouteMatch& route) const {
    if (route.error) return route.error;
    if (!route.takes_body) return {};
    if (parser.is_done()) {
      return ApiError{400, "request body: expected a JSON object, got nothing", "", "invalid_json"};
    }
    const beast::string_view encoding = parser.get()[http::field::content_encoding];
    if (!encoding.empty() && !beast::iequals(encoding, "identity")) {
      return ApiError{415, "Content-Encoding: expected none, got \"" + TruncateUtf8(std::string(encoding), 100) + "\"", "",
                      "unsupported_media_type"};
    }
    const beast::string_view type = parser.get()[http::field::content_type];
    if (IsJson(type)) return {};
    return ApiError{415,
                    "Content-Type: expected application/json, got " +
                        (type.empty() ? "none" : "\"" + TruncateUtf8(std::string(type), 100) + "\""),
                    "", "unsupported_media_type"};
  }

  // The header is known and the answer is an error. An unread body ends the connection.
  awaitable<bool> RefuseBeforeBody(const Parser& parser, const RouteMatch& route, Answer answer) {
    const bool body_follows = !parser.is_done();
    if (body_follows) keep_alive_ = false;
    const bool more = co_await Send(route.name, std::move(answer));
    if (body_follows) co_await DrainRefusedBody();
    co_return more;
  }

  // Reading the request failed: malformed, too large, too slow, or the client left.
  awaitable<bool> RefuseUnread(const error_code& ec) {
    const bool too_slow = std::exchange(timed_out_, false);
    if (!too_slow && ec.category() != http::make_error_code(http::error::bad_method).category()) co_return false;
    if (!too_slow && (ec == http::error::end_of_stream || ec == http::error::partial_message)) co_return false;
    keep_alive_ = false;
    const ApiError error = too_slow ? ApiError{408, "the request did not arrive in time", "", "request_timeout"}
                                    : ErrorOfParser(ec, state_.config);
    co_await Send("unread", ErrorAnswer(error));
    if (!too_slow) co_await DrainRefusedBody();
    co_return false;
  }

  awaitable<void> DrainRefusedBody() {
    error_code ec;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
    SetDeadline(kDrainTime);
    std::string scratch(64 << 10, '\0');
    for (size_t total = 0; !ec && total < kMaxDrainedBytes;) {
      total += co_await socket_.async_read_some(asio::buffer(scratch), redirect_error(use_awaitable, ec));
    }
  }

  // ---- time ----

  // Whatever the connection waits for is cancelled at now + `limit` (timed_out_ is set). Re-arms the timer only when the
  // deadline comes nearer, so that setting it before each of thousands of writes is cheap.
  void SetDeadline(std::chrono::milliseconds limit) {
    timed_out_ = false;
    deadline_ = Clock::now() + limit;
    if (timer_armed_ && deadline_timer_.expiry() <= deadline_) return;
    ArmTimer();
  }

  void ClearDeadline() { deadline_ = Clock::time_point::max(); }

  void ArmTimer() {
    timer_armed_ = deadline_ != Clock::time_point::max();
    if (!timer_armed_) return;
    deadline_timer_.expires_at(deadline_);
    deadline_timer_.async_wait([weak = weak_from_this()](error_code ec) {
      const auto self = weak.lock();
      if (!self || ec) return;  // replaced by a nearer deadline, or closing
      if (Clock::now() < self->deadline_) return self->ArmTimer();
      self->timer_armed_ = false;
      self->timed_out_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);
    });
  }

  // ---- writing ----

  awaitable<bool> Write(std::string_view bytes) {
    while (!bytes.empty() && !client_gone_) {
      const std::string_view piece = bytes.substr(0, kWriteBytes);
      bytes.remove_prefix(piece.size());
      SetDeadline(state_.config.write_timeout);
      error_code ec;
      co_await asio::async_write(socket_, asio::buffer(piece.data(), piece.size()), redirect_error(use_awaitable, ec));
      ClearDeadline();
      if (ec) ClientGone();
    }
    co_return !client_gone_;
  }

  template <typename Message>
  void FillHeader(Message& message, const Answer& answer) {
    message.result(static_cast<unsigned>(answer.http_status));
    message.version(http_version_ == 10 ? 10 : 11);
    message.set(http::field::server, "deltart");
    message.set(http::field::content_type, answer.content_type);
    if (*answer.allow != '\0') message.set(http::field::allow, answer.allow);
    if (answer.retry_after) message.set(http::field::retry_after, "1");
    if (!answer.request_id.empty()) message.set("X-Request-Id", answer.request_id);
    if (state_.draining) keep_alive_ = false;
    message.keep_alive(keep_alive_);
  }

  // A whole answer. Returns whether the connection goes on.
  awaitable<bool> Send(const char* route_name, Answer answer, std::optional<RequestRecord> record = {}) {
    if (!record) record = RequestRecord{route_name, answer.http_status, 0.0, {}};
    state_.metrics.RecordRequest(*record);
    http::response<http::string_body> message;
    FillHeader(message, answer);
    message.content_length(answer.body.size());
    if (!is_head_) message.body() = std::move(answer.body);
    SetDeadline(state_.config.write_timeout);
    http::response_serializer<http::string_body> serializer(message);
    error_code ec;
    co_await http::async_write_header(socket_, serializer, redirect_error(use_awaitable, ec));
    ClearDeadline();
    if (ec) ClientGone();
    const bool written = co_await Write(message.body());
    co_return written && keep_alive_;
  }

  // ---- endpoints without a body ----

  Answer AnswerGet(const RouteMatch& route) const {
    Answer answer;
    switch (route.id) {
      case RouteId::kHealth: answer.body = R"({"status":"ok"})"; break;
      case RouteId::kReady: return AnswerReady();
      case RouteId::kModels:
        answer.body = ModelListBody(state_.config.model_name, state_.created_unix_s, state_.service->max_context_tokens());
        break;
      case RouteId::kModel: return AnswerModel(route.argument);
      case RouteId::kKernels:
        answer.body = state_.callbacks.kernels_json ? state_.callbacks.kernels_json() : "{}";
        break;
      case RouteId::kMetrics:
        answer.body = state_.metrics.Text();
        answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
        break;
      default: break;
    }
    return answer;
  }

  Answer AnswerReady() const {
    Answer answer;
    const bool ready = state_.service->Ready() && !state_.draining;
    answer.body = ready ? R"({"status":"ready"})"
                        : (state_.draining ? R"({"status":"draining"})" : R"({"status":"starting"})");
    answer.http_status = ready ? 200 : 503;
    answer.retry_after = !ready;
    return answer;
  }

  Answer AnswerModel(const std::string& name) const {
    if (name != state_.config.model_name) {
      return ErrorAnswer({404, "model: \"" + TruncateUtf8(name, 100) + "\" is not served here; the model is \"" +
                                   state_.config.model_name + "\"",
                          "model", "model_not_found"});
    }
    Answer answer;
    answer.body = DumpJson(ModelObject(name, state_.created_unix_s, state_.service->max_context_tokens()));
    return answer;
  }

  // ---- generation ----

  // The answer being made: its sequences in the engine and what they have said. Whatever way the answer ends, sequences
  // that still run are aborted.
  struct Generation {
    Generation(ServerState& server, const RouteMatch& match, ApiRequest parsed, std::function<void()> wake)
        : state(server),
          route(match),
          response_id(server.NewResponseId(match.id == RouteId::kChat ? "chatcmpl" : "cmpl")),
          request(std::move(parsed)),
          mailbox(std::make_shared<DeltaMailbox>(request.num_sequences(), std::move(wake))) {}
    Generation(const Generation&) = delete;
    ~Generation() {
      if (!mailbox->AllFinished()) Abort();
      mailbox->Detach();
    }

    // All sequences or none.
    MaybeError Submit() {
      for (size_t i = 0; i < request.num_sequences(); ++i) {
        const Result<SequenceId> id = state.service->Submit(request.Sequence(i, response_id), mailbox->SinkFor(i));
        if (!id.ok()) return ErrorFromStatus(id.status());
        sequence_ids.push_back(*id);
      }
      return {};
    }

    void Abort() {
      for (const SequenceId id : sequence_ids) state.service->Abort(id);
    }

    ServerState& state;
    const RouteMatch& route;
    Clock::time_point start = Clock::now();
    const std::string response_id;
    const ApiRequest request;
    const std::shared_ptr<DeltaMailbox> mailbox;
    std::vector<SequenceId> sequence_ids;
  };

  // Counts answers that a drain waits for.
  class AnsweringScope {
   public:
    explicit AnsweringScope(ServerState& state) : state_(state) { ++state_.num_answering; }
    AnsweringScope(const AnsweringScope&) = delete;
    ~AnsweringScope() { --state_.num_answering; }

   private:
    ServerState& state_;
  };

  MaybeError CheckAccepting() const {
    if (state_.draining) return ApiError{503, "the server is shutting down", "", "draining"};
    if (!state_.service->Ready()) return ApiError{503, "the model is not ready yet; see GET /ready", "", "not_ready"};
    return {};
  }

  awaitable<bool> Generate(const RouteMatch& route, std::string body) {
    const AnsweringScope answering(state_);
    const Clock::time_point start = Clock::now();
    MaybeError error = CheckAccepting();
    if (error) co_return co_await Send(route.name, ErrorAnswer(*error));
    std::variant<ApiRequest, ApiError> parsed = co_await ParseOnWorker(route.id, body);
    body = std::string();  // may be megabytes, and the answer may take minutes
    if (ApiError* refused = std::get_if<ApiError>(&parsed)) co_return co_await Send(route.name, ErrorAnswer(*refused));
    wake_ = std::make_shared<WakeChannel>(socket_.get_executor(), 1);
    Generation generation(state_, route, std::get<ApiRequest>(std::move(parsed)),
                          [wake = wake_] { wake->try_send(error_code()); });
    generation.start = start;
    error = generation.Submit();
    if (error) co_return co_await Send(route.name, ErrorAnswer(*error));
    co_return co_await Respond(generation);
  }

  awaitable<std::variant<ApiRequest, ApiError>> ParseOnWorker(RouteId route, const std::string& body) {
    const Endpoint endpoint = route == RouteId::kChat ? Endpoint::kChat : Endpoint::kCompletions;
    const auto parse = [this, endpoint, &body]() -> awaitable<std::variant<ApiRequest, ApiError>> {
      co_return ParseRequest(endpoint, body, state_.MakeParserContext());
    };
    co_return co_await asio::co_spawn(state_.workers, parse, use_awaitable);
  }

  // Answers while watching whether the client is still there.
  awaitable<bool> Respond(Generation& generation) {
    using namespace asio::experimental::awaitable_operators;  // NOLINT: && runs both and waits for both
    stop_watching_ = false;
    const bool more = co_await (RespondAndStopWatching(generation) && WatchClient());
    co_return more;
  }

  awaitable<bool> RespondAndStopWatching(Generation& generation) {
    bool more = false;
    if (generation.request.stream) {
      more = co_await RespondStream(generation);
    } else {
      more = co_await RespondWhole(generation);
    }
    stop_watching_ = true;
    error_code ignored;
    socket_.cancel(ignored);  // only the watcher waits on it now
    co_return more;
  }

  // End of file while an answer is due means that the client has left (as most servers take it; half-closed
  // connections are not served). Bytes are the next request, kept for later.
  awaitable<void> WatchClient() {
    error_code ec;
    while (!stop_watching_ && !client_gone_ && buffer_.size() < kMaxPipelinedBytes) {
      co_await socket_.async_wait(asio::ip::tcp::socket::wait_read, redirect_error(use_awaitable, ec));
      if (ec || stop_watching_) co_return;
      socket_.non_blocking(true, ec);
      const size_t num_bytes = socket_.read_some(buffer_.prepare(kReadBytes), ec);
      if (!ec) {
        buffer_.commit(num_bytes);
      } else if (ec != asio::error::would_block) {
        ClientGone();
      }
    }
  }

  void ClientGone() {
    client_gone_ = true;
    if (wake_) wake_->try_send(error_code());
  }

  // News of the sequences; empty only when the client has left.
  awaitable<std::vector<DeltaMailbox::News>> NextNews(Generation& generation) {
    std::vector<DeltaMailbox::News> news;
    while (!client_gone_ && (news = generation.mailbox->Take()).empty()) {
      error_code ec;
      co_await wake_->async_receive(redirect_error(use_awaitable, ec));
    }
    co_return news;
  }

  // The error that ends the whole answer, when a sequence failed or the runtime aborted it.
  static MaybeError FailureOf(const GenerationDelta& delta) {
    if (delta.finish_reason == FinishReason::kError) {
      return delta.error.ok() ? ApiError{500, "the sequence failed", "", "internal"} : ErrorFromStatus(delta.error);
    }
    if (delta.finish_reason == FinishReason::kAbort) {
      return ApiError{503, "the request was aborted: the server is shutting down", "", "aborted"};
    }
    return {};
  }

  ResponseBuilder MakeBuilder(const Generation& generation) const {
    return ResponseBuilder(generation.request, generation.response_id, NowUnixSeconds(),
                           state_.config.model_name, state_.text);
  }

  RequestRecord Record(const Generation& generation, int http_status) const {
    const auto seconds = [&](Clock::time_point time) {
      return std::chrono::duration<double>(time - generation.start).count();
    };
    RequestRecord record{generation.route.name, http_status, seconds(Clock::now()), {}};
    if (const auto first = generation.mailbox->first_token_time()) record.time_to_first_token_s = seconds(*first);
    return record;
  }

  void LogAnswer(const Generation& generation, int http_status) const {
    spdlog::info("{} {} id={} sequences={} {:.3f} s{}{}", generation.route.name, http_status, generation.response_id,
                 generation.request.num_sequences(),
                 std::chrono::duration<double>(Clock::now() - generation.start).count(),
                 client_gone_ ? " (client left)" : "",
                 generation.request.user.empty() ? "" : " user=" + DumpJson(Json(generation.request.user)));
  }

  awaitable<bool> RespondWhole(Generation& generation) {
    std::vector<GenerationDelta> answers(generation.request.num_sequences());
    MaybeError failure;
    bool finished = false;
    while (!finished && !failure && !client_gone_) {
      std::vector<DeltaMailbox::News> news = co_await NextNews(generation);
      for (DeltaMailbox::News& item : news) {
        if (!failure) failure = FailureOf(item.delta);
        MergeDelta(std::move(item.delta), &answers[item.index]);
      }
      finished = std::all_of(answers.begin(), answers.end(), [](const auto& a) { return a.finish_reason.has_value(); });
    }
    if (client_gone_) {
      LogAnswer(generation, 499);
      co_return false;
    }
    Answer answer;
    if (failure) {
      answer = ErrorAnswer(*failure);
    } else {
      answer.body = MakeBuilder(generation).FullBody(answers);
    }
    answer.request_id = generation.response_id;
    LogAnswer(generation, answer.http_status);
    const RequestRecord record = Record(generation, answer.http_status);
    co_return co_await Send(generation.route.name, std::move(answer), record);
  }

  // The status line waits for the first news, so that a request which fails at once gets its real status.
  awaitable<bool> RespondStream(Generation& generation) {
    std::vector<DeltaMailbox::News> news = co_await NextNews(generation);
    for (const DeltaMailbox::News& item : news) {
      const MaybeError failure = FailureOf(item.delta);
      if (!failure) continue;
      LogAnswer(generation, failure->http_status);
      co_return co_await Send(generation.route.name, ErrorAnswer(*failure), Record(generation, failure->http_status));
    }
    if (client_gone_) {
      LogAnswer(generation, 499);
      co_return false;
    }
    const bool header_sent = co_await SendStreamHeader(generation);
    if (!header_sent) co_return false;
    ResponseBuilder builder = MakeBuilder(generation);
    MaybeError failure;
    size_t num_finished = 0;
    while (true) {
      std::string events;
      for (const DeltaMailbox::News& item : news) {
        if (!failure) failure = FailureOf(item.delta);
        events += builder.StreamEvents(item.index, item.delta);
        num_finished += item.delta.finish_reason.has_value();
      }
      const bool written = co_await WriteChunk(events);
      if (!written) break;
      if (failure || num_finished == generation.request.num_sequences()) break;
      news = co_await NextNews(generation);
    }
    if (failure) generation.Abort();
    LogAnswer(generation, 200);
    state_.metrics.RecordRequest(Record(generation, 200));
    std::string ending = failure ? SseEvent(ErrorBody(*failure)) : "";
    if (generation.request.include_usage) ending += builder.UsageEvent();
    co_await WriteChunk(ending + kSseDone);
    if (http_version_ == 11) co_await Write(kLastChunk);
    co_return keep_alive_ && !client_gone_;
  }

  awaitable<bool> SendStreamHeader(const Generation& generation) {
    http::response<http::empty_body> message;
    Answer answer;
    answer.content_type = "text/event-stream; charset=utf-8";
    answer.request_id = generation.response_id;
    if (http_version_ == 10) keep_alive_ = false;  // no chunks there: the end of the connection ends the answer
    FillHeader(message, answer);
    message.set(http::field::cache_control, "no-cache");
    if (http_version_ == 11) message.chunked(true);
    SetDeadline(state_.config.write_timeout);
    http::response_serializer<http::empty_body> serializer(message);
    error_code ec;
    co_await http::async_write_header(socket_, serializer, redirect_error(use_awaitable, ec));
    ClearDeadline();
    if (ec) ClientGone();
    co_return !ec;
  }

  awaitable<bool> WriteChunk(const std::string& events) {
    if (events.empty()) co_return !client_gone_;
    if (http_version_ == 10) co_return co_await Write(events);
    std::ostringstream chunk_header;
    chunk_header << std::hex << events.size() << "\r\n";
    co_return co_await Write(chunk_header.str() + events + "\r\n");
  }

  ServerState& state_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_timer_;
  Clock::time_point deadline_;
  bool timer_armed_ = false;
  bool timed_out_ = false;
  bool closing_ = false;
  bool client_gone_ = false;
  bool stop_watching_ = false;
  std::shared_ptr<WakeChannel> wake_;  // of the current answer
  beast::flat_buffer buffer_;          // read but not yet parsed
  // Of the current request:
  bool keep_alive_ = false;
  bool is_head_ = false;
  unsigned http_version_ = 11;
};

}  // namespace

std::weak_ptr<Connection> StartConnection(asio::ip::tcp::socket socket, ServerState& state) {
  auto connection = std::make_shared<HttpConnection>(std::move(socket), state);
  connection->Start();
  return connection;
}

void RefuseConnection(asio::ip::tcp::socket socket) {
  static const std::string body = ErrorBody({503, "too many open connections", "", "too_many_connections"});
  static const std::string message =
      "HTTP/1.1 503 Service Unavailable\r\nServer: deltart\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(message), ignored);
  socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace rt::server
