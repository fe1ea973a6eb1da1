#include "runtime/engine/engine.h"

#include "runtime/engine/request_check.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>
#include <string>

namespace rt {
namespace {

// After a drain's deadline the rest is aborted; a device that hangs must not hold the caller for ever.
constexpr std::chrono::seconds kAbortGrace{10};

int64_t Nanoseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

// 0 means "what the runner can"; more than that is an error, never a silent cap.
Status Resolve(const char* name, int32_t limit, int32_t* value) {
  if (*value == 0) *value = limit;
  if (*value > 0 && *value <= limit) return Status::Ok();
  return {Code::kInvalidArgument, std::string(name) + ": expected 1 to " + std::to_string(limit) +
                                      " (the model runner's limit), got " + std::to_string(*value)};
}

Status ResolveConfig(const RunnerLimits& limits, EngineConfig* config) {
  RT_RETURN_IF_ERROR(Resolve("max_sequences", limits.max_sequences, &config->max_sequences));
  RT_RETURN_IF_ERROR(Resolve("max_step_tokens", limits.max_step_tokens, &config->max_step_tokens));
  RT_RETURN_IF_ERROR(Resolve("max_context_tokens", limits.max_context_tokens, &config->max_context_tokens));
  if (config->prefill_chunk == 0) config->prefill_chunk = config->max_step_tokens;
  if (config->prefill_chunk < 1)
    return {Code::kInvalidArgument,
            "prefill_chunk: expected > 0, got " + std::to_string(config->prefill_chunk)};
  if (config->max_waiting < 1)
    return {Code::kInvalidArgument, "max_waiting: expected > 0, got " + std::to_string(config->max_waiting)};
  return Status::Ok();
}

SchedulerConfig MakeSchedulerConfig(const EngineConfig& config, int32_t vocab_size) {
  return {config.max_sequences, config.max_step_tokens, config.prefill_chunk, config.max_context_tokens,
          vocab_size};
}

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// The start line that tells how many sequences really fit, and why.
void LogCapacity(const SlabGeometry& g, const CacheGeometry& cache, const EngineConfig& config) {
  const int64_t full = (config.max_context_tokens + cache.block_size_tokens - 1) / cache.block_size_tokens *
                           g.stride(UnitKind::kKvBlock) +
                       g.stride(UnitKind::kStateSlot);
  spdlog::info(
      "cache: {:.1f} MiB in {} slabs of {:.1f} KiB; a slab holds {} KV blocks of {} tokens ({} bytes, {:.2f} "
      "% padding) or "
      "{} state slots ({} bytes, {:.2f} % padding); room for {} sequences of {} tokens, at most {} run at "
      "once",
      MiB(g.arena_bytes()), g.num_slabs, static_cast<double>(g.slab_bytes) / 1024,
      g.per_slab(UnitKind::kKvBlock), cache.block_size_tokens, cache.kv_block_bytes,
      100 * g.padding(UnitKind::kKvBlock), g.per_slab(UnitKind::kStateSlot), cache.state_slot_bytes,
      100 * g.padding(UnitKind::kStateSlot), g.arena_bytes() / std::max<int64_t>(full, 1),
      config.max_context_tokens, config.max_sequences);
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(EngineConfig config, ModelRunner* runner,
                                               TextDecoderFactory* text) {
  RT_RETURN_IF_ERROR(ResolveConfig(runner->limits(), &config));
  const CacheGeometry cache = runner->cache_geometry();
  if (cache.block_size_tokens < 1)
    return Status(Code::kInvalidArgument,
                  "block_size_tokens: expected > 0, got " + std::to_string(cache.block_size_tokens));
  RT_ASSIGN_OR_RETURN(const SlabGeometry geometry, PlanSlabs({cache.kv_block_bytes, cache.state_slot_bytes,
                                                              cache.alignment_bytes, config.cache_bytes}));
  const Status fits = Scheduler::CheckFits(geometry, cache.block_size_tokens, 2);
  if (!fits.ok())
    return Status(Code::kResourceExhausted,
                  "cache_bytes: " + std::to_string(config.cache_bytes) +
                      " bytes hold not even one short sequence; expected at least " +
                      std::to_string(2 * geometry.slab_bytes));
  RT_RETURN_IF_ERROR(runner
                         ->BindCache({geometry.stride(UnitKind::kKvBlock),
                                      geometry.stride(UnitKind::kStateSlot), geometry.arena_bytes()})
                         .Annotate("binding the cache"));
  LogCapacity(geometry, cache, config);
  return std::unique_ptr<Engine>(new Engine(std::move(config), geometry, runner, text));
}

Engine::Engine(EngineConfig config, const SlabGeometry& geometry, ModelRunner* runner,
               TextDecoderFactory* text)
    : config_(std::move(config)),
      runner_(runner),
      text_(text),
      vocab_size_(runner->vocab_size()),
      cache_geometry_(runner->cache_geometry()),
      arena_(geometry),
      pool_(&arena_, cache_geometry_.block_size_tokens),
      ledger_(&arena_),
      scheduler_(MakeSchedulerConfig(config_, vocab_size_), &arena_, &pool_, &ledger_, &events_,
                 config_.observer),
      next_seed_(std::random_device{}() * uint64_t{0x9E3779B97F4A7C15} ^ std::random_device{}()) {
  if (config_.observer) {
    arena_.set_observer([observer = config_.observer](UnitKind kind, int32_t id, bool allocated) {
      observer->OnUnit(kind, id, allocated);
    });
  }
  stats_.kv_blocks_free = arena_.num_available(UnitKind::kKvBlock);
  stats_.state_slots_free = arena_.num_available(UnitKind::kStateSlot);
  output_ = std::make_unique<OutputProcessor>(OutputProcessor::Callbacks{
      [this](SequenceId id) { Abort(id); }, [this](SequenceId) { OnStreamDone(); }});
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  draining_ = true;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    mail_.abort_all = true;
    has_mail_ = true;
  }
  mail_arrived_.notify_one();
  thread_.join();
  output_.reset();  // delivers the last deltas
}

Status Engine::WaitReady() {
  std::unique_lock<std::mutex> lock(mutex_);
  progress_.wait(lock, [this] { return warmed_up_; });
  return fatal_;
}

// ---- any thread ----

Result<SequenceId> Engine::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  if (!sink) return Status(Code::kInvalidArgument, "sink: expected one, got null");
  RT_RETURN_IF_ERROR(CheckRequest(request, {vocab_size_, config_.max_context_tokens}));
  // The last token is never written to the caches.
  const int64_t num_cached = static_cast<int64_t>(request.prompt_ids.size()) + request.stop.max_tokens - 1;
  RT_RETURN_IF_ERROR(Scheduler::CheckFits(arena_.geometry(), cache_geometry_.block_size_tokens, num_cached));
  std::unique_ptr<TextDecoder> decoder;
  if (request.want_text) {
    if (!text_)
      return Status(Code::kFailedPrecondition, "text output: the model has no tokenizer, ask for token ids");
    RT_ASSIGN_OR_RETURN(decoder, text_->New(request));
  }
  std::unique_ptr<Sequence> sequence = MakeSequence(std::move(request), std::move(sink), std::move(decoder));
  const SequenceId id = sequence->id;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (draining_) return Status(Code::kFailedPrecondition, "the engine is draining: no new requests");
    if (!fatal_.ok()) return Status(Code::kUnavailable, "the engine has failed: " + fatal_.message());
    if (num_queued_ >= config_.max_waiting)
      return Status(Code::kResourceExhausted,
                    "the queue is full (" + std::to_string(config_.max_waiting) + " requests wait)");
    ++num_queued_;
    ++num_live_;
    mail_.submitted.push_back(std::move(sequence));
    has_mail_.store(true, std::memory_order_release);
  }
  mail_arrived_.notify_one();
  return id;
}

std::unique_ptr<Sequence> Engine::MakeSequence(GenerationRequest request,
                                               std::shared_ptr<GenerationSink> sink,
                                               std::unique_ptr<TextDecoder> decoder) {
  auto sequence = std::make_unique<Sequence>(&pool_);
  sequence->id = next_id_++;
  auto output = std::make_shared<OutputStream>();
  output->id = sequence->id;
  output->sink = std::move(sink);
  output->decoder = std::move(decoder);
  output->stop_strings = request.stop.stop_strings;
  output->want_logprobs = request.sampling.num_logprobs >= 0;
  output->include_stop_text = request.stop.include_stop_string;
  output->min_tokens = request.stop.min_tokens;
  output->num_prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  sequence->output = std::move(output);

  const SamplingParams& sampling = request.sampling;
  sequence->seed = sampling.seed ? *sampling.seed : next_seed_.fetch_add(0x9E3779B97F4A7C15);
  sequence->has_penalties = sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f ||
                            sampling.repetition_penalty != 1.0f;
  sequence->stop_ids = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos)
    sequence->stop_ids.insert(sequence->stop_ids.end(), config_.eos_token_ids.begin(),
                              config_.eos_token_ids.end());
  sequence->num_prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  sequence->max_total_tokens = sequence->num_prompt_tokens + request.stop.max_tokens;
  sequence->tokens = std::move(request.prompt_ids);
  sequence->tokens.reserve(static_cast<size_t>(sequence->max_total_tokens));
  sequence->blocks.Reserve(sequence->max_total_tokens);
  sequence->sampling = std::move(request.sampling);
  sequence->stop = std::move(request.stop);
  return sequence;
}

void Engine::Abort(SequenceId id) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    mail_.aborted.push_back(id);
    has_mail_.store(true, std::memory_order_release);
  }
  mail_arrived_.notify_one();
}

EngineStats Engine::Stats() const {
  EngineStats s;
  const SlabGeometry& geometry = arena_.geometry();
  s.kv_blocks_total = geometry.max_units(UnitKind::kKvBlock);
  s.state_slots_total = geometry.max_units(UnitKind::kStateSlot);
  s.kv_blocks_free = stats_.kv_blocks_free;
  s.state_slots_free = stats_.state_slots_free;
  s.cache_bytes = geometry.arena_bytes();
  s.cache_stranded_bytes = stats_.stranded_bytes;
  s.requests_running = stats_.running;
  s.requests_waiting = stats_.waiting;
  s.prompt_tokens_total = stats_.prompt_tokens;
  s.output_tokens_total = stats_.output_tokens;
  s.preemptions_total = stats_.preemptions;
  s.ledger_violations_total = stats_.violations;
  s.builds_after_ready_total = stats_.builds_after_ready;
  s.steps_total = stats_.steps;
  s.engine_overhead_ns_total = stats_.overhead_ns;
  return s;
}

void Engine::Drain(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  draining_ = true;
  const auto finished = [this] { return num_live_ == 0; };
  if (progress_.wait_until(lock, deadline, finished)) return;
  mail_.abort_all = true;
  has_mail_ = true;
  mail_arrived_.notify_one();
  progress_.wait_for(lock, kAbortGrace, finished);
}

void Engine::OnStreamDone() {
  if (--num_live_ > 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  progress_.notify_all();
}

// ---- engine thread ----

void Engine::Run() {
  const Status warm = WarmUp();
  if (!warm.ok()) Fatal(warm);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    warmed_up_ = true;
    ready_ = fatal_.ok();
  }
  progress_.notify_all();
  Clock::time_point begin = Clock::now();
  bool waited = false;
  while (TakeMail(&waited)) {
    if (waited) begin = Clock::now();
    Step(begin);
    begin = Clock::now();
  }
}

Status Engine::WarmUp() {
  // Scratch units for the largest step there is; their contents do not matter before or after.
  BlockTable scratch(&pool_);
  int32_t slot_id = -1;
  if (ledger_.has_slots()) {
    RT_ASSIGN_OR_RETURN(slot_id, ledger_.ReserveSink());
  }
  // Blocks for the longest prompt chunk, and one for each row of the widest decode step.
  const int64_t block_size = pool_.block_size_tokens();
  const int64_t wanted = std::max<int64_t>(std::min(config_.max_step_tokens, config_.max_context_tokens),
                                           config_.max_sequences * block_size);
  scratch.Grow(std::min(wanted, pool_.num_available() * block_size));
  Status status = runner_->WarmUp(scratch.ids(), slot_id).Annotate("warm-up");
  const Status blocks = scratch.Clear();
  const Status sink = slot_id >= 0 ? ledger_.ReleaseSink(slot_id) : Status::Ok();
  if (!status.ok()) return status;
  return blocks.ok() ? sink : blocks;
}

bool Engine::TakeMail(bool* waited) {
  *waited = false;
  if (!has_mail_.load(std::memory_order_acquire) && HasWork()) return true;
  bool stop = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!has_mail_ && !stopping_ && !HasWork()) {
      *waited = true;
      mail_arrived_.wait(lock);
    }
    std::swap(mail_, mail_taken_);
    has_mail_ = false;
    stop = stopping_;
  }
  Deliver(&mail_taken_);
  return !stop || HasWork();
}

void Engine::Deliver(Mail* mail) {
  for (std::unique_ptr<Sequence>& sequence : mail->submitted) scheduler_.Add(std::move(sequence));
  for (const SequenceId id : mail->aborted) scheduler_.Abort(id);
  if (mail->abort_all) scheduler_.AbortAll();
  mail->submitted.clear();
  mail->aborted.clear();
  mail->abort_all = false;
  if (!fatal_.ok()) scheduler_.FailAll(fatal_);
  if (!HasWork()) FinishStep(Clock::now());  // nothing will run: let the endings go out now
}

void Engine::Step(Clock::time_point begin) {
  runner_ns_ = 0;
  StepBatch* previous = in_flight_;
  PlanOutcome outcome = PlanNext();
  if (outcome == PlanOutcome::kDrainFirst) {
    CollectInFlight(previous);
    previous = nullptr;
    outcome = PlanNext();
  }
  if (outcome == PlanOutcome::kPlanned) {
    const bool enqueued = EnqueuePlanned();
    if (previous && enqueued) {
      StepBatch* newest = in_flight_;
      CollectInFlight(previous);
      in_flight_ = newest;
    }
    if (enqueued && !config_.pipelined) CollectInFlight(in_flight_);
  } else if (previous) {
    CollectInFlight(previous);
  }
  FinishStep(begin);
}

PlanOutcome Engine::PlanNext() {
  return scheduler_.Plan(next_step_id_, in_flight_ ? 1 : 0, &batches_[next_step_id_ & 1]);
}

// Makes the planned step the newest one in flight. False: it failed, and then no step is in flight any more.
bool Engine::EnqueuePlanned() {
  StepBatch* batch = &batches_[next_step_id_ & 1];
  if (config_.observer) config_.observer->OnEnqueue(batch->plan);
  const Clock::time_point begin = Clock::now();
  const Status status = runner_->Enqueue(batch->plan);
  runner_ns_ += Nanoseconds(Clock::now() - begin);
  if (status.ok()) {
    in_flight_ = batch;
    ++next_step_id_;
    return true;
  }
  // The ledger settles steps in order: first the one before.
  if (in_flight_) CollectInFlight(in_flight_);
  spdlog::error("step {}: {}", next_step_id_, status.ToString());
  scheduler_.Fail(batch, status);
  if (status.code() == Code::kDeviceLost) Fatal(status);
  return false;
}

void Engine::CollectInFlight(StepBatch* batch) {
  const Clock::time_point begin = Clock::now();
  Result<StepOutput> output = runner_->Collect(batch->plan.step_id);
  runner_ns_ += Nanoseconds(Clock::now() - begin);
  in_flight_ = nullptr;
  Status status = output.status();
  const size_t num_rows = static_cast<size_t>(batch->plan.num_sampled_rows);
  if (status.ok() && output->tokens.size() != num_rows)
    status = Status(Code::kInternal, "step " + std::to_string(batch->plan.step_id) + ": expected " +
                                         std::to_string(num_rows) + " sampled tokens, got " +
                                         std::to_string(output->tokens.size()));
  if (status.ok()) {
    scheduler_.Complete(batch, &*output);
    return;
  }
  spdlog::error("step {}: {}", batch->plan.step_id, status.ToString());
  scheduler_.Fail(batch, status);
  if (status.code() == Code::kDeviceLost) Fatal(status);
}

// The runner is of no use any more: everything fails, now and later.
void Engine::Fatal(const Status& why) {
  spdlog::error("the engine stops serving: {}", why.ToString());
  ready_ = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (fatal_.ok()) fatal_ = why;
  }
  scheduler_.FailAll(why);
}

void Engine::FinishStep(Clock::time_point begin) {
  num_queued_.fetch_sub(scheduler_.TakeNumDequeued(), std::memory_order_relaxed);
  const Status status = scheduler_.CheckConsistency(config_.check_every_step);
  if (!status.ok() && fatal_.ok()) {
    // Memory whose owner is unknown may be read by two sequences: better no answer than a wrong one.
    ++num_failed_checks_;
    Fatal(status);
  }
  output_->Publish(&events_);
  const auto set = [](std::atomic<int64_t>& to, int64_t value) {
    to.store(value, std::memory_order_relaxed);
  };
  set(stats_.kv_blocks_free, arena_.num_available(UnitKind::kKvBlock));
  set(stats_.state_slots_free, arena_.num_available(UnitKind::kStateSlot));
  set(stats_.stranded_bytes, arena_.stranded_bytes());
  set(stats_.running, static_cast<int64_t>(scheduler_.num_running()));
  set(stats_.waiting, static_cast<int64_t>(scheduler_.num_waiting()));
  set(stats_.prompt_tokens, scheduler_.counters().prompt_tokens);
  set(stats_.output_tokens, scheduler_.counters().output_tokens);
  set(stats_.preemptions, scheduler_.counters().preemptions);
  set(stats_.violations, ledger_.num_violations() + num_failed_checks_);
  set(stats_.builds_after_ready, runner_->builds_after_ready());
  set(stats_.steps, static_cast<int64_t>(next_step_id_));
  set(stats_.overhead_ns,
      stats_.overhead_ns.load(std::memory_order_relaxed) + Nanoseconds(Clock::now() - begin) - runner_ns_);
  runner_ns_ = 0;
}

}  // namespace rt
