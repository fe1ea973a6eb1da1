#include "runtime/engine/request_check.h"

#include <cmath>
#include <string>

namespace rt {
namespace {

template <typename T>
Status Bad(const char* name, const std::string& expected, T found) {
  return {Code::kInvalidArgument,
          std::string(name) + ": expected " + expected + ", got " + std::to_string(found)};
}

Status CheckIds(const char* name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size)
      return Bad(name, "token ids in [0, " + std::to_string(vocab_size) + ")", id);
  }
  return Status::Ok();
}

Status CheckSampling(const SamplingParams& p, int32_t vocab_size) {
  // Written so that NaN fails.
  if (!(p.temperature >= 0.0f) || std::isinf(p.temperature))
    return Bad("temperature", "a finite number >= 0", p.temperature);
  if (p.top_k < 0) return Bad("top_k", ">= 0", p.top_k);
  if (!(p.top_p > 0.0f && p.top_p <= 1.0f)) return Bad("top_p", "a number in (0, 1]", p.top_p);
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return Bad("min_p", "a number in [0, 1]", p.min_p);
  if (!std::isfinite(p.presence_penalty))
    return Bad("presence_penalty", "a finite number", p.presence_penalty);
  if (!std::isfinite(p.frequency_penalty))
    return Bad("frequency_penalty", "a finite number", p.frequency_penalty);
  if (!(p.repetition_penalty > 0.0f) || std::isinf(p.repetition_penalty))
    return Bad("repetition_penalty", "a finite number > 0", p.repetition_penalty);
  if (p.num_logprobs < -1 || p.num_logprobs > 20) return Bad("num_logprobs", "-1 to 20", p.num_logprobs);
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab_size)
      return Bad("logit_bias", "token ids in [0, " + std::to_string(vocab_size) + ")", id);
    if (!std::isfinite(bias)) return Bad("logit_bias", "finite numbers", bias);
  }
  return Status::Ok();
}

Status CheckStop(const StopConditions& stop, int32_t vocab_size, bool want_text) {
  if (stop.max_tokens <= 0) return Bad("max_tokens", "> 0", stop.max_tokens);
  if (stop.min_tokens < 0 || stop.min_tokens > stop.max_tokens)
    return Bad("min_tokens", "0 to max_tokens (" + std::to_string(stop.max_tokens) + ")", stop.min_tokens);
  RT_RETURN_IF_ERROR(CheckIds("stop_token_ids", stop.stop_token_ids, vocab_size));
  for (const std::string& text : stop.stop_strings) {
    if (text.empty()) return {Code::kInvalidArgument, "stop: expected non-empty strings, got an empty one"};
  }
  if (!want_text && !stop.stop_strings.empty())
    return {Code::kInvalidArgument, "stop: stop strings need text, but only token ids were asked for"};
  return Status::Ok();
}

}  // namespace

Status CheckRequest(const GenerationRequest& request, const RequestLimits& limits) {
  if (request.prompt_ids.empty())
    return {Code::kInvalidArgument, "prompt: expected at least one token, got none"};
  RT_RETURN_IF_ERROR(CheckIds("prompt", request.prompt_ids, limits.vocab_size));
  RT_RETURN_IF_ERROR(CheckSampling(request.sampling, limits.vocab_size));
  RT_RETURN_IF_ERROR(CheckStop(request.stop, limits.vocab_size, request.want_text));
  const int64_t total = static_cast<int64_t>(request.prompt_ids.size()) + request.stop.max_tokens;
  if (total > limits.max_context_tokens)
    return {Code::kInvalidArgument, "prompt + max_tokens: expected at most " +
                                        std::to_string(limits.max_context_tokens) + " tokens, got " +
                                        std::to_string(request.prompt_ids.size()) + " + " +
                                        std::to_string(request.stop.max_tokens)};
  return Status::Ok();
}

}  // namespace rt
