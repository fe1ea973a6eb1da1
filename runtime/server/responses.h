// JSON bodies of answers: whole completions, stream chunks, logprobs, usage, model lists.
#pragma once

#include "runtime/engine/generation.h"
#include "runtime/server/api_request.h"
#include "runtime/server/json_reader.h"
#include "runtime/server/text_service.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rt::server {

// Server-sent events: "data: …" and an empty line.
std::string SseEvent(const std::string& data);
inline constexpr char kSseDone[] = "data: [DONE]\n\n";

// Builds the answer to one request; `request` and `text` outlive it. Not thread-safe.
class ResponseBuilder {
 public:
  ResponseBuilder(const ApiRequest& request, std::string response_id, int64_t created_unix_s, std::string model_name,
                  const TextService* text);

  // Streaming. Events of choice `index` for `delta`, in order; "" when there is nothing to show yet. The finish reasons
  // kAbort and kError have no chunk: the caller ends the stream with an error event.
  std::string StreamEvents(size_t index, const GenerationDelta& delta);
  // {"choices": [], "usage": …} after all chunks.
  std::string UsageEvent() const;

  // Not streaming: the whole answer; deltas[i] is everything choice i has said.
  std::string FullBody(const std::vector<GenerationDelta>& deltas);

 private:
  struct ChoiceState {
    bool started = false;
    bool prompt_ids_sent = false;
    int64_t text_offset = 0;  // characters of the tokens reported so far (completions logprobs)
    int32_t num_output_tokens = 0;
    int32_t num_cached_prompt_tokens = 0;
  };

  bool chat() const { return request_.endpoint == Endpoint::kChat; }
  Json Envelope(const char* object) const;
  Json Chunk(Json choice) const;
  void AddTokenIds(size_t index, const GenerationDelta& delta, Json* choice);
  void Count(size_t index, const GenerationDelta& delta);
  Json Usage() const;
  Json Logprobs(size_t index, const GenerationDelta& delta);
  Json ChatLogprobs(const GenerationDelta& delta) const;
  Json CompletionLogprobs(const GenerationDelta& delta, int64_t* text_offset) const;
  std::string TokenText(int32_t token_id) const;

  const ApiRequest& request_;
  const std::string response_id_;
  const int64_t created_unix_s_;
  const std::string model_name_;
  const TextService* const text_;  // null: no tokenizer
  std::vector<ChoiceState> choices_;
};

// {"id": …, "object": "model", …} as in GET /v1/models.
Json ModelObject(const std::string& name, int64_t created_unix_s, int32_t max_context_tokens);
std::string ModelListBody(const std::string& name, int64_t created_unix_s, int32_t max_context_tokens);

}  // namespace rt::server
