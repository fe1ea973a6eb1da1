// C++20 wrappers for plugin authors: write classes, get C tables whose trampolines stop exceptions. Header-only, not ABI.
#pragma once

#include <rt/plugin/backend.h>
#include <rt/plugin/device.h>
#include <rt/plugin/model.h>
#include <rt/plugin/ops.h>
#include <rt/plugin/status.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rt::plugin {

inline rt_str Str(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view View(rt_str text) { return {text.data, static_cast<size_t>(text.size)}; }

// Cuts at the buffer's end, on a UTF-8 boundary.
inline void CopyText(char* buffer, size_t capacity, std::string_view text) {
  size_t n = std::min(text.size(), capacity - 1);
  while (n > 0 && n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  std::memcpy(buffer, text.data(), n);
  buffer[n] = 0;
}

inline int32_t FillError(rt_error* error, const Status& status) noexcept {
  const int32_t code = static_cast<int32_t>(status.code());
  if (error != nullptr && !status.ok() && error->struct_size >= sizeof(rt_error)) {
    error->code = code;
    CopyText(error->message, sizeof error->message, status.message());
  }
  return code;
}

// Runs `body` (returns Status); nothing escapes.
template <typename F>
int32_t Guard(rt_error* error, F&& body) noexcept {
  try {
    return FillError(error, body());
  } catch (const std::bad_alloc&) {
    return FillError(error, Status(Code::kResourceExhausted, "out of host memory"));
  } catch (const std::exception& e) {
    return FillError(error, Status(Code::kInternal, std::string("exception in plugin: ") + e.what()));
  } catch (...) {
    return FillError(error, Status(Code::kInternal, "unknown exception in plugin"));
  }
}

// Size rule for input structs: at least what we know, at most 64 KiB, and a tail that we do not know must be zero, because a newer
// caller that set a field there means something by it.
template <typename T>
Status CheckStruct(const T* s, const char* name) {
  constexpr uint32_t kMaxBytes = 64 << 10;
  if (s == nullptr) return {Code::kInvalidArgument, std::string(name) + ": expected a pointer, got NULL"};
  if (s->struct_size < sizeof(T)) {
    return {Code::kBadStruct, std::string(name) + ": struct_size " + std::to_string(s->struct_size) + ", expected at least " + std::to_string(sizeof(T))};
  }
  if (s->struct_size > kMaxBytes) {
    return {Code::kBadStruct, std::string(name) + ": struct_size " + std::to_string(s->struct_size) + ", expected at most " + std::to_string(kMaxBytes)};
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(s);
  for (uint32_t i = sizeof(T); i < s->struct_size; ++i) {
    if (bytes[i] != 0) return {Code::kUnsupportedStruct, std::string(name) + ": byte " + std::to_string(i) + " is set; this side knows " + std::to_string(sizeof(T)) + " bytes"};
  }
  return Status::Ok();
}

// ---- capability rows ---------------------------------------------------------------------------------------------------------

struct Constraint {
  uint32_t column, kind;
  int64_t lo = 0, hi = 0;
  std::vector<int64_t> values;
};
inline Constraint Any(uint32_t column) { return {column, RT_CONSTRAINT_ANY, 0, 0, {}}; }
inline Constraint OneOf(uint32_t column, std::vector<int64_t> values) { return {column, RT_CONSTRAINT_SET, 0, 0, std::move(values)}; }
inline Constraint Range(uint32_t column, int64_t lo, int64_t hi) { return {column, RT_CONSTRAINT_RANGE, lo, hi, {}}; }
inline Constraint MultipleOf(uint32_t column, int64_t unit, int64_t max = 0) { return {column, RT_CONSTRAINT_MULTIPLE, unit, max, {}}; }

struct RowSpec {
  std::string op;
  uint32_t phases = RT_PHASE_ALL;
  std::string kernel;
  int32_t score = 200;
  uint32_t guarantees = RT_ROW_RUN_DETERMINISTIC;
  uint32_t capture = 0;
  std::vector<Constraint> constraints;
  uint32_t unavailable = RT_UNAVAILABLE_NONE;
  std::string unavailable_reason;
  uint32_t op_version = 1;
};

// Owns rows and everything they point to; addresses are stable after Freeze().
class RowTable {
 public:
  uint32_t Add(RowSpec spec) {
    specs_.push_back(std::move(spec));
    return static_cast<uint32_t>(specs_.size() - 1);
  }
  void Freeze() {
    rows_.clear();
    for (RowSpec& spec : specs_) {
      auto& list = constraints_.emplace_back();
      for (Constraint& c : spec.constraints) {
        list.push_back({c.column, c.kind, c.lo, c.hi, c.values.data(), static_cast<uint32_t>(c.values.size()), 0});
      }
      rows_.push_back({sizeof(rt_row), spec.phases, Str(spec.op), spec.op_version, spec.score, Str(spec.kernel), list.data(),
                       static_cast<uint32_t>(list.size()), sizeof(rt_constraint), spec.guarantees, spec.capture, spec.unavailable, 0,
                       Str(spec.unavailable_reason)});
    }
  }
  const std::vector<rt_row>& rows() const { return rows_; }
  const RowSpec& spec(uint32_t row_idx) const { return specs_[row_idx]; }

 private:
  std::deque<RowSpec> specs_;
  std::deque<std::vector<rt_constraint>> constraints_;
  std::vector<rt_row> rows_;
};

// Read access to a problem.
class ProblemView {
 public:
  explicit ProblemView(const rt_problem& problem) : problem_(&problem) {}
  std::string_view op() const { return View(problem_->op); }
  uint32_t phase() const { return problem_->phase; }
  std::optional<int64_t> Find(uint32_t column) const {
    for (uint32_t i = 0; i < problem_->num_columns; ++i) {
      if (problem_->columns[i].column == column) return problem_->columns[i].value;
    }
    return std::nullopt;
  }
  int64_t Get(uint32_t column, int64_t otherwise = 0) const { return Find(column).value_or(otherwise); }
  // The op's attribute struct, or null when it is missing or too small.
  template <typename T>
  const T* attrs() const {
    const T* attrs = static_cast<const T*>(problem_->attrs);
    return attrs != nullptr && attrs->struct_size >= sizeof(T) ? attrs : nullptr;
  }

 private:
  const rt_problem* problem_;
};

inline void Refuse(rt_verdict* verdict, uint32_t column, std::string_view text) {
  verdict->ok = 0;
  verdict->column = column;
  CopyText(verdict->text, sizeof verdict->text, text);
}

// ---- op providers ------------------------------------------------------------------------------------------------------------

class Plan {
 public:
  virtual ~Plan() = default;
  virtual uint64_t workspace_bytes() const { return 0; }
  virtual uint64_t num_builds() const { return 0; }
  virtual Result<uint64_t> PrepackSize(uint32_t) { return uint64_t{0}; }
  virtual Status Prepack(uint32_t, const rt_tensor&, void*) { return {Code::kUnsupported, "this plan packs no weights"}; }
  virtual Status Warmup() { return Status::Ok(); }
  virtual Status Execute(const rt_exec_args& args) = 0;
};

class OpProvider {
 public:
  virtual ~OpProvider() = default;
  virtual const RowTable& rows() const = 0;
  // Called only when the row's constraints hold; `verdict` starts as yes.
  virtual void Supports(uint32_t /*row_idx*/, const ProblemView& /*problem*/, rt_verdict* /*verdict*/) const {}
  virtual Result<std::unique_ptr<Plan>> CreatePlan(const rt_plan_desc& desc) = 0;
};

// Tables for a provider found by Get(ctx).
template <OpProvider& (*Get)(rt_plugin_ctx*)>
struct OpApi {
  static int32_t Rows(rt_plugin_ctx* ctx, const rt_row** rows, uint32_t* count, uint32_t* stride) {
    return Guard(nullptr, [&] {
      const auto& table = Get(ctx).rows().rows();
      *rows = table.data();
      *count = static_cast<uint32_t>(table.size());
      *stride = sizeof(rt_row);
      return Status::Ok();
    });
  }
  static int32_t Supports(rt_plugin_ctx* ctx, uint32_t row_idx, const rt_problem* problem, rt_verdict* verdict) {
    return Guard(nullptr, [&]() -> Status {
      RT_RETURN_IF_ERROR(CheckStruct(problem, "rt_problem"));
      RT_RETURN_IF_ERROR(CheckStruct(verdict, "rt_verdict"));
      OpProvider& provider = Get(ctx);
      if (row_idx >= provider.rows().rows().size()) return {Code::kInvalidArgument, "row_idx out of range"};
      verdict->ok = 1;
      provider.Supports(row_idx, ProblemView(*problem), verdict);
      return Status::Ok();
    });
  }
  static int32_t PlanCreate(rt_plugin_ctx* ctx, const rt_plan_desc* desc, rt_plan** plan, rt_error* error) {
    return Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(CheckStruct(desc, "rt_plan_desc"));
      RT_RETURN_IF_ERROR(CheckStruct(desc->problem, "rt_problem"));
      OpProvider& provider = Get(ctx);
      if (desc->row_idx >= provider.rows().rows().size()) {
        return {Code::kInvalidArgument, "row_idx: expected < " + std::to_string(provider.rows().rows().size()) + ", got " + std::to_string(desc->row_idx)};
      }
      RT_ASSIGN_OR_RETURN(std::unique_ptr<Plan> made, provider.CreatePlan(*desc));
      *plan = reinterpret_cast<rt_plan*>(made.release());
      return Status::Ok();
    });
  }
  static void PlanDestroy(rt_plugin_ctx*, rt_plan* plan) {
    Guard(nullptr, [&] {
      delete reinterpret_cast<Plan*>(plan);
      return Status::Ok();
    });
  }
  static int32_t PlanInfo(rt_plugin_ctx*, rt_plan* plan, rt_plan_info* info) {
    return Guard(nullptr, [&] {
      info->workspace_bytes = reinterpret_cast<Plan*>(plan)->workspace_bytes();
      info->num_builds = reinterpret_cast<Plan*>(plan)->num_builds();
      return Status::Ok();
    });
  }
  static int32_t PrepackSize(rt_plugin_ctx*, rt_plan* plan, uint32_t weight_idx, uint64_t* bytes, rt_error* error) {
    return Guard(error, [&]() -> Status {
      RT_ASSIGN_OR_RETURN(*bytes, reinterpret_cast<Plan*>(plan)->PrepackSize(weight_idx));
      return Status::Ok();
    });
  }
  static int32_t Prepack(rt_plugin_ctx*, rt_plan* plan, uint32_t weight_idx, const rt_tensor* weight, void* packed, rt_error* error) {
    return Guard(error, [&] { return reinterpret_cast<Plan*>(plan)->Prepack(weight_idx, *weight, packed); });
  }
  static int32_t Warmup(rt_plugin_ctx*, rt_plan* plan, rt_error* error) {
    return Guard(error, [&] { return reinterpret_cast<Plan*>(plan)->Warmup(); });
  }
  static int32_t Execute(rt_plugin_ctx*, rt_plan* plan, const rt_exec_args* args, rt_error* error) {
    return Guard(error, [&] { return reinterpret_cast<Plan*>(plan)->Execute(*args); });
  }
  static constexpr rt_op_api table = {sizeof(rt_op_api), 0, Rows, Supports, PlanCreate, PlanDestroy, PlanInfo, PrepackSize, Prepack, Warmup, Execute};
};

// ---- attention and linear-attention backends ---------------------------------------------------------------------------------

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Status BeginStep(const rt_step_meta& meta, const rt_stream* stream) = 0;
};

class BackendProvider : public OpProvider {
 public:
  virtual Result<std::unique_ptr<Backend>> CreateBackend(const rt_backend_desc& desc) = 0;
  virtual Status ExportState(const rt_cache_view&, const rt_problem&, int32_t, float*) { return {Code::kUnsupported, "this backend keeps no recurrent state"}; }
  virtual Status ImportState(const rt_cache_view&, const rt_problem&, int32_t, const float*) { return {Code::kUnsupported, "this backend keeps no recurrent state"}; }
};

template <BackendProvider& (*Get)(rt_plugin_ctx*)>
struct BackendApi {
  static OpProvider& GetOps(rt_plugin_ctx* ctx) { return Get(ctx); }
  static int32_t Create(rt_plugin_ctx* ctx, const rt_backend_desc* desc, rt_backend** backend, rt_error* error) {
    return Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(CheckStruct(desc, "rt_backend_desc"));
      RT_ASSIGN_OR_RETURN(std::unique_ptr<Backend> made, Get(ctx).CreateBackend(*desc));
      *backend = reinterpret_cast<rt_backend*>(made.release());
      return Status::Ok();
    });
  }
  static void Destroy(rt_plugin_ctx*, rt_backend* backend) {
    Guard(nullptr, [&] {
      delete reinterpret_cast<Backend*>(backend);
      return Status::Ok();
    });
  }
  static int32_t BeginStep(rt_plugin_ctx*, rt_backend* backend, const rt_step_meta* meta, const rt_stream* stream, rt_error* error) {
    return Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(CheckStruct(meta, "rt_step_meta"));
      return reinterpret_cast<Backend*>(backend)->BeginStep(*meta, stream);
    });
  }
  static int32_t Export(rt_plugin_ctx* ctx, const rt_cache_view* view, const rt_problem* problem, int32_t slot, float* out, rt_error* error) {
    return Guard(error, [&] { return Get(ctx).ExportState(*view, *problem, slot, out); });
  }
  static int32_t Import(rt_plugin_ctx* ctx, const rt_cache_view* view, const rt_problem* problem, int32_t slot, const float* in, rt_error* error) {
    return Guard(error, [&] { return Get(ctx).ImportState(*view, *problem, slot, in); });
  }
  static constexpr rt_backend_api table = {sizeof(rt_backend_api), 0,       &OpApi<GetOps>::table, Create,  Destroy, BeginStep,
                                           nullptr,                nullptr, nullptr,               nullptr, Export,  Import};
};

// ---- plugin entry ------------------------------------------------------------------------------------------------------------

// RT_PLUGIN(KINDS, "name", "vendor", "1.2.3", "targets", components, init, shutdown): manifest and entry point of a plugin.
// `components` is an array of rt_component with static storage.
#define RT_PLUGIN(KINDS, NAME, VENDOR, VERSION, TARGETS, COMPONENTS, INIT, SHUTDOWN)                                            \
  extern "C" {                                                                                                                  \
  RT_PLUGIN_MANIFEST(KINDS, NAME, VENDOR, VERSION, TARGETS);                                                                    \
  RT_EXPORT const rt_plugin_desc* rt_plugin_query_v1(void) {                                                                    \
    static const rt_plugin_desc desc = {sizeof(rt_plugin_desc),                                                                 \
                                        RT_ABI_MAJOR,                                                                           \
                                        RT_ABI_MINOR,                                                                           \
                                        0,                                                                                      \
                                        RT_ABI_DRAFT,                                                                           \
                                        sizeof(COMPONENTS) / sizeof((COMPONENTS)[0]),                                           \
                                        sizeof((COMPONENTS)[0]),                                                                \
                                        0,                                                                                      \
                                        {NAME, sizeof(NAME) - 1},                                                               \
                                        {VENDOR, sizeof(VENDOR) - 1},                                                           \
                                        {VERSION, sizeof(VERSION) - 1},                                                         \
                                        COMPONENTS,                                                                             \
                                        INIT,                                                                                   \
                                        SHUTDOWN,                                                                               \
                                        nullptr};                                                                               \
    return &desc;                                                                                                               \
  }                                                                                                                             \
  }

}  // namespace rt::plugin
