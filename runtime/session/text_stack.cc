#include "runtime/session/text_stack.h"

#include "runtime/engine/tokenizer_text.h"
#include "runtime/text/chat_encoder.h"
#include "runtime/text/prompt.h"
#include "runtime/text/text_config.h"
#include "runtime/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

namespace rt {
namespace {

namespace fs = std::filesystem;

JinjaLimits LimitsOf(const Config& config) {
  JinjaLimits limits;
  limits.timeout = std::chrono::milliseconds(static_cast<int64_t>(config.text.template_timeout_s * 1000));
  // Only the interpreter that the user named; without a wish also the one in PATH.
  if (config.IsSet("text.python")) limits.interpreters = {config.text.python};
  return limits;
}

}  // namespace

struct TextStack::Parts {
  explicit Parts(std::unique_ptr<Tokenizer> loaded)
      : tokenizer(std::move(loaded)), factory(tokenizer.get()) {}

  std::unique_ptr<Tokenizer> tokenizer;
  TokenizerTextFactory factory;
  TextConfig config;
  JinjaLimits limits;
  std::once_flag chat_once;
  std::unique_ptr<ChatEncoder> chat;
  Status chat_status;
};

TextStack::TextStack() = default;
TextStack::~TextStack() = default;

Result<std::unique_ptr<TextStack>> TextStack::Load(const Config& config) {
  std::unique_ptr<TextStack> stack(new TextStack());
  const bool named = !config.model.tokenizer.empty();
  const fs::path model_dir = config.model.path;
  const fs::path where = named ? fs::path(config.model.tokenizer) : model_dir;
  std::error_code ec;
  const fs::path file = fs::is_directory(where, ec) ? where / "tokenizer.json" : where;
  std::unique_ptr<Tokenizer> tokenizer;
  if (fs::is_regular_file(file, ec)) {
    auto loaded = Tokenizer::Load(file);
    if (!loaded.ok()) return loaded.status().Annotate(file.string());
    tokenizer = std::move(loaded).value();
  } else if (named) {
    return {Code::kNotFound,
            "model.tokenizer: expected tokenizer.json or a folder that holds it, found neither at " +
                where.string()};
  } else {
    stack->no_text_reason_ = "no tokenizer.json in " + model_dir.string() +
                             " (model.tokenizer may name another place), so only token ids can be served";
  }
  RT_ASSIGN_OR_RETURN(TextConfig text, TextConfig::Load(model_dir, file.parent_path(), tokenizer.get()));
  stack->eos_ids_ = text.eos_ids;
  stack->default_sampling_ = DefaultSampling(text.sampling);
  if (tokenizer != nullptr) {
    stack->parts_ = std::make_unique<Parts>(std::move(tokenizer));
    stack->parts_->config = std::move(text);
    stack->parts_->limits = LimitsOf(config);
  }
  return stack;
}

int32_t TextStack::vocab_limit() const { return has_text() ? parts_->tokenizer->id_limit() : 0; }

TextDecoderFactory* TextStack::decoder_factory() const { return has_text() ? &parts_->factory : nullptr; }

const Tokenizer* TextStack::tokenizer() const { return has_text() ? parts_->tokenizer.get() : nullptr; }

Result<const ChatEncoder*> TextStack::Chat() {
  if (!has_text()) return NoText();
  std::call_once(parts_->chat_once, [this] {
    auto chat = ChatEncoder::Create(parts_->tokenizer.get(), parts_->config, parts_->limits);
    if (chat.ok()) {
      parts_->chat = std::move(chat).value();
    } else {
      parts_->chat_status = chat.status();
    }
  });
  if (parts_->chat == nullptr) return parts_->chat_status;
  return static_cast<const ChatEncoder*>(parts_->chat.get());
}

Result<std::vector<int32_t>> TextStack::EncodeText(std::string_view text) const {
  if (!has_text()) return NoText();
  return EncodePrompt(*parts_->tokenizer, text);
}

Result<std::vector<int32_t>> TextStack::EncodeRendered(std::string_view text) const {
  if (!has_text()) return NoText();
  return parts_->tokenizer->Encode(text, /*allow_special=*/true);
}

Result<std::vector<int32_t>> TextStack::EncodeChat(const nlohmann::ordered_json& messages,
                                                   const nlohmann::ordered_json& options) {
  RT_ASSIGN_OR_RETURN(const ChatEncoder* chat, Chat());
  return EncodeChatPrompt(*chat, messages, nullptr, options);
}

}  // namespace rt
