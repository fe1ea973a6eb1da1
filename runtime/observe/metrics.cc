#include "runtime/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>

namespace rt {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Seconds. Decades 1-2.5-5, from a cached prompt on a tiny model to a long prefill on a plain PC.
const prometheus::Histogram::BucketBoundaries kLatencyBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250};

ClientMetric Sample(MetricType type, double value, const std::map<std::string, std::string>& labels = {}) {
  ClientMetric metric;
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

MetricFamily Family(const char* name, const char* help, MetricType type, double value) {
  return {name, help, type, {Sample(type, value)}};
}

std::vector<MetricFamily> EngineFamilies(const EngineStats& s) {
  constexpr MetricType kGauge = MetricType::Gauge, kCounter = MetricType::Counter;
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  return {
      Family("rt_kv_blocks_total", "KV blocks the cache can hold", kGauge, count(s.kv_blocks_total)),
      Family("rt_kv_blocks_free", "KV blocks free now", kGauge, count(s.kv_blocks_free)),
      Family("rt_state_slots_total", "Recurrent state slots the cache can hold", kGauge, count(s.state_slots_total)),
      Family("rt_state_slots_free", "Recurrent state slots free now", kGauge, count(s.state_slots_free)),
      Family("rt_requests_running", "Sequences in the batch now", kGauge, count(s.requests_running)),
      Family("rt_requests_waiting", "Sequences queued or preempted now", kGauge, count(s.requests_waiting)),
      {"rt_tokens_total",
       "Tokens processed",
       kCounter,
       {Sample(kCounter, count(s.prompt_tokens_total), {{"phase", "prefill"}}),
        Sample(kCounter, count(s.output_tokens_total), {{"phase", "decode"}})}},
      Family("rt_preemptions_total", "Sequences set back because memory ran out", kCounter,
             count(s.preemptions_total)),
      Family("rt_steps_total", "Forward passes", kCounter, count(s.steps_total)),
      Family("rt_engine_overhead_seconds_total", "Time of steps outside the device", kCounter,
             count(s.engine_overhead_ns_total) * 1e-9),
      Family("rt_builds_after_ready_total", "Kernels built or tuned after ready; must stay 0", kCounter,
             count(s.builds_after_ready_total)),
      Family("rt_ledger_violations_total", "Broken invariants of the state ledger; must stay 0", kCounter,
             count(s.ledger_violations_total)),
  };
}

}  // namespace

struct Metrics::Impl {
  Impl(std::function<EngineStats()> stats_source, std::function<std::vector<KernelLabels>()> kernel_source)
      : stats(std::move(stats_source)), kernels(std::move(kernel_source)) {}

  std::function<EngineStats()> stats;
  std::function<std::vector<KernelLabels>()> kernels;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter().Name("rt_http_requests_total").Help("Answered HTTP requests").Register(registry);
  prometheus::Gauge& connections = prometheus::BuildGauge()
                                       .Name("rt_http_connections")
                                       .Help("Open client connections")
                                       .Register(registry)
                                       .Add({});
  prometheus::Family<prometheus::Histogram>& durations =
      prometheus::BuildHistogram()
          .Name("rt_request_duration_seconds")
          .Help("Generation requests: whole request received to last token")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& first_tokens =
      prometheus::BuildHistogram()
          .Name("rt_time_to_first_token_seconds")
          .Help("Generation requests: whole request received to first token of any choice")
          .Register(registry);
};

Metrics::Metrics(std::function<EngineStats()> stats, std::function<std::vector<KernelLabels>()> kernels)
    : impl_(std::make_unique<Impl>(std::move(stats), std::move(kernels))) {}

Metrics::~Metrics() = default;

void Metrics::RecordRequest(const RequestRecord& record) {
  impl_->requests.Add({{"endpoint", record.endpoint}, {"code", std::to_string(record.http_status)}}).Increment();
  if (!record.time_to_first_token_s) return;
  const std::map<std::string, std::string> labels = {{"endpoint", record.endpoint}};
  impl_->durations.Add(labels, kLatencyBuckets).Observe(record.duration_s);
  impl_->first_tokens.Add(labels, kLatencyBuckets).Observe(*record.time_to_first_token_s);
}

void Metrics::SetOpenConnections(int64_t count) { impl_->connections.Set(static_cast<double>(count)); }

std::string Metrics::Text() const {
  std::vector<MetricFamily> families = EngineFamilies(impl_->stats());
  if (impl_->kernels) {
    MetricFamily info{"rt_kernel_info", "The kernel chosen for each op and phase", MetricType::Gauge, {}};
    for (const KernelLabels& labels : impl_->kernels()) info.metric.push_back(Sample(MetricType::Gauge, 1.0, labels));
    families.push_back(std::move(info));
  }
  for (MetricFamily& family : impl_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace rt
