// The HTTP server: OpenAI-compatible generation, health, metrics (README.md lists the endpoints).
#pragma once

#include "runtime/engine/generation.h"
#include "runtime/observe/metrics.h"
#include "runtime/server/text_service.h"

#include <rt/plugin/status.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rt::server {

struct ServerConfig {
  std::string host = "127.0.0.1";  // address or name to listen on
  uint16_t port = 8000;            // 0: any free port, see Server::port()
  std::string model_name;          // as `model` of requests and in /v1/models
  SamplingParams default_sampling; // where a request is silent (generation_config.json of the checkpoint)
  std::string no_text_reason;      // why there is no TextService, for clients

  int io_threads = 1;              // sockets and SSE; never blocks
  int worker_threads = 1;          // JSON, chat templates, tokenization
  int32_t max_connections = 1024;  // more are answered 503 and closed
  int32_t max_sequences_per_request = 128;
  int max_json_depth = 64;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 32 << 20;  // a million token ids in decimal are about 7 MB

  std::chrono::milliseconds idle_timeout{75000};    // keep-alive, between requests
  std::chrono::milliseconds header_timeout{10000};  // first byte of a request to the end of its header
  std::chrono::milliseconds body_timeout{60000};    // the whole body
  std::chrono::milliseconds write_timeout{30000};   // a client that takes nothing for so long is gone
};

// Called on the I/O thread: must be quick.
struct ServerCallbacks {
  std::function<std::string()> kernels_json;                // body of GET /v1/runtime/kernels; empty: {}
  std::function<std::vector<KernelLabels>()> kernel_labels; // lines of rt_kernel_info; may be empty
};

class Server {
 public:
  // `service` and `text` (null: token ids only) outlive the server.
  Server(ServerConfig config, GenerationService* service, TextService* text, ServerCallbacks callbacks);
  ~Server();  // Stop()

  // Listens and returns. InvalidArgument: bad host; Unavailable: the address cannot be bound. Both name host and port.
  // May be called before the service is ready: until then /ready and generation answer 503.
  Status Start();
  // The port listened on; valid after Start().
  uint16_t port() const;

  // New generation requests and /ready get 503; returns when every answer has been delivered, or at `deadline`, when
  // the service aborts what still runs. Health and metrics go on until Stop(). Blocks; not from a callback.
  void Drain(std::chrono::steady_clock::time_point deadline);

  // Closes everything and joins the threads. Sequences still running are aborted. Idempotent.
  void Stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rt::server
