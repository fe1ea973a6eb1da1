// Any bytes as tokenizer.json: an error or a tokenizer that encodes and decodes without a fault.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  auto tokenizer = rt::Tokenizer::FromJson(json);
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode(json.substr(0, 256), true);
  if (ids.ok()) (void)(*tokenizer)->Decode(*ids, true);
  return 0;
}
