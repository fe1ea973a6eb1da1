#include "runtime/server/request_parser.h"

#include "runtime/server/fake_text_service.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace rt::server {
namespace {

constexpr int32_t kContextTokens = 1000;

// gcc 12 warns falsely (-Wrestrict) about `literal + string`.
std::string Concat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

class RequestParser : public ::testing::Test {
 protected:
  RequestParser() {
    context_.model_name = "tiny";
    context_.max_context_tokens = kContextTokens;
    context_.vocab_size = FakeTextService::kVocabSize;
    context_.text = &text_;
    context_.default_sampling.temperature = 0.6f;
    context_.default_sampling.top_k = 20;
    context_.default_sampling.top_p = 0.95f;
  }

  // A minimal valid body with `fields` (JSON members without braces) in front.
  static std::string Body(Endpoint endpoint, const std::string& fields) {
    std::string body = endpoint == Endpoint::kChat ? R"("messages":[{"role":"user","content":"hi"}])" : R"("prompt":"hi")";
    const std::string required = endpoint == Endpoint::kChat ? "\"messages\"" : "\"prompt\"";
    if (fields.find(required) != std::string::npos) body.clear();
    return Concat({"{", fields, fields.empty() || body.empty() ? "" : ",", body, "}"});
  }

  ApiRequest Accept(Endpoint endpoint, const std::string& body) {
    auto parsed = ParseRequest(endpoint, body, context_);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) {
      ADD_FAILURE() << body << "\n  was refused: " << error->message;
      return {};
    }
    return std::get<ApiRequest>(std::move(parsed));
  }

  ApiError Refuse(Endpoint endpoint, const std::string& body) {
    auto parsed = ParseRequest(endpoint, body, context_);
    if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
    ADD_FAILURE() << body << "\n  was accepted";
    return {};
  }

  ApiRequest Chat(const std::string& fields) { return Accept(Endpoint::kChat, Body(Endpoint::kChat, fields)); }
  ApiRequest Complete(const std::string& fields) {
    return Accept(Endpoint::kCompletions, Body(Endpoint::kCompletions, fields));
  }

  FakeTextService text_;
  ParserContext context_;
};

TEST_F(RequestParser, SilentRequestGetsTheModelsOwnSamplingAndTheRoomLeft) {
  const ApiRequest chat = Chat("");
  EXPECT_FLOAT_EQ(chat.prototype.sampling.temperature, 0.6f);
  EXPECT_EQ(chat.prototype.sampling.top_k, 20);
  EXPECT_FLOAT_EQ(chat.prototype.sampling.top_p, 0.95f);
  EXPECT_EQ(chat.prototype.sampling.num_logprobs, -1);
  EXPECT_FALSE(chat.prototype.sampling.seed.has_value());
  ASSERT_EQ(chat.prompts.size(), 1u);
  EXPECT_EQ(chat.prompts[0].size(), std::string("user:hi\n").size());
  EXPECT_EQ(chat.prototype.stop.max_tokens, kContextTokens - 8);
  EXPECT_TRUE(chat.prototype.want_text);
  EXPECT_EQ(Complete("").prototype.stop.max_tokens, 16);
}

TEST_F(RequestParser, NullMeansAbsent) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    for (const std::string_view field : KnownFields(endpoint)) {
      if (field == "messages" || field == "prompt") continue;
      Accept(endpoint, Body(endpoint, Concat({"\"", field, "\":null"})));
    }
  }
}

// ---- each field: a visible effect, or 400 naming it ----

struct FieldCase {
  std::string field;
  std::string value;                               // not the default
  std::function<bool(const ApiRequest&)> effect;   // empty: must be refused, naming the field
  std::string companions;                          // other members the value needs
};

std::vector<FieldCase> CommonCases() {
  using R = const ApiRequest&;
  return {
      {"frequency_penalty", "0.5", [](R r) { return r.prototype.sampling.frequency_penalty == 0.5f; }, ""},
      {"ignore_eos", "true", [](R r) { return r.prototype.stop.ignore_eos; }, ""},
      {"include_stop_str_in_output", "true", [](R r) { return r.prototype.stop.include_stop_string; }, ""},
      {"logit_bias", R"({"7":-100,"0":1.5})",
       [](R r) {
         return r.prototype.sampling.logit_bias == std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {0, 1.5f}};
       },
       ""},
      {"max_tokens", "5", [](R r) { return r.prototype.stop.max_tokens == 5; }, ""},
      {"min_p", "0.1", [](R r) { return r.prototype.sampling.min_p == 0.1f; }, ""},
      {"min_tokens", "3", [](R r) { return r.prototype.stop.min_tokens == 3; }, ""},
      {"model", "\"other\"", {}, ""},
      {"n", "3", [](R r) { return r.num_sequences() == 3; }, ""},
      {"presence_penalty", "-1", [](R r) { return r.prototype.sampling.presence_penalty == -1.0f; }, ""},
      {"repetition_penalty", "1.1", [](R r) { return r.prototype.sampling.repetition_penalty == 1.1f; }, ""},
      {"return_token_ids", "true", [](R r) { return r.return_token_ids; }, ""},
      {"seed", "42", [](R r) { return r.prototype.sampling.seed == 42u; }, ""},
      {"skip_special_tokens", "false", [](R r) { return !r.prototype.skip_special_tokens; }, ""},
      {"stop", R"(["END","."])",
       [](R r) { return r.prototype.stop.stop_strings == std::vector<std::string>{"END", "."}; }, ""},
      {"stop_token_ids", "[4,5]", [](R r) { return r.prototype.stop.stop_token_ids == std::vector<int32_t>{4, 5}; }, ""},
      {"stream", "true", [](R r) { return r.stream; }, ""},
      {"stream_options", R"({"include_usage":true})", [](R r) { return r.include_usage; }, "\"stream\":true"},
      {"temperature", "0", [](R r) { return r.prototype.sampling.temperature == 0.0f; }, ""},
      {"top_k", "7", [](R r) { return r.prototype.sampling.top_k == 7; }, ""},
      {"top_p", "0.5", [](R r) { return r.prototype.sampling.top_p == 0.5f; }, ""},
      // The one field that is accepted without effect on the answer; it is a label.
      {"user", "\"u-17\"", [](R r) { return r.user == "u-17"; }, ""},
  };
}

std::vector<FieldCase> ChatCases(const FakeTextService& text) {
  using R = const ApiRequest&;
  const std::string tools = R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";
  std::vector<FieldCase> cases = {
      {"chat_template_kwargs", R"({"enable_thinking":false})",
       [&text](R) { return text.options() == Json({{"enable_thinking", false}}); }, ""},
      {"logprobs", "true", [](R r) { return r.want_logprobs && r.prototype.sampling.num_logprobs == 0; }, ""},
      {"max_completion_tokens", "6", [](R r) { return r.prototype.stop.max_tokens == 6; }, ""},
      {"messages", R"([{"role":"user","content":"x"},{"role":"user","content":"y"}])",
       [&text](R) { return text.messages().size() == 2; }, ""},
      {"tool_choice", "\"none\"", [&text](R) { return text.tools().is_null(); }, Concat({R"("tools":)", tools})},
      {"tools", tools, [&text, tools](R) { return DumpJson(text.tools()) == tools; }, ""},
      {"top_logprobs", "4", [](R r) { return r.prototype.sampling.num_logprobs == 4; }, "\"logprobs\":true"},
  };
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"audio", R"({"voice":"x"})"},
           {"function_call", "\"auto\""},
           {"functions", "[]"},
           {"metadata", R"({"k":"v"})"},
           {"modalities", R"(["text","audio"])"},
           {"parallel_tool_calls", "false"},
           {"prediction", R"({"type":"content","content":"x"})"},
           {"prompt_cache_key", "\"k\""},
           {"prompt_cache_retention", "\"24h\""},
           {"reasoning_effort", "\"low\""},
           {"response_format", R"({"type":"json_object"})"},
           {"safety_identifier", "\"s\""},
           {"service_tier", "\"flex\""},
           {"store", "true"},
           {"verbosity", "\"low\""},
           {"web_search_options", "{}"}}) {
    cases.push_back({field, value, {}, ""});
  }
  return cases;
}

std::vector<FieldCase> CompletionCases() {
  using R = const ApiRequest&;
  return {
      {"best_of", "2", {}, ""},
      {"echo", "true", {}, ""},
      {"logprobs", "3", [](R r) { return r.want_logprobs && r.prototype.sampling.num_logprobs == 3; }, ""},
      {"prompt", "[1,2,3]", [](R r) { return r.prompts == std::vector<std::vector<int32_t>>{{1, 2, 3}}; }, ""},
      {"suffix", "\"x\"", {}, ""},
  };
}

TEST_F(RequestParser, EachFieldHasAnEffectOrIsRefusedByName) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    std::vector<FieldCase> cases = CommonCases();
    for (const FieldCase& extra : endpoint == Endpoint::kChat ? ChatCases(text_) : CompletionCases()) {
      cases.push_back(extra);
    }
    std::set<std::string> covered;
    for (const FieldCase& test : cases) {
      covered.insert(test.field);
      const std::string fields =
          Concat({"\"", test.field, "\":", test.value, test.companions.empty() ? "" : ",", test.companions});
      if (test.effect) {
        EXPECT_TRUE(test.effect(Accept(endpoint, Body(endpoint, fields)))) << fields << " had no effect";
      } else {
        const ApiError error = Refuse(endpoint, Body(endpoint, fields));
        EXPECT_EQ(error.param.substr(0, test.field.size()), test.field) << error.message;
        EXPECT_NE(error.message.find(test.field), std::string::npos) << error.message;
        EXPECT_EQ(error.http_status, test.field == "model" ? 404 : 400);
      }
    }
    for (const std::string_view known : KnownFields(endpoint)) {
      EXPECT_TRUE(covered.count(std::string(known))) << known << " has no case";
    }
    EXPECT_EQ(covered.size(), KnownFields(endpoint).size());
  }
}

TEST_F(RequestParser, ValuesThatMeanOffAreAccepted) {
  for (const char* fields :
       {R"("store":false)", R"("parallel_tool_calls":true)", R"("service_tier":"auto")", R"("modalities":["text"])",
        R"("response_format":{"type":"text"})", R"("tool_choice":"auto")", R"("tools":[])", R"("logit_bias":{})",
        R"("stop":[])", R"("top_k":-1)", R"("stream":true,"stream_options":{"include_obfuscation":false})",
        R"("max_tokens":4,"max_completion_tokens":4)", R"("model":"tiny")", R"("user":"")"}) {
    Chat(fields);
  }
  for (const char* fields : {R"("echo":false)", R"("n":2,"best_of":2)", R"("stop":"x")", R"("logprobs":0)"}) {
    Complete(fields);
  }
}

// ---- refusals ----

struct BadCase {
  Endpoint endpoint;
  const char* fields;
  const char* param;
  const char* code;
  const char* message;  // a part of it
};

constexpr Endpoint kChat = Endpoint::kChat;
constexpr Endpoint kText = Endpoint::kCompletions;

const BadCase kBadCases[] = {
    // unknown names
    {kChat, R"("temprature":1)", "temprature", "unknown_field", "did you mean \"temperature\"?"},
    {kChat, R"("prompt":"x")", "prompt", "unknown_field", "unknown field \"prompt\""},
    {kText, R"("messages":[])", "messages", "unknown_field", "unknown field"},
    {kText, R"("top_logprobs":1)", "top_logprobs", "unknown_field", ""},
    {kChat, R"("stream":true,"stream_options":{"include_usge":true})", "stream_options.include_usge", "unknown_field",
     "did you mean \"stream_options.include_usage\"?"},
    {kChat, R"("response_format":{"type":"text","schema":{}})", "response_format.schema", "unknown_field", ""},
    // wrong types
    {kChat, R"("max_tokens":true)", "max_tokens", "invalid_type", "got true"},
    {kChat, R"("max_tokens":"8")", "max_tokens", "invalid_type", "got \"8\""},
    {kChat, R"("max_tokens":8.5)", "max_tokens", "invalid_type", "got 8.5"},
    {kChat, R"("max_tokens":[8])", "max_tokens", "invalid_type", "got [8]"},
    {kChat, R"("temperature":true)", "temperature", "invalid_type", "a number in [0, 2], got true"},
    {kChat, R"("temperature":"1")", "temperature", "invalid_type", "got \"1\""},
    {kChat, R"("stream":1)", "stream", "invalid_type", "true or false, got 1"},
    {kChat, R"("stream":"true")", "stream", "invalid_type", ""},
    {kChat, R"("logprobs":5)", "logprobs", "invalid_type", ""},
    {kText, R"("logprobs":true)", "logprobs", "invalid_type", ""},
    {kChat, R"("stop":5)", "stop", "invalid_type", ""},
    {kChat, R"("stop":["a",5])", "stop[1]", "invalid_type", ""},
    {kChat, R"("user":5)", "user", "invalid_type", ""},
    {kChat, R"("model":5)", "model", "invalid_type", ""},
    {kChat, R"("logit_bias":[1])", "logit_bias", "invalid_type", ""},
    {kChat, R"("logit_bias":{"5":"1"})", "logit_bias.5", "invalid_type", ""},
    {kChat, R"("stream_options":true)", "stream_options", "invalid_type", ""},
    {kChat, R"("tools":{})", "tools", "invalid_type", ""},
    {kChat, R"("tool_choice":5)", "tool_choice", "invalid_type", ""},
    {kChat, R"("chat_template_kwargs":[])", "chat_template_kwargs", "invalid_type", ""},
    {kText, R"("prompt":5)", "prompt", "invalid_type", ""},
    {kText, R"("prompt":true)", "prompt", "invalid_type", ""},
    {kText, R"("prompt":["a",[1]])", "prompt[1]", "invalid_type", ""},
    {kText, R"("prompt":[[1],"a"])", "prompt[1]", "invalid_type", ""},
    {kText, R"("prompt":[1,"a"])", "prompt[1]", "invalid_type", ""},
    {kText, R"("prompt":[1,1.5])", "prompt[1]", "invalid_type", ""},
    {kText, R"("prompt":[1,true])", "prompt[1]", "invalid_type", ""},
    // ranges
    {kChat, R"("n":0)", "n", "invalid_value", "[1, 16], got 0"},
    {kChat, R"("n":17)", "n", "invalid_value", "got 17"},
    {kChat, R"("max_tokens":0)", "max_tokens", "invalid_value", ""},
    {kChat, R"("max_tokens":-1)", "max_tokens", "invalid_value", ""},
    {kChat, R"("max_tokens":4294967297)", "max_tokens", "invalid_value", ""},
    {kChat, R"("max_tokens":18446744073709551615)", "max_tokens", "invalid_value", ""},
    {kChat, R"("max_tokens":1e300)", "max_tokens", "invalid_value", ""},
    {kChat, R"("max_completion_tokens":0)", "max_completion_tokens", "invalid_value", ""},
    {kChat, R"("temperature":2.1)", "temperature", "invalid_value", ""},
    {kChat, R"("temperature":-0.1)", "temperature", "invalid_value", ""},
    {kChat, R"("temperature":1e39)", "temperature", "invalid_value", ""},
    {kChat, R"("top_p":0)", "top_p", "invalid_value", "(0, 1]"},
    {kChat, R"("top_p":1e-60)", "top_p", "invalid_value", ""},
    {kChat, R"("top_p":1.01)", "top_p", "invalid_value", ""},
    {kChat, R"("min_p":-1)", "min_p", "invalid_value", ""},
    {kChat, R"("min_p":2)", "min_p", "invalid_value", ""},
    {kChat, R"("top_k":-2)", "top_k", "invalid_value", ""},
    {kChat, R"("presence_penalty":2.5)", "presence_penalty", "invalid_value", ""},
    {kChat, R"("frequency_penalty":-2.5)", "frequency_penalty", "invalid_value", ""},
    {kChat, R"("repetition_penalty":0)", "repetition_penalty", "invalid_value", "(0, inf)"},
    {kChat, R"("min_tokens":-1)", "min_tokens", "invalid_value", ""},
    {kChat, R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "invalid_value", ""},
    {kText, R"("logprobs":21)", "logprobs", "invalid_value", ""},
    {kText, R"("logprobs":-1)", "logprobs", "invalid_value", ""},
    {kChat, R"("seed":9223372036854775808)", "seed", "invalid_value", ""},
    {kChat, R"("seed":1.5)", "seed", "invalid_type", ""},
    {kChat, R"("logit_bias":{"5":101})", "logit_bias.5", "invalid_value", ""},
    {kChat, R"("logit_bias":{"256":1})", "logit_bias.256", "invalid_value", "[0, 255]"},
    {kChat, R"("logit_bias":{"-1":1})", "logit_bias.-1", "invalid_value", ""},
    {kChat, R"("logit_bias":{"07":1})", "logit_bias.07", "invalid_value", ""},
    {kChat, R"("logit_bias":{"hello":1})", "logit_bias.hello", "invalid_value", "token id"},
    {kChat, R"("stop":"")", "stop", "invalid_value", "non-empty"},
    {kChat, R"("stop":["a",""])", "stop[1]", "invalid_value", "non-empty"},
    {kChat, R"("stop":["1","2","3","4","5","6","7","8","9","0","1","2","3","4","5","6","7"])", "stop", "invalid_value",
     "at most 16 strings, got 17"},
    {kChat, R"("stop_token_ids":[256])", "stop_token_ids[0]", "invalid_value", ""},
    {kText, R"("prompt":[256])", "prompt[0]", "invalid_value", "[0, 255], got 256"},
    {kText, R"("prompt":[-1])", "prompt[0]", "invalid_value", ""},
    {kText, R"("prompt":[[1],[1,300]])", "prompt[1][1]", "invalid_value", ""},
    {kText, R"("prompt":[])", "prompt", "invalid_value", "at least one token"},
    {kText, R"("prompt":"")", "prompt", "invalid_value", "empty"},
    {kText, R"("prompt":["a",""])", "prompt[1]", "invalid_value", "empty"},
    {kText, R"("prompt":[[1],[]])", "prompt[1]", "invalid_value", "empty"},
    {kText, R"("prompt":"unencodable")", "prompt", "invalid_argument", "cannot be encoded"},
    {kText, R"("prompt":null)", "prompt", "missing_field", "required"},
    // combinations
    {kChat, R"("stream_options":{"include_usage":true})", "stream_options", "invalid_value", "stream: true"},
    {kChat, R"("top_logprobs":2)", "top_logprobs", "invalid_value", "logprobs: true"},
    {kChat, R"("logprobs":false,"top_logprobs":2)", "top_logprobs", "invalid_value", ""},
    {kChat, R"("max_tokens":4,"max_completion_tokens":5)", "max_completion_tokens", "invalid_value", "5 and 4"},
    {kChat, R"("max_tokens":4,"min_tokens":5)", "min_tokens", "invalid_value", "at most max_tokens (4), got 5"},
    {kText, R"("best_of":4,"n":2)", "best_of", "invalid_value", "value of n (2), got 4"},
    // not served
    {kChat, R"("tool_choice":"required")", "tool_choice", "unsupported_value", "\"none\" and \"auto\""},
    {kChat, R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice", "unsupported_value", ""},
    {kChat, R"("response_format":{"type":"json_schema"})", "response_format.type", "unsupported_value", ""},
    {kChat, R"("response_format":{})", "response_format.type", "missing_field", ""},
    {kChat, R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages", "invalid_value", ""},
    // messages
    {kChat, R"("messages":[])", "messages", "invalid_type", "at least one message"},
    {kChat, R"("messages":"hi")", "messages", "invalid_type", "an array"},
    {kChat, R"("messages":[5])", "messages[0]", "invalid_type", ""},
    {kChat, R"("messages":[{"content":"x"}])", "messages[0].role", "missing_field", ""},
    {kChat, R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role", "invalid_type", "got \"robot\""},
    {kChat, R"("messages":[{"role":"user"}])", "messages[0].content", "missing_field", ""},
    {kChat, R"("messages":[{"role":"user","content":null}])", "messages[0].content", "missing_field", ""},
    {kChat, R"("messages":[{"role":"user","content":5}])", "messages[0].content", "invalid_type", ""},
    {kChat, R"("messages":[{"role":"user","content":"x","nme":"y"}])", "messages[0].nme", "unknown_field",
     "did you mean \"messages[0].name\"?"},
    {kChat, R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
     "messages[0].content[0].type", "unsupported_value", "only \"text\" parts"},
    {kChat, R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text",
     "missing_field", ""},
    {kChat, R"("messages":[{"role":"user","content":[{"type":"text","text":5}]}])", "messages[0].content[0].text",
     "invalid_type", ""},
    {kChat, R"("messages":[{"role":"user","content":"x","tool_calls":[]}])", "messages[0].tool_calls", "unknown_field",
     ""},
    {kChat, R"("messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{"}}]}])",
     "messages[0].tool_calls[0].function.arguments", "invalid_value", "not valid JSON"},
    {kChat, R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])",
     "messages[0].tool_calls[0].function.arguments", "invalid_type", ""},
    {kChat, R"("messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])",
     "messages[0].tool_calls[0].function.name", "missing_field", ""},
    {kChat, R"("messages":[{"role":"assistant","content":"x","function_call":{"name":"f"}}])",
     "messages[0].function_call", "unsupported_value", ""},
    {kChat, R"("messages":[{"role":"user","content":"raise"}])", "messages", "invalid_argument", "the template says no"},
    {kChat, R"("tools":[{"type":"code"}])", "tools[0].type", "unsupported_value", ""},
    {kChat, R"("tools":[{"type":"function"}])", "tools[0].function", "missing_field", ""},
    {kChat, R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name", "invalid_type", ""},
    {kChat, R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])", "tools[0].function.strict",
     "unsupported_value", ""},
    {kChat, R"("tools":[{"type":"function","function":{"name":"f","params":{}}}])", "tools[0].function.params",
     "unknown_field", ""},
    // more sequences than one request may have
    {kText, R"("n":16,"prompt":[[1],[1],[1],[1],[1],[1],[1],[1],[1]])", "prompt", "invalid_value",
     "9 prompts x n 16 are 144 sequences; one request may have 128"},
};

TEST_F(RequestParser, BadValuesAreRefusedWithTheirNameAndWhatWasFound) {
  for (const BadCase& test : kBadCases) {
    const ApiError error = Refuse(test.endpoint, Body(test.endpoint, test.fields));
    EXPECT_EQ(error.http_status, 400) << test.fields;
    EXPECT_EQ(error.param, test.param) << test.fields << "\n  " << error.message;
    EXPECT_EQ(error.code, test.code) << test.fields << "\n  " << error.message;
    EXPECT_NE(error.message.find(test.message), std::string::npos) << test.fields << "\n  " << error.message;
  }
}

TEST_F(RequestParser, BodiesThatAreNotOneStrictJsonObjectAreRefused) {
  const std::string deep(200000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "expected a JSON object, got []"},
      {"5", "expected a JSON object, got 5"},
      {"null", "expected a JSON object, got null"},
      {R"({"prompt":"a"} x)", "not valid JSON"},
      {R"({"prompt":"a",})", "not valid JSON"},
      {R"({"prompt":"a","prompt":"b"})", "duplicate key \"prompt\""},
      {R"({"prompt":"a","logit_bias":{"5":1,"5":2}})", "duplicate key \"5\""},
      {R"({"prompt":"a","stop":null,"stop":"x"})", "duplicate key \"stop\""},
      {R"({"prompt":"a","temperature":NaN})", "not valid JSON"},
      {R"({"prompt":"a","temperature":Infinity})", "not valid JSON"},
      {R"({"prompt":"a","temperature":1e400})", "not valid JSON"},
      {"{\"prompt\":\"a\xff\"}", "not valid JSON"},
      {R"({"prompt":"\ud800"})", "not valid JSON"},
      {deep, "nested deeper than 64 levels"},
      {Concat({R"({"prompt":)", deep}), "nested deeper than 64 levels"},
  };
  for (const auto& [body, message] : cases) {
    const ApiError error = Refuse(Endpoint::kCompletions, body);
    EXPECT_EQ(error.http_status, 400);
    EXPECT_NE(error.message.find(message), std::string::npos) << body.substr(0, 80) << "\n  " << error.message;
    EXPECT_LT(error.message.size(), 400u) << "messages stay short";
  }
}

TEST_F(RequestParser, NumbersWithIntegralValueAreIntegers) {
  EXPECT_EQ(Chat(R"("max_tokens":1e2)").prototype.stop.max_tokens, 100);
  EXPECT_EQ(Chat(R"("max_tokens":8.0)").prototype.stop.max_tokens, 8);
  EXPECT_EQ(Chat(R"("seed":-1)").prototype.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(Complete(R"("prompt":[1.0,2e0])").prompts[0], (std::vector<int32_t>{1, 2}));
}

TEST_F(RequestParser, ChoicesOfASeededRequestDrawWithConsecutiveSeeds) {
  const ApiRequest request = Complete(R"("n":2,"seed":10,"prompt":[[1,2],[3]])");
  ASSERT_EQ(request.num_sequences(), 4u);
  const std::vector<int32_t> first = {1, 2}, second = {3};
  for (size_t i = 0; i < 4; ++i) {
    const GenerationRequest sequence = request.Sequence(i, "cmpl-x");
    EXPECT_EQ(sequence.sampling.seed, 10 + i % 2);
    EXPECT_EQ(sequence.prompt_ids, i < 2 ? first : second);
    EXPECT_EQ(sequence.request_id, "cmpl-x-" + std::to_string(i));
  }
  EXPECT_FALSE(Complete(R"("n":2)").Sequence(1, "c").sampling.seed.has_value());
}

TEST_F(RequestParser, OverlongPromptIsRefusedWithBothNumbers) {
  const auto prompt_of = [](size_t num_tokens) {
    std::string body = R"({"prompt":")";
    return body.append(num_tokens, 'a').append("\"}");
  };
  const ApiError too_long = Refuse(Endpoint::kCompletions, prompt_of(kContextTokens));
  EXPECT_EQ(too_long.code, "context_length_exceeded");
  EXPECT_EQ(too_long.message, "prompt: the prompt has 1000 tokens; the context length is 1000 tokens");
  const ApiError no_room = Refuse(Endpoint::kCompletions, R"({"prompt":"abcd","max_tokens":997})");
  EXPECT_EQ(no_room.param, "max_tokens");
  EXPECT_EQ(no_room.message,
            "max_tokens: the prompt has 4 tokens and max_tokens is 997, together 1001; the context length is 1000 tokens");
  EXPECT_EQ(Complete(R"("prompt":"abcd","max_tokens":996)").prototype.stop.max_tokens, 996);
  EXPECT_EQ(Accept(Endpoint::kCompletions, prompt_of(990)).prototype.stop.max_tokens, 10) << "default: room";
}

TEST_F(RequestParser, MessagesReachTheTemplateInOneShape) {
  Chat(R"("messages":[
    {"role":"developer","content":[{"type":"text","text":"be "},{"type":"text","text":"kind"}]},
    {"role":"user","content":"q","name":"ann"},
    {"role":"assistant","content":null,"reasoning_content":"hm","refusal":null,"annotations":[],"tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
      {"id":"c2","type":"function","function":{"name":"g","arguments":{"x":1}}},
      {"id":"c3","type":"function","function":{"name":"h","arguments":""}}]},
    {"role":"tool","tool_call_id":"c1","content":"42"},
    {"role":"assistant"}])");
  EXPECT_EQ(DumpJson(text_.messages()),
            R"([{"role":"system","content":"be kind"},{"role":"user","content":"q","name":"ann"},)"
            R"({"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":{"x":1}}},)"
            R"({"id":"c3","type":"function","function":{"name":"h","arguments":{}}}]},)"
            R"({"role":"tool","content":"42","tool_call_id":"c1"},{"role":"assistant","content":""}])");
}

TEST_F(RequestParser, WithoutATokenizerTokenIdsWorkAndTextSaysWhy) {
  context_.text = nullptr;
  context_.no_text_reason = "/models/x has no tokenizer.json";
  const ApiRequest ids = Complete(R"("prompt":[[1],[2]])");
  EXPECT_FALSE(ids.prototype.want_text);
  for (const auto& [endpoint, fields, param] : std::vector<std::tuple<Endpoint, const char*, const char*>>{
           {kChat, "", "messages"},
           {kText, R"("prompt":"a")", "prompt"},
           {kText, R"("prompt":["a"])", "prompt[0]"},
           {kText, R"("prompt":[1],"stop":"x")", "stop"}}) {
    const ApiError error = Refuse(endpoint, Body(endpoint, fields));
    EXPECT_EQ(error.param, param);
    EXPECT_EQ(error.code, "tokenizer_unavailable");
    EXPECT_NE(error.message.find("no tokenizer.json"), std::string::npos) << error.message;
  }
}

TEST_F(RequestParser, ManyKeysOrTokensCostLinearTime) {
  std::string bias = "\"logit_bias\":{\"0\":1";
  for (int i = 1; i < 100000; ++i) bias += ",\"" + std::to_string(i) + "\":1";
  EXPECT_EQ(Refuse(kText, Body(kText, bias + "}")).param, "logit_bias.256");
  std::string prompt = "\"prompt\":[1";
  for (int i = 1; i < 300000; ++i) prompt += ",1";
  EXPECT_EQ(Refuse(kText, Body(kText, prompt + "]")).code, "context_length_exceeded");
}

TEST(ApiErrors, BodyHasTheOpenAiShape) {
  EXPECT_EQ(ErrorBody({400, "n: bad", "n", "invalid_value"}),
            R"({"error":{"message":"n: bad","type":"invalid_request_error","param":"n","code":"invalid_value"}})");
  EXPECT_EQ(ErrorBody({503, "later", "", ""}),
            R"({"error":{"message":"later","type":"server_error","param":null,"code":null}})");
  EXPECT_NE(ErrorBody({429, "full", "", ""}).find("rate_limit_error"), std::string::npos);
  EXPECT_NE(ErrorBody({400, "cut \xff", "", ""}).find("cut \xef\xbf\xbd"), std::string::npos);
}

}  // namespace
}  // namespace rt::server
