// Runs a negotiated program on one device: plans, backends, weights, activation memory, caches, and the flat list of stages each step.
#pragma once

#include "runtime/engine/step_plan.h"
#include "runtime/executor/cache_layout.h"
#include "runtime/executor/device.h"
#include "runtime/executor/step_inputs.h"
#include "runtime/executor/weight_store.h"
#include "runtime/negotiation/negotiation.h"

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace rt {

struct RunnerOptions {
  int32_t max_sequences = 16;
  int32_t max_step_tokens = 512;
  int32_t max_context = 0;      // 0 = the model's
  int32_t block_size_tokens = 16;
  int32_t vocab_limit = 0;      // ids >= this are never sampled (padded vocabularies); 0 = all
  bool sync_each_stage = false;  // debug.sync_each_call: attributes device faults to a stage
  int fill_arena_byte = -1;      // tests: poison the cache arena with this byte
};

// Test and evaluation hook, called during Enqueue on the engine thread; host-memory devices only.
struct RunnerProbe {
  virtual ~RunnerProbe() = default;
  // Residual stream [num_tokens, hidden], fp32, after decoder layer `layer`.
  virtual void OnHidden(int32_t /*layer*/, const StepPlan& /*plan*/, const float* /*x*/, int64_t /*num_tokens*/, int64_t /*hidden*/) {}
  // Logits [rows, vocab], before sampling.
  virtual void OnLogits(const StepPlan& /*plan*/, const float* /*logits*/, int64_t /*rows*/, int64_t /*vocab*/) {}
};

class DeviceRunner : public ModelRunner {
 public:
  static constexpr int32_t kMaxTop = 20;  // log-probabilities a row can ask for

  // `program` and `negotiated` are what Negotiate() left; `sample` and `select_ids` come from NegotiateOp.
  struct Parts {
    Program program;
    NegotiationResult negotiated;
    Decision sample, select_ids;
    std::vector<KernelProvider> providers;
    Device device;
    RunnerOptions options;
  };
  static Result<std::unique_ptr<DeviceRunner>> Create(Parts parts, const WeightSource& source, const weights::LoadOptions& load, std::vector<std::string>* warnings);
  ~DeviceRunner() override;

  CacheGeometry cache_geometry() const override { return layout_.geometry; }
  RunnerLimits limits() const override;
  int32_t vocab_size() const override { return parts_.program.info.vocab_size; }
  Status BindCache(const CacheBinding& binding) override;
  Status Enqueue(const StepPlan& plan) override;
  Result<StepOutput> Collect(uint64_t step_id) override;
  Status CopyStateSlot(int32_t src_slot_id, int32_t dst_slot_id) override;
  Status WarmUp(std::span<const int32_t> scratch_block_ids, int32_t scratch_state_slot_id) override;
  int64_t builds_after_ready() const override;

  void set_probe(RunnerProbe* probe) { probe_ = probe; }
  const Program& program() const { return parts_.program; }
  const NegotiationResult& negotiated() const { return parts_.negotiated; }
  const Parts& parts() const { return parts_; }
  uint64_t weight_bytes() const { return weights_.total_bytes(); }
  // Bytes of weights that a step of `num_tokens` decoded tokens reads (weight_traffic.h), and of one token.
  uint64_t step_weight_bytes(int64_t num_tokens) const;
  uint64_t weight_bytes_per_token() const { return step_weight_bytes(1); }
  // Time spent in Enqueue and Collect outside kernels and backends: metadata, sampling inputs, hand-over of tokens.
  int64_t host_ns() const { return host_ns_; }
  int64_t activation_bytes() const { return memory_.total_bytes; }
  int64_t workspace_bytes() const { return static_cast<int64_t>(workspace_.bytes()); }
  // One slot of a recurrent cache as canonical fp32 [Hv, Dk, Dv], and back.
  Result<std::vector<float>> ExportState(uint32_t cache, int32_t state_slot_id) const;
  Status ImportState(uint32_t cache, int32_t state_slot_id, std::span<const float> state);
  // Raw view of a cache; valid after BindCache.
  const rt_cache_view& cache_view(uint32_t cache) const { return views_[cache]; }

 private:
  struct TensorStore {  // an rt_tensor with its shape and strides
    rt_tensor tensor = {};
    std::array<int64_t, 4> shape = {}, strides = {};
  };
  struct Runnable {  // a stage with its plan and pre-built arguments
    const KernelProvider* provider = nullptr;
    rt_plan* plan = nullptr;
    uint32_t phase = RT_PHASE_ALL;
    int32_t completes_layer = -1;
    std::string label;
    std::vector<const rt_tensor*> inputs, weights, outputs;
    std::vector<const rt_cache_view*> caches;
  };
  struct SampleBuffers {
    DeviceBuffer ids, logprobs, top_ids, top_logprobs, status;
  };
  struct InFlight {
    uint64_t step_id = 0;
    int32_t num_rows = 0;
    std::vector<int32_t> num_top;
    bool used = false;
  };

  explicit DeviceRunner(Parts parts) : parts_(std::move(parts)) {}
  Status Init(const WeightSource& source, const weights::LoadOptions& load, std::vector<std::string>* warnings);
  Status PlanActivations();
  Status CreateBackends();
  Status CreatePlans();
  Result<rt_plan*> CreatePlan(const Decision& decision, const std::string& label);
  Status PackWeights();
  Status AllocateSampling();
  void FillValueTensors();
  void ResizeValues(int64_t num_tokens, int64_t num_rows);
  TensorStore Tensor(void* data, uint32_t dtype, std::vector<int64_t> shape) const;

  Status BeginStep(const rt_step_meta& meta);
  Status SelectIds(StepInputs& inputs, int64_t num_tokens);
  Status RunStages(const StepPlan& plan, const rt_step_meta& meta, int64_t num_rows);
  Status Sample(const StepPlan& plan, int64_t num_rows, InFlight* record);
  Status Execute(const Runnable& r, uint32_t phase);
  int64_t CountBuilds() const;
  Status RunWarmUpStep(std::span<const int32_t> blocks, int32_t slot, int32_t prefill_tokens, int32_t decode_rows);

  Parts parts_;
  WeightStore weights_;
  CacheLayout layout_;
  CacheBinding binding_;
  DeviceBuffer arena_, activations_, workspace_, selected_ids_, pending_ids_;
  std::vector<rt_cache_view> views_;
  MemoryPlan memory_;
  std::vector<TensorStore> values_, weight_tensors_;
  std::deque<TensorStore> packed_tensors_;
  std::vector<DeviceBuffer> packed_weights_;
  std::vector<uint32_t> token_values_, row_values_;
  std::vector<std::pair<const KernelProvider*, rt_backend*>> backends_;
  std::vector<Runnable> stages_;
  Runnable sample_, select_;
  std::unique_ptr<DeviceStream> stream_;
  std::array<StepInputs, 2> inputs_;
  std::array<SampleInputs, 2> sample_inputs_;
  std::array<SampleBuffers, 2> sampled_;
  std::array<InFlight, 2> in_flight_;
  std::array<rt_event*, 2> events_ = {};
  int64_t host_ns_ = 0;
  int64_t builds_at_ready_ = -1;
  RunnerProbe* probe_ = nullptr;
};

}  // namespace rt
