// What the server asks of text processing. Without one (no tokenizer), token-id endpoints still work.
#pragma once

#include <rt/plugin/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/server/json_reader.h"

namespace rt::server {

// Thread-safe: called from several worker threads at once.
class TextService {
 public:
  virtual ~TextService() = default;

  // User text: strings that look like special tokens stay text. InvalidArgument: the text cannot be encoded.
  virtual Result<std::vector<int32_t>> EncodeText(std::string_view text) = 0;

  // Renders the model's chat template and encodes it, ready for generation.
  //   messages  array of {"role", "content": string, …}; contents are plain strings and tool-call arguments are
  //             objects (the server has normalised both)
  //   tools     array as the client wrote it, or null
  //   options   object of template variables (chat_template_kwargs of the request), e.g. {"enable_thinking": false};
  //             add_generation_prompt is true unless it says otherwise
  // InvalidArgument carries the template's own message; Unavailable says what to install.
  virtual Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools, const Json& options) = 0;

  // The bytes a token stands for; may be part of a UTF-8 character. Unknown ids: empty.
  virtual std::string TokenBytes(int32_t token_id) const = 0;
};

}  // namespace rt::server
