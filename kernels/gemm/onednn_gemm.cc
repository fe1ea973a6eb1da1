#include "kernels/gemm/onednn_gemm.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <utility>

namespace rt::kernels {
namespace {

std::atomic<int64_t> g_primitives{0};

constexpr int64_t kAlign = 64;
int64_t AlignUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Slices of N in whole vectors, one a thread; the last threads may have none.
constexpr int64_t kSliceUnit = 16;
Range SliceOf(int64_t n, int thread, int num_threads) {
  const Range units = StaticRange((n + kSliceUnit - 1) / kSliceUnit, thread, num_threads);
  return {std::min(units.begin * kSliceUnit, n), std::min(units.end * kSliceUnit, n)};
}

// The limit can be set once a process and before its first primitive.
bool LimitIsa(Isa isa, std::string* error) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const dnnl::cpu_isa wanted =
      isa == Isa::kAvx512Bf16 ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx2;
  dnnl::set_max_cpu_isa(wanted);  // refused after the first primitive; what counts is what holds now
  if (dnnl::get_effective_cpu_isa() == wanted) return true;
  *error = "onednn: instruction set of this process is " +
           std::to_string(static_cast<int>(dnnl::get_effective_cpu_isa())) + ", expected " +
           std::to_string(static_cast<int>(wanted)) +
           " (dnnl_cpu_isa_t); it can be chosen once, before the first primitive";
  return false;
}

}  // namespace

struct OneDnnGemm::Impl {
  struct Shape {
    dnnl::matmul primitive;
    dnnl::memory::desc x, w, y, scratchpad;
  };

  Options options;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<std::pair<int64_t, int64_t>, Shape> shapes;  // (rows, columns)
  int64_t scratchpad_bytes = 0;

  int64_t elem_bytes() const { return SizeOf(options.dtype); }
  int64_t max_rows() const { return options.m_buckets.back(); }
  int64_t max_columns() const {
    const Range slice = SliceOf(options.n, 0, options.num_threads);
    return slice.end - slice.begin;
  }
  int64_t x_bytes() const { return AlignUp(max_rows() * options.k * elem_bytes()); }
  int64_t thread_bytes() const {
    return AlignUp(scratchpad_bytes) +
           AlignUp(max_rows() * max_columns() * static_cast<int64_t>(sizeof(float)));
  }

  void AddShape(int64_t rows, int64_t columns) {
    if (columns == 0 || shapes.count({rows, columns}) != 0) return;
    using dnnl::memory;
    const auto dtype = options.dtype == DType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
    Shape shape;
    shape.x = memory::desc({rows, options.k}, dtype, memory::format_tag::ab);
    shape.w = memory::desc({options.k, columns}, dtype, memory::format_tag::ba);  // [columns, k] row-major
    shape.y = memory::desc({rows, columns}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(shape.x, shape.w, shape.y), attr, engine);
    shape.scratchpad = desc.scratchpad_desc();
    shape.primitive = dnnl::matmul(desc);
    scratchpad_bytes = std::max(scratchpad_bytes, static_cast<int64_t>(shape.scratchpad.get_size()));
    g_primitives.fetch_add(1, std::memory_order_relaxed);
    shapes.emplace(std::make_pair(rows, columns), std::move(shape));
  }

  // The smallest bucket that holds `rows`, else the largest.
  int64_t BucketFor(int64_t rows) const {
    const auto it = std::lower_bound(options.m_buckets.begin(), options.m_buckets.end(), rows);
    return it == options.m_buckets.end() ? max_rows() : *it;
  }

  // Rows [m, m + rows) of x, dense and padded with zeros to `bucket` rows.
  void CopyX(const GemmArgs& args, int64_t m, int64_t rows, int64_t bucket, char* out,
             const Parallel& parallel) const {
    const int64_t row_bytes = options.k * elem_bytes();
    ParallelForCost(parallel, bucket, options.k, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        if (r >= rows) {
          std::memset(out + r * row_bytes, 0, static_cast<size_t>(row_bytes));
        } else {
          const char* x = static_cast<const char*>(args.x) + (m + r) * args.x_stride * elem_bytes();
          std::memcpy(out + r * row_bytes, x, static_cast<size_t>(row_bytes));
        }
      }
    });
  }

  dnnl_status_t Multiply(const Shape& shape, const char* x, const char* w, float* y, char* scratchpad) const {
    omp_set_num_threads(1);  // holds for the calling thread; costs a store
    const dnnl::stream stream(engine);
    const auto memory_of = [this](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, engine, const_cast<void*>(data));
    };
    const dnnl::memory xm = memory_of(shape.x, x), wm = memory_of(shape.w, w), ym = memory_of(shape.y, y),
                       sm = memory_of(shape.scratchpad, scratchpad);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, xm.get()},
                                    {DNNL_ARG_WEIGHTS, wm.get()},
                                    {DNNL_ARG_DST, ym.get()},
                                    {DNNL_ARG_SCRATCHPAD, sm.get()}};
    const dnnl_status_t status = dnnl_primitive_execute(shape.primitive.get(), stream.get(), 4, args);
    return status == dnnl_success ? dnnl_stream_wait(stream.get()) : status;
  }

  void StoreSlice(const GemmArgs& args, DType y_dtype, int64_t m, int64_t rows, Range slice,
                  const float* sums) const {
    const int64_t columns = slice.end - slice.begin;
    for (int64_t r = 0; r < rows; ++r, sums += columns) {
      const int64_t offset = (m + r) * args.y_stride + slice.begin;
      if (y_dtype == DType::kBf16) {
        bf16* y = static_cast<bf16*>(args.y) + offset;
        for (int64_t c = 0; c < columns; ++c) y[c] = FromFloat<bf16>(sums[c]);
        continue;
      }
      float* y = static_cast<float*>(args.y) + offset;
      if (args.accumulate) {
        for (int64_t c = 0; c < columns; ++c) y[c] += sums[c];
      } else {
        std::memcpy(y, sums, static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }

  dnnl_status_t RunBucket(const GemmArgs& args, DType y, int64_t m, int64_t rows,
                          const Parallel& parallel) const {
    const int64_t bucket = BucketFor(rows);
    char* x = static_cast<char*>(args.workspace);
    CopyX(args, m, rows, bucket, x, parallel);
    std::atomic<int> failure{dnnl_success};
    ParallelRun(parallel, [&](int thread, int num_threads) {
      const Range slice = SliceOf(options.n, thread, num_threads);
      if (slice.begin == slice.end) return;
      char* scratchpad = x + x_bytes() + thread * thread_bytes();
      float* sums = reinterpret_cast<float*>(scratchpad + AlignUp(scratchpad_bytes));
      const char* w = static_cast<const char*>(args.w) + slice.begin * options.k * elem_bytes();
      const dnnl_status_t status =
          Multiply(shapes.at({bucket, slice.end - slice.begin}), x, w, sums, scratchpad);
      if (status != dnnl_success) failure = status;
      StoreSlice(args, y, m, rows, slice, sums);
    });
    return static_cast<dnnl_status_t>(failure.load());
  }
};

OneDnnGemm::OneDnnGemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnGemm::~OneDnnGemm() = default;

std::unique_ptr<OneDnnGemm> OneDnnGemm::Create(const Options& options, std::string* error) {
  if (options.n <= 0 || options.k <= 0 || options.num_threads <= 0 || options.m_buckets.empty() ||
      options.m_buckets.front() <= 0 || !std::is_sorted(options.m_buckets.begin(), options.m_buckets.end())) {
    *error = "onednn: expected positive n, k, thread count and ascending row buckets";
    return nullptr;
  }
  if (!LimitIsa(options.isa, error)) return nullptr;
  try {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    for (int64_t rows : options.m_buckets) {
      for (int thread = 0; thread < options.num_threads; ++thread) {
        const Range slice = SliceOf(options.n, thread, options.num_threads);
        impl->AddShape(rows, slice.end - slice.begin);
      }
    }
    return std::unique_ptr<OneDnnGemm>(new OneDnnGemm(std::move(impl)));
  } catch (const std::exception& e) {
    *error =
        "onednn: matmul n=" + std::to_string(options.n) + " k=" + std::to_string(options.k) + ": " + e.what();
    return nullptr;
  }
}

size_t OneDnnGemm::workspace_bytes() const {
  return static_cast<size_t>(impl_->x_bytes() + impl_->options.num_threads * impl_->thread_bytes());
}

int64_t OneDnnGemm::num_primitives_created() { return g_primitives.load(std::memory_order_relaxed); }

int OneDnnGemm::Run(const GemmArgs& args, DType y, const Parallel& parallel) const {
  try {
    for (int64_t m = 0; m < args.m;) {
      const int64_t rows = std::min(args.m - m, impl_->max_rows());
      const dnnl_status_t status = impl_->RunBucket(args, y, m, rows, parallel);
      if (status != dnnl_success) return status;
      m += rows;
    }
  } catch (const std::exception&) {
    return dnnl_runtime_error;
  }
  return 0;
}

}  // namespace rt::kernels
