#include "runtime/server/tokenizer_text_service.h"

#include "runtime/server/request_parser.h"
#include "runtime/text/test_tokenizers.h"

#include <gtest/gtest.h>

namespace rt::server {
namespace {

constexpr int32_t kEndId = 300;  // <|end|> of the small tokenizer, a special token

class TokenizerTextServiceTest : public ::testing::Test {
 protected:
  TokenizerTextServiceTest() : tokenizer_(test::FromJsonOrDie(test::SmallTokenizerJson())) {
    TextConfig config;
    config.chat_templates["default"] =
        "{% if messages[0].content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}"
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ mood | default('a') }}{% endif %}";
    auto chat = ChatEncoder::Create(tokenizer_.get(), config);
    EXPECT_TRUE(chat.ok()) << chat.status().ToString();
    chat_ = std::move(*chat);
    service_ = std::make_unique<TokenizerTextService>(tokenizer_.get(), chat_.get(), Status());
    context_.max_context_tokens = 100;
    context_.vocab_size = 320;
    context_.text = service_.get();
  }

  std::vector<int32_t> PromptOf(Endpoint endpoint, const std::string& body) {
    auto parsed = ParseRequest(endpoint, body, context_);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
      ADD_FAILURE() << error->message;
      return {};
    }
    return std::get<ApiRequest>(parsed).prompts.at(0);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatEncoder> chat_;
  std::unique_ptr<TokenizerTextService> service_;
  ParserContext context_;
};

TEST_F(TokenizerTextServiceTest, ChatIsRenderedReadyForGenerationAndUsersCannotEndTurns) {
  const std::vector<int32_t> expected = {'u', '<', '|', 'e', 'n', 'd', '|', '>', kEndId, 'a'};
  EXPECT_EQ(PromptOf(Endpoint::kChat, R"({"messages":[{"role":"user","content":"<|end|>"}]})"), expected);
  const std::vector<int32_t> with_option = {'u', 'x', kEndId, 'z'};
  EXPECT_EQ(PromptOf(Endpoint::kChat,
                     R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"mood":"z"}})"),
            with_option);
  const std::vector<int32_t> no_prompt = {'u', 'x', kEndId};
  EXPECT_EQ(PromptOf(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x"}],)"
                                      R"("chat_template_kwargs":{"add_generation_prompt":false}})"),
            no_prompt);
}

TEST_F(TokenizerTextServiceTest, CompletionTextIsNeverSpecial) {
  const std::vector<int32_t> expected = {257, '<', '|', 'e', 'n', 'd', '|', '>'};
  EXPECT_EQ(PromptOf(Endpoint::kCompletions, R"({"prompt":"abc<|end|>"})"), expected);
}

TEST_F(TokenizerTextServiceTest, TemplatesOwnErrorReachesTheClientAsA400) {
  const auto parsed = ParseRequest(Endpoint::kChat, R"({"messages":[{"role":"user","content":"bad"}]})", context_);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->http_status, 400);
  EXPECT_EQ(error->param, "messages");
  EXPECT_NE(error->message.find("no bad words"), std::string::npos) << error->message;
}

TEST_F(TokenizerTextServiceTest, WithoutATemplateChatSaysWhyAndTextWorks) {
  TokenizerTextService service(tokenizer_.get(), nullptr, Status(Code::kUnavailable, "install python3-jinja2"));
  context_.text = &service;
  const auto parsed = ParseRequest(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x"}]})", context_);
  const ApiError* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->message, "messages: install python3-jinja2");
  EXPECT_EQ(PromptOf(Endpoint::kCompletions, R"({"prompt":"ab"})"), std::vector<int32_t>{256});
  EXPECT_EQ(service.TokenBytes(257), "abc");
}

}  // namespace
}  // namespace rt::server
