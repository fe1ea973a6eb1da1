// For tests of the stand-alone op: a whole call's tensors, and its comparison with the double-precision recurrence.
#pragma once

#include "kernels/gated_delta/delta_testing.h"

namespace rt::kernels {

struct DeltaProblem {
  DeltaProblem(const DeltaDims& shape, DType act, DType state_dtype, std::vector<TestSequence> sequences, uint32_t seed, int threads = 1,
               GateKind gate = GateKind::kScalar)
      : act(act), dims(WithGates(shape, gate)), gate(gate), list(sequences), batch(sequences), num_threads(threads),
        q(act, TotalTokens(list), dims.num_k_heads * dims.head_k_dim, dims.num_k_heads * dims.head_k_dim + 7), k(q),
        v(act, TotalTokens(list), dims.num_v_heads * dims.head_v_dim, dims.num_v_heads * dims.head_v_dim + 3),
        a(act, TotalTokens(list), GateColumns(), GateColumns() + 5), b(act, TotalTokens(list), dims.num_v_heads, dims.num_v_heads + 5), out(v), pool(dims, state_dtype, 8),
        workspace(GatedDeltaWorkspaceBytes(dims, threads) + 64) {
    std::mt19937 rng(seed);
    q.FillNormal(rng, 1.0f);
    k.FillNormal(rng, 1.0f);
    v.FillNormal(rng, 1.0f);
    a.FillNormal(rng, 2.0f);
    b.FillNormal(rng, 2.0f);
    std::normal_distribution<float> normal;
    for (int32_t h = 0; h < dims.num_v_heads; ++h) {
      a_log.push_back(normal(rng) - 1.0f);
      for (int32_t c = 0; c < dims.gate_width; ++c) dt_bias.push_back(normal(rng) - 1.0f);
    }
    for (const TestSequence& s : list) {
      if (s.slot >= 0 && s.has_initial) pool.FillSlot(s.slot, rng, 0.3f);
    }
  }
  GatedDeltaParams params() {
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
    return {q.data(), q.stride(), k.data(), k.stride(), v.data(), v.stride(),
            {a.data(), a.stride(), b.data(), b.stride(), a_log.data(), dt_bias.data(), beta_scale, FormOf(gate), FormOf(gate) == GateForm::kSoftplus ? 0 : kTestBound},
            out.data(), out.stride(), pool.view(), batch.view(), dims, 1e-6f, aligned};
  }
  int64_t GateColumns() const { return int64_t{dims.num_v_heads} * dims.gate_width; }
  // Final g of token t and head h.
  std::vector<double> Gates(int64_t t, int64_t h) {
    std::vector<double> g;
    const DeltaGates gates = params().gates;
    for (int64_t c = h * dims.gate_width; c < (h + 1) * dims.gate_width; ++c) g.push_back(GateF64(gates, a.Get(t, c), a_log[h], dt_bias[c]));
    return g;
  }
  void Run(GatedDeltaFn kernel) {
    // Whatever an earlier call left in the workspace must not matter.
    std::memset(workspace.data(), 0xff, workspace.size());
    ASSERT_EQ(kernel(params(), FakeParallel(&num_threads)), 0);
  }

  DType act;
  DeltaDims dims;
  GateKind gate;
  std::vector<TestSequence> list;
  TestBatch batch;
  int num_threads;
  TestMatrix q, k, v, a, b, out;
  std::vector<float> a_log, dt_bias;
  float beta_scale = 1.0f;
  TestStatePool pool;
  std::vector<char> workspace;
};

inline std::vector<double> HeadRow(const TestMatrix& x, int64_t row, int64_t head, int64_t width) {
  std::vector<double> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) values[static_cast<size_t>(i)] = x.Get(row, head * width + i);
  return values;
}

// fp32 roundings in a chain of at most Dk + 64 terms behave like a random walk; 64 epsilon of the largest entry covers the worst of the
// shapes here with a factor of about three. Narrow results add their one rounding.
inline double Tolerance(double want, double largest, DType dtype) { return 64 * 0x1p-24 * largest + RoundingOf(dtype) * std::fabs(want); }

inline double Largest(const std::vector<double>& x) {
  double largest = 1e-3;
  for (double value : x) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Runs the kernel and compares outputs and states with the double-precision recurrence, and checks all that must stay untouched.
inline void CheckAgainstReference(GatedDeltaFn kernel, DeltaProblem& p, const std::string& what, double amplification = 1) {
  const TestStatePool before = p.pool;
  p.Run(kernel);
  std::vector<bool> written(static_cast<size_t>(before.num_slots()), false);
  const int32_t hk = p.dims.num_k_heads, hv = p.dims.num_v_heads, dk = p.dims.head_k_dim, dv = p.dims.head_v_dim;
  ErrorReport outputs(what + ", output"), states(what + ", state");
  for (size_t s = 0; s < p.list.size(); ++s) {
    const auto [length, slot, has_initial] = p.list[s];
    const int64_t first = p.batch.cu_seqlens[s];
    for (int32_t h = 0; h < hv; ++h) {
      if (slot < 0) {
        for (int64_t t = 0; t < length; ++t) {
          for (double o : HeadRow(p.out, first + t, h, dv)) ASSERT_EQ(o, 0) << what;
        }
        continue;
      }
      DeltaReference reference(dk, dv);
      for (int64_t i = 0; has_initial && i < int64_t{dk} * dv; ++i) reference.state[i] = before.Get(slot, h, i / dv, i % dv);
      const double largest_initial = Largest(reference.state);
      std::vector<double> wants, gots;
      for (int64_t t = first; t < first + length; ++t) {
        const int64_t key_head = h / (hv / hk);
        const std::vector<double> o =
            reference.Step(HeadRow(p.q, t, key_head, dk), HeadRow(p.k, t, key_head, dk), HeadRow(p.v, t, h, dv),
                           p.Gates(t, h), BetaF64(p.b.Get(t, h), p.beta_scale), 1e-6);
        const std::vector<double> got = HeadRow(p.out, t, h, dv);
        wants.insert(wants.end(), o.begin(), o.end());
        gots.insert(gots.end(), got.begin(), got.end());
      }
      const double largest = Largest(wants);
      for (size_t i = 0; i < wants.size(); ++i) outputs.Add(static_cast<int64_t>(i), gots[i], wants[i], amplification * Tolerance(wants[i], largest, p.act));
      if (length == 0) continue;
      written[static_cast<size_t>(slot)] = true;
      const double largest_state = std::max(largest_initial, Largest(reference.state));
      for (int64_t i = 0; i < int64_t{dk} * dv; ++i) {
        const double want = reference.state[i];
        states.Add(i, p.pool.Get(slot, h, i / dv, i % dv), want,
                   amplification * Tolerance(want, largest_state, p.pool.view().dtype) + 0x1p-25);
      }
    }
    if (slot >= 0 && length > 0) {
      EXPECT_TRUE(p.pool.TailLanesAreZero(slot)) << what;
    }
  }
  EXPECT_TRUE(outputs.Within());
  EXPECT_TRUE(states.Within());
  EXPECT_TRUE(p.out.BordersIntact()) << what;
  EXPECT_TRUE(p.pool.BordersIntact()) << what;
  for (int64_t slot = 0; slot < before.num_slots(); ++slot) {
    if (!written[static_cast<size_t>(slot)]) {
      EXPECT_TRUE(p.pool.SlotEquals(before, slot)) << what << ": slot " << slot;
    }
  }
}

}  // namespace rt::kernels
