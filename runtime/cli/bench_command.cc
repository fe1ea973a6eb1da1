#include "runtime/cli/bench_command.h"

#include "runtime/cli/session_exit.h"
#include "runtime/session/session.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace rt {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct BenchOptions {
  ConfigOptions config;
  std::vector<std::string> plugins;
  std::vector<int> batches = {1, 4, 16};
  int prompt_tokens = 512;
  int decode_tokens = 64;
  int repeats = 3;
  bool as_json = false;
  bool no_floor = false;
};

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// Bytes per second that `num_threads` threads read from memory together: each sums its own part of a buffer far larger than the
// caches, on huge pages and with prefetches 512 bytes ahead, as the weights are read. The best of the passes, because a floor is what
// the machine can do.
double MeasureReadBandwidth(int num_threads) {
  constexpr size_t kBytesPerThread = size_t{192} << 20;
  constexpr int kPasses = 8;
  constexpr size_t kHugePage = size_t{2} << 20;
  std::atomic<int> arrived{0};
  std::atomic<uint64_t> sink{0};
  std::vector<std::thread> threads;
  std::vector<std::vector<Clock::time_point>> begins(static_cast<size_t>(num_threads), std::vector<Clock::time_point>(kPasses)), ends = begins;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      const size_t n = kBytesPerThread / 8;
      const std::unique_ptr<uint64_t, decltype(&std::free)> part(static_cast<uint64_t*>(std::aligned_alloc(kHugePage, kBytesPerThread)), &std::free);
      uint64_t* data = part.get();
      (void)madvise(data, kBytesPerThread, MADV_HUGEPAGE);
      for (size_t i = 0; i < n; ++i) data[i] = i;
      for (int pass = 0; pass < kPasses; ++pass) {
        arrived.fetch_add(1);
        while (arrived.load() < num_threads * (pass + 1)) {
        }
        begins[static_cast<size_t>(t)][static_cast<size_t>(pass)] = Clock::now();
        uint64_t sums[8] = {};
        for (size_t i = 0; i < n; i += 8) {
          __builtin_prefetch(data + i + 64);
          for (size_t j = 0; j < 8; ++j) sums[j] += data[i + j];
        }
        for (uint64_t s : sums) sink += s;
        ends[static_cast<size_t>(t)][static_cast<size_t>(pass)] = Clock::now();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  double top = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    Clock::time_point begin = begins[0][static_cast<size_t>(pass)], end = ends[0][static_cast<size_t>(pass)];
    for (int t = 1; t < num_threads; ++t) {
      begin = std::min(begin, begins[static_cast<size_t>(t)][static_cast<size_t>(pass)]);
      end = std::max(end, ends[static_cast<size_t>(t)][static_cast<size_t>(pass)]);
    }
    top = std::max(top, static_cast<double>(num_threads) * kBytesPerThread / Seconds(end - begin));
  }
  return sink.load() == 0 ? 0 : top;
}

// Collects the deltas of one batch of sequences.
class Collector {
 public:
  explicit Collector(int num) : first_(static_cast<size_t>(num)), tokens_(static_cast<size_t>(num), 0), left_(num) {}
  void OnDelta(size_t i, const GenerationDelta& delta) {
    const std::lock_guard lock(mutex_);
    if (!delta.token_ids.empty() && tokens_[i] == 0) first_[i] = Clock::now();
    tokens_[i] += static_cast<int>(delta.token_ids.size());
    if (!delta.finish_reason) return;
    if (*delta.finish_reason == FinishReason::kError && error_.ok()) error_ = delta.error;
    last_ = Clock::now();
    if (--left_ == 0) done_.notify_all();
  }
  Status Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
    return error_;
  }
  Clock::time_point last_first_token() const { return *std::max_element(first_.begin(), first_.end()); }
  Clock::time_point last() const { return last_; }
  int64_t tokens() const {
    int64_t n = 0;
    for (int t : tokens_) n += t;
    return n;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<Clock::time_point> first_;
  std::vector<int> tokens_;
  Clock::time_point last_;
  int left_;
  Status error_;
};

struct CollectorSink : GenerationSink {
  CollectorSink(std::shared_ptr<Collector> to, size_t index) : collector(std::move(to)), i(index) {}
  void OnDelta(GenerationDelta delta) override { collector->OnDelta(i, delta); }
  std::shared_ptr<Collector> collector;
  size_t i;
};

struct RunResult {
  double prefill_s = 0;  // submission to the last sequence's first token
  double decode_s = 0;   // from there to the end
  int64_t decode_tokens = 0;
  int64_t steps = 0;
  double engine_us_per_step = 0, runner_us_per_step = 0;
};

Result<RunResult> RunBatch(Session& session, int batch, int prompt_tokens, int new_tokens, uint32_t seed) {
  Engine& engine = *session.engine();
  const auto collector = std::make_shared<Collector>(batch);
  std::mt19937 rng(seed);
  std::uniform_int_distribution<int32_t> draw(0, std::min(engine.vocab_size(), 4000) - 1);
  const EngineStats before = engine.Stats();
  const int64_t host_before = session.runner()->host_ns();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < batch; ++i) {
    GenerationRequest request;
    request.request_id = "bench-" + std::to_string(i);
    for (int t = 0; t < prompt_tokens; ++t) request.prompt_ids.push_back(draw(rng));
    request.sampling.temperature = 0;
    request.stop.max_tokens = new_tokens;
    request.stop.ignore_eos = true;
    request.want_text = false;
    const auto id = engine.Submit(std::move(request), std::make_shared<CollectorSink>(collector, static_cast<size_t>(i)));
    if (!id.ok()) return id.status();
  }
  RT_RETURN_IF_ERROR(collector->Wait());
  const EngineStats after = engine.Stats();
  RunResult r;
  r.prefill_s = Seconds(collector->last_first_token() - begin);
  r.decode_s = Seconds(collector->last() - collector->last_first_token());
  r.decode_tokens = collector->tokens() - batch;
  r.steps = std::max<int64_t>(1, after.steps_total - before.steps_total);
  r.engine_us_per_step = static_cast<double>(after.engine_overhead_ns_total - before.engine_overhead_ns_total) / 1e3 / static_cast<double>(r.steps);
  r.runner_us_per_step = static_cast<double>(session.runner()->host_ns() - host_before) / 1e3 / static_cast<double>(r.steps);
  return r;
}

// Bytes a decode step must move: every weight that the batch needs once (of a mixture, the experts that somebody chose), each sequence's recurrent state read and written, its keys and values read.
double StepBytes(Session& session, int batch, double context) {
  const CacheGeometry g = session.runner()->cache_geometry();
  const double kv = static_cast<double>(g.kv_block_bytes) / g.block_size_tokens * context;
  return static_cast<double>(session.runner()->step_weight_bytes(batch)) + batch * (2.0 * static_cast<double>(g.state_slot_bytes) + kv);
}

ExitCode RunBench(const BenchOptions& options) {
  Result<Config> config = LoadConfig(options.config);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  const int max_batch = *std::max_element(options.batches.begin(), options.batches.end());
  Config adjusted = *config;
  adjusted.engine.max_sequences = std::max<int64_t>(adjusted.engine.max_sequences, max_batch);
  adjusted.engine.max_step_tokens = std::max<int64_t>(adjusted.engine.max_step_tokens, options.prompt_tokens);
  adjusted.engine.prefill_chunk = std::max<int64_t>(adjusted.engine.prefill_chunk, options.prompt_tokens);
  if (adjusted.model.max_context == 0) adjusted.model.max_context = std::max(4096, options.prompt_tokens + options.decode_tokens + 64);
  spdlog::set_level(spdlog::level::warn);
  Session session(adjusted);
  if (const Status status = session.Prepare(options.plugins); !status.ok()) return Fail(StageExitCode(session.stage()), status);
  if (const Status status = session.StartEngine(nullptr, {}); !status.ok()) return Fail(ExitCode::kFailed, status);

  const int threads = static_cast<int>(session.device().info.num_units);
  const double floor_gbs = options.no_floor ? 0 : MeasureReadBandwidth(threads) / 1e9;
  json report = {{"model", session.model_name()},
                 {"compute_dtype", session.config().model.compute_dtype},
                 {"device", {{"name", session.device().info.name}, {"arch", session.device().info.arch}, {"threads", threads}}},
                 {"read_bandwidth_gb_s", floor_gbs > 0 ? json(floor_gbs) : json()},  // null: not measured
                 {"weight_bytes", session.runner()->weight_bytes()},
                 {"weight_bytes_per_token", session.runner()->weight_bytes_per_token()},
                 {"state_slot_bytes", session.runner()->cache_geometry().state_slot_bytes}};

  std::vector<double> prefill;
  for (int r = 0; r < options.repeats + 1; ++r) {
    const auto run = RunBatch(session, 1, options.prompt_tokens, 1, 100 + static_cast<uint32_t>(r));
    if (!run.ok()) return Fail(ExitCode::kFailed, run.status());
    if (r > 0) prefill.push_back(options.prompt_tokens / run->prefill_s);  // the first run warms caches
  }
  report["prefill"] = {{"prompt_tokens", options.prompt_tokens}, {"tokens_per_s", Median(prefill)}};
  report["decode"] = json::array();
  for (int batch : options.batches) {
    std::vector<double> rate, engine_us, runner_us;
    for (int r = 0; r < options.repeats; ++r) {
      const auto run = RunBatch(session, batch, 32, options.decode_tokens, 200 + static_cast<uint32_t>(r));
      if (!run.ok()) return Fail(ExitCode::kFailed, run.status());
      rate.push_back(static_cast<double>(run->decode_tokens) / run->decode_s);
      engine_us.push_back(run->engine_us_per_step);
      runner_us.push_back(run->runner_us_per_step);
    }
    const double tokens_per_s = Median(rate), bytes = StepBytes(session, batch, 32 + options.decode_tokens / 2.0);
    const double gbs = bytes * tokens_per_s / batch / 1e9;
    report["decode"].push_back({{"batch", batch},
                                {"tokens_per_s", tokens_per_s},
                                {"step_us", 1e6 * batch / tokens_per_s},
                                {"bytes_per_step", bytes},
                                {"bytes_per_token", bytes / batch},
                                {"gb_per_s", gbs},
                                {"share_of_read_floor", floor_gbs > 0 ? json(gbs / floor_gbs) : json()},
                                {"engine_overhead_us_per_step", Median(engine_us)},
                                {"metadata_us_per_step", Median(runner_us)}});
  }
  const EngineStats stats = session.engine()->Stats();
  report["builds_after_ready"] = stats.builds_after_ready_total;
  report["ledger_violations"] = stats.ledger_violations_total;
  if (options.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return ExitCode::kOk;
  }
  std::printf("%s, %s, on %s [%s], %d threads; %s\n", session.model_name().c_str(), session.config().model.compute_dtype.c_str(), session.device().info.name, session.device().info.arch, threads,
              floor_gbs > 0 ? fmt::format("memory reads {:.1f} GB/s", floor_gbs).c_str() : "memory reads not measured");
  std::printf("prefill  %4d tokens          %9.1f tok/s\n", options.prompt_tokens, Median(prefill));
  for (const json& d : report["decode"]) {
    const json& share = d["share_of_read_floor"];
    const std::string of_reads = share.is_null() ? "" : fmt::format(" = {:5.1f} % of reads", 100 * share.get<double>());
    std::printf("decode   batch %-3d            %9.1f tok/s  %9.1f us/step  %8.2f MB/step  %6.2f GB/s%s  overhead %.1f + %.1f us\n", d["batch"].get<int>(), d["tokens_per_s"].get<double>(), d["step_us"].get<double>(),
                d["bytes_per_step"].get<double>() / 1e6, d["gb_per_s"].get<double>(), of_reads.c_str(), d["engine_overhead_us_per_step"].get<double>(), d["metadata_us_per_step"].get<double>());
  }
  return ExitCode::kOk;
}

}  // namespace

void AddBenchCommand(CLI::App& app, ExitCode* exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "measure prefill and decode through the engine, with the share of this machine's floor");
  AddConfigOptions(command, &options->config);
  AddPluginOption(command, &options->plugins);
  command->add_option("--batch", options->batches, "batch sizes of the decode runs")->delimiter(',')->check(CLI::Range(1, 1024));
  command->add_option("--prompt-tokens", options->prompt_tokens, "prompt length of the prefill runs")->check(CLI::Range(1, 1 << 20));
  command->add_option("--decode-tokens", options->decode_tokens, "tokens each sequence generates")->check(CLI::Range(2, 1 << 20));
  command->add_option("--repeats", options->repeats, "runs of each kind; medians are shown")->check(CLI::Range(1, 1000));
  command->add_flag("--no-floor", options->no_floor, "do not measure the memory's read rate");
  command->add_flag("--json", options->as_json, "print JSON");
  command->callback([options, exit_code] { *exit_code = RunBench(*options); });
}

}  // namespace rt
