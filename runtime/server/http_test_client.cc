#include "runtime/server/http_test_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <regex>
#include <sstream>
#include <utility>

namespace rt::server {

HttpTestClient::HttpTestClient(uint16_t port) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience{20, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

HttpTestClient::~HttpTestClient() { Close(); }

void HttpTestClient::Close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HttpTestClient::CloseWithReset() {
  const linger now{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

void HttpTestClient::ShutDownWriting() { ::shutdown(socket_, SHUT_WR); }

bool HttpTestClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpTestClient::SendRequest(std::string_view method, std::string_view target, std::string_view body,
                                 std::string_view extra_headers) {
  std::ostringstream request;
  request << method << ' ' << target << " HTTP/1.1\r\nHost: test\r\n" << extra_headers;
  if (!body.empty()) request << "Content-Type: application/json\r\nContent-Length: " << body.size() << "\r\n";
  request << "\r\n" << body;
  return Send(request.str());
}

bool HttpTestClient::Fill() {
  char bytes[65536];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool HttpTestClient::ReadUntil(std::string_view mark, std::string* out) {
  size_t end = 0;
  while ((end = buffer_.find(mark)) == std::string::npos) {
    if (!Fill()) return false;
  }
  *out = buffer_.substr(0, end);
  buffer_.erase(0, end + mark.size());
  return true;
}

bool HttpTestClient::ReadBytes(size_t count, std::string* out) {
  while (buffer_.size() < count) {
    if (!Fill()) return false;
  }
  out->append(buffer_, 0, count);
  buffer_.erase(0, count);
  return true;
}

HttpResponse HttpTestClient::ReadHeader() {
  HttpResponse response;
  events_.clear();
  stream_ended_ = false;
  std::string header;
  if (!ReadUntil("\r\n\r\n", &header)) return response;
  std::istringstream lines(header);
  std::string line;
  std::getline(lines, line);
  if (line.size() > 12) response.status = std::stoi(line.substr(9, 3));
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = line.substr(colon + 2);
  }
  return response;
}

// False at the last chunk or at a broken one; `stream_ended_` tells which.
bool HttpTestClient::ReadChunk(std::string* out) {
  std::string size_line, end;
  if (!ReadUntil("\r\n", &size_line)) return false;
  const size_t size = std::stoul(size_line, nullptr, 16);
  if (!ReadBytes(size, out) || !ReadBytes(2, &end) || end != "\r\n") return false;
  stream_ended_ = size == 0;
  return size != 0;
}

HttpResponse HttpTestClient::ReadResponse(bool head) {
  HttpResponse response = ReadHeader();
  if (response.status == 0) return response;
  if (response.headers.count("transfer-encoding") != 0) {
    while (ReadChunk(&response.body)) {
    }
    response.complete = stream_ended_;
  } else if (head) {
    response.complete = true;
  } else if (response.headers.count("content-length") != 0) {
    response.complete = ReadBytes(std::stoul(response.headers["content-length"]), &response.body);
  } else {
    while (Fill()) {
    }
    response.body = std::exchange(buffer_, "");
    response.complete = true;
  }
  return response;
}

std::string HttpTestClient::ReadEvent() {
  size_t end = 0;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    if (stream_ended_ || !ReadChunk(&events_)) return std::exchange(events_, "");
  }
  const std::string event = events_.substr(0, end + 2);
  events_.erase(0, end + 2);
  return event;
}

bool HttpTestClient::AtEof() {
  char byte = 0;
  const ssize_t count = ::recv(socket_, &byte, 1, 0);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

HttpResponse Fetch(uint16_t port, std::string_view method, std::string_view target, std::string_view body) {
  HttpTestClient client(port);
  client.SendRequest(method, target, body);
  return client.ReadResponse(method == "HEAD");
}

std::string Neutral(std::string text) {
  text = std::regex_replace(text, std::regex("\"id\":\"(chatcmpl|cmpl)-[0-9a-f]{16}[0-9]+\""), "\"id\":\"ID\"");
  return std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0");
}

std::vector<std::string> SseData(std::string_view body) {
  std::vector<std::string> data;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (body.substr(0, 6) != "data: " || end == std::string_view::npos) {
      return {"BAD FRAMING at: " + std::string(body.substr(0, 80))};
    }
    data.emplace_back(body.substr(6, end - 6));
    body.remove_prefix(end + 2);
  }
  return data;
}

}  // namespace rt::server
