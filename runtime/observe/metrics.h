// The body of GET /metrics: engine figures read when asked for, request figures observed as requests end.
#pragma once

#include "runtime/engine/generation.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rt {

// Labels of one rt_kernel_info line: op, phase, kernel, plugin, … All lines should have the same label names.
using KernelLabels = std::map<std::string, std::string>;

// One answered HTTP request.
struct RequestRecord {
  std::string endpoint;                        // the route, not the raw path (bounded number of values)
  int http_status = 200;
  double duration_s = 0.0;                     // from the whole request received to the last delta handed on
  std::optional<double> time_to_first_token_s; // generation only
};

// Thread-safe.
class Metrics {
 public:
  // `stats` and `kernels` are called from Text(), on the caller's thread; `kernels` may be empty.
  Metrics(std::function<EngineStats()> stats, std::function<std::vector<KernelLabels>()> kernels);
  ~Metrics();

  void RecordRequest(const RequestRecord& record);
  void SetOpenConnections(int64_t count);

  // Prometheus text exposition format 0.0.4.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rt
