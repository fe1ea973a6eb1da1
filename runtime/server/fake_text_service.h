// A TextService for tests: one token a byte, and a chat template that prints what it was given.
#pragma once

#include "runtime/server/text_service.h"

#include <mutex>

namespace rt::server {

class FakeTextService : public TextService {
 public:
  static constexpr int32_t kVocabSize = 256;

  Result<std::vector<int32_t>> EncodeText(std::string_view text) override {
    if (text == "unencodable") return Status(Code::kInvalidArgument, "the text cannot be encoded");
    return Bytes(text);
  }

  Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools, const Json& options) override {
    std::string text;
    for (const Json& message : messages) {
      if (message["content"] == "raise") return Status(Code::kInvalidArgument, "the template says no");
      text += message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "\n";
    }
    std::lock_guard<std::mutex> lock(mutex_);
    messages_ = messages;
    tools_ = tools;
    options_ = options;
    return Bytes(text);
  }

  std::string TokenBytes(int32_t token_id) const override {
    if (token_id < 0 || token_id >= kVocabSize) return "";
    return std::string(1, static_cast<char>(token_id));
  }

  // What the last EncodeChat was given; read while no request is being parsed.
  const Json& messages() const { return messages_; }
  const Json& tools() const { return tools_; }
  const Json& options() const { return options_; }

 private:
  static std::vector<int32_t> Bytes(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::mutex mutex_;
  Json messages_, tools_, options_;
};

}  // namespace rt::server
