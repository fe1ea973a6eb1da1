#include "runtime/cli/generate_command.h"

#include "runtime/cli/generate_output.h"
#include "runtime/cli/generate_prompts.h"
#include "runtime/cli/model_start.h"
#include "runtime/weights/progress.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

namespace rt {
namespace {

constexpr int32_t kDefaultMaxTokens = 512;  // where --max-tokens is silent and the context has room

struct GenerateOptions {
  ModelOptions model;
  PromptOptions prompt;
  std::optional<int32_t> max_tokens, min_tokens, top_k, logprobs;
  std::optional<float> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool greedy = false;
  bool ignore_eos = false;
  bool json = false;
};

SamplingParams SamplingOf(const GenerateOptions& options, SamplingParams sampling) {
  const auto set = [](const auto& from, auto* to) {
    if (from) *to = *from;
  };
  if (options.greedy) sampling.temperature = 0;
  set(options.temperature, &sampling.temperature);
  set(options.top_k, &sampling.top_k);
  set(options.top_p, &sampling.top_p);
  set(options.min_p, &sampling.min_p);
  set(options.presence_penalty, &sampling.presence_penalty);
  set(options.frequency_penalty, &sampling.frequency_penalty);
  set(options.repetition_penalty, &sampling.repetition_penalty);
  set(options.logprobs, &sampling.num_logprobs);
  if (options.seed) sampling.seed = *options.seed;
  return sampling;
}

class GenerateRun {
 public:
  GenerateRun(const GenerateOptions& options, Config config)
      : options_(options), start_(std::move(config)), terminal_(::isatty(STDERR_FILENO) == 1) {}

  ExitCode Run() {
    for (const auto& step : {&GenerateRun::Load, &GenerateRun::Submit, &GenerateRun::Receive}) {
      if (const ExitCode code = (this->*step)(); code != ExitCode::kOk) return code;
    }
    Summarize();
    return exit_code_;
  }

 private:
  ExitCode Load() {
    if (const ExitCode code = start_.OpenModel(options_.model.plugins); code != ExitCode::kOk) return code;
    // Before the weights: a wrong prompt fails at once.
    auto prompts = MakePrompts(options_.prompt, &start_.text());
    if (!prompts.ok()) {
      const bool wrong_usage = prompts.status().code() == Code::kInvalidArgument;
      return Fail(wrong_usage ? ExitCode::kUsage : ExitCode::kCheckpoint, prompts.status());
    }
    prompts_ = std::move(prompts).value();
    if (const ExitCode code = start_.Negotiate(); code != ExitCode::kOk) return code;
    if (terminal_)
      start_.session().set_progress(weights::MakeProgressWriter("loading weights", STDERR_FILENO));
    if (const ExitCode code = start_.LoadWeights(); code != ExitCode::kOk) return code;
    if (const ExitCode code = start_.StartEngine(); code != ExitCode::kOk) return code;
    load_s_ = std::chrono::duration<double>(GenerateClock::now() - begin_).count();
    return ExitCode::kOk;
  }

  GenerationRequest RequestOf(size_t prompt_idx) {
    GenerationRequest request;
    request.request_id = "prompt-" + std::to_string(prompt_idx);
    request.prompt_ids = prompts_[prompt_idx];
    request.sampling = SamplingOf(options_, start_.text().default_sampling());
    const int64_t room = int64_t{start_.session().engine()->max_context_tokens()} -
                         static_cast<int64_t>(request.prompt_ids.size());
    request.stop.max_tokens = options_.max_tokens
                                  ? *options_.max_tokens
                                  : static_cast<int32_t>(std::clamp<int64_t>(room, 1, kDefaultMaxTokens));
    request.stop.min_tokens = options_.min_tokens.value_or(0);
    request.stop.stop_strings = options_.stop;
    request.stop.ignore_eos = options_.ignore_eos;
    request.want_text = start_.text().has_text();
    request.skip_special_tokens = !options_.prompt.raw;
    return request;
  }

  ExitCode Submit() {
    generations_.resize(prompts_.size());
    for (size_t i = 0; i < prompts_.size(); ++i) {
      generations_[i].submitted = GenerateClock::now();
      const auto submitted = start_.session().engine()->Submit(RequestOf(i), inbox_.SinkOf(i));
      if (!submitted.ok()) {
        Status status = submitted.status();
        if (prompts_.size() > 1) status = status.Annotate("prompt " + std::to_string(i));
        return Fail(status.code() == Code::kInvalidArgument ? ExitCode::kUsage : ExitCode::kFailed, status);
      }
    }
    return ExitCode::kOk;
  }

  // Prints each answer when its turn has come: text of the first unfinished prompt as it grows, JSON when it
  // ends.
  ExitCode Receive() {
    size_t printing = 0;  // prompt whose answer is on the screen
    size_t printed = 0;   // bytes of its text that are
    while (printing < generations_.size()) {
      for (DeltaInbox::Entry& entry : inbox_.Take())
        generations_[entry.prompt_idx].Add(std::move(entry.delta), entry.when);
      for (; printing < generations_.size(); ++printing, printed = 0) {
        const Generation& generation = generations_[printing];
        if (!options_.json) PrintText(generation, &printed);
        if (!generation.done()) break;
        Finish(generation, printing);
      }
      std::fflush(stdout);
    }
    return ExitCode::kOk;
  }

  void PrintText(const Generation& generation, size_t* printed) {
    if (start_.text().has_text()) {
      std::fwrite(generation.text.data() + *printed, 1, generation.text.size() - *printed, stdout);
      *printed = generation.text.size();
    } else if (generation.done()) {
      std::fputs(JoinIds(generation.token_ids).c_str(), stdout);
    }
    if (generation.done()) std::fputc('\n', stdout);
  }

  void Finish(const Generation& generation, size_t prompt_idx) {
    if (options_.json) {
      const auto json = GenerationJson(generation, prompt_idx, start_.text().has_text(), load_s_);
      std::printf("%s\n",
                  json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    }
    const FinishReason reason = *generation.last.finish_reason;
    if (reason != FinishReason::kError && reason != FinishReason::kAbort) return;
    Status status = generation.last.error;
    if (status.ok()) status = Status(Code::kCancelled, "aborted");
    exit_code_ = Fail(ExitCode::kFailed, status.Annotate("prompt " + std::to_string(prompt_idx)));
  }

  void Summarize() const {
    if (!terminal_) return;
    const GenerateRates rates = Rates(generations_, load_s_);
    size_t prompt_tokens = 0, output_tokens = 0;
    for (const Generation& g : generations_) {
      prompt_tokens += static_cast<size_t>(g.last.num_prompt_tokens);
      output_tokens += g.token_ids.size();
    }
    std::fprintf(stderr, "loaded in %.2f s; prompt %zu tokens, %.0f tok/s; output %zu tokens, %.0f tok/s\n",
                 rates.load_s, prompt_tokens, rates.prefill_tokens_per_s, output_tokens,
                 rates.decode_tokens_per_s);
  }

  const GenerateOptions& options_;
  const GenerateClock::time_point begin_ = GenerateClock::now();
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Generation> generations_;
  DeltaInbox inbox_;  // outlives the engine
  ModelStart start_;
  const bool terminal_;
  double load_s_ = 0;
  ExitCode exit_code_ = ExitCode::kOk;
};

ExitCode RunGenerate(const GenerateOptions& options) {
  Result<Config> config = LoadModelConfig(options.model, /*quiet=*/true);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  return GenerateRun(options, std::move(config).value()).Run();
}

void AddSamplingOptions(CLI::App* command, GenerateOptions* options) {
  command->add_option("--max-tokens", options->max_tokens,
                      "most tokens of an answer (default 512, or what the context has room for)");
  command->add_option("--min-tokens", options->min_tokens, "tokens before an answer may end");
  command->add_flag("--greedy", options->greedy, "always the likeliest token, the same as --temperature 0");
  command->add_option("--temperature", options->temperature,
                      "0 = greedy; default: the checkpoint's generation_config.json, as all below");
  command->add_option("--top-k", options->top_k, "draw from the k likeliest tokens; 0 = all");
  command->add_option("--top-p", options->top_p,
                      "draw from the likeliest tokens that together reach this probability");
  command->add_option("--min-p", options->min_p,
                      "leave out tokens less likely than this share of the likeliest");
  command->add_option("--presence-penalty", options->presence_penalty,
                      "subtracted from the logit of each token of the answer");
  command->add_option("--frequency-penalty", options->frequency_penalty, "the same for each time it occurs");
  command->add_option("--repetition-penalty", options->repetition_penalty,
                      "divides the logits of tokens of prompt and answer; 1 = off");
  command->add_option("--seed", options->seed, "same seed, same draws");
  command->add_option("--stop", options->stop, "text that ends the answer and is not shown; may be repeated")
      ->type_name("TEXT")
      ->type_size(1)
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", options->ignore_eos, "end tokens do not end the answer");
  command->add_option("--logprobs", options->logprobs,
                      "with --json: log-probability of each token and of the N best (0 to 20)");
}

}  // namespace

void AddGenerateCommand(CLI::App& app, ExitCode* exit_code) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand(
      "generate", "answer prompts given on the command line, in a file or on standard input");
  AddModelOptions(command, &options->model);
  AddPromptOptions(command, &options->prompt);
  AddSamplingOptions(command, options.get());
  command->add_flag("--json", options->json, "print one JSON object for each prompt");
  command->callback([options, exit_code] { *exit_code = RunGenerate(*options); });
}

}  // namespace rt
