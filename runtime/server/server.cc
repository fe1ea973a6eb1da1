#include "runtime/server/server.h"

#include "runtime/server/connection.h"
#include "runtime/server/server_state.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <random>
#include <thread>
#include <utility>

namespace rt::server {
namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::steady_clock;

namespace {

// After the engine has finished, answers still have to reach their clients.
constexpr std::chrono::milliseconds kDeliveryTime{5000};
constexpr std::chrono::milliseconds kDrainPollTime{5};
// The process is out of file handles: some connections have to end first.
constexpr std::chrono::milliseconds kAcceptRetryTime{100};

uint64_t RandomSalt() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

ServerState::ServerState(ServerConfig server_config, GenerationService* generation, TextService* text_service,
                         ServerCallbacks server_callbacks)
    : config(std::move(server_config)),
      service(generation),
      text(text_service),
      callbacks(std::move(server_callbacks)),
      created_unix_s(std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count()),
      metrics([generation] { return generation->Stats(); }, callbacks.kernel_labels),
      workers(static_cast<size_t>(std::max(config.worker_threads, 1))),
      id_salt_(RandomSalt()) {}

ParserContext ServerState::MakeParserContext() const {
  ParserContext context;
  context.model_name = config.model_name;
  context.max_context_tokens = service->max_context_tokens();
  context.vocab_size = service->vocab_size();
  context.default_sampling = config.default_sampling;
  context.text = text;
  context.no_text_reason = config.no_text_reason;
  context.max_json_depth = config.max_json_depth;
  context.max_sequences = config.max_sequences_per_request;
  return context;
}

std::string ServerState::NewResponseId(const char* prefix) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string id = std::string(prefix) + "-";
  for (int shift = 60; shift >= 0; shift -= 4) id += kHex[(id_salt_ >> shift) & 15];
  return id + std::to_string(next_id_++);
}

struct Server::Impl {
  Impl(ServerConfig config, GenerationService* service, TextService* text, ServerCallbacks callbacks)
      : state(std::move(config), service, text, std::move(callbacks)), strand(asio::make_strand(io)) {}

  Status Listen() {
    const std::string where = state.config.host + ":" + std::to_string(state.config.port);
    error_code ec;
    asio::ip::tcp::resolver resolver(io);
    const auto found = resolver.resolve(state.config.host, std::to_string(state.config.port),
                                        asio::ip::tcp::resolver::passive, ec);
    if (ec || found.empty()) {
      return {Code::kInvalidArgument, "server.host: cannot resolve \"" + where + "\": " + ec.message()};
    }
    const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
    for (const auto& step : {+[](asio::ip::tcp::acceptor& a, const asio::ip::tcp::endpoint& e, error_code& c) {
                               a.open(e.protocol(), c);
                             },
                             +[](asio::ip::tcp::acceptor& a, const asio::ip::tcp::endpoint&, error_code& c) {
                               a.set_option(asio::socket_base::reuse_address(true), c);
                             },
                             +[](asio::ip::tcp::acceptor& a, const asio::ip::tcp::endpoint& e, error_code& c) {
                               a.bind(e, c);
                             },
                             +[](asio::ip::tcp::acceptor& a, const asio::ip::tcp::endpoint&, error_code& c) {
                               a.listen(asio::socket_base::max_listen_connections, c);
                             }}) {
      step(acceptor, endpoint, ec);
      if (ec) return {Code::kUnavailable, "server: cannot listen on " + where + ": " + ec.message()};
    }
    port = acceptor.local_endpoint(ec).port();
    return {};
  }

  void Accept() {
    acceptor.async_accept(asio::make_strand(io), [this](error_code ec, asio::ip::tcp::socket socket) {
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (ec) {
        spdlog::warn("server: cannot accept a connection: {}", ec.message());
        accept_retry.expires_after(kAcceptRetryTime);
        accept_retry.async_wait([this](error_code stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      Welcome(std::move(socket));
      Accept();
    });
  }

  void Welcome(asio::ip::tcp::socket socket) {
    if (state.num_connections >= state.config.max_connections) return RefuseConnection(std::move(socket));
    error_code ignored;
    socket.set_option(asio::ip::tcp::no_delay(true), ignored);  // tokens are small and should not wait for company
    connections.erase(std::remove_if(connections.begin(), connections.end(),
                                     [](const std::weak_ptr<Connection>& c) { return c.expired(); }),
                      connections.end());
    connections.push_back(StartConnection(std::move(socket), state));
  }

  // On the strand.
  void CloseAll() {
    error_code ignored;
    acceptor.close(ignored);
    accept_retry.cancel();
    for (const auto& weak : connections) {
      if (const auto connection = weak.lock()) connection->Close();
    }
  }

  ServerState state;
  asio::io_context io;
  asio::strand<asio::io_context::executor_type> strand;  // acceptor and list of connections
  asio::ip::tcp::acceptor acceptor{strand};
  asio::steady_timer accept_retry{strand};
  std::vector<std::weak_ptr<Connection>> connections;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  uint16_t port = 0;
};

Server::Server(ServerConfig config, GenerationService* service, TextService* text, ServerCallbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(config), service, text, std::move(callbacks))) {}

Server::~Server() { Stop(); }

Status Server::Start() {
  RT_RETURN_IF_ERROR(impl_->Listen());
  impl_->work.emplace(impl_->io.get_executor());
  asio::post(impl_->strand, [impl = impl_.get()] { impl->Accept(); });
  for (int i = 0; i < std::max(impl_->state.config.io_threads, 1); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->io.run(); });
  }
  return {};
}

uint16_t Server::port() const { return impl_->port; }

void Server::Drain(steady_clock::time_point deadline) {
  impl_->state.draining = true;
  impl_->state.service->Drain(deadline);
  const steady_clock::time_point delivered_by = std::max(deadline, steady_clock::now() + kDeliveryTime);
  while (impl_->state.num_answering > 0 && steady_clock::now() < delivered_by) {
    std::this_thread::sleep_for(kDrainPollTime);
  }
}

void Server::Stop() {
  if (impl_->threads.empty()) return;
  impl_->state.draining = true;
  asio::post(impl_->strand, [impl = impl_.get()] { impl->CloseAll(); });
  impl_->work.reset();  // run() returns when the last connection has ended
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  impl_->state.workers.join();
}

}  // namespace rt::server
