#include "runtime/executor/device_runner.h"

#include "runtime/executor/weight_traffic.h"

#include <rt/plugin/op_defs.h>
#include <rt/plugin/plugin.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace rt {
namespace {

rt_dltype DlType(uint32_t dtype) {
  switch (dtype) {
    case RT_DTYPE_F32: return {2, 32, 1};
    case RT_DTYPE_BF16: return {4, 16, 1};
    case RT_DTYPE_F16: return {2, 16, 1};
    case RT_DTYPE_I32: return {0, 32, 1};
    case RT_DTYPE_I64: return {0, 64, 1};
    case RT_DTYPE_U8: return {1, 8, 1};
    case RT_DTYPE_U64: return {1, 64, 1};
    default: return {2, 64, 1};
  }
}

// Adds the life time of a scope to a counter.
class HostTimer {
 public:
  explicit HostTimer(int64_t* total_ns) : total_ns_(total_ns), begin_(Clock::now()) {}
  ~HostTimer() { *total_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t* total_ns_;
  Clock::time_point begin_;
};

rt_problem ProblemOf(const Decision& d, rt_device_ref device) {
  return {sizeof(rt_problem), d.phase, plugin::Str(d.op), d.version, static_cast<uint32_t>(d.columns.size()), d.columns.data(), d.attrs.data(), device};
}

}  // namespace

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(Parts parts, const WeightSource& source, const weights::LoadOptions& load, std::vector<std::string>* warnings) {
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(std::move(parts)));
  RT_RETURN_IF_ERROR(runner->Init(source, load, warnings));
  return runner;
}

DeviceRunner::~DeviceRunner() {
  if (stream_ != nullptr) (void)stream_->Sync();
  for (const Runnable& r : stages_) r.provider->ops->plan_destroy(r.provider->ctx, r.plan);
  for (const Runnable* r : {&sample_, &select_}) {
    if (r->plan != nullptr) r->provider->ops->plan_destroy(r->provider->ctx, r->plan);
  }
  for (const auto& [provider, backend] : backends_) provider->backend->destroy(provider->ctx, backend);
  for (rt_event* event : events_) {
    if (event != nullptr) parts_.device.api->event_destroy(parts_.device.ctx, event);
  }
}

Status DeviceRunner::Init(const WeightSource& source, const weights::LoadOptions& load, std::vector<std::string>* warnings) {
  RT_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(parts_.device));
  stream_ = std::make_unique<DeviceStream>(std::move(stream));
  for (rt_event*& event : events_) {
    rt_error error = NewError();
    RT_RETURN_IF_ERROR(FromAbi(parts_.device.api->event_create(parts_.device.ctx, parts_.device.ref, &event, &error), error, "create event"));
  }
  if (parts_.options.max_context <= 0) parts_.options.max_context = parts_.program.info.max_context;
  layout_ = LayOutCaches(parts_.program, parts_.negotiated.dtypes, parts_.options.block_size_tokens);
  views_.resize(parts_.program.caches.size());
  RT_RETURN_IF_ERROR(PlanActivations());
  RT_RETURN_IF_ERROR(CreateBackends());
  RT_RETURN_IF_ERROR(CreatePlans());
  RT_RETURN_IF_ERROR(AllocateSampling());
  RT_ASSIGN_OR_RETURN(weights_, WeightStore::Load(parts_.program, parts_.negotiated.dtypes.act, source, parts_.device, load, warnings));
  for (uint32_t w = 0; w < parts_.program.weights.size(); ++w) {
    const ProgramWeight& weight = parts_.program.weights[w];
    TensorStore& store = weight_tensors_[w];
    store = Tensor(weights_.data(w), ResolveWeightDType(weight.dtype, parts_.negotiated.dtypes.act), weight.dims);
    store.tensor.shape = store.shape.data();
    store.tensor.strides = store.strides.data();
  }
  return PackWeights();
}

// Plans may want a weight in their own order. Stages with the same kernel share one packed copy; the original goes when nobody reads it.
Status DeviceRunner::PackWeights() {
  std::map<std::pair<uint32_t, std::string>, const rt_tensor*> packed;
  std::vector<bool> original_read(parts_.program.weights.size(), false);
  for (size_t s = 0; s < stages_.size(); ++s) {
    Runnable& r = stages_[s];
    const Stage& stage = parts_.negotiated.stages[s];
    const Decision& d = parts_.negotiated.decisions[stage.decision];
    for (uint32_t w = 0; w < stage.op.weights.size(); ++w) {
      const uint32_t id = stage.op.weights[w];
      if (id == kNoId) continue;
      uint64_t bytes = 0;
      rt_error error = NewError();
      if (r.provider->ops->prepack_size != nullptr) RT_RETURN_IF_ERROR(FromAbi(r.provider->ops->prepack_size(r.provider->ctx, r.plan, w, &bytes, &error), error, r.label + ": prepack size"));
      if (bytes == 0) {
        original_read[id] = true;
        continue;
      }
      const rt_tensor*& tensor = packed[{id, d.candidates[static_cast<size_t>(d.chosen)].kernel + "/" + d.op}];
      if (tensor == nullptr) {
        RT_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(parts_.device, bytes, "packed " + parts_.program.weights[id].name));
        RT_RETURN_IF_ERROR(FromAbi(r.provider->ops->prepack(r.provider->ctx, r.plan, w, &weight_tensors_[id].tensor, buffer.data(), &error), error, r.label + ": prepack"));
        TensorStore& store = packed_tensors_.emplace_back(weight_tensors_[id]);
        store.tensor.data = buffer.data();
        store.tensor.shape = store.shape.data();
        store.tensor.strides = store.strides.data();
        packed_weights_.push_back(std::move(buffer));
        tensor = &store.tensor;
      }
      r.weights[w] = tensor;
    }
  }
  for (uint32_t id = 0; id < original_read.size(); ++id) {
    if (!original_read[id]) weights_.Release(id);
  }
  return Status::Ok();
}

RunnerLimits DeviceRunner::limits() const { return {parts_.options.max_sequences, parts_.options.max_step_tokens, parts_.options.max_context}; }

uint64_t DeviceRunner::step_weight_bytes(int64_t num_tokens) const {
  std::vector<uint64_t> bytes(parts_.program.weights.size());
  for (uint32_t id = 0; id < bytes.size(); ++id) bytes[id] = weights_.bytes(id);
  return StepWeightBytes(parts_.program, bytes, num_tokens);
}

// ---- set-up ------------------------------------------------------------------------------------------------------------------

DeviceRunner::TensorStore DeviceRunner::Tensor(void* data, uint32_t dtype, std::vector<int64_t> shape) const {
  TensorStore store;
  store.tensor.data = data;
  store.tensor.device = parts_.device.ref;
  store.tensor.ndim = static_cast<int32_t>(shape.size());
  store.tensor.dtype = DlType(dtype);
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    store.shape[i] = shape[i];
    store.strides[i] = stride;
    stride *= shape[i];
  }
  return store;
}

Status DeviceRunner::PlanActivations() {
  std::vector<const ProgramOp*> order;
  for (const Stage& s : parts_.negotiated.stages) order.push_back(&s.op);
  // The stages of different phases of one op write different rows of the same values, so a piece's temporaries must not overlap its
  // siblings' outputs; listing the stages in their real order gives exactly that.
  std::vector<uint32_t> keep = {parts_.program.logits};
  memory_ = PlanMemory(parts_.program, order, parts_.negotiated.dtypes, {parts_.options.max_step_tokens, parts_.options.max_sequences}, keep);
  RT_ASSIGN_OR_RETURN(activations_, DeviceBuffer::Allocate(parts_.device, static_cast<uint64_t>(memory_.total_bytes), "activations"));
  FillValueTensors();
  weight_tensors_.resize(parts_.program.weights.size());
  return Status::Ok();
}

void DeviceRunner::FillValueTensors() {
  values_.resize(parts_.program.values.size());
  for (uint32_t v = 0; v < values_.size(); ++v) {
    const ProgramValue& value = parts_.program.values[v];
    const MemoryPlan::Slot& slot = memory_.values[v];
    TensorStore& store = values_[v];
    store = Tensor(slot.offset_bytes < 0 ? nullptr : static_cast<char*>(activations_.data()) + slot.offset_bytes, ResolveValueDType(value.dtype, parts_.negotiated.dtypes.act), value.dims);
    if (value.dims.size() == 2) store.strides[0] = slot.row_stride;
    store.tensor.shape = store.shape.data();
    store.tensor.strides = store.strides.data();
    if (value.dims[0] == RT_DIM_TOKENS) token_values_.push_back(v);
    if (value.dims[0] == RT_DIM_ROWS) row_values_.push_back(v);
  }
}

void DeviceRunner::ResizeValues(int64_t num_tokens, int64_t num_rows) {
  for (uint32_t v : token_values_) values_[v].shape[0] = num_tokens;
  for (uint32_t v : row_values_) values_[v].shape[0] = num_rows;
}

Status DeviceRunner::CreateBackends() {
  for (const Stage& stage : parts_.negotiated.stages) {
    if (stage.kind == RT_KIND_OPS) continue;
    const Decision& d = parts_.negotiated.decisions[stage.decision];
    const KernelProvider* provider = &parts_.providers[d.candidates[static_cast<size_t>(d.chosen)].provider];
    if (std::any_of(backends_.begin(), backends_.end(), [&](const auto& b) { return b.first == provider; })) continue;
    rt_backend_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.device = parts_.device.ref;
    desc.max_sequences = parts_.options.max_sequences;
    desc.max_tokens = parts_.options.max_step_tokens;
    desc.max_context = parts_.options.max_context;
    desc.kv_block_size = provider->kind == RT_KIND_ATTENTION ? parts_.options.block_size_tokens : 0;
    rt_error error = NewError();
    rt_backend* backend = nullptr;
    RT_RETURN_IF_ERROR(FromAbi(provider->backend->create(provider->ctx, &desc, &backend, &error), error, "create backend " + provider->plugin + "." + provider->component));
    backends_.emplace_back(provider, backend);
  }
  return Status::Ok();
}

Result<rt_plan*> DeviceRunner::CreatePlan(const Decision& decision, const std::string& label) {
  const Candidate& chosen = decision.candidates[static_cast<size_t>(decision.chosen)];
  const KernelProvider& provider = parts_.providers[chosen.provider];
  const rt_problem problem = ProblemOf(decision, parts_.device.ref);
  rt_plan_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.row_idx = chosen.row_idx;
  desc.problem = &problem;
  desc.max_tokens = parts_.options.max_step_tokens;
  desc.max_sequences = parts_.options.max_sequences;
  desc.max_rows = parts_.options.max_sequences;
  for (const auto& [p, backend] : backends_) {
    if (p == &provider) desc.backend = backend;
  }
  rt_error error = NewError();
  rt_plan* plan = nullptr;
  RT_RETURN_IF_ERROR(FromAbi(provider.ops->plan_create(provider.ctx, &desc, &plan, &error), error, label + ": plan of " + chosen.kernel));
  return plan;
}

Status DeviceRunner::CreatePlans() {
  uint64_t workspace = 0;
  const auto grow = [&](const Runnable& r) -> Status {
    rt_plan_info info = {};
    info.struct_size = sizeof info;
    rt_error error = NewError();
    RT_RETURN_IF_ERROR(FromAbi(r.provider->ops->plan_info(r.provider->ctx, r.plan, &info), error, r.label + ": plan info"));
    workspace = std::max(workspace, info.workspace_bytes);
    return Status::Ok();
  };
  for (const Stage& stage : parts_.negotiated.stages) {
    const Decision& d = parts_.negotiated.decisions[stage.decision];
    Runnable r;
    r.provider = &parts_.providers[d.candidates[static_cast<size_t>(d.chosen)].provider];
    r.phase = stage.phase;
    r.label = stage.op.label;
    r.completes_layer = stage.op.completes_layer;
    RT_ASSIGN_OR_RETURN(r.plan, CreatePlan(d, stage.op.label));
    for (uint32_t id : stage.op.inputs) r.inputs.push_back(id == kNoId ? nullptr : &values_[id].tensor);
    for (uint32_t id : stage.op.outputs) r.outputs.push_back(id == kNoId ? nullptr : &values_[id].tensor);
    for (uint32_t id : stage.op.weights) r.weights.push_back(id == kNoId ? nullptr : &weight_tensors_[id].tensor);
    for (uint32_t id : stage.op.caches) r.caches.push_back(&views_[id]);
    stages_.push_back(std::move(r));
    RT_RETURN_IF_ERROR(grow(stages_.back()));
  }
  for (auto [decision, r, label] : {std::tuple{&parts_.sample, &sample_, "sample"}, std::tuple{&parts_.select_ids, &select_, "select_ids"}}) {
    r->provider = &parts_.providers[decision->candidates[static_cast<size_t>(decision->chosen)].provider];
    r->label = label;
    RT_ASSIGN_OR_RETURN(r->plan, CreatePlan(*decision, label));
    RT_RETURN_IF_ERROR(grow(*r));
  }
  RT_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::Allocate(parts_.device, workspace, "workspace"));
  return Status::Ok();
}

Status DeviceRunner::AllocateSampling() {
  const auto rows = static_cast<uint64_t>(parts_.options.max_sequences);
  for (SampleBuffers& s : sampled_) {
    for (auto [buffer, bytes] : {std::pair{&s.ids, rows * 4}, std::pair{&s.logprobs, rows * 4}, std::pair{&s.top_ids, rows * kMaxTop * 4}, std::pair{&s.top_logprobs, rows * kMaxTop * 4}, std::pair{&s.status, rows * 4}}) {
      RT_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::Allocate(parts_.device, bytes, "sampled tokens"));
    }
  }
  RT_ASSIGN_OR_RETURN(selected_ids_, DeviceBuffer::Allocate(parts_.device, static_cast<uint64_t>(parts_.options.max_step_tokens) * 4, "token ids"));
  RT_ASSIGN_OR_RETURN(pending_ids_, DeviceBuffer::Allocate(parts_.device, rows * 4, "pending ids"));
  return Status::Ok();
}

Status DeviceRunner::BindCache(const CacheBinding& binding) {
  RT_ASSIGN_OR_RETURN(arena_, DeviceBuffer::Allocate(parts_.device, static_cast<uint64_t>(binding.arena_bytes), "cache arena"));
  binding_ = binding;
  if (parts_.options.fill_arena_byte >= 0) RT_RETURN_IF_ERROR(stream_->Fill(arena_.data(), static_cast<uint8_t>(parts_.options.fill_arena_byte), arena_.bytes()));
  // Element-wise, so that the stages' pointers into views_ stay valid.
  const std::vector<rt_cache_view> bound = BindViews(parts_.program, parts_.negotiated.dtypes, layout_, binding, arena_.data());
  std::copy(bound.begin(), bound.end(), views_.begin());
  return Status::Ok();
}

// ---- a step ------------------------------------------------------------------------------------------------------------------

Status DeviceRunner::Execute(const Runnable& r, uint32_t phase) {
  rt_exec_args args = {};
  args.struct_size = sizeof args;
  args.phase = phase;
  args.num_inputs = static_cast<uint32_t>(r.inputs.size());
  args.num_weights = static_cast<uint32_t>(r.weights.size());
  args.num_outputs = static_cast<uint32_t>(r.outputs.size());
  args.num_caches = static_cast<uint32_t>(r.caches.size());
  args.inputs = r.inputs.data();
  args.weights = r.weights.data();
  args.outputs = r.outputs.data();
  args.caches = r.caches.data();
  args.workspace = workspace_.data();
  args.workspace_bytes = workspace_.bytes();
  args.stream = stream_->get();
  rt_error error;
  error.struct_size = sizeof error;
  error.message[0] = 0;
  const int32_t code = r.provider->ops->execute(r.provider->ctx, r.plan, &args, &error);
  if (code != RT_OK) return FromAbi(code, error, r.label);
  return parts_.options.sync_each_stage ? stream_->Sync().Annotate(r.label) : Status::Ok();
}

Status DeviceRunner::BeginStep(const rt_step_meta& meta) {
  for (const auto& [provider, backend] : backends_) {
    rt_error error = NewError();
    RT_RETURN_IF_ERROR(FromAbi(provider->backend->begin_step(provider->ctx, backend, &meta, stream_->get(), &error), error, "begin_step of " + provider->plugin + "." + provider->component));
  }
  return Status::Ok();
}

// Token ids of pipelined rows are still on the device: gather them from the previous step's sampled ids.
Status DeviceRunner::SelectIds(StepInputs& inputs, int64_t num_tokens) {
  for (uint32_t v : token_values_) {
    if (parts_.program.values[v].input == RT_INPUT_TOKEN_IDS) values_[v].tensor.data = inputs.any_pending ? selected_ids_.data() : inputs.token_ids.device_data();
  }
  for (uint32_t v : row_values_) {
    if (parts_.program.values[v].input == RT_INPUT_SAMPLED_ROWS) values_[v].tensor.data = inputs.sampled_rows.device_data();
  }
  if (!inputs.any_pending) return Status::Ok();
  const SampleBuffers& previous = &inputs == &inputs_[0] ? sampled_[1] : sampled_[0];
  TensorStore host = Tensor(inputs.token_ids.device_data(), RT_DTYPE_I32, {num_tokens});
  TensorStore source = Tensor(inputs.token_sources.device_data(), RT_DTYPE_I32, {num_tokens});
  TensorStore device = Tensor(previous.ids.data(), RT_DTYPE_I32, {parts_.options.max_sequences});
  TensorStore out = Tensor(selected_ids_.data(), RT_DTYPE_I32, {num_tokens});
  for (TensorStore* t : {&host, &source, &device, &out}) {
    t->tensor.shape = t->shape.data();
    t->tensor.strides = t->strides.data();
  }
  select_.inputs = {&host.tensor, &source.tensor, &device.tensor};
  select_.outputs = {&out.tensor};
  return Execute(select_, RT_PHASE_ALL);
}

Status DeviceRunner::RunStages(const StepPlan& plan, const rt_step_meta& meta, int64_t num_rows) {
  const uint32_t phases = (meta.num_decode_sequences > 0 ? RT_PHASE_DECODE : 0) | (meta.num_verify_sequences > 0 ? RT_PHASE_VERIFY : 0) | (meta.num_prefill_sequences > 0 ? RT_PHASE_PREFILL : 0);
  for (const Runnable& r : stages_) {
    if ((r.phase & phases) == 0) continue;
    RT_RETURN_IF_ERROR(Execute(r, r.phase));
    if (probe_ != nullptr && r.completes_layer >= 0) {
      const TensorStore& x = values_[parts_.program.hidden.at(static_cast<uint32_t>(r.completes_layer))];
      probe_->OnHidden(r.completes_layer, plan, static_cast<const float*>(x.tensor.data), x.shape[0], x.shape[1]);
    }
  }
  if (probe_ != nullptr && num_rows > 0) {
    probe_->OnLogits(plan, static_cast<const float*>(values_[parts_.program.logits].tensor.data), num_rows, parts_.program.info.vocab_size);
  }
  return Status::Ok();
}

Status DeviceRunner::Sample(const StepPlan& plan, int64_t num_rows, InFlight* record) {
  const size_t set = plan.step_id % 2;
  SampleInputs& in = sample_inputs_[set];
  SampleBuffers& out = sampled_[set];
  {
    const HostTimer timer(&host_ns_);
    RT_RETURN_IF_ERROR(in.Prepare(plan, parts_.device, stream_.get()));
    record->num_top = in.num_top.host;
  }
  const auto tensor = [&](void* data, uint32_t dtype, std::vector<int64_t> shape) { return Tensor(data, dtype, std::move(shape)); };

  // Rows of the previous step -> its sampled ids; -1 stays -1.
  TensorStore minus_one = tensor(in.pending_rows.device_data(), RT_DTYPE_I32, {num_rows});
  void* pending = in.pending_rows.device_data();
  if (in.any_pending) {
    TensorStore previous = tensor(sampled_[1 - set].ids.data(), RT_DTYPE_I32, {parts_.options.max_sequences});
    TensorStore ids = tensor(pending_ids_.data(), RT_DTYPE_I32, {num_rows});
    for (TensorStore* t : {&minus_one, &previous, &ids}) {
      t->tensor.shape = t->shape.data();
      t->tensor.strides = t->strides.data();
    }
    // host_ids and src are the same array: a row without pending token has src -1 and so keeps host id -1.
    select_.inputs = {&minus_one.tensor, &minus_one.tensor, &previous.tensor};
    select_.outputs = {&ids.tensor};
    RT_RETURN_IF_ERROR(Execute(select_, RT_PHASE_ALL));
    pending = pending_ids_.data();
  }
  const auto count = [](const auto& array) { return static_cast<int64_t>(array.host.size()); };
  std::array<TensorStore, RT_SAMPLE_NUM_INPUTS> inputs = {
      TensorStore(values_[parts_.program.logits]),
      tensor(in.temperature.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.top_k.device_data(), RT_DTYPE_I32, {num_rows}),
      tensor(in.top_p.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.min_p.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.presence.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.frequency.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.repetition.device_data(), RT_DTYPE_F32, {num_rows}),
      tensor(in.seed.device_data(), RT_DTYPE_U64, {num_rows}),
      tensor(in.position.device_data(), RT_DTYPE_U64, {num_rows}),
      tensor(pending, RT_DTYPE_I32, {num_rows}),
      tensor(in.history_offsets.device_data(), RT_DTYPE_I32, {num_rows + 1}),
      tensor(in.history_ids.device_data(), RT_DTYPE_I32, {count(in.history_ids)}),
      tensor(in.history_counts.device_data(), RT_DTYPE_I32, {count(in.history_counts)}),
      tensor(in.history_prompt.device_data(), RT_DTYPE_U8, {count(in.history_prompt)}),
      tensor(in.bias_offsets.device_data(), RT_DTYPE_I32, {num_rows + 1}),
      tensor(in.bias_ids.device_data(), RT_DTYPE_I32, {count(in.bias_ids)}),
      tensor(in.bias_values.device_data(), RT_DTYPE_F32, {count(in.bias_values)}),
      tensor(in.num_top.device_data(), RT_DTYPE_I32, {num_rows}),
  };
  std::array<TensorStore, RT_SAMPLE_NUM_OUTPUTS> outputs = {
      tensor(out.ids.data(), RT_DTYPE_I32, {num_rows}),
      tensor(out.logprobs.data(), RT_DTYPE_F32, {num_rows}),
      tensor(out.top_ids.data(), RT_DTYPE_I32, {num_rows, kMaxTop}),
      tensor(out.top_logprobs.data(), RT_DTYPE_F32, {num_rows, kMaxTop}),
      tensor(out.status.data(), RT_DTYPE_I32, {num_rows}),
  };
  sample_.inputs.clear();
  sample_.outputs.clear();
  const auto bind = [](TensorStore& t, std::vector<const rt_tensor*>& list) {
    t.tensor.shape = t.shape.data();
    t.tensor.strides = t.strides.data();
    list.push_back(&t.tensor);
  };
  for (TensorStore& t : inputs) bind(t, sample_.inputs);
  for (TensorStore& t : outputs) bind(t, sample_.outputs);
  return Execute(sample_, RT_PHASE_ALL);
}

Status DeviceRunner::Enqueue(const StepPlan& plan) {
  const size_t set = plan.step_id % 2;
  if (arena_.data() == nullptr && !parts_.program.caches.empty()) return {Code::kFailedPrecondition, "Enqueue before BindCache"};
  if (in_flight_[set].used) return {Code::kFailedPrecondition, fmt::format("step {} enqueued before step {} was collected", plan.step_id, in_flight_[set].step_id)};
  if (plan.num_tokens > parts_.options.max_step_tokens || static_cast<int32_t>(plan.sequences.size()) > parts_.options.max_sequences) {
    return {Code::kInvalidArgument, fmt::format("step of {} tokens, {} sequences: limits are {} and {}", plan.num_tokens, plan.sequences.size(), parts_.options.max_step_tokens, parts_.options.max_sequences)};
  }
  StepInputs& inputs = inputs_[set];
  int64_t num_tokens = 0, num_rows = 0;
  {
    const HostTimer timer(&host_ns_);
    RT_RETURN_IF_ERROR(inputs.Prepare(plan, parts_.options.block_size_tokens, parts_.device, stream_.get()));
    num_tokens = inputs.meta.num_tokens;
    num_rows = static_cast<int64_t>(inputs.sampled_rows.host.size());
    ResizeValues(num_tokens, num_rows);
  }
  RT_RETURN_IF_ERROR(SelectIds(inputs, num_tokens));
  RT_RETURN_IF_ERROR(BeginStep(inputs.meta));
  RT_RETURN_IF_ERROR(RunStages(plan, inputs.meta, num_rows));
  InFlight& record = in_flight_[set];
  record.num_top.clear();
  if (num_rows > 0) RT_RETURN_IF_ERROR(Sample(plan, num_rows, &record));
  record.step_id = plan.step_id;
  record.num_rows = static_cast<int32_t>(num_rows);
  record.used = true;
  rt_error error = NewError();
  return FromAbi(parts_.device.api->event_record(parts_.device.ctx, events_[set], stream_->get(), &error), error, "record event");
}

Result<StepOutput> DeviceRunner::Collect(uint64_t step_id) {
  const size_t set = step_id % 2;
  InFlight& record = in_flight_[set];
  if (!record.used || record.step_id != step_id) return {Code::kFailedPrecondition, fmt::format("step {} is not in flight", step_id)};
  record.used = false;
  rt_error error = NewError();
  RT_RETURN_IF_ERROR(FromAbi(parts_.device.api->event_sync(parts_.device.ctx, events_[set], &error), error, "wait for step"));
  const HostTimer timer(&host_ns_);
  StepOutput output;
  output.step_id = step_id;
  const auto rows = static_cast<size_t>(record.num_rows);
  std::vector<int32_t> ids(rows), status(rows), top_ids;
  std::vector<float> logprobs(rows), top_logprobs;
  const SampleBuffers& s = sampled_[set];
  const bool any_top = std::any_of(record.num_top.begin(), record.num_top.end(), [](int32_t n) { return n > 0; });
  if (any_top) {
    top_ids.resize(rows * kMaxTop);
    top_logprobs.resize(rows * kMaxTop);
  }
  const auto fetch = [&](void* dst, const DeviceBuffer& src, uint64_t bytes) { return bytes == 0 ? Status::Ok() : stream_->Copy(dst, src.data(), bytes); };
  RT_RETURN_IF_ERROR(fetch(ids.data(), s.ids, rows * 4));
  RT_RETURN_IF_ERROR(fetch(logprobs.data(), s.logprobs, rows * 4));
  RT_RETURN_IF_ERROR(fetch(status.data(), s.status, rows * 4));
  RT_RETURN_IF_ERROR(fetch(top_ids.data(), s.top_ids, top_ids.size() * 4));
  RT_RETURN_IF_ERROR(fetch(top_logprobs.data(), s.top_logprobs, top_logprobs.size() * 4));
  if (!parts_.device.memory_is_host()) RT_RETURN_IF_ERROR(stream_->Sync());
  output.tokens.resize(rows);
  for (size_t r = 0; r < rows; ++r) {
    SampledToken& token = output.tokens[r];
    token.token_id = ids[r];
    token.logprob = logprobs[r];
    token.bad_logits = status[r] != 0;
    for (int32_t t = 0; t < record.num_top[r]; ++t) token.top.emplace_back(top_ids[r * kMaxTop + static_cast<size_t>(t)], top_logprobs[r * kMaxTop + static_cast<size_t>(t)]);
  }
  return output;
}

Status DeviceRunner::CopyStateSlot(int32_t src_slot_id, int32_t dst_slot_id) {
  char* base = static_cast<char*>(arena_.data());
  return stream_->Copy(base + dst_slot_id * binding_.state_slot_stride_bytes, base + src_slot_id * binding_.state_slot_stride_bytes, static_cast<uint64_t>(layout_.geometry.state_slot_bytes));
}

// ---- warm-up -----------------------------------------------------------------------------------------------------------------

int64_t DeviceRunner::CountBuilds() const {
  int64_t builds = 0;
  const auto add = [&](const Runnable& r) {
    rt_plan_info info = {};
    info.struct_size = sizeof info;
    if (r.plan != nullptr && r.provider->ops->plan_info(r.provider->ctx, r.plan, &info) == RT_OK) builds += static_cast<int64_t>(info.num_builds);
  };
  for (const Runnable& r : stages_) add(r);
  add(sample_);
  add(select_);
  return builds;
}

int64_t DeviceRunner::builds_after_ready() const { return builds_at_ready_ < 0 ? 0 : CountBuilds() - builds_at_ready_; }

Status DeviceRunner::RunWarmUpStep(std::span<const int32_t> blocks, int32_t slot, int32_t prefill_tokens, int32_t decode_rows) {
  const SamplingParams params;
  const std::vector<int32_t> tokens(static_cast<size_t>(std::max(prefill_tokens, 1)), 0);
  StepPlan plan;
  plan.step_id = 0;
  const auto add = [&](StepKind kind, int32_t num_tokens, int32_t state_slot_id, std::span<const int32_t> table) {
    StepSequence s;
    s.kind = kind;
    s.num_tokens = num_tokens;
    s.token_ids = std::span(tokens).first(static_cast<size_t>(num_tokens));
    s.block_table = table;
    s.state_slot_id = state_slot_id;
    s.samples = true;
    s.sample.params = &params;
    plan.sequences.push_back(s);
    plan.num_tokens += num_tokens;
    ++plan.num_sampled_rows;
  };
  // Blocks and the state slot have one writer each: a decode row takes one block, the prefill row the rest; rows without the slot are
  // padding for the recurrent layers.
  const auto used = std::min(blocks.size(), static_cast<size_t>(decode_rows));
  for (int32_t i = 0; i < decode_rows; ++i) add(StepKind::kDecode, 1, i == 0 ? slot : -1, blocks.empty() ? blocks : blocks.subspan(static_cast<size_t>(i), 1));
  if (prefill_tokens > 0) add(StepKind::kPrefill, prefill_tokens, decode_rows == 0 ? slot : -1, blocks.subspan(used));
  RT_RETURN_IF_ERROR(Enqueue(plan));
  return Collect(0).status();
}

Status DeviceRunner::WarmUp(std::span<const int32_t> scratch_block_ids, int32_t scratch_state_slot_id) {
  const auto warm = [](const Runnable& r) {
    rt_error error = NewError();
    if (r.provider->ops->warmup == nullptr) return Status::Ok();
    return FromAbi(r.provider->ops->warmup(r.provider->ctx, r.plan, &error), error, r.label + ": warm-up");
  };
  for (const Runnable& r : stages_) RT_RETURN_IF_ERROR(warm(r));
  RT_RETURN_IF_ERROR(warm(sample_));
  RT_RETURN_IF_ERROR(warm(select_));
  const bool has_kv = layout_.geometry.kv_block_bytes > 0;
  const int32_t room = has_kv ? static_cast<int32_t>(scratch_block_ids.size()) * parts_.options.block_size_tokens : parts_.options.max_step_tokens;
  const int32_t longest = std::min({room, parts_.options.max_step_tokens, parts_.options.max_context});
  for (int32_t tokens = 1; tokens < longest; tokens *= 4) RT_RETURN_IF_ERROR(RunWarmUpStep(scratch_block_ids, scratch_state_slot_id, tokens, 0));
  if (longest > 0) RT_RETURN_IF_ERROR(RunWarmUpStep(scratch_block_ids, scratch_state_slot_id, longest, 0));
  const int32_t most_rows = std::min({parts_.options.max_sequences, parts_.options.max_step_tokens, has_kv ? static_cast<int32_t>(scratch_block_ids.size()) : parts_.options.max_sequences});
  for (int32_t rows : {1, most_rows}) RT_RETURN_IF_ERROR(RunWarmUpStep(scratch_block_ids, scratch_state_slot_id, 0, rows));
  const int32_t mixed = longest - (has_kv ? parts_.options.block_size_tokens : 1);
  if (mixed > 0 && parts_.options.max_sequences > 1) RT_RETURN_IF_ERROR(RunWarmUpStep(scratch_block_ids, scratch_state_slot_id, mixed, 1));
  builds_at_ready_ = CountBuilds();
  return Status::Ok();
}

// ---- state in and out --------------------------------------------------------------------------------------------------------

namespace {
const Decision* StateOwner(const NegotiationResult& negotiated, uint32_t cache) {
  for (const Stage& stage : negotiated.stages) {
    if (std::find(stage.op.caches.begin(), stage.op.caches.end(), cache) != stage.op.caches.end()) return &negotiated.decisions[stage.decision];
  }
  return nullptr;
}
}  // namespace

Result<std::vector<float>> DeviceRunner::ExportState(uint32_t cache, int32_t state_slot_id) const {
  const Decision* d = StateOwner(parts_.negotiated, cache);
  if (d == nullptr) return {Code::kNotFound, "no op owns cache " + std::to_string(cache)};
  const KernelProvider& provider = parts_.providers[d->candidates[static_cast<size_t>(d->chosen)].provider];
  if (provider.backend == nullptr || provider.backend->export_state == nullptr) return {Code::kUnsupported, "the backend exports no state"};
  int64_t elements = 1;
  for (int64_t dim : parts_.program.caches[cache].dims) elements *= dim;
  std::vector<float> state(static_cast<size_t>(elements));
  const rt_problem problem = ProblemOf(*d, parts_.device.ref);
  rt_error error = NewError();
  RT_RETURN_IF_ERROR(FromAbi(provider.backend->export_state(provider.ctx, &views_[cache], &problem, state_slot_id, state.data(), &error), error, "export state"));
  return state;
}

Status DeviceRunner::ImportState(uint32_t cache, int32_t state_slot_id, std::span<const float> state) {
  const Decision* d = StateOwner(parts_.negotiated, cache);
  if (d == nullptr) return {Code::kNotFound, "no op owns cache " + std::to_string(cache)};
  const KernelProvider& provider = parts_.providers[d->candidates[static_cast<size_t>(d->chosen)].provider];
  if (provider.backend == nullptr || provider.backend->import_state == nullptr) return {Code::kUnsupported, "the backend imports no state"};
  const rt_problem problem = ProblemOf(*d, parts_.device.ref);
  rt_error error = NewError();
  return FromAbi(provider.backend->import_state(provider.ctx, &views_[cache], &problem, state_slot_id, state.data(), &error), error, "import state");
}

}  // namespace rt
