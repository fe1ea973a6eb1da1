#include "plugin_sdk/oracle/layout.h"

namespace rt::oracle {
namespace {

constexpr int64_t kLanes = 16;  // value channels of one panel, as the layout's name says

int64_t Panels(const StateShape& s) { return (s.head_v_dim + kLanes - 1) / kLanes; }

}  // namespace

int64_t StateElements(StateLayout layout, const StateShape& s) {
  const int64_t row = layout == StateLayout::kVPanel16 ? Panels(s) * kLanes : s.head_v_dim;
  return s.num_v_heads * s.head_k_dim * row;
}

int64_t StateIndex(StateLayout layout, const StateShape& s, int64_t head, int64_t key, int64_t value) {
  switch (layout) {
    case StateLayout::kKV:
      return (head * s.head_k_dim + key) * s.head_v_dim + value;
    case StateLayout::kVK:
      return (head * s.head_v_dim + value) * s.head_k_dim + key;
    case StateLayout::kVPanel16:
      break;
  }
  return ((head * Panels(s) + value / kLanes) * s.head_k_dim + key) * kLanes + value % kLanes;
}

Values ConvertState(const StateShape& s, StateLayout from, StateLayout to, View state) {
  CheckSize("convert_state", state.size(), StateElements(from, s));
  Values result(StateElements(to, s), 0.0);
  for (int64_t h = 0; h < s.num_v_heads; ++h) {
    for (int64_t k = 0; k < s.head_k_dim; ++k) {
      for (int64_t v = 0; v < s.head_v_dim; ++v) {
        result[StateIndex(to, s, h, k, v)] = state[StateIndex(from, s, h, k, v)];
      }
    }
  }
  return result;
}

}  // namespace rt::oracle
