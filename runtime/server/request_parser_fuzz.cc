// libFuzzer target: any bytes as a request body give a request or a 4xx error, never a crash.
#include "runtime/server/fake_text_service.h"
#include "runtime/server/request_parser.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rt::server;
  static FakeTextService text;
  static const ParserContext context = [] {
    ParserContext made;
    made.model_name = "m";
    made.max_context_tokens = 4096;
    made.vocab_size = FakeTextService::kVocabSize;
    made.text = &text;
    return made;
  }();
  if (size == 0) return 0;
  const Endpoint endpoint = (data[0] & 1) != 0 ? Endpoint::kChat : Endpoint::kCompletions;
  const auto parsed = ParseRequest(endpoint, {reinterpret_cast<const char*>(data + 1), size - 1}, context);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
    if (error->http_status < 400 || error->message.empty() || ErrorBody(*error).empty()) std::abort();
    return 0;
  }
  const ApiRequest& request = std::get<ApiRequest>(parsed);
  for (size_t i = 0; i < request.num_sequences(); ++i) {
    if (request.Sequence(i, "x").prompt_ids.empty() || request.prototype.stop.max_tokens < 1) std::abort();
  }
  return 0;
}
