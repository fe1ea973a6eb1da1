#include "runtime/engine/tokenizer_text.h"

#include "runtime/text/stop_matcher.h"
#include "runtime/text/stream_decoder.h"

#include <type_traits>
#include <utility>

namespace rt {
namespace {

class TokenizerTextDecoder : public TextDecoder {
 public:
  TokenizerTextDecoder(const Tokenizer* tokenizer, const GenerationRequest& request, StopMatcher matcher)
      : decoder_(tokenizer, request.skip_special_tokens), matcher_(std::move(matcher)) {
    if (request.stop.include_stop_string) shown_stops_ = request.stop.stop_strings;
  }

  int32_t Push(int32_t token_id, bool may_stop, std::string* text) override {
    const std::string piece = decoder_.Push(token_id);
    if (!may_stop) {
      *text += piece;
      return -1;
    }
    *text += matcher_.Push(piece);
    if (!matcher_.stopped()) return -1;
    if (!shown_stops_.empty()) *text += shown_stops_[static_cast<size_t>(matcher_.matched())];
    return matcher_.matched();
  }

  void Finish(std::string* text) override {
    *text += matcher_.Push(decoder_.Finish());
    *text += matcher_.Finish();
  }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
  std::vector<std::string> shown_stops_;  // empty: a stop string is not shown
};

}  // namespace

Result<std::unique_ptr<TextDecoder>> TokenizerTextFactory::New(const GenerationRequest& request) {
  RT_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(request.stop.stop_strings));
  return std::unique_ptr<TextDecoder>(new TokenizerTextDecoder(tokenizer_, request, std::move(matcher)));
}

SamplingParams DefaultSampling(const TextConfig::SamplingDefaults& defaults) {
  SamplingParams params;
  const auto set = [](const auto& from, auto* to) {
    if (from) *to = static_cast<std::remove_pointer_t<decltype(to)>>(*from);
  };
  set(defaults.temperature, &params.temperature);
  set(defaults.top_p, &params.top_p);
  set(defaults.min_p, &params.min_p);
  set(defaults.top_k, &params.top_k);
  set(defaults.repetition_penalty, &params.repetition_penalty);
  set(defaults.presence_penalty, &params.presence_penalty);
  set(defaults.frequency_penalty, &params.frequency_penalty);
  if (defaults.do_sample == false) params.temperature = 0.0f;
  return params;
}

}  // namespace rt
