#include "runtime/server/request_parser.h"

#include "runtime/server/chat_messages.h"
#include "runtime/server/field_readers.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace rt::server {
namespace {

constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr size_t kMaxStops = 16;
constexpr int32_t kMaxChoices = 16;
constexpr int32_t kMaxTopLogprobs = 20;           // OpenAI's limit for chat; SamplingParams has the same
constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's default for /v1/completions

// What has been read so far; rules over several fields are checked once all are in.
struct Draft {
  Draft(Endpoint endpoint, const ParserContext& parser_context) : context(parser_context) {
    request.endpoint = endpoint;
    request.prototype.sampling = context.default_sampling;
    request.prototype.want_text = context.text != nullptr;
  }

  SamplingParams& sampling() { return request.prototype.sampling; }
  StopConditions& stop() { return request.prototype.stop; }

  const ParserContext& context;
  ApiRequest request;
  const Json* messages = nullptr;
  const Json* tools = nullptr;
  const Json* prompt = nullptr;
  Json template_options = Json::object();
  std::optional<int32_t> max_tokens;
  std::optional<int32_t> max_completion_tokens;
  std::optional<int32_t> top_logprobs;
  std::optional<int32_t> best_of;
  bool stream_options_given = false;
  bool tools_hidden = false;  // tool_choice: "none"
};

using Handler = MaybeError (*)(const Json& value, Draft& draft);

struct Field {
  std::string_view name;
  Handler handler;
};

ApiError InvalidValue(std::string_view field, std::string message) {
  return {400, std::string(field) + ": " + std::move(message), std::string(field), "invalid_value"};
}

ApiError MissingField(std::string_view field) {
  return {400, std::string(field) + ": required", std::string(field), "missing_field"};
}

// Text endpoints and text options without a tokenizer.
MaybeError RequireText(std::string_view field, const Draft& draft) {
  if (draft.context.text != nullptr) return {};
  const std::string& reason = draft.context.no_text_reason;
  return ApiError{400,
                  std::string(field) + ": needs a tokenizer, and this server has none" +
                      (reason.empty() ? "" : " (" + reason + ")") +
                      "; POST /v1/completions takes prompts as arrays of token ids",
                  std::string(field), "tokenizer_unavailable"};
}

// ---- fields of both endpoints ----

MaybeError Model(const Json& value, Draft& draft) {
  std::string name;
  RT_SERVER_RETURN_IF_ERROR(ReadString("model", value, &name));
  if (name == draft.context.model_name) return {};
  return ApiError{404,
                  "model: \"" + TruncateUtf8(name, 100) + "\" is not served here; the model is \"" +
                      draft.context.model_name + "\"",
                  "model", "model_not_found"};
}

MaybeError Stream(const Json& value, Draft& draft) { return ReadBool("stream", value, &draft.request.stream); }

MaybeError StreamOptions(const Json& value, Draft& draft) {
  if (!value.is_object()) return TypeError("stream_options", "an object", value);
  draft.stream_options_given = true;
  for (const auto& [key, option] : value.items()) {
    const std::string name = MemberName("stream_options", key);
    if (option.is_null()) continue;
    if (key == "include_usage") {
      RT_SERVER_RETURN_IF_ERROR(ReadBool(name, option, &draft.request.include_usage));
    } else if (key == "include_obfuscation") {
      bool wanted = false;
      RT_SERVER_RETURN_IF_ERROR(ReadBool(name, option, &wanted));
      if (wanted) return UnsupportedValue(name, option, "chunks are not padded");
    } else {
      return UnknownField("stream_options.", key, {"include_usage", "include_obfuscation"});
    }
  }
  return {};
}

MaybeError NumChoices(const Json& value, Draft& draft) {
  return ReadInt32("n", value, 1, kMaxChoices, &draft.request.num_choices);
}

MaybeError MaxTokens(const Json& value, Draft& draft) {
  return ReadInt32("max_tokens", value, 1, kMaxInt32, &draft.max_tokens.emplace());
}

MaybeError MinTokens(const Json& value, Draft& draft) {
  return ReadInt32("min_tokens", value, 0, kMaxInt32, &draft.stop().min_tokens);
}

MaybeError Temperature(const Json& value, Draft& draft) {
  return ReadFloat("temperature", value, {0.0f, 2.0f}, &draft.sampling().temperature);
}

MaybeError TopP(const Json& value, Draft& draft) {
  return ReadFloat("top_p", value, {0.0f, 1.0f, true}, &draft.sampling().top_p);
}

MaybeError TopK(const Json& value, Draft& draft) {
  // -1 is how several servers spell "off"; 0 is how Hugging Face does.
  RT_SERVER_RETURN_IF_ERROR(ReadInt32("top_k", value, -1, kMaxInt32, &draft.sampling().top_k));
  draft.sampling().top_k = std::max(draft.sampling().top_k, 0);
  return {};
}

MaybeError MinP(const Json& value, Draft& draft) {
  return ReadFloat("min_p", value, {0.0f, 1.0f}, &draft.sampling().min_p);
}

MaybeError PresencePenalty(const Json& value, Draft& draft) {
  return ReadFloat("presence_penalty", value, {-2.0f, 2.0f}, &draft.sampling().presence_penalty);
}

MaybeError FrequencyPenalty(const Json& value, Draft& draft) {
  return ReadFloat("frequency_penalty", value, {-2.0f, 2.0f}, &draft.sampling().frequency_penalty);
}

MaybeError RepetitionPenalty(const Json& value, Draft& draft) {
  return ReadFloat("repetition_penalty", value, {0.0f, kMaxFloat, true}, &draft.sampling().repetition_penalty);
}

MaybeError Seed(const Json& value, Draft& draft) {
  int64_t seed = 0;
  RT_SERVER_RETURN_IF_ERROR(ReadInt("seed", value, std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max(), &seed));
  draft.sampling().seed = static_cast<uint64_t>(seed);
  return {};
}

MaybeError LogitBias(const Json& value, Draft& draft) {
  if (!value.is_object()) return TypeError("logit_bias", "an object of token ids to numbers", value);
  for (const auto& [key, bias] : value.items()) {
    const std::string name = MemberName("logit_bias", key);
    int32_t token_id = -1;
    const auto [end, failure] = std::from_chars(key.data(), key.data() + key.size(), token_id);
    const bool is_id = failure == std::errc() && std::to_string(token_id) == key;  // "07" would be 7 twice
    if (!is_id || token_id < 0 || token_id >= draft.context.vocab_size) {
      return InvalidValue(name, "expected a token id in [0, " + std::to_string(draft.context.vocab_size - 1) +
                                    "] written as a string, got \"" + TruncateUtf8(key, 80) + "\"");
    }
    float amount = 0.0f;
    RT_SERVER_RETURN_IF_ERROR(ReadFloat(name, bias, {-100.0f, 100.0f}, &amount));
    draft.sampling().logit_bias.emplace_back(token_id, amount);
  }
  return {};
}

MaybeError AddStop(const std::string& field, const Json& value, Draft& draft) {
  std::string text;
  RT_SERVER_RETURN_IF_ERROR(ReadString(field, value, &text));
  if (text.empty()) return InvalidValue(field, "expected a non-empty string, got \"\"");
  draft.stop().stop_strings.push_back(std::move(text));
  return {};
}

MaybeError Stop(const Json& value, Draft& draft) {
  if (!value.is_string() && !value.is_array()) return TypeError("stop", "a string or an array of strings", value);
  if (value.is_array() && value.empty()) return {};
  RT_SERVER_RETURN_IF_ERROR(RequireText("stop", draft));
  if (value.is_string()) return AddStop("stop", value, draft);
  if (value.size() > kMaxStops) {
    return InvalidValue("stop", "expected at most 16 strings, got " + std::to_string(value.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    RT_SERVER_RETURN_IF_ERROR(AddStop(IndexedName("stop", i), value[i], draft));
  }
  return {};
}

MaybeError ReadTokenIds(const std::string& field, const Json& value, int32_t vocab_size, std::vector<int32_t>* out) {
  if (!value.is_array()) return TypeError(field, "an array of token ids", value);
  out->reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& id = value[i];
    // The common case without building a name for each of 100 000 ids.
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size)) {
      out->push_back(static_cast<int32_t>(id.get<uint64_t>()));
      continue;
    }
    RT_SERVER_RETURN_IF_ERROR(ReadInt32(IndexedName(field, i), id, 0, vocab_size - 1, &out->emplace_back()));
  }
  return {};
}

MaybeError StopTokenIds(const Json& value, Draft& draft) {
  return ReadTokenIds("stop_token_ids", value, draft.context.vocab_size, &draft.stop().stop_token_ids);
}

MaybeError IgnoreEos(const Json& value, Draft& draft) {
  return ReadBool("ignore_eos", value, &draft.stop().ignore_eos);
}

MaybeError IncludeStop(const Json& value, Draft& draft) {
  return ReadBool("include_stop_str_in_output", value, &draft.stop().include_stop_string);
}

MaybeError SkipSpecialTokens(const Json& value, Draft& draft) {
  return ReadBool("skip_special_tokens", value, &draft.request.prototype.skip_special_tokens);
}

MaybeError ReturnTokenIds(const Json& value, Draft& draft) {
  return ReadBool("return_token_ids", value, &draft.request.return_token_ids);
}

MaybeError User(const Json& value, Draft& draft) { return ReadString("user", value, &draft.request.user); }

// ---- fields of chat ----

MaybeError Messages(const Json& value, Draft& draft) {
  draft.messages = &value;
  return {};
}

MaybeError MaxCompletionTokens(const Json& value, Draft& draft) {
  return ReadInt32("max_completion_tokens", value, 1, kMaxInt32, &draft.max_completion_tokens.emplace());
}

MaybeError ChatLogprobs(const Json& value, Draft& draft) {
  return ReadBool("logprobs", value, &draft.request.want_logprobs);
}

MaybeError TopLogprobs(const Json& value, Draft& draft) {
  return ReadInt32("top_logprobs", value, 0, kMaxTopLogprobs, &draft.top_logprobs.emplace());
}

MaybeError Tools(const Json& value, Draft& draft) {
  RT_SERVER_RETURN_IF_ERROR(ValidateTools(value));
  draft.tools = value.empty() ? nullptr : &value;
  return {};
}

MaybeError ToolChoice(const Json& value, Draft& draft) {
  if (value == "none") draft.tools_hidden = true;
  if (value == "none" || value == "auto") return {};
  if (!value.is_string() && !value.is_object()) return TypeError("tool_choice", "\"none\" or \"auto\"", value);
  return UnsupportedValue("tool_choice", value,
                          "only \"none\" and \"auto\" are served (calls are neither forced nor parsed yet)");
}

MaybeError ParallelToolCalls(const Json& value, Draft&) {
  bool parallel = true;
  RT_SERVER_RETURN_IF_ERROR(ReadBool("parallel_tool_calls", value, &parallel));
  if (parallel) return {};
  return UnsupportedValue("parallel_tool_calls", value, "the number of tool calls is not limited");
}

MaybeError ResponseFormat(const Json& value, Draft&) {
  if (!value.is_object()) return TypeError("response_format", "an object {\"type\": \"text\"}", value);
  const auto type = value.find("type");
  if (type == value.end()) return MissingField("response_format.type");
  if (*type != "text") {
    return UnsupportedValue("response_format.type", *type, "only \"text\" is served (no constrained decoding)");
  }
  for (const auto& [key, member] : value.items()) {
    if (key != "type") return UnknownField("response_format.", key, {"type"});
  }
  return {};
}

MaybeError ChatTemplateKwargs(const Json& value, Draft& draft) {
  if (!value.is_object()) return TypeError("chat_template_kwargs", "an object", value);
  for (const auto& [key, member] : value.items()) {
    if (key != "messages" && key != "tools" && key != "chat_template") continue;
    const std::string name = MemberName("chat_template_kwargs", key);
    return InvalidValue(name, "cannot be set this way; use the request's own fields");
  }
  draft.template_options = value;
  return {};
}

MaybeError Modalities(const Json& value, Draft&) {
  if (value == Json::array({"text"})) return {};
  return UnsupportedValue("modalities", value, "only [\"text\"] is served");
}

MaybeError Store(const Json& value, Draft&) {
  bool wanted = false;
  RT_SERVER_RETURN_IF_ERROR(ReadBool("store", value, &wanted));
  return wanted ? MaybeError(UnsupportedValue("store", value, "nothing is stored")) : MaybeError();
}

MaybeError ServiceTier(const Json& value, Draft&) {
  if (value == "auto" || value == "default") return {};
  return UnsupportedValue("service_tier", value, "there is one tier, \"auto\" or \"default\"");
}

// Fields of OpenAI's API without a counterpart here; null is accepted before a handler is asked.
#define RT_REFUSED_FIELD(identifier, name, hint) \
  MaybeError identifier(const Json& value, Draft&) { return UnsupportedValue(name, value, hint); }

RT_REFUSED_FIELD(Audio, "audio", "only text is generated")
RT_REFUSED_FIELD(FunctionCall, "function_call", "use tool_choice")
RT_REFUSED_FIELD(Functions, "functions", "use tools")
RT_REFUSED_FIELD(Metadata, "metadata", "nothing is stored")
RT_REFUSED_FIELD(Prediction, "prediction", "predicted outputs are not used")
RT_REFUSED_FIELD(PromptCacheKey, "prompt_cache_key", "prompts are matched by their tokens alone")
RT_REFUSED_FIELD(PromptCacheRetention, "prompt_cache_retention", "cached prompts have no set life time")
RT_REFUSED_FIELD(ReasoningEffort, "reasoning_effort", "use chat_template_kwargs, e.g. {\"enable_thinking\": false}")
RT_REFUSED_FIELD(SafetyIdentifier, "safety_identifier", "use user")
RT_REFUSED_FIELD(Verbosity, "verbosity", "ask for it in a message")
RT_REFUSED_FIELD(WebSearchOptions, "web_search_options", "there is no web search")
RT_REFUSED_FIELD(Suffix, "suffix", "text is only continued, not filled in")
#undef RT_REFUSED_FIELD

// ---- fields of completions ----

MaybeError Prompt(const Json& value, Draft& draft) {
  draft.prompt = &value;
  return {};
}

MaybeError BestOf(const Json& value, Draft& draft) {
  return ReadInt32("best_of", value, 1, kMaxChoices, &draft.best_of.emplace());
}

MaybeError Echo(const Json& value, Draft&) {
  bool wanted = false;
  RT_SERVER_RETURN_IF_ERROR(ReadBool("echo", value, &wanted));
  if (!wanted) return {};
  return UnsupportedValue("echo", value, "the prompt is not repeated in the answer");
}

MaybeError CompletionLogprobs(const Json& value, Draft& draft) {
  draft.request.want_logprobs = true;
  return ReadInt32("logprobs", value, 0, kMaxTopLogprobs, &draft.sampling().num_logprobs);
}

const Field kCommonFields[] = {
    {"frequency_penalty", FrequencyPenalty},
    {"ignore_eos", IgnoreEos},
    {"include_stop_str_in_output", IncludeStop},
    {"logit_bias", LogitBias},
    {"max_tokens", MaxTokens},
    {"min_p", MinP},
    {"min_tokens", MinTokens},
    {"model", Model},
    {"n", NumChoices},
    {"presence_penalty", PresencePenalty},
    {"repetition_penalty", RepetitionPenalty},
    {"return_token_ids", ReturnTokenIds},
    {"seed", Seed},
    {"skip_special_tokens", SkipSpecialTokens},
    {"stop", Stop},
    {"stop_token_ids", StopTokenIds},
    {"stream", Stream},
    {"stream_options", StreamOptions},
    {"temperature", Temperature},
    {"top_k", TopK},
    {"top_p", TopP},
    {"user", User},
};

const Field kChatFields[] = {
    {"audio", Audio},
    {"chat_template_kwargs", ChatTemplateKwargs},
    {"function_call", FunctionCall},
    {"functions", Functions},
    {"logprobs", ChatLogprobs},
    {"max_completion_tokens", MaxCompletionTokens},
    {"messages", Messages},
    {"metadata", Metadata},
    {"modalities", Modalities},
    {"parallel_tool_calls", ParallelToolCalls},
    {"prediction", Prediction},
    {"prompt_cache_key", PromptCacheKey},
    {"prompt_cache_retention", PromptCacheRetention},
    {"reasoning_effort", ReasoningEffort},
    {"response_format", ResponseFormat},
    {"safety_identifier", SafetyIdentifier},
    {"service_tier", ServiceTier},
    {"store", Store},
    {"tool_choice", ToolChoice},
    {"tools", Tools},
    {"top_logprobs", TopLogprobs},
    {"verbosity", Verbosity},
    {"web_search_options", WebSearchOptions},
};

const Field kCompletionFields[] = {
    {"best_of", BestOf}, {"echo", Echo}, {"logprobs", CompletionLogprobs}, {"prompt", Prompt}, {"suffix", Suffix},
};

template <size_t size>
Handler FindIn(const Field (&fields)[size], std::string_view name) {
  for (const Field& field : fields) {
    if (field.name == name) return field.handler;
  }
  return nullptr;
}

Handler FindHandler(Endpoint endpoint, std::string_view name) {
  if (Handler handler = FindIn(kCommonFields, name)) return handler;
  return endpoint == Endpoint::kChat ? FindIn(kChatFields, name) : FindIn(kCompletionFields, name);
}

MaybeError ReadFields(const Json& body, Draft& draft) {
  const Endpoint endpoint = draft.request.endpoint;
  for (const auto& [key, value] : body.items()) {
    const Handler handler = FindHandler(endpoint, key);
    if (handler == nullptr) return UnknownField("", key, KnownFields(endpoint));
    if (value.is_null()) continue;
    RT_SERVER_RETURN_IF_ERROR(handler(value, draft));
  }
  return {};
}

// ---- rules over several fields ----

MaybeError CheckCombinations(Draft& draft) {
  ApiRequest& request = draft.request;
  if (draft.stream_options_given && !request.stream) {
    return InvalidValue("stream_options", "only allowed with stream: true");
  }
  if (draft.best_of && *draft.best_of != request.num_choices) {
    return InvalidValue("best_of", "expected the value of n (" + std::to_string(request.num_choices) + "), got " +
                                       std::to_string(*draft.best_of) + "; all samples are returned");
  }
  if (draft.max_tokens && draft.max_completion_tokens && *draft.max_tokens != *draft.max_completion_tokens) {
    return InvalidValue("max_completion_tokens",
                        "differs from max_tokens (" + std::to_string(*draft.max_completion_tokens) + " and " +
                            std::to_string(*draft.max_tokens) + "); give one of them");
  }
  if (draft.top_logprobs && !request.want_logprobs) {
    return InvalidValue("top_logprobs", "only allowed with logprobs: true");
  }
  if (request.endpoint == Endpoint::kChat && request.want_logprobs) {
    draft.sampling().num_logprobs = draft.top_logprobs.value_or(0);
  }
  if (draft.tools_hidden) draft.tools = nullptr;
  return {};
}

// ---- prompts ----

MaybeError EncodeText(const std::string& field, const Json& value, const Draft& draft, std::vector<int32_t>* out) {
  Result<std::vector<int32_t>> ids = draft.context.text->EncodeText(value.get_ref<const std::string&>());
  if (!ids.ok()) return ErrorFromStatus(ids.status().Annotate(field), field);
  *out = std::move(*ids);
  return {};
}

// One prompt of a batch: a text or an array of token ids, like the first one.
MaybeError ReadPrompt(const std::string& field, const Json& value, bool as_text, Draft& draft) {
  std::vector<int32_t>& ids = draft.request.prompts.emplace_back();
  if (as_text) {
    if (!value.is_string()) return TypeError(field, "a string like the first prompt", value);
    RT_SERVER_RETURN_IF_ERROR(RequireText(field, draft));
    RT_SERVER_RETURN_IF_ERROR(EncodeText(field, value, draft, &ids));
  } else {
    RT_SERVER_RETURN_IF_ERROR(ReadTokenIds(field, value, draft.context.vocab_size, &ids));
  }
  if (ids.empty()) return InvalidValue(field, "expected at least one token, got an empty prompt");
  return {};
}

MaybeError CheckNumSequences(std::string_view field, size_t num_prompts, const Draft& draft) {
  const size_t wanted = num_prompts * static_cast<size_t>(draft.request.num_choices);
  const size_t limit = static_cast<size_t>(draft.context.max_sequences);
  if (wanted <= limit) return {};
  return InvalidValue(field, std::to_string(num_prompts) + " prompts x n " +
                                 std::to_string(draft.request.num_choices) + " are " + std::to_string(wanted) +
                                 " sequences; one request may have " + std::to_string(limit));
}

MaybeError ReadPrompts(Draft& draft) {
  if (draft.prompt == nullptr) return MissingField("prompt");
  const Json& prompt = *draft.prompt;
  constexpr std::string_view kForms = "a string, an array of strings, an array of token ids or an array of such arrays";
  if (!prompt.is_string() && !prompt.is_array()) return TypeError("prompt", kForms, prompt);
  if (prompt.empty() && prompt.is_array()) return InvalidValue("prompt", "expected at least one token, got []");
  const bool is_batch = prompt.is_array() && (prompt[0].is_string() || prompt[0].is_array());
  if (!is_batch) {
    RT_SERVER_RETURN_IF_ERROR(CheckNumSequences("n", 1, draft));
    return ReadPrompt("prompt", prompt, prompt.is_string(), draft);
  }
  RT_SERVER_RETURN_IF_ERROR(CheckNumSequences("prompt", prompt.size(), draft));
  for (size_t i = 0; i < prompt.size(); ++i) {
    RT_SERVER_RETURN_IF_ERROR(ReadPrompt(IndexedName("prompt", i), prompt[i], prompt[0].is_string(), draft));
  }
  return {};
}

MaybeError EncodeMessages(Draft& draft) {
  if (draft.messages == nullptr) return MissingField("messages");
  Json messages;
  RT_SERVER_RETURN_IF_ERROR(NormalizeMessages(*draft.messages, draft.context.max_json_depth, &messages));
  RT_SERVER_RETURN_IF_ERROR(RequireText("messages", draft));
  RT_SERVER_RETURN_IF_ERROR(CheckNumSequences("n", 1, draft));
  const Json tools = draft.tools == nullptr ? Json() : *draft.tools;
  Result<std::vector<int32_t>> ids = draft.context.text->EncodeChat(messages, tools, draft.template_options);
  if (!ids.ok()) return ErrorFromStatus(ids.status().Annotate("messages"), "messages");
  if (ids->empty()) return InvalidValue("messages", "the chat template rendered them to an empty prompt");
  draft.request.prompts.push_back(std::move(*ids));
  return {};
}

// Sets max_tokens; prompt and output together must fit the context.
MaybeError CheckLengths(Draft& draft) {
  const bool chat = draft.request.endpoint == Endpoint::kChat;
  const int64_t context_tokens = draft.context.max_context_tokens;
  size_t longest = 0;
  for (const auto& ids : draft.request.prompts) longest = std::max(longest, ids.size());
  const int64_t prompt_tokens = static_cast<int64_t>(longest);
  const std::string param = chat ? "messages" : "prompt";
  const std::string limit = "; the context length is " + std::to_string(context_tokens) + " tokens";
  if (prompt_tokens >= context_tokens) {
    return ApiError{400, param + ": the prompt has " + std::to_string(prompt_tokens) + " tokens" + limit, param,
                    "context_length_exceeded"};
  }
  const std::optional<int32_t> asked = draft.max_tokens ? draft.max_tokens : draft.max_completion_tokens;
  const int64_t room = context_tokens - prompt_tokens;
  if (asked && *asked > room) {
    const std::string field = draft.max_tokens ? "max_tokens" : "max_completion_tokens";
    return ApiError{400,
                    field + ": the prompt has " + std::to_string(prompt_tokens) + " tokens and " + field + " is " +
                        std::to_string(*asked) + ", together " + std::to_string(prompt_tokens + *asked) + limit,
                    field, "context_length_exceeded"};
  }
  const int64_t by_default = chat ? room : std::min<int64_t>(room, kDefaultCompletionTokens);
  draft.stop().max_tokens = static_cast<int32_t>(asked ? *asked : by_default);
  if (draft.stop().min_tokens > draft.stop().max_tokens) {
    return InvalidValue("min_tokens", "expected at most max_tokens (" + std::to_string(draft.stop().max_tokens) +
                                          "), got " + std::to_string(draft.stop().min_tokens));
  }
  return {};
}

MaybeError ReadDraft(const Json& body, Draft& draft) {
  RT_SERVER_RETURN_IF_ERROR(ReadFields(body, draft));
  RT_SERVER_RETURN_IF_ERROR(CheckCombinations(draft));
  RT_SERVER_RETURN_IF_ERROR(draft.request.endpoint == Endpoint::kChat ? EncodeMessages(draft) : ReadPrompts(draft));
  return CheckLengths(draft);
}

}  // namespace

std::variant<ApiRequest, ApiError> ParseRequest(Endpoint endpoint, std::string_view body,
                                                const ParserContext& context) {
  Result<Json> document = ParseStrictJson(body, context.max_json_depth);
  if (!document.ok()) return ApiError{400, "request body: " + document.status().message(), "", "invalid_json"};
  if (!document->is_object()) {
    return ApiError{400, "request body: expected a JSON object, got " + JsonExcerpt(*document), "", "invalid_type"};
  }
  Draft draft(endpoint, context);
  if (MaybeError error = ReadDraft(*document, draft)) return *std::move(error);
  return std::move(draft.request);
}

std::vector<std::string_view> KnownFields(Endpoint endpoint) {
  std::vector<std::string_view> names;
  for (const Field& field : kCommonFields) names.push_back(field.name);
  if (endpoint == Endpoint::kChat) {
    for (const Field& field : kChatFields) names.push_back(field.name);
  } else {
    for (const Field& field : kCompletionFields) names.push_back(field.name);
  }
  return names;
}

}  // namespace rt::server
