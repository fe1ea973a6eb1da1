// Orders in which a recurrent state is stored, and conversion between them.
#pragma once

#include "plugin_sdk/oracle/math.h"

namespace rt::oracle {

// The order is part of the type: the same bytes mean another state in another order.
enum class StateLayout {
  kKV,        // [Hv, Dk, Dv]: the canonical form of export and import
  kVK,        // [Hv, Dv, Dk]
  kVPanel16,  // [Hv, ceil(Dv/16), Dk, 16]; the lanes past Dv in the last panel are zero
};

struct StateShape {
  int64_t num_v_heads;
  int64_t head_k_dim;
  int64_t head_v_dim;
};

// Elements of one state, padding lanes included.
int64_t StateElements(StateLayout layout, const StateShape& shape);

// Element of (head, key channel, value channel).
int64_t StateIndex(StateLayout layout, const StateShape& shape, int64_t head, int64_t key, int64_t value);

// `state` in layout `from` -> the same state in layout `to`; padding lanes of the result are zero whatever
// they were.
Values ConvertState(const StateShape& shape, StateLayout from, StateLayout to, View state);

}  // namespace rt::oracle
