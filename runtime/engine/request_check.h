// The limits every request is held to, whoever sends it.
#pragma once

#include "runtime/engine/generation.h"

namespace rt {

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
};

// InvalidArgument whose message starts with the name of the parameter at fault.
Status CheckRequest(const GenerationRequest& request, const RequestLimits& limits);

}  // namespace rt
