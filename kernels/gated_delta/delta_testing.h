// For tests: the delta rule in double precision, token by token, and problems over a poisoned state pool. Shared by the tests of
// gated_delta and linear_mixer.
#pragma once

#include <numeric>
#include <vector>

#include "kernels/common/kernel_testing.h"
#include "kernels/gated_delta/gated_delta.h"

namespace rt::kernels {

struct TestSequence {
  int32_t length;
  int32_t slot;
  bool has_initial;
};

inline int64_t TotalTokens(const std::vector<TestSequence>& sequences) {
  return std::accumulate(sequences.begin(), sequences.end(), int64_t{0},
                         [](int64_t n, const TestSequence& s) { return n + s.length; });
}

// The batch arrays of a list of sequences; must outlive the SequenceBatch it hands out.
struct TestBatch {
  explicit TestBatch(const std::vector<TestSequence>& sequences) : cu_seqlens{0} {
    for (const TestSequence& s : sequences) {
      cu_seqlens.push_back(cu_seqlens.back() + s.length);
      slots.push_back(s.slot);
      has_initial.push_back(s.has_initial);
    }
  }
  SequenceBatch view() const {
    return {static_cast<int32_t>(slots.size()), cu_seqlens.data(), slots.data(), has_initial.data()};
  }
  std::vector<int32_t> cu_seqlens, slots;
  std::vector<uint8_t> has_initial;
};

// A pool of recurrent states, VPANEL16. Slots that no call may read hold NaN; a border follows each slot.
class TestStatePool {
 public:
  TestStatePool(const DeltaDims& dims, DType dtype, int64_t num_slots)
      : dims_(dims), panels_((dims.head_v_dim + 15) / 16), row_(dims.num_v_heads * panels_ * dims.head_k_dim * 16), num_slots_(num_slots),
        memory_(dtype, num_slots, row_, row_ + 32), dtype_(dtype) {
    for (int64_t slot = 0; slot < num_slots; ++slot) memory_.FillRow(slot, std::numeric_limits<float>::quiet_NaN());
  }
  template <class Rng>
  void FillSlot(int64_t slot, Rng& rng, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    memory_.FillRow(slot, 0.0f);
    for (int64_t h = 0; h < dims_.num_v_heads; ++h) {
      for (int64_t d = 0; d < dims_.head_k_dim; ++d) {
        for (int64_t v = 0; v < dims_.head_v_dim; ++v) memory_.Set(slot, Index(h, d, v), normal(rng));
      }
    }
  }
  double Get(int64_t slot, int64_t h, int64_t d, int64_t v) const { return memory_.Get(slot, Index(h, d, v)); }
  // Lanes past Dv must be zero in every slot a call has written.
  bool TailLanesAreZero(int64_t slot) const {
    for (int64_t h = 0; h < dims_.num_v_heads; ++h) {
      for (int64_t d = 0; d < dims_.head_k_dim; ++d) {
        for (int64_t v = dims_.head_v_dim; v < panels_ * 16; ++v) {
          if (memory_.Get(slot, Index(h, d, v)) != 0.0f) return false;
        }
      }
    }
    return true;
  }
  bool SlotEquals(const TestStatePool& other, int64_t slot) const {
    const int64_t bytes = slot_stride_bytes();
    const int64_t at = TestMatrix::kBorder + slot * bytes;
    return std::memcmp(memory_.bytes().data() + at, other.memory_.bytes().data() + at, static_cast<size_t>(bytes)) == 0;
  }
  DType dtype() const { return dtype_; }
  DeltaState view() { return {memory_.data(), slot_stride_bytes(), dtype_}; }
  bool BordersIntact() const { return memory_.BordersIntact(); }
  const std::vector<unsigned char>& bytes() const { return memory_.bytes(); }
  int64_t num_slots() const { return num_slots_; }

 private:
  int64_t Index(int64_t h, int64_t d, int64_t v) const { return ((h * panels_ + v / 16) * dims_.head_k_dim + d) * 16 + v % 16; }
  int64_t slot_stride_bytes() const { return (row_ + 32) * SizeOf(dtype_); }

  DeltaDims dims_;
  int64_t panels_, row_, num_slots_;
  TestMatrix memory_;
  DType dtype_;
};

// One decay a head or one a key channel, by either formula.
enum class GateKind { kScalar, kScalarBounded, kChannel, kChannelBounded };
constexpr float kTestBound = -5.0f;

inline const char* GateKindName(GateKind kind) {
  const char* names[] = {"scalar", "scalar_bounded", "channel", "channel_bounded"};
  return names[static_cast<int>(kind)];
}
inline DeltaDims WithGates(DeltaDims dims, GateKind kind) {
  dims.gate_width = kind == GateKind::kScalar || kind == GateKind::kScalarBounded ? 1 : dims.head_k_dim;
  return dims;
}
inline GateForm FormOf(GateKind kind) {
  return kind == GateKind::kScalar || kind == GateKind::kChannel ? GateForm::kSoftplus : GateForm::kBoundedSigmoid;
}

// One (sequence, value head) in double precision. `state` is [Dk][Dv].
class DeltaReference {
 public:
  DeltaReference(int64_t key_dim, int64_t value_dim) : key_dim_(key_dim), value_dim_(value_dim), state(key_dim * value_dim) {}

  // q and k raw; g (one value, or one a key channel) and beta final. Returns o [Dv].
  std::vector<double> Step(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                           const std::vector<double>& g, double beta, double l2_eps) {
    const double q_scale = 1 / std::sqrt(Squares(q) + l2_eps) / std::sqrt(static_cast<double>(key_dim_));
    const double k_scale = 1 / std::sqrt(Squares(k) + l2_eps);
    std::vector<double> o(value_dim_);
    // Row by row of the state, so that the loops over j run along memory.
    std::vector<double> u(value_dim_);
    for (int64_t d = 0; d < key_dim_; ++d) {
      const double decay = std::exp(g[g.size() == 1 ? 0 : static_cast<size_t>(d)]);
      for (int64_t j = 0; j < value_dim_; ++j) {
        state[d * value_dim_ + j] *= decay;
        u[j] += state[d * value_dim_ + j] * k[d] * k_scale;
      }
    }
    for (int64_t j = 0; j < value_dim_; ++j) u[j] = beta * (v[j] - u[j]);
    for (int64_t d = 0; d < key_dim_; ++d) {
      for (int64_t j = 0; j < value_dim_; ++j) {
        state[d * value_dim_ + j] += k[d] * k_scale * u[j];
        o[j] += state[d * value_dim_ + j] * q[d] * q_scale;
      }
    }
    return o;
  }

 private:
  static double Squares(const std::vector<double>& x) {
    return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  }
  int64_t key_dim_, value_dim_;

 public:
  std::vector<double> state;
};

inline double GateF64(const DeltaGates& gates, double a, double a_log, double dt_bias) {
  const double x = a + dt_bias;
  if (gates.form == GateForm::kBoundedSigmoid) return gates.bound / (1 + std::exp(-std::exp(a_log) * x));
  return -std::exp(a_log) * (x > 20 ? x : std::log1p(std::exp(x)));
}
inline double BetaF64(double b, double beta_scale) { return beta_scale / (1 + std::exp(-b)); }

}  // namespace rt::kernels
