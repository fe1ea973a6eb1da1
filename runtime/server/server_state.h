// What all connections of one server share (internal).
#pragma once

#include "runtime/server/request_parser.h"
#include "runtime/server/server.h"

#include <boost/asio/thread_pool.hpp>

#include <atomic>

namespace rt::server {

struct ServerState {
  ServerState(ServerConfig server_config, GenerationService* generation, TextService* text_service,
              ServerCallbacks server_callbacks);

  // Fields of the parser that the service may only know once it is ready.
  ParserContext MakeParserContext() const;
  // Process-unique, hard to guess: "<prefix>-<16 hex digits><counter>".
  std::string NewResponseId(const char* prefix);

  const ServerConfig config;
  GenerationService* const service;
  TextService* const text;
  const ServerCallbacks callbacks;
  const int64_t created_unix_s;
  Metrics metrics;
  boost::asio::thread_pool workers;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> num_connections{0};
  std::atomic<int64_t> num_answering{0};  // generation requests whose answer is not fully written

 private:
  const uint64_t id_salt_;
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace rt::server
