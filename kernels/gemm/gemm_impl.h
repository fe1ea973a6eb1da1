// The GEMM kernel, compiled once per instruction-set level (gemm_avx2.cc, gemm_avx512bf16.cc). Design:
// gemm.h.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_blocking.h"
#include "kernels/gemm/gemm_isa.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

// Where sums go.
enum class Sink { kF32, kF32Add, kBf16 };

struct Output {
  void* y;
  int64_t stride;
  Sink sink;
};

// Hands the first n < kLanes of a row of sums to y at (m, n_begin).
RT_SIMD void StoreRow(const Output& out, int64_t m, int64_t n_begin, const float* sums, int n) {
  const int64_t offset = m * out.stride + n_begin;
  const F32x16 row = LoadN(sums, n);
  if (out.sink == Sink::kBf16) {
    StoreN(row, static_cast<bf16*>(out.y) + offset, n);
    return;
  }
  float* y = static_cast<float*>(out.y) + offset;
  StoreN(out.sink == Sink::kF32Add ? LoadN(y, n) + row : row, y, n);
}

// Lane sums of a tile's accumulators, to the first `num_cols` columns at (m, n).
template <int MR, int NR>
RT_SIMD void ReduceAndStore(const Output& out, int64_t m, int64_t n, int num_cols, const Acc (&acc)[MR][NR]) {
  for (int i = 0; i < MR; ++i) {
    static_assert(NR < kLanes);
    alignas(16) float sums[kLanes] = {};
    auto at = [&](int j) { return j < NR ? acc[i][j] : ZeroAcc(); };
    for (int j = 0; j < NR; j += 4) _mm_store_ps(sums + j, Reduce4(at(j), at(j + 1), at(j + 2), at(j + 3)));
    StoreRow(out, m + i, n, sums, num_cols);
  }
}

// ---- Few rows: operands straight from where they lie.

template <class Op>
struct StreamArgs {
  const typename Op::Elem* x;
  int64_t x_stride;
  const typename Op::Elem* w;  // the tile's first row
  int64_t k;                   // also the stride of w
  int64_t m;                   // index of the tile's first row of x
  int64_t n;                   // index of the tile's first row of W
};

// Multiplies one step of every pair of rows.
template <class Op, int MR, int NR, int phase, bool kTail>
RT_SIMD void StreamStep(const StreamArgs<Op>& t, int64_t k, Acc (&acc)[MR][NR]) {
  auto load = [&](const typename Op::Elem* p) {
    if constexpr (kTail) {
      return Op::template LoadTail<phase>(p, t.k - k);
    } else {
      return Op::template Load<phase>(p);
    }
  };
  typename Op::Vec xv[MR];
  for (int i = 0; i < MR; ++i) xv[i] = load(t.x + i * t.x_stride + k);
  for (int j = 0; j < NR; ++j) {
    const typename Op::Vec wv = load(t.w + j * t.k + k);
    for (int i = 0; i < MR; ++i) acc[i][j] = Op::Dot(acc[i][j], xv[i], wv);
  }
}

template <class Op, int MR, int NR>
void StreamTile(const StreamArgs<Op>& t, const Output& out) {
  Acc acc[MR][NR];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) acc[i][j] = ZeroAcc();
  }
  constexpr int64_t kAhead = kStreamAheadBytes / static_cast<int64_t>(sizeof(typename Op::Elem));
  int64_t k = 0;
  for (; k + Op::kStep <= t.k; k += Op::kStep) {
    // Past the end of a row, the row that takes its place in the next tile.
    const int64_t ahead = k + kAhead < t.k ? k + kAhead : k + kAhead + (NR - 1) * t.k;
    for (int j = 0; j < NR; ++j)
      _mm_prefetch(reinterpret_cast<const char*>(t.w + j * t.k + ahead), _MM_HINT_T0);
    StreamStep<Op, MR, NR, 0, false>(t, k, acc);
    if constexpr (Op::kPhases == 2) StreamStep<Op, MR, NR, 1, false>(t, k, acc);
  }
  if (k < t.k) {
    StreamStep<Op, MR, NR, 0, true>(t, k, acc);
    if constexpr (Op::kPhases == 2) StreamStep<Op, MR, NR, 1, true>(t, k, acc);
  }
  ReduceAndStore(out, t.m, t.n, NR, acc);
}

// NR rows of W against all rows of x. Strips of x of nearly equal height: five rows are 3 + 2, not 4 + 1. The
// first strip brings the rows of W into the cache.
template <class Op, int NR, int kMaxMr>
void StreamStrips(StreamArgs<Op> t, int64_t num_rows, const Output& out) {
  const int64_t num_strips = CeilDiv(num_rows, kMaxMr);
  const typename Op::Elem* x = t.x;
  for (int64_t s = 0; s < num_strips; ++s) {
    const Range strip = StaticRange(num_rows, static_cast<int>(s), static_cast<int>(num_strips));
    t.x = x + strip.begin * t.x_stride;
    t.m = strip.begin;
    switch (strip.end - strip.begin) {
      case 1:
        StreamTile<Op, 1, NR>(t, out);
        break;
      case 2:
        if constexpr (kMaxMr >= 2) StreamTile<Op, 2, NR>(t, out);
        break;
      case 3:
        if constexpr (kMaxMr >= 3) StreamTile<Op, 3, NR>(t, out);
        break;
      default:
        if constexpr (kMaxMr == 4) StreamTile<Op, 4, NR>(t, out);
    }
  }
}

// All rows of x against rows of W up to n_end: tiles of NR, then pairs, then one.
template <class Op, int NR, int kMaxMr>
void StreamColumns(StreamArgs<Op> t, int64_t num_rows, int64_t n_end, const Output& out) {
  auto advance = [&t](int rows) {
    t.w += rows * t.k;
    t.n += rows;
  };
  for (; t.n + NR <= n_end; advance(NR)) StreamStrips<Op, NR, kMaxMr>(t, num_rows, out);
  for (; t.n + 2 <= n_end; advance(2)) StreamStrips<Op, 2, 4>(t, num_rows, out);
  if (t.n < n_end) StreamStrips<Op, 1, 4>(t, num_rows, out);
}

template <class Op>
void StreamRows(const GemmArgs& args, const Output& out, int64_t n_begin, int64_t n_end) {
  using Elem = typename Op::Elem;
  const auto* w = static_cast<const Elem*>(args.w) + n_begin * args.k;
  const StreamArgs<Op> t{static_cast<const Elem*>(args.x), args.x_stride, w, args.k, 0, n_begin};
  if (args.m == 1) return StreamColumns<Op, kStreamTileOneRow, 1>(t, args.m, n_end, out);
  if (args.m <= 3) return StreamColumns<Op, kStreamTileThreeRows, 3>(t, args.m, n_end, out);
  StreamColumns<Op, kTileRowsOfW, 4>(t, args.m, n_end, out);
}

// ---- Many rows: operands copied to panels, in the order in which a tile loads them.
//
// A panel holds up to `height` rows of one part of K: [step][height][elements of a step]. A tile then needs
// one pointer an operand and no row strides (address arithmetic is what limits it where a core's two threads
// share the front end), rows whose stride is a power of two do not collide in the cache, and tails are filled
// up with zeros as LoadTail does.

// Elements as they are.
template <class OpType>
struct Copied {
  using Op = OpType;
  using Source = OpType;
  static void Row(const typename Op::Elem* row, int64_t k, int64_t height, typename Op::Elem* dst) {
    int64_t i = 0;
    for (; i + Op::kStep <= k; i += Op::kStep, dst += height * Op::kStep)
      Op::Put(Op::template Load<0>(row + i), dst);
    if (i < k) Op::Put(Op::template LoadTail<0>(row + i, k - i), dst);
  }
};

// Widened to fp32: the two phases of a step of the streaming tile become two steps, so both tiles have one
// order of operations.
template <class SourceOp>
struct Widened {
  using Op = F32Op;
  using Source = SourceOp;
  static void Row(const typename Source::Elem* row, int64_t k, int64_t height, float* dst) {
    const int64_t step = height * Op::kStep;
    int64_t i = 0;
    for (; i + Source::kStep <= k; i += Source::kStep, dst += 2 * step) {
      Op::Put(Source::template Load<0>(row + i), dst);
      Op::Put(Source::template Load<1>(row + i), dst + step);
    }
    if (i < k) {
      Op::Put(Source::template LoadTail<0>(row + i, k - i), dst);
      Op::Put(Source::template LoadTail<1>(row + i, k - i), dst + step);
    }
  }
};

template <class Op>
struct PanelArgs {
  const typename Op::Elem* x;  // panel of MR rows
  const typename Op::Elem* w;  // panel of kTileRowsOfW rows, zeros past num_cols
  int64_t num_steps;
  int64_t m;
  int64_t n;
  int num_cols;
  bool first;         // the part begins at k = 0: accumulators start from zero, else from `partial`
  bool last;          // the part ends at K: sums go to y, else accumulators go to `partial`
  float* partial;     // [MR][kTileRowsOfW][kAccLanes], 64-byte aligned
  const char* ahead;  // wanted from memory next: fetched while this tile computes, kAheadBytes a step
};

constexpr int64_t kAheadBytes = 128;

// Splitting K into parts keeps the order of additions of one pass.
template <class Op, int MR>
void PanelTile(const PanelArgs<Op>& t, const Output& out) {
  constexpr int kNr = kTileRowsOfW;
  Acc acc[MR][kNr];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < kNr; ++j)
      acc[i][j] = t.first ? ZeroAcc() : LoadAcc(t.partial + (i * kNr + j) * kAccLanes);
  }
  const typename Op::Elem* x = t.x;
  const typename Op::Elem* w = t.w;
  const char* ahead = t.ahead;
  for (int64_t step = 0; step < t.num_steps; ++step) {
    _mm_prefetch(ahead, _MM_HINT_T1);
    _mm_prefetch(ahead + 64, _MM_HINT_T1);
    typename Op::Vec xv[MR];
    for (int i = 0; i < MR; ++i) xv[i] = Op::template Load<0>(x + i * Op::kStep);
    for (int j = 0; j < kNr; ++j) {
      const typename Op::Vec wv = Op::template Load<0>(w + j * Op::kStep);
      for (int i = 0; i < MR; ++i) acc[i][j] = Op::Dot(acc[i][j], xv[i], wv);
    }
    x += MR * Op::kStep;
    w += kNr * Op::kStep;
    ahead += kAheadBytes;
  }
  if (t.last) return ReduceAndStore(out, t.m, t.n, t.num_cols, acc);
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < kNr; ++j) StoreAcc(t.partial + (i * kNr + j) * kAccLanes, acc[i][j]);
  }
}

template <class Op>
RT_SIMD void RunPanelTile(int64_t mr, const PanelArgs<Op>& t, const Output& out) {
  switch (mr) {
    case 1:
      return PanelTile<Op, 1>(t, out);
    case 2:
      return PanelTile<Op, 2>(t, out);
    case 3:
      return PanelTile<Op, 3>(t, out);
    default:
      return PanelTile<Op, 4>(t, out);
  }
}

// Rows [m0, m1) of x (at most a group) against rows [n, n_end) of W (at most a superblock).
template <class Panels>
struct Superblock {
  using Source = typename Panels::Source;
  using Elem = typename Source::Elem;
  using Op = typename Panels::Op;
  using PanelElem = typename Op::Elem;

  const GemmArgs& args;
  const Output& out;
  GemmThreadWorkspace& space;
  int64_t m0, m1;
  int64_t n, n_end;
  const char* ahead;  // the rows of W that follow
  const char* ahead_end;

  int64_t num_rows() const { return m1 - m0; }
  // Strips of nearly equal height: five rows are 3 + 2, not 4 + 1.
  int64_t num_strips() const { return CeilDiv(num_rows(), kTileRowsOfX); }
  Range Strip(int64_t s) const {
    return StaticRange(num_rows(), static_cast<int>(s), static_cast<int>(num_strips()));
  }
  PanelElem* XPanel(Range strip, int64_t len) const {
    return reinterpret_cast<PanelElem*>(space.x) + strip.begin * RoundUp(len, Source::kStep);
  }

  // `x_is_ready`: K is one part, and x was copied for the superblock before.
  void Run(int64_t part, bool x_is_ready) {
    for (int64_t k = 0; k < args.k; k += part) {
      const int64_t len = Min(part, args.k - k);
      if (!x_is_ready) CopyX(k, len);
      for (int64_t row = n; row < n_end; row += kTileRowsOfW) Column(row, k, len);
    }
  }

  void CopyX(int64_t k, int64_t len) const {
    const Elem* x = static_cast<const Elem*>(args.x) + m0 * args.x_stride + k;
    for (int64_t s = 0; s < num_strips(); ++s) {
      const Range strip = Strip(s);
      PanelElem* panel = XPanel(strip, len);
      for (int64_t r = strip.begin; r < strip.end; ++r) {
        Panels::Row(x + r * args.x_stride, len, strip.end - strip.begin,
                    panel + (r - strip.begin) * Op::kStep);
      }
    }
  }

  PanelElem* CopyW(int64_t row, int64_t num_cols, int64_t k, int64_t len) const {
    PanelElem* panel = reinterpret_cast<PanelElem*>(space.w);
    if (num_cols < kTileRowsOfW) std::memset(panel, 0, sizeof(space.w));
    const Elem* w = static_cast<const Elem*>(args.w) + row * args.k + k;
    for (int64_t r = 0; r < num_cols; ++r)
      Panels::Row(w + r * args.k, len, kTileRowsOfW, panel + r * Op::kStep);
    return panel;
  }

  // One tile's rows of W against all rows of x.
  void Column(int64_t row, int64_t k, int64_t len) {
    const int64_t num_cols = Min<int64_t>(kTileRowsOfW, n_end - row);
    PanelArgs<Op> t{.x = nullptr,
                    .w = CopyW(row, num_cols, k, len),
                    .num_steps = RoundUp(len, Source::kStep) / Op::kStep,
                    .m = m0,
                    .n = row,
                    .num_cols = static_cast<int>(num_cols),
                    .first = k == 0,
                    .last = k + len == args.k,
                    .partial = space.partial + (row - n) * num_rows() * kAccLanes,
                    .ahead = ahead};
    for (int64_t s = 0; s < num_strips(); ++s) {
      const Range strip = Strip(s);
      const int64_t mr = strip.end - strip.begin;
      t.x = XPanel(strip, len);
      RunPanelTile<Op>(mr, t, out);
      t.m += mr;
      t.partial += mr * kTileRowsOfW * kAccLanes;
      t.ahead = Min(t.ahead + t.num_steps * kAheadBytes, ahead_end);
    }
    ahead = t.ahead;
  }
};

template <class Panels>
void BlockedRows(const GemmArgs& args, const Output& out, int64_t n_begin, int64_t n_end,
                 GemmThreadWorkspace& space) {
  const auto* w = static_cast<const typename Panels::Source::Elem*>(args.w);
  const int64_t num_parts = CeilDiv(args.k, kPart);
  const int64_t part = RoundUp(CeilDiv(args.k, num_parts), Panels::Source::kStep);
  for (int64_t m = 0; m < args.m; m += kGroupRows) {
    for (int64_t n = n_begin; n < n_end; n += kSuperRows) {
      const int64_t end = Min(n + kSuperRows, n_end);
      Superblock<Panels> block{
          .args = args,
          .out = out,
          .space = space,
          .m0 = m,
          .m1 = Min(m + kGroupRows, args.m),
          .n = n,
          .n_end = end,
          .ahead = reinterpret_cast<const char*>(w + end * args.k),
          .ahead_end = reinterpret_cast<const char*>(w + Min(end + kSuperRows, n_end) * args.k)};
      block.Run(part, num_parts == 1 && n > n_begin);
    }
  }
}

// ---- Entry.

inline void WriteZeros(const GemmArgs& args, int64_t elem_bytes) {
  for (int64_t m = 0; m < args.m; ++m) {
    std::memset(static_cast<char*>(args.y) + m * args.y_stride * elem_bytes, 0,
                static_cast<size_t>(args.n * elem_bytes));
  }
}

template <class StreamOp, class Panels, class Y>
int Gemm(const GemmArgs& args, const Parallel& parallel) {
  if (args.k == 0 && !args.accumulate) WriteZeros(args, sizeof(Y));
  if (args.k == 0 || args.m == 0) return 0;
  const Sink sink = sizeof(Y) == 2 ? Sink::kBf16 : args.accumulate ? Sink::kF32Add : Sink::kF32;
  const Output out{args.y, args.y_stride, sink};
  // Threads share N in units that are a multiple of every tile, so that only the last unit has a remainder; short N in smaller units.
  const int64_t unit = args.n >= 2 * kSuperRows * parallel.num_threads ? kSuperRows : kTileRowsOfW;
  const int64_t num_units = CeilDiv(args.n, unit);
  const auto rows = [&](int64_t begin, int64_t end, int thread) {
    const int64_t n_begin = begin * unit, n_end = Min(end * unit, args.n);
    if (args.m <= kMaxStreamRows) return StreamRows<StreamOp>(args, out, n_begin, n_end);
    BlockedRows<Panels>(args, out, n_begin, n_end, static_cast<GemmThreadWorkspace*>(args.workspace)[thread]);
  };
  // Eight multiply-adds take as long as one element of plain work.
  const int64_t cost = unit * args.k * args.m / 8;
  // Many rows of x make a unit long work, and the machine may be shared with others: threads take units as they come. Few rows stream
  // the weights, where a static split keeps each thread's reads contiguous.
  if (args.m > kMaxStreamRows && num_units * cost >= kMinParallelCost) {
    ParallelForShared(parallel, num_units, rows);
  } else {
    ParallelForCost(parallel, num_units, cost, rows);
  }
  return 0;
}

constexpr GemmFn kGemmF32 = Gemm<F32Op, Copied<F32Op>, float>;
template <class Y>
constexpr GemmFn kGemmWide = Gemm<Bf16WideOp, Widened<Bf16WideOp>, Y>;

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
