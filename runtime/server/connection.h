// One client connection (internal): reads requests one after another and answers each before the next.
#pragma once

#include "runtime/server/server_state.h"

#include <boost/asio/ip/tcp.hpp>

#include <memory>

namespace rt::server {

class Connection {
 public:
  virtual ~Connection() = default;
  // Any thread. Ends what is going on, aborting its sequences.
  virtual void Close() = 0;
};

// Serves `socket` on its own executor until it closes; `state` outlives the connection. The connection owns itself.
std::weak_ptr<Connection> StartConnection(boost::asio::ip::tcp::socket socket, ServerState& state);

// Answers 503 and closes, without reading: for connections beyond the limit.
void RefuseConnection(boost::asio::ip::tcp::socket socket);

}  // namespace rt::server
