#include "runtime/observe/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace rt {
namespace {

EngineStats NumberedStats() {
  EngineStats stats;
  stats.kv_blocks_total = 100;
  stats.kv_blocks_free = 90;
  stats.state_slots_total = 8;
  stats.state_slots_free = 5;
  stats.requests_running = 3;
  stats.requests_waiting = 2;
  stats.prompt_tokens_total = 1000;
  stats.output_tokens_total = 50;
  stats.preemptions_total = 1;
  stats.steps_total = 77;
  stats.engine_overhead_ns_total = 2500000000;
  return stats;
}

void ExpectLine(const std::string& text, const std::string& line) {
  EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << "no line \"" << line << "\" in\n" << text;
}

TEST(Metrics, EngineFiguresAppearUnderTheirDocumentedNames) {
  const Metrics metrics(NumberedStats, [] {
    return std::vector<KernelLabels>{{{"kernel", "k\"1"}, {"op", "gemm"}, {"phase", "decode"}}};
  });
  const std::string text = metrics.Text();
  for (const char* line :
       {"rt_kv_blocks_total 100", "rt_kv_blocks_free 90", "rt_state_slots_total 8", "rt_state_slots_free 5",
        "rt_requests_running 3", "rt_requests_waiting 2", "rt_tokens_total{phase=\"prefill\"} 1000",
        "rt_tokens_total{phase=\"decode\"} 50", "rt_preemptions_total 1", "rt_steps_total 77",
        "rt_engine_overhead_seconds_total 2.5", "rt_builds_after_ready_total 0", "rt_ledger_violations_total 0",
        "rt_kernel_info{kernel=\"k\\\"1\",op=\"gemm\",phase=\"decode\"} 1", "# TYPE rt_tokens_total counter",
        "# TYPE rt_kv_blocks_free gauge"}) {
    ExpectLine(text, line);
  }
}

TEST(Metrics, RequestsAreCountedByRouteAndCodeAndTimedWhenTheyGenerate) {
  Metrics metrics([] { return EngineStats(); }, {});
  metrics.RecordRequest({"/v1/completions", 200, 0.3, 0.02});
  metrics.RecordRequest({"/v1/completions", 200, 3.0, 0.2});
  metrics.RecordRequest({"/v1/completions", 400, 0.001, {}});
  metrics.SetOpenConnections(4);
  const std::string text = metrics.Text();
  ExpectLine(text, "rt_http_requests_total{code=\"200\",endpoint=\"/v1/completions\"} 2");
  ExpectLine(text, "rt_http_requests_total{code=\"400\",endpoint=\"/v1/completions\"} 1");
  ExpectLine(text, "rt_http_connections 4");
  ExpectLine(text, "rt_request_duration_seconds_count{endpoint=\"/v1/completions\"} 2");
  ExpectLine(text, "rt_request_duration_seconds_bucket{endpoint=\"/v1/completions\",le=\"0.5\"} 1");
  ExpectLine(text, "rt_time_to_first_token_seconds_bucket{endpoint=\"/v1/completions\",le=\"0.025\"} 1");
}

TEST(Metrics, ThreadsMayRecordAndReadAtOnce) {
  Metrics metrics(NumberedStats, {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 200; ++i) {
        metrics.RecordRequest({"/v1/completions", 200, 0.1, 0.01});
        if (i % 50 == 0) {
          EXPECT_FALSE(metrics.Text().empty());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectLine(metrics.Text(), "rt_http_requests_total{code=\"200\",endpoint=\"/v1/completions\"} 800");
}

}  // namespace
}  // namespace rt
