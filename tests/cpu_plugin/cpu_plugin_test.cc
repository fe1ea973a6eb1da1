// The CPU plugin through its C ABI alone, against the fp64 oracle: every op, both instruction set levels, both compute dtypes, over a mixed
// step with padding, zero lengths, fresh and continued sequences, strided inputs, poisoned unused memory and guarded outputs.
#include "kernels/common/types.h"
#include "plugin_sdk/oracle/layout.h"
#include "plugin_sdk/oracle/moe.h"
#include "plugin_sdk/oracle/op_oracle.h"

#include <rt/plugin/backend.h>
#include <rt/plugin/op_defs.h>
#include <rt/plugin/plugin.hpp>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>

namespace rt {
namespace {

using ops::CacheInfo;
using ops::OpInstance;
using ops::TensorInfo;
using oracle::OpTensors;
using oracle::StepMeta;
using oracle::Values;

constexpr int64_t T = RT_DIM_TOKENS;
constexpr int64_t kGuard = 32;  // elements around every buffer

// ---- the plugin, loaded once a level ----

struct Loaded {
  rt_plugin_ctx* ctx = nullptr;
  std::map<uint32_t, const void*> tables;  // by kind
};

// RT_TEST_CPU_PLUGIN names the file where the test runs beside another copy than its build's.
const rt_plugin_desc* Desc() {
  static const rt_plugin_desc* desc = [] {
    const char* other = std::getenv("RT_TEST_CPU_PLUGIN");
    void* handle = dlopen(other != nullptr ? other : RT_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "the plugin under test does not load: %s\n", dlerror());
      std::exit(1);
    }
    return reinterpret_cast<rt_plugin_query_fn>(dlsym(handle, RT_PLUGIN_ENTRY_NAME))();
  }();
  return desc;
}

Loaded Load(const std::string& options, Status* status) {
  Loaded loaded;
  rt_host host = {};
  host.struct_size = sizeof host;
  host.options_json = plugin::Str(options);
  rt_error error = {};
  error.struct_size = sizeof error;
  const int32_t code = Desc()->init(&host, &loaded.ctx, &error);
  *status = code == RT_OK ? Status() : Status(static_cast<Code>(code), error.message);
  for (uint32_t i = 0; i < Desc()->num_components; ++i) loaded.tables[Desc()->components[i].kind] = Desc()->components[i].api;
  return loaded;
}

// One instance per level for the whole test program; never destroyed, so that their contexts stay reachable.
const Loaded& Level(const std::string& isa) {
  static auto& levels = *new std::map<std::string, Loaded>;
  const auto it = levels.find(isa);
  if (it != levels.end()) return it->second;
  Status status;
  levels[isa] = Load("{\"isa\":\"" + isa + "\",\"threads\":2}", &status);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return levels[isa];
}

// ---- typed buffers ----

size_t Bytes(uint32_t dtype) { return static_cast<size_t>(ops::DTypeBytes(dtype)); }

void Put(std::byte* at, uint32_t dtype, double value) {
  const auto f = static_cast<float>(value);
  const kernels::bf16 b = kernels::FromFloat<kernels::bf16>(f);
  const auto i = static_cast<int32_t>(value);
  const kernels::f16 h = kernels::FromFloat<kernels::f16>(f);
  const void* from = dtype == RT_DTYPE_F32 ? static_cast<const void*>(&f) : dtype == RT_DTYPE_BF16 ? static_cast<const void*>(&b) : dtype == RT_DTYPE_F16 ? static_cast<const void*>(&h) : &i;
  std::memcpy(at, from, Bytes(dtype));
}
double Get(const std::byte* at, uint32_t dtype) {
  if (dtype == RT_DTYPE_F32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  if (dtype == RT_DTYPE_I32) {
    int32_t i;
    std::memcpy(&i, at, 4);
    return i;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return dtype == RT_DTYPE_BF16 ? kernels::ToFloat(kernels::bf16{bits}) : kernels::ToFloat(kernels::f16{bits});
}
double Round(uint32_t dtype, double value) {
  std::byte at[4];
  Put(at, dtype, value);
  return Get(at, dtype);
}

rt_dltype DlType(uint32_t dtype) { return dtype == RT_DTYPE_F32 ? rt_dltype{2, 32, 1} : dtype == RT_DTYPE_BF16 ? rt_dltype{4, 16, 1} : dtype == RT_DTYPE_F16 ? rt_dltype{2, 16, 1} : rt_dltype{0, 32, 1}; }

// A tensor with rows further apart than they are wide; everything outside the rows is a guard pattern.
class Buffer {
 public:
  Buffer(const TensorInfo& info, int64_t num_tokens, bool strided) : dtype_(info.dtype), dims_(info.dims) {
    for (int64_t& d : dims_) d = d == T ? num_tokens : d;
    strided &= dims_.size() == 2;
    rows_ = dims_.empty() ? 1 : dims_[0];
    width_ = 1;
    for (size_t i = 1; i < dims_.size(); ++i) width_ *= dims_[i];
    stride_ = width_ + (strided ? 5 : 0);
    data_.assign(static_cast<size_t>(rows_ * stride_ + 2 * kGuard) * Bytes(dtype_), std::byte{0xA5});
    strides_.resize(dims_.size());
    int64_t s = 1;
    for (size_t i = dims_.size(); i-- > 0;) {
      strides_[i] = s;
      s *= dims_[i];
    }
    if (!strides_.empty() && dims_.size() == 2) strides_[0] = stride_;
    tensor_ = {base(), {1, 0}, static_cast<int32_t>(dims_.size()), DlType(dtype_), dims_.data(), strides_.data(), 0};
  }
  Buffer(Buffer&&) = delete;
  void Set(const Values& values) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) Put(At(r, c), dtype_, values[static_cast<size_t>(r * width_ + c)]);
    }
  }
  Values Read() const {
    Values values;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < width_; ++c) values.push_back(Get(At(r, c), dtype_));
    }
    return values;
  }
  bool GuardsHold() const {
    std::vector<bool> inside(data_.size(), false);
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t from = static_cast<size_t>(At(r, 0) - data_.data());
      std::fill_n(inside.begin() + static_cast<ptrdiff_t>(from), static_cast<size_t>(width_) * Bytes(dtype_), true);
    }
    for (size_t i = 0; i < data_.size(); ++i) {
      if (!inside[i] && data_[i] != std::byte{0xA5}) return false;
    }
    return true;
  }
  const rt_tensor* tensor() const { return &tensor_; }

 private:
  std::byte* base() { return data_.data() + static_cast<size_t>(kGuard) * Bytes(dtype_); }
  std::byte* At(int64_t r, int64_t c) const { return const_cast<std::byte*>(data_.data()) + static_cast<size_t>(kGuard + r * stride_ + c) * Bytes(dtype_); }
  uint32_t dtype_;
  std::vector<int64_t> dims_, strides_;
  int64_t rows_ = 0, width_ = 0, stride_ = 0;
  std::vector<std::byte> data_;
  rt_tensor tensor_;
};

// ---- a step ----

// Two decode rows (the second is padding), then a zero-length, a fresh and a continued prefill.
StepMeta MixedStep() {
  StepMeta meta;
  meta.cu_seqlens = {0, 1, 2, 2, 9, 12};
  meta.context_lens = {5, 0, 3, 0, 2};
  meta.positions = {5, 0, 0, 1, 2, 3, 4, 5, 6, 2, 3, 4};
  meta.block_tables = {{3, 7}, {-1, -1}, {5, -1}, {1, 0}, {6, 2}};
  meta.state_slot_ids = {4, -1, 0, 2, 5};
  meta.has_initial_state = {1, 0, 1, 0, 1};
  return meta;
}
constexpr int32_t kNumDecode = 2, kDecodeTokens = 2;

struct AbiMeta {
  explicit AbiMeta(const StepMeta& m) {
    const auto narrow = [](const auto& from) { return std::vector<int32_t>(from.begin(), from.end()); };
    cu = narrow(m.cu_seqlens);
    lens = narrow(m.context_lens);
    positions = narrow(m.positions);
    for (const auto& row : m.block_tables) blocks.insert(blocks.end(), row.begin(), row.end());
    slots = m.state_slot_ids;
    initial = m.has_initial_state;
    meta.struct_size = sizeof meta;
    meta.num_sequences = static_cast<int32_t>(m.num_sequences());
    meta.num_tokens = static_cast<int32_t>(m.num_tokens());
    meta.num_decode_sequences = kNumDecode;
    meta.num_decode_tokens = kDecodeTokens;
    meta.num_prefill_sequences = meta.num_sequences - kNumDecode;
    meta.num_prefill_tokens = meta.num_tokens - kDecodeTokens;
    meta.max_blocks_per_sequence = 2;
    meta.max_context = 16;
    meta.cu_seqlens_host = meta.cu_seqlens = cu.data();
    meta.context_lens_host = meta.context_lens = lens.data();
    meta.positions = positions.data();
    meta.block_table_host = meta.block_table = blocks.data();
    meta.state_slot_ids_host = meta.state_slot_ids = slots.data();
    meta.has_initial_state_host = meta.has_initial_state = initial.data();
  }
  std::vector<int32_t> cu, lens, positions, blocks, slots;
  std::vector<uint8_t> initial;
  rt_step_meta meta = {};
};

Values Random(const TensorInfo& info, int64_t num_tokens, std::mt19937& rng) {
  int64_t count = 1;
  for (int64_t d : info.dims) count *= d == T ? num_tokens : d;
  std::normal_distribution<double> draw(0, 1);
  Values values(static_cast<size_t>(count));
  for (double& v : values) v = Round(info.dtype, draw(rng));
  return values;
}

int64_t Product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

constexpr int64_t kUnits = 8;

// Elements of one unit of a cache as the oracle and the plugin lay it out.
int64_t UnitElements(const CacheInfo& c) {
  if (c.role == RT_CACHE_KEY || c.role == RT_CACHE_VALUE || c.role == RT_CACHE_LATENT) return Product(c.dims) * c.block_size;
  if (c.role == RT_CACHE_RECURRENT) return oracle::StateElements(oracle::StateLayout::kVPanel16, {c.dims[0], c.dims[1], c.dims[2]});
  return Product(c.dims);
}

// Worst distance relative to the largest expected entry. NaN on one side only is infinitely far.
double Distance(const Values& got, const Values& want, std::string* worst) {
  double scale = 0, distance = 0;
  for (double w : want) scale = std::isnan(w) ? scale : std::max(scale, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    const double d = std::isnan(got[i]) || std::isnan(want[i]) ? HUGE_VAL : std::abs(got[i] - want[i]) / std::max(scale, 1e-30);
    if (d > distance) {
      distance = d;
      *worst = "index " + std::to_string(i) + ": got " + std::to_string(got[i]) + ", want " + std::to_string(want[i]);
    }
  }
  return distance;
}

struct Case {
  OpInstance op;
  // Adjusts the drawn inputs (ids, gates) before they are used.
  std::function<void(OpTensors*)> prepare;
  double bound_f32 = 2e-6, bound_bf16 = 2e-2;
  StepMeta step = MixedStep();
};

class CpuPlugin : public testing::TestWithParam<std::tuple<const char*, uint32_t>> {
 protected:
  uint32_t act() const { return std::get<1>(GetParam()); }
  TensorInfo Act(std::vector<int64_t> dims) const { return {true, act(), std::move(dims)}; }
  static TensorInfo F32(std::vector<int64_t> dims) { return {true, RT_DTYPE_F32, std::move(dims)}; }
  static TensorInfo I32(std::vector<int64_t> dims) { return {true, RT_DTYPE_I32, std::move(dims)}; }

  std::string kernel_prefix_;  // of the row to take; empty = the first that fits

  bool Offers(const std::string& prefix) {
    const Loaded& loaded = Level(std::get<0>(GetParam()));
    const auto* api = static_cast<const rt_op_api*>(loaded.tables.at(RT_KIND_OPS));
    const rt_row* rows = nullptr;
    uint32_t count = 0, stride = 0;
    api->rows(loaded.ctx, &rows, &count, &stride);
    return std::any_of(rows, rows + count, [&](const rt_row& row) { return row.unavailable == RT_UNAVAILABLE_NONE && plugin::View(row.kernel).substr(0, prefix.size()) == prefix; });
  }

  void Check(const Case& test) {
    const OpInstance& op = test.op;
    const ops::OpDef* def = ops::FindOp(op.op, op.version);
    ASSERT_NE(def, nullptr);
    ASSERT_TRUE(ops::CheckInstance(*def, op).ok()) << ops::CheckInstance(*def, op).ToString();
    const Loaded& loaded = Level(std::get<0>(GetParam()));
    const StepMeta& meta = test.step;
    std::mt19937 rng(7);
    OpTensors expected;
    for (const TensorInfo& t : op.inputs) expected.inputs.push_back(Random(t, meta.num_tokens(), rng));
    for (const TensorInfo& t : op.weights) expected.weights.push_back(Random(t, 0, rng));
    for (const CacheInfo& c : op.caches) expected.caches.push_back(CacheValues(c, meta, rng));
    if (test.prepare) test.prepare(&expected);
    const OpTensors start = expected;
    const Status oracle = oracle::EvaluateOp(op, meta, expected);
    ASSERT_TRUE(oracle.ok()) << oracle.ToString();
    Run(loaded, *def, op, meta, start, expected, act() == RT_DTYPE_F32 ? test.bound_f32 : test.bound_bf16);
  }

  // Units that the step owns hold values; all others hold NaN, which must neither spread nor change.
  static Values CacheValues(const CacheInfo& c, const StepMeta& meta, std::mt19937& rng) {
    const int64_t unit = UnitElements(c);
    Values values(static_cast<size_t>(kUnits * unit), std::nan(""));
    const bool kv = c.role == RT_CACHE_KEY || c.role == RT_CACHE_VALUE || c.role == RT_CACHE_LATENT;
    const int64_t num_heads = c.dims.size() == 2 ? c.dims[0] : 1, width = c.dims.back();  // of a token's rows
    std::normal_distribution<double> draw(0, 1);
    for (int64_t s = 0; s < meta.num_sequences(); ++s) {
      const int32_t slot = meta.state_slot_ids[static_cast<size_t>(s)];
      if (!kv && (slot < 0 || meta.has_initial_state[static_cast<size_t>(s)] == 0)) continue;
      if (!kv) {
        for (int64_t i = 0; i < unit; ++i) values[static_cast<size_t>(slot * unit + i)] = Round(c.dtype, draw(rng));
        if (c.role == RT_CACHE_RECURRENT) ZeroTails(c, &values[static_cast<size_t>(slot * unit)]);
        continue;
      }
      for (int64_t t = 0; t < meta.context_lens[static_cast<size_t>(s)]; ++t) {
        const int32_t block = meta.block_tables[static_cast<size_t>(s)][static_cast<size_t>(t / c.block_size)];
        for (int64_t h = 0; h < num_heads; ++h) {
          for (int64_t i = 0; i < width; ++i) values[static_cast<size_t>(block * unit + (h * c.block_size + t % c.block_size) * width + i)] = Round(c.dtype, draw(rng));
        }
      }
    }
    return values;
  }
  static void ZeroTails(const CacheInfo& c, double* unit) {
    const int64_t dv = c.dims[2], panels = (dv + 15) / 16;
    for (int64_t h = 0; h < c.dims[0]; ++h) {
      for (int64_t k = 0; k < c.dims[1]; ++k) {
        for (int64_t lane = dv - (panels - 1) * 16; lane < 16; ++lane) unit[((h * panels + panels - 1) * c.dims[1] + k) * 16 + lane] = 0;
      }
    }
  }

  void Run(const Loaded& loaded, const ops::OpDef& def, const OpInstance& op, const StepMeta& step, const OpTensors& start, const OpTensors& expected, double bound) {
    const bool backend_kind = def.kind != RT_KIND_OPS;
    const auto* backend_api = backend_kind ? static_cast<const rt_backend_api*>(loaded.tables.at(def.kind)) : nullptr;
    const auto* api = backend_kind ? backend_api->ops : static_cast<const rt_op_api*>(loaded.tables.at(RT_KIND_OPS));
    rt_error error = {};
    error.struct_size = sizeof error;
    rt_backend* backend = nullptr;
    AbiMeta meta(step);
    if (backend_kind) {
      const rt_backend_desc desc = {sizeof desc, {1, 0}, 8, 64, 64, def.kind == RT_KIND_ATTENTION ? 4 : 0, 0};
      ASSERT_EQ(backend_api->create(loaded.ctx, &desc, &backend, &error), RT_OK) << error.message;
    }
    std::vector<std::unique_ptr<Buffer>> inputs, weights, outputs;
    std::vector<const rt_tensor*> in, w, out;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      inputs.push_back(std::make_unique<Buffer>(op.inputs[i], step.num_tokens(), true));
      inputs.back()->Set(start.inputs[i]);
      in.push_back(inputs.back()->tensor());
    }
    for (size_t i = 0; i < op.weights.size(); ++i) {
      weights.push_back(std::make_unique<Buffer>(op.weights[i], 0, false));
      weights.back()->Set(start.weights[i]);
      w.push_back(weights.back()->tensor());
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      if (i == 0 && def.inplace_input >= 0) {
        out.push_back(in[static_cast<size_t>(def.inplace_input)]);
        outputs.push_back(nullptr);
        continue;
      }
      outputs.push_back(std::make_unique<Buffer>(op.outputs[i], step.num_tokens(), true));
      out.push_back(outputs.back()->tensor());
    }
    // Caches of one op share units with a gap between them, as layers do in the arena.
    std::vector<std::vector<std::byte>> pools;
    std::vector<rt_cache_view> views;
    for (size_t i = 0; i < op.caches.size(); ++i) {
      const CacheInfo& c = op.caches[i];
      const int64_t unit = UnitElements(c), bytes = unit * ops::DTypeBytes(c.dtype), stride = (bytes + 63) / 64 * 64 + 128;
      std::vector<std::byte>& pool = pools.emplace_back(static_cast<size_t>(kUnits * stride + 64), std::byte{0x5A});
      std::byte* base = pool.data() + (64 - reinterpret_cast<uintptr_t>(pool.data()) % 64) % 64;
      for (int64_t u = 0; u < kUnits; ++u) {
        for (int64_t e = 0; e < unit; ++e) Put(base + u * stride + e * ops::DTypeBytes(c.dtype), c.dtype, start.caches[i][static_cast<size_t>(u * unit + e)]);
      }
      views.push_back({sizeof(rt_cache_view), c.dtype, c.layout, 0, base, stride, bytes});
    }
    std::vector<const rt_cache_view*> view_list;
    for (const rt_cache_view& v : views) view_list.push_back(&v);

    for (uint32_t phase : def.phased ? std::vector<uint32_t>{RT_PHASE_DECODE, RT_PHASE_PREFILL} : std::vector<uint32_t>{RT_PHASE_ALL}) {
      Execute(loaded.ctx, api, backend_api, backend, def, op, phase, meta.meta, in, w, out, view_list);
    }
    if (backend_kind) backend_api->destroy(loaded.ctx, backend);

    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const Buffer& got = outputs[i] ? *outputs[i] : *inputs[static_cast<size_t>(def.inplace_input)];
      std::string worst;
      EXPECT_LE(Distance(got.Read(), expected.outputs[i], &worst), bound) << op.op << " output " << i << ", " << worst;
      EXPECT_TRUE(got.GuardsHold()) << op.op << " wrote outside output " << i;
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(inputs[i]->GuardsHold());
      if (static_cast<int>(i) == def.inplace_input) continue;
      EXPECT_EQ(inputs[i]->Read(), start.inputs[i]) << op.op << " changed input " << i;
    }
    for (size_t i = 0; i < op.caches.size(); ++i) {
      const CacheInfo& c = op.caches[i];
      const int64_t unit = UnitElements(c);
      Values got;
      for (int64_t u = 0; u < kUnits; ++u) {
        for (int64_t e = 0; e < unit; ++e) got.push_back(Get(static_cast<std::byte*>(views[i].base) + u * views[i].unit_stride_bytes + e * ops::DTypeBytes(c.dtype), c.dtype));
      }
      std::string worst;
      EXPECT_LE(Distance(got, expected.caches[i], &worst), bound) << op.op << " cache " << i << ", " << worst;
    }
  }

  void Execute(rt_plugin_ctx* ctx, const rt_op_api* api, const rt_backend_api* backend_api, rt_backend* backend, const ops::OpDef& def, const OpInstance& op, uint32_t phase, const rt_step_meta& meta,
               const std::vector<const rt_tensor*>& in, const std::vector<const rt_tensor*>& w, const std::vector<const rt_tensor*>& out, const std::vector<const rt_cache_view*>& caches) {
    const auto columns = ops::ProblemColumns(def, op);
    const rt_problem problem = {sizeof problem, phase, plugin::Str(op.op), op.version, static_cast<uint32_t>(columns.size()), columns.data(), op.attrs, {1, 0}};
    const rt_row* rows = nullptr;
    uint32_t count = 0, stride = 0;
    ASSERT_EQ(api->rows(ctx, &rows, &count, &stride), RT_OK);
    rt_error error = {};
    error.struct_size = sizeof error;
    rt_plan* plan = nullptr;
    for (uint32_t r = 0; r < count && plan == nullptr; ++r) {
      if (plugin::View(rows[r].op) != op.op || (rows[r].phases & phase) != phase || rows[r].unavailable != RT_UNAVAILABLE_NONE || !ConstraintsHold(rows[r], columns)) continue;
      rt_verdict verdict = {};
      verdict.struct_size = sizeof verdict;
      ASSERT_EQ(api->supports(ctx, r, &problem, &verdict), RT_OK);
      if (verdict.ok == 0) continue;
      if (plugin::View(rows[r].kernel).substr(0, kernel_prefix_.size()) != kernel_prefix_) continue;
      const rt_plan_desc desc = {sizeof desc, r, &problem, backend, 64, 8, 8, 0};
      ASSERT_EQ(api->plan_create(ctx, &desc, &plan, &error), RT_OK) << error.message;
    }
    ASSERT_NE(plan, nullptr) << "no row takes " << op.op;
    std::vector<const rt_tensor*> weights = w;
    std::vector<std::vector<float>> packed(w.size());
    std::vector<rt_tensor> packed_tensors(w.size());
    for (uint32_t i = 0; i < w.size(); ++i) {
      uint64_t bytes = 0;
      ASSERT_EQ(api->prepack_size(ctx, plan, i, &bytes, &error), RT_OK) << error.message;
      if (bytes == 0) continue;
      packed[i].resize((bytes + 3) / 4);
      ASSERT_EQ(api->prepack(ctx, plan, i, w[i], packed[i].data(), &error), RT_OK) << error.message;
      packed_tensors[i] = *w[i];
      packed_tensors[i].data = packed[i].data();
      weights[i] = &packed_tensors[i];
    }
    if (backend != nullptr) {
      ASSERT_EQ(backend_api->begin_step(ctx, backend, &meta, nullptr, &error), RT_OK) << error.message;
    }
    rt_plan_info info = {};
    info.struct_size = sizeof info;
    ASSERT_EQ(api->plan_info(ctx, plan, &info), RT_OK);
    std::vector<std::byte> workspace(info.workspace_bytes + 128, std::byte{0xFF});  // NaN everywhere
    std::byte* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    const rt_exec_args args = {sizeof args, phase, static_cast<uint32_t>(in.size()), static_cast<uint32_t>(weights.size()), static_cast<uint32_t>(out.size()), static_cast<uint32_t>(caches.size()), in.data(), weights.data(),
                               out.data(), caches.data(), aligned, info.workspace_bytes, nullptr};
    EXPECT_EQ(api->execute(ctx, plan, &args, &error), RT_OK) << error.message;
    api->plan_destroy(ctx, plan);
  }

  // The code and message of one execution of a dense op by the level's first row for it.
  int32_t ExecuteOnce(const OpInstance& op, const std::vector<const rt_tensor*>& in, const std::vector<const rt_tensor*>& w, const std::vector<const rt_tensor*>& out, std::string* message) {
    const Loaded& loaded = Level(std::get<0>(GetParam()));
    const auto* api = static_cast<const rt_op_api*>(loaded.tables.at(RT_KIND_OPS));
    const auto columns = ops::ProblemColumns(*ops::FindOp(op.op, op.version), op);
    const rt_problem problem = {sizeof problem, RT_PHASE_ALL, plugin::Str(op.op), op.version, static_cast<uint32_t>(columns.size()), columns.data(), op.attrs, {1, 0}};
    const rt_row* rows = nullptr;
    uint32_t count = 0, stride = 0, r = 0;
    if (api->rows(loaded.ctx, &rows, &count, &stride) != RT_OK) return RT_INTERNAL;
    while (r < count && (plugin::View(rows[r].op) != op.op || rows[r].unavailable != RT_UNAVAILABLE_NONE || !ConstraintsHold(rows[r], columns))) ++r;
    rt_error error = {};
    error.struct_size = sizeof error;
    rt_plan* plan = nullptr;
    const rt_plan_desc desc = {sizeof desc, r, &problem, nullptr, 64, 8, 8, 0};
    int32_t code = r < count ? api->plan_create(loaded.ctx, &desc, &plan, &error) : static_cast<int32_t>(RT_UNSUPPORTED);
    if (code == RT_OK) {
      rt_plan_info info = {};
      info.struct_size = sizeof info;
      api->plan_info(loaded.ctx, plan, &info);
      std::vector<std::byte> workspace(info.workspace_bytes + 64, std::byte{0xFF});
      std::byte* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
      const rt_exec_args args = {sizeof args, RT_PHASE_ALL, static_cast<uint32_t>(in.size()), static_cast<uint32_t>(w.size()), static_cast<uint32_t>(out.size()), 0, in.data(), w.data(), out.data(), nullptr, aligned, info.workspace_bytes, nullptr};
      code = api->execute(loaded.ctx, plan, &args, &error);
      api->plan_destroy(loaded.ctx, plan);
    }
    *message = error.message;
    return code;
  }

  static bool ConstraintsHold(const rt_row& row, const std::vector<rt_column_value>& columns) {
    return std::all_of(columns.begin(), columns.end(), [&](const rt_column_value& c) {
      for (uint32_t i = 0; i < row.num_constraints; ++i) {
        const rt_constraint& k = row.constraints[i];
        if (k.column != c.column) continue;
        if (k.kind == RT_CONSTRAINT_ANY) return true;
        if (k.kind == RT_CONSTRAINT_SET) return std::find(k.values, k.values + k.num_values, c.value) != k.values + k.num_values;
        if (k.kind == RT_CONSTRAINT_RANGE) return k.lo <= c.value && c.value <= k.hi;
        return c.value % k.lo == 0;
      }
      return false;
    });
  }
};

constexpr rt_attrs_none kNone = {sizeof(rt_attrs_none), 0};
constexpr rt_attrs_norm kNorm = {sizeof(rt_attrs_norm), 1e-6f, 1, 0};
// Awkward on purpose: widths that fill no vector, three value heads to a key head.
constexpr rt_attrs_mixer kMixer = {sizeof(rt_attrs_mixer), 2, 6, 24, 20, 4, RT_GATE_SOFTPLUS_DECAY, 1, RT_ACT_SILU, 0, 1, 1e-6f, 1e-6f, 0};
constexpr rt_attrs_mla kMla = {sizeof(rt_attrs_mla), 3, 20, 7, 5, 9, 1e-6f, 0.2887f};
constexpr rt_attrs_attention kAttention = {sizeof(rt_attrs_attention), 6, 2, 24, 6, RT_QK_NORM_PER_HEAD, RT_ACT_SIGMOID, 1e-6f, 1, 0.2041f, 1e4};

OpInstance Make(const char* op, std::vector<TensorInfo> inputs, std::vector<TensorInfo> weights, std::vector<TensorInfo> outputs, const void* attrs, std::vector<CacheInfo> caches = {}) {
  OpInstance instance;
  instance.op = op;
  instance.inputs = std::move(inputs);
  instance.weights = std::move(weights);
  instance.outputs = std::move(outputs);
  instance.attrs = attrs;
  instance.caches = std::move(caches);
  return instance;
}

TEST_P(CpuPlugin, EmbeddingEqualsTheOracle) {
  Check({Make(RT_OP_EMBEDDING, {I32({T})}, {Act({50, 37})}, {F32({T, 37})}, &kNone), [](OpTensors* t) {
           for (size_t i = 0; i < t->inputs[0].size(); ++i) t->inputs[0][i] = static_cast<double>((i * 17) % 50);
         }});
}

TEST_P(CpuPlugin, NormsEqualTheOracle) {
  Check({Make(RT_OP_RMS_NORM, {F32({T, 77})}, {F32({77})}, {Act({T, 77})}, &kNorm), {}});
  Check({Make(RT_OP_ADD_RMS_NORM, {F32({T, 77}), Act({T, 77})}, {F32({77})}, {F32({T, 77}), Act({T, 77})}, &kNorm), {}});
  Check({Make(RT_OP_ADD, {F32({T, 77}), Act({T, 77})}, {}, {F32({T, 77})}, &kNone), {}});
}

TEST_P(CpuPlugin, LinearEqualsTheOracle) {
  Check({Make(RT_OP_LINEAR, {Act({T, 77})}, {Act({131, 77})}, {Act({T, 131})}, &kNone), {}});
  Check({Make(RT_OP_LINEAR, {Act({T, 256})}, {Act({64, 256})}, {F32({T, 64})}, &kNone), {}});
}

// Enough rows to leave the kernel for few rows; every row that claims the op is checked, not only the first.
TEST_P(CpuPlugin, EveryLinearRowEqualsTheOracleAtManyRows) {
  Case test = {Make(RT_OP_LINEAR, {Act({T, 96})}, {Act({70, 96})}, {F32({T, 70})}, &kNone), {}};
  test.step = StepMeta();
  test.step.cu_seqlens = {0, 45};
  test.step.context_lens = {0};
  for (int64_t t = 0; t < 45; ++t) test.step.positions.push_back(t);
  test.step.block_tables = {{0, 1}};
  test.step.state_slot_ids = {0};
  test.step.has_initial_state = {0};
  for (const char* kernel : {"linear.", "linear_onednn."}) {
    kernel_prefix_ = kernel;
    if (!Offers(kernel)) continue;  // built without it, or not at this level
    Check(test);
  }
  EXPECT_TRUE(Offers("linear."));
  kernel_prefix_.clear();
}

TEST_P(CpuPlugin, SiluMulEqualsTheOracle) { Check({Make(RT_OP_SILU_MUL, {Act({T, 45}), Act({T, 45})}, {}, {Act({T, 45})}, &kNone), {}}); }

std::vector<CacheInfo> MixerCaches(uint32_t act, uint32_t state) {
  return {{RT_CACHE_CONV, act, 0, 0, {3, 216}}, {RT_CACHE_RECURRENT, state, RT_STATE_LAYOUT_VPANEL16, 0, {6, 24, 20}}};
}

TEST_P(CpuPlugin, LinearMixerEqualsTheOracleInEveryStateDtype) {
  for (uint32_t state : {RT_DTYPE_F32, RT_DTYPE_BF16, RT_DTYPE_F16}) {
    SCOPED_TRACE(ops::DTypeName(state));
    Case test = {Make(RT_OP_LINEAR_MIXER, {Act({T, 216}), Act({T, 120}), Act({T, 6}), Act({T, 6})}, {F32({216, 1, 4}), F32({6}), F32({6}), F32({20})}, {Act({T, 120})}, &kMixer, MixerCaches(act(), state)), {}};
    if (state != RT_DTYPE_F32) test.bound_f32 = 1e-2;  // the state is stored with 8 or 11 significand bits
    Check(test);
  }
}

TEST_P(CpuPlugin, PiecesOfTheMixerEqualTheOracle) {
  const auto caches = MixerCaches(act(), RT_DTYPE_F32);
  Check({Make(RT_OP_CAUSAL_CONV1D, {Act({T, 216})}, {F32({216, 1, 4})}, {Act({T, 216})}, &kMixer, {caches[0]}), {}});
  Check({Make(RT_OP_GATED_DELTA_RULE, {Act({T, 216}), Act({T, 6}), Act({T, 6})}, {F32({6}), F32({6})}, {Act({T, 120})}, &kMixer, {caches[1]}), {}});
  Check({Make(RT_OP_GATED_RMS_NORM, {Act({T, 120}), Act({T, 120})}, {F32({20})}, {Act({T, 120})}, &kMixer), {}});
}

// Four groups of three experts, five chosen from the best three groups.
constexpr rt_attrs_moe kMoe = {sizeof(rt_attrs_moe), 12, 5, 4, 3, RT_ROUTER_SIGMOID, 1, 2.446f};
constexpr rt_attrs_moe kMoeSoftmax = {sizeof(rt_attrs_moe), 12, 5, 1, 1, RT_ROUTER_SOFTMAX, 0, 1.0f};

TEST_P(CpuPlugin, MoeRouterEqualsTheOracle) {
  for (const rt_attrs_moe* attrs : {&kMoe, &kMoeSoftmax}) {
    for (const bool biased : {true, false}) {
      std::vector<TensorInfo> weights = {F32({12, 77})};
      if (biased) weights.push_back(F32({12}));
      Case test = {Make(RT_OP_MOE_ROUTER, {Act({T, 77})}, weights, {I32({T, 5}), F32({T, 5})}, attrs), {}};
      test.prepare = [&](OpTensors* t) {
        for (double& w : t->weights[0]) w = Round(RT_DTYPE_F32, 0.1 * w);  // scores far from 0 and 1
        if (biased) {
          for (double& b : t->weights[1]) b = Round(RT_DTYPE_F32, 0.1 * b);
        }
        oracle::RouterParams p;
        p.num_experts = 12;
        p.experts_per_token = 5;
        p.num_groups = attrs->num_groups;
        p.topk_groups = attrs->topk_groups;
        p.score = attrs->router_score == RT_ROUTER_SOFTMAX ? oracle::RouterScore::kSoftmax : oracle::RouterScore::kSigmoid;
        const auto routing = oracle::Route(p, 77, t->inputs[0], t->weights[0], biased ? oracle::View(t->weights[1]) : oracle::View());
        // 77 products that add up to about 5 in magnitude, in at least 8 lanes: logits err by at most (77/8 + 5) 2^-24 5 < 5e-6, sigmoids by
        // a quarter of that, two sums of two of them differ by less than 5e-6. Every choice of this draw is beyond rounding.
        EXPECT_GT(*std::min_element(routing.margins.begin(), routing.margins.end()), 1e-5);
      };
      test.bound_f32 = test.bound_bf16 = 4e-6;  // the router computes in float32 whatever the activations are
      Check(test);
    }
  }
}

TEST_P(CpuPlugin, MoeExpertsEqualTheOracle) {
  for (const bool shared : {true, false}) {
    std::vector<TensorInfo> inputs = {Act({T, 77}), I32({T, 5}), F32({T, 5})};
    if (shared) inputs.push_back(Act({T, 77}));
    Case test = {Make(RT_OP_MOE_EXPERTS, inputs, {Act({12 * 37, 77}), Act({12 * 37, 77}), Act({12 * 77, 37})}, {Act({T, 77})}, &kMoe), {}};
    test.prepare = [](OpTensors* t) {
      // Different experts within a token; expert 11 gets nothing, expert 0 every token.
      for (size_t i = 0; i < t->inputs[1].size(); ++i) t->inputs[1][i] = i % 5 == 2 ? 0 : static_cast<double>(1 + (3 * (i / 5) + 2 * (i % 5)) % 10);
    };
    test.bound_f32 = 4e-6;  // three chained products of up to 77 terms
    Check(test);
  }
}

constexpr rt_attrs_moe kMoeOfThree = {sizeof(rt_attrs_moe), 3, 2, 1, 1, RT_ROUTER_SIGMOID, 1, 1.0f};

TEST_P(CpuPlugin, MoeExpertsRefuseAnIdThatNamesNoExpert) {
  const OpInstance op = Make(RT_OP_MOE_EXPERTS, {Act({T, 16}), I32({T, 2}), F32({T, 2})}, {Act({3 * 8, 16}), Act({3 * 8, 16}), Act({3 * 16, 8})}, {Act({T, 16})}, &kMoeOfThree);
  for (int32_t id : {-1, 3, std::numeric_limits<int32_t>::max()}) {
    Buffer x(op.inputs[0], 4, true), ids(op.inputs[1], 4, true), w(op.inputs[2], 4, true), gate(op.weights[0], 0, false), up(op.weights[1], 0, false), down(op.weights[2], 0, false), y(op.outputs[0], 4, true);
    x.Set(Values(64, 1.0));
    w.Set(Values(8, 0.5));
    ids.Set({0, 1, 2, 0, 1, 2, 0, static_cast<double>(id)});
    for (Buffer* b : {&gate, &up, &down}) b->Set(Values(384, 0.25));
    y.Set(Values(64, 9.0));
    std::string message;
    EXPECT_EQ(ExecuteOnce(op, {x.tensor(), ids.tensor(), w.tensor()}, {gate.tensor(), up.tensor(), down.tensor()}, {y.tensor()}, &message), RT_INVALID_ARGUMENT);
    EXPECT_EQ(message, "moe_experts: ids[3, 1]: expected 0..2, found " + std::to_string(id));
    EXPECT_EQ(y.Read(), Values(64, 9.0)) << "a refused call writes nothing";
  }
}

// Gates of every width and form, over heads in groups and one to one. Strong decays come from a wide a.
TEST_P(CpuPlugin, ChannelAndBoundedGatesEqualTheOracle) {
  struct Gate {
    const char* name;
    uint32_t form, width;
    float bound;
  };
  for (const Gate& gate : {Gate{"scalar, bounded", RT_GATE_BOUNDED_SIGMOID, 1, -5.0f}, Gate{"channel", RT_GATE_SOFTPLUS_DECAY, 24, 0.0f}, Gate{"channel, bounded", RT_GATE_BOUNDED_SIGMOID, 24, -5.0f},
                           Gate{"channel, bounded at -0.5", RT_GATE_BOUNDED_SIGMOID, 24, -0.5f}}) {
    rt_attrs_mixer attrs = kMixer;
    attrs.gate_form = gate.form;
    attrs.gate_width = gate.width;
    attrs.gate_bound = gate.bound;
    attrs.output_gate = RT_ACT_SIGMOID;
    const int64_t columns = 6 * static_cast<int64_t>(gate.width);
    const auto widen = [](size_t index) {
      return [index](OpTensors* t) {
        for (double& a : t->inputs[index]) a *= 4;  // a power of two keeps it representable
      };
    };
    for (uint32_t state : {RT_DTYPE_F32, RT_DTYPE_BF16}) {
      SCOPED_TRACE(std::string(gate.name) + ", state " + ops::DTypeName(state));
      const auto caches = MixerCaches(act(), state);
      Case mixer = {Make(RT_OP_LINEAR_MIXER, {Act({T, 216}), Act({T, 120}), Act({T, 6}), Act({T, columns})}, {F32({216, 1, 4}), F32({6}), F32({columns}), F32({20})}, {Act({T, 120})}, &attrs, caches), widen(3)};
      Case rule = {Make(RT_OP_GATED_DELTA_RULE, {Act({T, 216}), Act({T, 6}), Act({T, columns})}, {F32({6}), F32({columns})}, {Act({T, 120})}, &attrs, {caches[1]}), widen(2)};
      if (state != RT_DTYPE_F32) mixer.bound_f32 = rule.bound_f32 = 1e-2;
      Check(mixer);
      Check(rule);
    }
  }
}

// A width that is neither 1 nor head_k_dim reaches supports() only, and is refused there by name.
TEST_P(CpuPlugin, OtherGateWidthsAreRefused) {
  rt_attrs_mixer attrs = kMixer;
  attrs.gate_width = 12;
  const OpInstance op = Make(RT_OP_GATED_DELTA_RULE, {Act({T, 216}), Act({T, 6}), Act({T, 72})}, {F32({6}), F32({72})}, {Act({T, 120})}, &attrs, {MixerCaches(act(), RT_DTYPE_F32)[1]});
  const Loaded& loaded = Level(std::get<0>(GetParam()));
  const auto* api = static_cast<const rt_backend_api*>(loaded.tables.at(RT_KIND_LINEAR_ATTENTION))->ops;
  const auto columns = ops::ProblemColumns(*ops::FindOp(op.op, op.version), op);
  const rt_problem problem = {sizeof problem, RT_PHASE_DECODE, plugin::Str(op.op), op.version, static_cast<uint32_t>(columns.size()), columns.data(), op.attrs, {1, 0}};
  const rt_row* rows = nullptr;
  uint32_t count = 0, stride = 0;
  ASSERT_EQ(api->rows(loaded.ctx, &rows, &count, &stride), RT_OK);
  int refused = 0;
  for (uint32_t r = 0; r < count; ++r) {
    if (plugin::View(rows[r].op) != op.op || rows[r].unavailable != RT_UNAVAILABLE_NONE || !ConstraintsHold(rows[r], columns)) continue;
    rt_verdict verdict = {};
    verdict.struct_size = sizeof verdict;
    ASSERT_EQ(api->supports(loaded.ctx, r, &problem, &verdict), RT_OK);
    EXPECT_EQ(verdict.ok, 0u);
    EXPECT_EQ(verdict.column, static_cast<uint32_t>(RT_COL_GATE_WIDTH));
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuPlugin, testing::Combine(testing::Values("avx2", "avx512bf16"), testing::Values(uint32_t{RT_DTYPE_F32}, uint32_t{RT_DTYPE_BF16})),
                         [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + ops::DTypeName(std::get<1>(info.param)); });

TEST_P(CpuPlugin, AttentionMixerEqualsTheOracle) {
  const CacheInfo key = {RT_CACHE_KEY, act(), RT_KV_LAYOUT_HND, 4, {2, 24}};
  CacheInfo value = key;
  value.role = RT_CACHE_VALUE;
  Case test = {Make(RT_OP_ATTENTION_MIXER, {Act({T, 288}), Act({T, 48}), Act({T, 48})}, {F32({24}), F32({24})}, {Act({T, 144})}, &kAttention, {key, value}), {}};
  test.bound_f32 = 4e-6;
  test.step.block_tables[1] = {4, -1};  // the reference knows no attention row without a block
  Check(test);
}

TEST_P(CpuPlugin, LatentAttentionAndItsPiecesEqualTheOracleInEitherKvLayout) {
  for (uint32_t layout : {RT_KV_LAYOUT_HND, RT_KV_LAYOUT_NHD}) {
    const CacheInfo latent = {RT_CACHE_LATENT, act(), layout, 4, {25}};
    Case test = {Make(RT_OP_MLA_MIXER, {Act({T, 36}), Act({T, 25})}, {F32({20}), Act({48, 20})}, {Act({T, 27})}, &kMla, {latent}), {}};
    test.bound_f32 = 4e-6;
    test.step.block_tables[1] = {4, -1};  // the reference knows no attention row without a block
    Check(test);
    test.op = Make(RT_OP_MLA_ATTENTION, {Act({T, 36}), Act({T, 25})}, {Act({48, 20})}, {Act({T, 27})}, &kMla, {latent});
    Check(test);
  }
  Check({Make(RT_OP_LATENT_NORM, {Act({T, 25})}, {F32({20})}, {Act({T, 25})}, &kMla), {}});
}

TEST(CpuPluginOptions, WrongOptionsAreNamed) {
  const auto message = [](const char* options) {
    Status status;
    const Loaded loaded = Load(options, &status);
    if (status.ok()) Desc()->shutdown(loaded.ctx);
    return status.message();
  };
  EXPECT_EQ(message("{}"), "");
  EXPECT_EQ(message("{\"isa\":\"sse\"}"), "plugins.options.cpu.isa: expected auto, avx512bf16 or avx2, found \"sse\"");
  EXPECT_EQ(message("{\"threads\":-1}"), "plugins.options.cpu.threads: expected an integer from 0 to 1024, found -1");
  EXPECT_EQ(message("{\"pin\":1}"), "plugins.options.cpu.pin: expected true or false, found 1");
  EXPECT_EQ(message("{\"turbo\":true}"), "plugins.options.cpu.turbo: unknown option; known are threads, pin, spin_us, isa");
  EXPECT_EQ(message("[]"), "plugins.options.cpu: expected a mapping");
}

TEST(CpuPluginRows, EachLevelCanBeForcedAndTheOtherSaysWhyNot) {
  Status status;
  const Loaded loaded = Load("{\"isa\":\"avx2\"}", &status);
  ASSERT_TRUE(status.ok());
  const auto* api = static_cast<const rt_op_api*>(loaded.tables.at(RT_KIND_OPS));
  const rt_row* rows = nullptr;
  uint32_t count = 0, stride = 0;
  ASSERT_EQ(api->rows(loaded.ctx, &rows, &count, &stride), RT_OK);
  int disabled = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string kernel(plugin::View(rows[i].kernel));
    if (kernel.find("avx512bf16") == std::string::npos) continue;
    ++disabled;
    EXPECT_NE(rows[i].unavailable, static_cast<uint32_t>(RT_UNAVAILABLE_NONE)) << kernel;
    EXPECT_FALSE(plugin::View(rows[i].unavailable_reason).empty());
  }
  EXPECT_GT(disabled, 0);
  Desc()->shutdown(loaded.ctx);
}

}  // namespace
}  // namespace rt
