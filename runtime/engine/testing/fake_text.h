// Text for tests: token t is the letter 'a' + t % 26, so that stop strings span tokens; held back as the
// contract says.
#pragma once

#include "runtime/engine/text_decoder.h"

#include <algorithm>
#include <string>
#include <vector>

namespace rt {

inline char FakeLetter(int32_t token_id) { return static_cast<char>('a' + token_id % 26); }

class FakeTextDecoder : public TextDecoder {
 public:
  explicit FakeTextDecoder(const GenerationRequest& request)
      : stops_(request.stop.stop_strings), include_stop_(request.stop.include_stop_string) {}

  int32_t Push(int32_t token_id, bool may_stop, std::string* text) override {
    held_ += FakeLetter(token_id);
    if (!may_stop) {
      Finish(text);
      return -1;
    }
    for (size_t i = 0; i < stops_.size(); ++i) {
      const size_t at = held_.find(stops_[i]);
      if (at == std::string::npos) continue;
      text->append(held_, 0, include_stop_ ? at + stops_[i].size() : at);
      return static_cast<int32_t>(i);
    }
    size_t keep = 0;
    for (const std::string& stop : stops_)
      for (size_t n = 1; n < stop.size() && n <= held_.size(); ++n)
        if (held_.ends_with(stop.substr(0, n))) keep = std::max(keep, n);
    text->append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return -1;
  }
  void Finish(std::string* text) override {
    *text += held_;
    held_.clear();
  }

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
};

class FakeTextDecoderFactory : public TextDecoderFactory {
 public:
  Result<std::unique_ptr<TextDecoder>> New(const GenerationRequest& request) override {
    return std::unique_ptr<TextDecoder>(new FakeTextDecoder(request));
  }
};

}  // namespace rt
