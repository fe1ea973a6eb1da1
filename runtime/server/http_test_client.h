// A blocking HTTP client on a raw socket for tests: sends bytes as they are told, reads one response after another.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rt::server {

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk framing
  bool complete = false;                       // false: the connection ended or fell silent before the end
};

class HttpTestClient {
 public:
  explicit HttpTestClient(uint16_t port);
  ~HttpTestClient();
  HttpTestClient(const HttpTestClient&) = delete;

  bool connected() const { return socket_ >= 0; }
  bool Send(std::string_view bytes);
  // A whole request; "" sends no body.
  bool SendRequest(std::string_view method, std::string_view target, std::string_view body = "",
                   std::string_view extra_headers = "");
  bool Post(std::string_view target, std::string_view json) { return SendRequest("POST", target, json); }

  HttpResponse ReadResponse(bool head = false);
  // Up to the end of the header; then ReadEvent() reads server-sent events as they come.
  HttpResponse ReadHeader();
  // The next event with its framing ("data: …\n\n"), or "" at the end of the stream.
  std::string ReadEvent();

  bool AtEof();          // waits for the server to close
  void ShutDownWriting();
  void Close();          // at once
  void CloseWithReset(); // as a crashed client does

 private:
  bool Fill();  // reads some bytes; false at end, error or after 20 s of silence
  bool ReadUntil(std::string_view mark, std::string* out);
  bool ReadBytes(size_t count, std::string* out);
  bool ReadChunk(std::string* out);

  int socket_ = -1;
  std::string buffer_;
  std::string events_;  // dechunked, not yet given out
  bool stream_ended_ = false;
};

// One request on a fresh connection.
HttpResponse Fetch(uint16_t port, std::string_view method, std::string_view target, std::string_view body = "");

// `text` with response ids and times replaced: "id":"ID", "created":0.
std::string Neutral(std::string text);

// The payloads of a body of server-sent events; a framing error gives one "BAD FRAMING …" entry.
std::vector<std::string> SseData(std::string_view body);

}  // namespace rt::server
