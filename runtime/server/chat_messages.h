// Validation and normalisation of `messages` and `tools` of a chat request.
#pragma once

#include "runtime/server/api_error.h"
#include "runtime/server/json_reader.h"

namespace rt::server {

// Checks roles, contents and tool calls; `out` gets what templates expect:
//   - content is a string: text parts are joined as they stand, an assistant's missing or null content is "";
//   - role "developer" becomes "system" (the name newer clients use for it);
//   - arguments of tool calls are objects: a JSON text is parsed once, "" is {}.
// Images, audio and other parts are refused by name. `max_depth` bounds the JSON inside arguments.
MaybeError NormalizeMessages(const Json& messages, int max_depth, Json* out);

// Function tools only; `strict: true` is refused (it needs constrained decoding). The array itself is passed on as is.
MaybeError ValidateTools(const Json& tools);

}  // namespace rt::server
