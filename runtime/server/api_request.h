// A parsed and validated request of /v1/completions or /v1/chat/completions.
#pragma once

#include "runtime/engine/generation.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rt::server {

enum class Endpoint { kChat, kCompletions };

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  bool stream = false;
  bool include_usage = false;     // stream_options.include_usage
  bool return_token_ids = false;
  bool want_logprobs = false;     // sampling.num_logprobs says how many alternatives
  int num_choices = 1;            // `n`, for each prompt
  std::string user;               // a label for logs
  std::vector<std::vector<int32_t>> prompts;  // token ids; one for chat
  GenerationRequest prototype;    // everything of a sequence but request_id, prompt_ids and the shifted seed

  size_t num_sequences() const { return prompts.size() * static_cast<size_t>(num_choices); }

  // Choice `index` of the response is prompt index / n, sample index % n; sample i draws with seed + i.
  GenerationRequest Sequence(size_t index, const std::string& response_id) const {
    GenerationRequest sequence = prototype;
    const size_t sample_idx = index % static_cast<size_t>(num_choices);
    sequence.prompt_ids = prompts[index / static_cast<size_t>(num_choices)];
    if (sequence.sampling.seed) *sequence.sampling.seed += sample_idx;
    sequence.request_id = num_sequences() == 1 ? response_id : response_id + "-" + std::to_string(index);
    return sequence;
  }
};

}  // namespace rt::server
