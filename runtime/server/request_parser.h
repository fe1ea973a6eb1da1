// Strict parsing of request bodies: every field of the OpenAI API is honoured or answered with 400 naming it.
//
// Rules for all fields: null means absent; unknown fields, wrong types and values out of range are errors; a field
// whose feature does not exist here is accepted only at the value that means "off" (e.g. store: false). `user` is the
// one field accepted without an effect on the answer: it is a label for logs. README.md lists every field.
#pragma once

#include "runtime/server/api_error.h"
#include "runtime/server/api_request.h"
#include "runtime/server/text_service.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rt::server {

struct ParserContext {
  std::string model_name;           // `model`, when given, must be this
  int32_t max_context_tokens = 0;   // prompt + output
  int32_t vocab_size = 0;
  SamplingParams default_sampling;  // what the checkpoint's generation_config.json recommends; holds where a request is silent
  TextService* text = nullptr;      // null: token ids only
  std::string no_text_reason;       // why `text` is null, for the client
  int max_json_depth = 64;
  int32_t max_sequences = 128;      // prompts x n of one request
};

// Encodes prompts, so it may take milliseconds: call it off the I/O threads.
std::variant<ApiRequest, ApiError> ParseRequest(Endpoint endpoint, std::string_view body, const ParserContext& context);

// Every field name that ParseRequest knows for an endpoint, honoured or refused by name.
std::vector<std::string_view> KnownFields(Endpoint endpoint);

}  // namespace rt::server
