#include "runtime/text/stream_decoder.h"

namespace rt {

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (!(skip_special_ && tokenizer_->IsSpecial(id))) decoder_.Push(tokenizer_->TokenBytes(id), &text);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  decoder_.Finish(&text);
  return text;
}

}  // namespace rt
