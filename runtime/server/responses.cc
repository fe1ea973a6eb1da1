#include "runtime/server/responses.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace rt::server {
namespace {

// JSON has no -inf; OpenAI's own figure for "practically never".
constexpr double kLowestLogprob = -9999.0;

// Through the shortest decimal form of the float: -0.1f becomes -0.1, not -0.10000000149011612.
Json LogprobNumber(float logprob) {
  if (!(logprob >= static_cast<float>(kLowestLogprob))) return kLowestLogprob;
  char digits[32];
  const auto written = std::to_chars(digits, digits + sizeof(digits), logprob);
  double number = logprob;
  std::from_chars(digits, written.ptr, number);
  return number;
}

bool IsValidUtf8(const std::string& bytes) {
  // dump() in strict mode is the validator that is already here.
  try {
    (void)Json(bytes).dump(-1, ' ', false, Json::error_handler_t::strict);
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

std::string EscapedBytes(const std::string& bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text = "bytes:";
  for (const unsigned char c : bytes) {
    text += "\\x";
    text += kHex[c >> 4];
    text += kHex[c & 15];
  }
  return text;
}

int64_t NumCharacters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

Json FinishReasonJson(const GenerationDelta& delta) {
  if (delta.finish_reason == FinishReason::kStop) return "stop";
  if (delta.finish_reason == FinishReason::kLength) return "length";
  return nullptr;
}

}  // namespace

std::string SseEvent(const std::string& data) {
  std::string event;
  event.reserve(data.size() + 8);
  return event.append("data: ").append(data).append("\n\n");
}

ResponseBuilder::ResponseBuilder(const ApiRequest& request, std::string response_id, int64_t created_unix_s,
                                 std::string model_name, const TextService* text)
    : request_(request),
      response_id_(std::move(response_id)),
      created_unix_s_(created_unix_s),
      model_name_(std::move(model_name)),
      text_(text),
      choices_(request.num_sequences()) {}

Json ResponseBuilder::Envelope(const char* object) const {
  return {{"id", response_id_}, {"object", object}, {"created", created_unix_s_}, {"model", model_name_}};
}

Json ResponseBuilder::Chunk(Json choice) const {
  Json chunk = Envelope(chat() ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(choice)});
  if (request_.include_usage) chunk["usage"] = nullptr;  // as OpenAI: null in all chunks but the last
  return chunk;
}

void ResponseBuilder::AddTokenIds(size_t index, const GenerationDelta& delta, Json* choice) {
  if (!request_.return_token_ids) return;
  (*choice)["token_ids"] = delta.token_ids;
  if (!std::exchange(choices_[index].prompt_ids_sent, true)) {
    (*choice)["prompt_token_ids"] = request_.prompts[index / static_cast<size_t>(request_.num_choices)];
  }
}

void ResponseBuilder::Count(size_t index, const GenerationDelta& delta) {
  choices_[index].num_output_tokens = delta.num_output_tokens;
  choices_[index].num_cached_prompt_tokens = delta.num_cached_prompt_tokens;
}

std::string ResponseBuilder::StreamEvents(size_t index, const GenerationDelta& delta) {
  Count(index, delta);
  std::string events;
  if (!std::exchange(choices_[index].started, true) && chat()) {
    Json role = {{"index", index},
                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr}};
    events += SseEvent(DumpJson(Chunk(std::move(role))));
  }
  const Json finish_reason = FinishReasonJson(delta);
  const bool has_tokens = !delta.token_ids.empty() && (request_.return_token_ids || request_.want_logprobs);
  if (delta.text.empty() && finish_reason.is_null() && !has_tokens) return events;
  Json choice;
  if (chat()) {
    choice = {{"index", index}, {"delta", Json::object()}};
    if (!delta.text.empty()) choice["delta"]["content"] = delta.text;
  } else {
    choice = {{"index", index}, {"text", delta.text}};
  }
  choice["logprobs"] = Logprobs(index, delta);
  choice["finish_reason"] = finish_reason;
  AddTokenIds(index, delta, &choice);
  return events + SseEvent(DumpJson(Chunk(std::move(choice))));
}

std::string ResponseBuilder::UsageEvent() const {
  Json chunk = Envelope(chat() ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array();
  chunk["usage"] = Usage();
  return SseEvent(DumpJson(chunk));
}

std::string ResponseBuilder::FullBody(const std::vector<GenerationDelta>& deltas) {
  Json choices = Json::array();
  for (size_t i = 0; i < deltas.size(); ++i) {
    const GenerationDelta& delta = deltas[i];
    Count(i, delta);
    Json choice = {{"index", i}};
    if (chat()) {
      choice["message"] = {{"role", "assistant"}, {"content", delta.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = delta.text;
    }
    choice["logprobs"] = Logprobs(i, delta);
    choice["finish_reason"] = FinishReasonJson(delta);
    AddTokenIds(i, delta, &choice);
    choices.push_back(std::move(choice));
  }
  Json body = Envelope(chat() ? "chat.completion" : "text_completion");
  body["choices"] = std::move(choices);
  body["usage"] = Usage();
  return DumpJson(body);
}

// A prompt counts once however many samples it has; its cached part is what the first sample found.
Json ResponseBuilder::Usage() const {
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;
  for (const auto& ids : request_.prompts) prompt_tokens += static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    output_tokens += choices_[i].num_output_tokens;
    if (i % static_cast<size_t>(request_.num_choices) == 0) cached_tokens += choices_[i].num_cached_prompt_tokens;
  }
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", output_tokens},
          {"total_tokens", prompt_tokens + output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

Json ResponseBuilder::Logprobs(size_t index, const GenerationDelta& delta) {
  if (!request_.want_logprobs) return nullptr;
  return chat() ? ChatLogprobs(delta) : CompletionLogprobs(delta, &choices_[index].text_offset);
}

// A token as text: itself, its bytes when they are no UTF-8, its id when there is no tokenizer.
std::string ResponseBuilder::TokenText(int32_t token_id) const {
  if (text_ == nullptr) return "token_id:" + std::to_string(token_id);
  std::string bytes = text_->TokenBytes(token_id);
  return IsValidUtf8(bytes) ? bytes : EscapedBytes(bytes);
}

Json ResponseBuilder::ChatLogprobs(const GenerationDelta& delta) const {
  const auto entry = [this](int32_t token_id, float logprob) {
    Json bytes = nullptr;
    if (text_ != nullptr) {
      bytes = Json::array();
      for (const unsigned char c : text_->TokenBytes(token_id)) bytes.push_back(c);
    }
    return Json({{"token", TokenText(token_id)}, {"logprob", LogprobNumber(logprob)}, {"bytes", std::move(bytes)}});
  };
  Json content = Json::array();
  for (const TokenLogprob& token : delta.logprobs) {
    Json item = entry(token.token_id, token.logprob);
    item["top_logprobs"] = Json::array();
    for (const auto& [token_id, logprob] : token.top) item["top_logprobs"].push_back(entry(token_id, logprob));
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json ResponseBuilder::CompletionLogprobs(const GenerationDelta& delta, int64_t* text_offset) const {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenLogprob& token : delta.logprobs) {
    const std::string name = TokenText(token.token_id);
    Json top = Json::object();
    for (const auto& [token_id, logprob] : token.top) top[TokenText(token_id)] = LogprobNumber(logprob);
    top[name] = LogprobNumber(token.logprob);  // the chosen one is always listed
    tokens.push_back(name);
    logprobs.push_back(LogprobNumber(token.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(*text_offset);
    if (text_ != nullptr) *text_offset += NumCharacters(text_->TokenBytes(token.token_id));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ModelObject(const std::string& name, int64_t created_unix_s, int32_t max_context_tokens) {
  return {{"id", name},
          {"object", "model"},
          {"created", created_unix_s},
          {"owned_by", "deltart"},
          {"max_context_tokens", max_context_tokens}};
}

std::string ModelListBody(const std::string& name, int64_t created_unix_s, int32_t max_context_tokens) {
  Json body = {{"object", "list"}};
  body["data"] = Json::array({ModelObject(name, created_unix_s, max_context_tokens)});
  return DumpJson(body);
}

}  // namespace rt::server
