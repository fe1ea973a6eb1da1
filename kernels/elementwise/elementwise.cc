#include "kernels/elementwise/elementwise.h"

#include <cstring>

namespace rt::kernels {

int GatherRows(const GatherRowsArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, args.row_bytes / 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      char* out = static_cast<char*>(args.out) + r * args.out_stride_bytes;
      const size_t bytes = static_cast<size_t>(args.row_bytes);
      if (args.rows[r] < 0) {
        std::memset(out, 0, bytes);
      } else {
        std::memcpy(out, static_cast<const char*>(args.in) + int64_t{args.rows[r]} * args.in_stride_bytes,
                    bytes);
      }
    }
  });
  return 0;
}

int SelectIds(const SelectIdsArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    args.out[t] = args.source[t] >= 0 ? args.device_ids[args.source[t]] : args.host_ids[t];
  }
  return 0;
}

}  // namespace rt::kernels
