#include "runtime/text/chat_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/text/test_tokenizers.h"

namespace rt {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

struct Golden {
  std::string name;
  Json messages;
  Json tools;
  Json options;
  std::string text;
  Ids ids;
};

// Read in file order of keys, which is part of the prompt.
std::vector<Golden> LoadChats(const std::string& model) {
  std::ifstream in(RT_TESTDATA_DIR "/golden/" + model + "/template.json");
  const Json golden = Json::parse(in);
  std::vector<Golden> chats;
  for (const Json& chat : golden["chats"]) {
    Json options = chat["options"];
    Json tools = options.contains("tools") ? options["tools"] : Json();
    options.erase("tools");
    chats.push_back({chat["name"], chat["messages"], tools, options, chat["text"], chat["ids"].get<Ids>()});
  }
  return chats;
}

class Chat : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = test::LoadOrDie(GetParam());
    config_ = TextConfig::Load(test::ModelDir(GetParam()), tokenizer_.get()).value();
    auto encoder = ChatEncoder::Create(tokenizer_.get(), config_);
    ASSERT_TRUE(encoder.ok()) << encoder.status().ToString();
    encoder_ = std::move(*encoder);
  }

  Result<ChatPrompt> Encode(const Json& messages, const Json& tools = nullptr) {
    return encoder_->EncodeChat(messages, tools, {{"add_generation_prompt", true}});
  }
  size_t Count(const Ids& ids, const char* token) const {
    return static_cast<size_t>(std::count(ids.begin(), ids.end(), tokenizer_->TokenToId(token)));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  TextConfig config_;
  std::unique_ptr<ChatEncoder> encoder_;
};
INSTANTIATE_TEST_SUITE_P(Models, Chat, testing::Values("tiny-gdn", "tiny-kda"), [](const auto& info) {
  return std::string(info.param) == "tiny-gdn" ? "TinyGdn" : "TinyKda";
});

TEST_P(Chat, EveryGoldenChatRendersByteForByte) {
  const auto chats = LoadChats(GetParam());
  ASSERT_EQ(chats.size(), 20u);
  for (const Golden& chat : chats) {
    const auto plain = encoder_->chat_template().Render(chat.messages, chat.tools, chat.options);
    ASSERT_TRUE(plain.ok()) << chat.name << ": " << plain.status().ToString();
    EXPECT_EQ(*plain, chat.text) << chat.name;
    const auto prompt = encoder_->EncodeChat(chat.messages, chat.tools, chat.options);
    ASSERT_TRUE(prompt.ok()) << chat.name << ": " << prompt.status().ToString();
    EXPECT_EQ(prompt->text, chat.text) << chat.name;
  }
}

// The golden ids of the one chat with special tokens in a user's text are those of a library that lets users write
// control tokens. We must differ there, and only there.
TEST_P(Chat, EveryGoldenChatEncodesToItsIdsExceptForSpecialTokensAUserWrote) {
  int different = 0;
  for (const Golden& chat : LoadChats(GetParam())) {
    const ChatPrompt prompt = encoder_->EncodeChat(chat.messages, chat.tools, chat.options).value();
    EXPECT_EQ(tokenizer_->Encode(chat.text, true).value(), chat.ids) << chat.name;
    if (prompt.ids == chat.ids) continue;
    ++different;
    EXPECT_EQ(chat.name, "special token text in content");
    EXPECT_EQ(Count(prompt.ids, "<|im_end|>"), 1u);
    EXPECT_EQ(Count(prompt.ids, "<|endoftext|>"), 0u);
    EXPECT_EQ(Count(prompt.ids, "<think>"), 1u);  // not a control token
    EXPECT_EQ(tokenizer_->Decode(prompt.ids, false), chat.text);
  }
  EXPECT_EQ(different, 1);
}

TEST_P(Chat, SpecialTokensInClientTextStayText) {
  for (const AddedToken& token : tokenizer_->added_tokens()) {
    if (!token.special) continue;
    const std::string& t = token.content;
    const Json messages = {
        {{"role", "system"}, {"content", t}},
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", t.substr(0, 3)}}, {{"type", "text"}, {"text", t.substr(3)}}}}},
        {{"role", "assistant"},
         {"content", "a " + t + " b"},
         {"reasoning_content", t + t},
         {"tool_calls", {{{"function", {{"name", t}, {"arguments", {{t, t}}}}}}}}},
        {{"role", "tool"}, {"content", t + "\n" + t}},
        {{"role", "user"}, {"content", "<" + t}}};
    const Json tools = {{{"type", "function"}, {"function", {{"name", t}, {"description", "x" + t}}}}};
    const auto prompt = Encode(messages, tools);
    ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
    EXPECT_EQ(prompt->text, encoder_->chat_template().Render(messages, tools, {{"add_generation_prompt", true}}).value());
    // What the template itself writes: one start a turn (system, user, assistant, user with the tool's answer, user,
    // generation prompt), one end for each but the last.
    EXPECT_EQ(Count(prompt->ids, "<|im_start|>"), 6u) << t;
    EXPECT_EQ(Count(prompt->ids, "<|im_end|>"), 5u) << t;
    EXPECT_EQ(Count(prompt->ids, "<|endoftext|>"), 0u) << t;
    EXPECT_EQ(tokenizer_->Decode(prompt->ids, false), prompt->text);
  }
}

TEST_P(Chat, MarkedTextEncodesLikeTheSameTextElsewhere) {
  const std::string text = "if a < b and <|x and <|im_end|> or <";
  const ChatPrompt prompt = Encode({{{"role", "user"}, {"content", text}}}).value();
  Ids expected = tokenizer_->Encode("<|im_start|>user\n", true).value();
  const Ids middle = tokenizer_->Encode(text, false).value();
  const Ids tail = tokenizer_->Encode("<|im_end|>\n<|im_start|>assistant\n", true).value();
  expected.insert(expected.end(), middle.begin(), middle.end());
  expected.insert(expected.end(), tail.begin(), tail.end());
  EXPECT_EQ(prompt.ids, expected);
}

TEST_P(Chat, ContentMayBeNullAbsentEmptyOrParts) {
  const std::string expected = "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n";
  for (const char* message : {R"({"role": "assistant", "content": null})", R"({"role": "assistant"})",
                              R"({"role": "assistant", "content": ""})", R"({"role": "assistant", "content": []})"}) {
    EXPECT_EQ(Encode(Json::array({Json::parse(message)})).value().text, expected) << message;
  }
}

TEST_P(Chat, ToolArgumentsAreReadOnceInAnyForm) {
  const auto text_of = [&](const Json& arguments) {
    const Json call = {{"function", {{"name", "f"}, {"arguments", arguments}}}};
    return Encode({{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"tool_calls", Json::array({call})}}});
  };
  const std::string object = text_of({{"b", 1}, {"a", "x"}}).value().text;
  EXPECT_NE(object.find(R"("arguments": {"b": 1, "a": "x"})"), std::string::npos) << object;
  EXPECT_EQ(text_of(R"({"b":1,"a":"x"})").value().text, object);
  EXPECT_NE(text_of("").value().text.find(R"("arguments": {})"), std::string::npos);
  EXPECT_NE(text_of(nullptr).value().text.find(R"("arguments": {})"), std::string::npos);
  for (const Json& broken : {Json("{\"a\": "), Json("[1]"), Json(5)}) {
    const Status status = text_of(broken).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("messages[1].tool_calls[0].function.arguments: expected", 0), 0u) << status.message();
  }
}

TEST_P(Chat, BadMessagesAreRefusedByIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "messages: expected a non-empty array, found array"},
      {R"({})", "messages: expected a non-empty array, found object"},
      {R"([{"role": "user", "content": "a"}, 5])", "messages[1]: expected an object, found number"},
      {R"([{"content": "a"}])", "messages[0].role: expected text, found null"},
      {R"([{"role": 1}])", "messages[0].role: expected text, found number"},
      {R"([{"role": "user", "content": {}}])", "messages[0].content: expected text, a list of parts or null, found object"},
      {R"([{"role": "assistant", "tool_calls": 1}])", "messages[0].tool_calls: expected an array, found number"},
      {R"([{"role": "assistant", "tool_calls": [1]}])", "messages[0].tool_calls[0]: expected an object, found number"},
      {R"([{"role": "<|im_end|>", "content": "a"}])", "chat template: unknown role: <|im_end|>"},
  };
  for (const auto& [messages, expected] : cases) {
    const Status status = Encode(Json::parse(messages)).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), expected);
  }
  Json deep = "x";
  for (int i = 0; i < 70; ++i) deep = Json::array({deep});
  EXPECT_EQ(Encode({{{"role", "user"}, {"content", deep}}}).status().message(), "messages: nested deeper than 64 levels");
  EXPECT_EQ(Encode({{{"role", "user"}, {"content", "\xFF"}}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Encode({{{"role", "user"}, {"content", "a"}}}, {{"a", 1}}).status().message(),
            "tools: expected an array, found object");
}

TEST_P(Chat, ManyThreadsGetTheirOwnPrompt) {
  const auto chats = LoadChats(GetParam());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const Golden& chat : chats) {
        const auto prompt = encoder_->EncodeChat(chat.messages, chat.tools, chat.options);
        if (!prompt.ok() || prompt->text != chat.text) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ChatTemplate, ACheckpointWithoutATemplateIsNotFound) {
  EXPECT_EQ(ChatTemplate::Create(TextConfig{}).status().code(), Code::kNotFound);
}

TEST(ChatTemplate, SpecialTokensAndOptionsAreVariables) {
  TextConfig config;
  config.special_tokens = {{"bos_token", "<s>"}};
  config.chat_templates = {{"default", "{{ bos_token }}{{ eos_token }}|{{ add_generation_prompt }}|{{ mode }}|{{ tools }}"}};
  const auto chat = std::move(ChatTemplate::Create(config)).value();
  EXPECT_EQ(chat->Render(Json::array(), nullptr, {{"mode", "x"}}).value(), "<s>|False|x|None");
  EXPECT_EQ(chat->Render(Json::array(), nullptr, {{"add_generation_prompt", true}}).value(), "<s>|True||None");
}

TEST(ChatTemplate, ToolsSelectTheToolUseTemplate) {
  TextConfig config;
  config.chat_templates = {{"default", "plain"}, {"tool_use", "tools"}};
  const auto chat = std::move(ChatTemplate::Create(config)).value();
  EXPECT_EQ(chat->Render(Json::array(), nullptr, nullptr).value(), "plain");
  EXPECT_EQ(chat->Render(Json::array(), Json::array(), nullptr).value(), "plain");
  EXPECT_EQ(chat->Render(Json::array(), Json::array({1}), nullptr).value(), "tools");
}

}  // namespace
}  // namespace rt
