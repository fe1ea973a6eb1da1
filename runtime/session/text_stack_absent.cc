// TextStack of a build without tokenizers (RT_WITH_TEXT=OFF): token ids only.
#include "runtime/session/text_stack.h"

#include <nlohmann/json.hpp>

namespace rt {

struct TextStack::Parts {};

TextStack::TextStack() = default;
TextStack::~TextStack() = default;

Result<std::unique_ptr<TextStack>> TextStack::Load(const Config&) {
  std::unique_ptr<TextStack> stack(new TextStack());
  stack->no_text_reason_ =
      "this binary was built without tokenizers (RT_WITH_TEXT=OFF), so only token ids can be served";
  return stack;
}

int32_t TextStack::vocab_limit() const { return 0; }
TextDecoderFactory* TextStack::decoder_factory() const { return nullptr; }
const Tokenizer* TextStack::tokenizer() const { return nullptr; }
Result<const ChatEncoder*> TextStack::Chat() { return NoText(); }
Result<std::vector<int32_t>> TextStack::EncodeText(std::string_view) const { return NoText(); }
Result<std::vector<int32_t>> TextStack::EncodeRendered(std::string_view) const { return NoText(); }
Result<std::vector<int32_t>> TextStack::EncodeChat(const nlohmann::ordered_json&,
                                                   const nlohmann::ordered_json&) {
  return NoText();
}

}  // namespace rt
