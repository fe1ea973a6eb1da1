#include "plugin_sdk/loader/descriptor.h"

#include "plugin_sdk/loader/static_check.h"
#include "plugin_sdk/ops/op_table.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

namespace rt {
namespace {

constexpr uint32_t kMaxStructBytes = 64 * 1024;  // base.h
constexpr uint32_t kMaxComponents = 64;
constexpr uint32_t kMaxRows = 65536;
constexpr uint32_t kMaxConstraints = 256;
constexpr uint32_t kMaxDevices = 64;
constexpr uint64_t kMaxTextBytes = 4096;

std::string Number(uint64_t value) { return std::to_string(value); }

// struct_size of a struct that the plugin filled: not below the first version, not absurd, and no non-zero
// byte beyond what we know.
template <typename T>
Status CheckSize(const T& value, const char* name) {
  uint32_t size = 0;
  std::memcpy(&size, &value, sizeof size);
  if (size < sizeof(T))
    return {Code::kBadStruct, std::string(name) + " struct_size: expected at least " + Number(sizeof(T)) +
                                  ", found " + Number(size)};
  if (size > kMaxStructBytes) {
    return {Code::kBadStruct, std::string(name) + " struct_size: expected at most " +
                                  Number(kMaxStructBytes) + ", found " + Number(size)};
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  for (uint32_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return {Code::kUnsupportedStruct, std::string(name) + " has a non-zero byte at " + Number(i) +
                                            ", beyond the " + Number(sizeof(T)) +
                                            " bytes that this host knows"};
    }
  }
  return Status::Ok();
}

Status CheckText(rt_str text, const std::string& name) {
  if (text.size > 0 && text.data == nullptr)
    return {Code::kInvalidArgument, name + " has " + Number(text.size) + " bytes at NULL"};
  if (text.size > kMaxTextBytes)
    return {Code::kInvalidArgument,
            name + ": expected at most " + Number(kMaxTextBytes) + " bytes, found " + Number(text.size)};
  return Status::Ok();
}

std::string Text(rt_str text) {
  return text.data == nullptr ? std::string() : std::string(text.data, text.size);
}

Status CheckSame(rt_str found, const char* expected, const char* field) {
  RT_RETURN_IF_ERROR(CheckText(found, std::string("descriptor ") + field));
  if (Text(found) == expected) return Status::Ok();
  return {Code::kInvalidArgument, std::string("descriptor and manifest differ: ") + field + " is \"" +
                                      Text(found) + "\" and \"" + expected + "\""};
}

Status CheckSame(uint32_t found, uint32_t expected, const char* field) {
  if (found == expected) return Status::Ok();
  return {Code::kInvalidArgument, std::string("descriptor and manifest differ: ") + field + " is " +
                                      Number(found) + " and " + Number(expected)};
}

struct Member {
  const char* name;
  bool present;
};

Status CheckMembers(const std::string& table, std::initializer_list<Member> members) {
  for (const Member& member : members) {
    if (!member.present)
      return {Code::kInvalidArgument, table + "." + member.name + ": expected a function, found NULL"};
  }
  return Status::Ok();
}

#define RT_HAS(api, member) \
  Member { #member, (api).member != nullptr }

Status CheckDeviceTable(const rt_device_api& api) {
  RT_RETURN_IF_ERROR(CheckSize(api, "rt_device_api"));
  return CheckMembers("rt_device_api",
                      {RT_HAS(api, enumerate), RT_HAS(api, info), RT_HAS(api, alloc), RT_HAS(api, free),
                       RT_HAS(api, stream_create), RT_HAS(api, stream_destroy), RT_HAS(api, stream_sync),
                       RT_HAS(api, copy), RT_HAS(api, fill), RT_HAS(api, event_create),
                       RT_HAS(api, event_destroy), RT_HAS(api, event_record), RT_HAS(api, event_sync)});
}

Status CheckOpTable(const rt_op_api& api) {  // prepack and warmup are optional
  RT_RETURN_IF_ERROR(CheckSize(api, "rt_op_api"));
  return CheckMembers("rt_op_api", {RT_HAS(api, rows), RT_HAS(api, supports), RT_HAS(api, plan_create),
                                    RT_HAS(api, plan_destroy), RT_HAS(api, plan_info), RT_HAS(api, execute)});
}

Status CheckBackendTable(const rt_backend_api& api) {  // capture and state exchange are optional
  RT_RETURN_IF_ERROR(CheckSize(api, "rt_backend_api"));
  RT_RETURN_IF_ERROR(CheckMembers("rt_backend_api", {RT_HAS(api, ops), RT_HAS(api, create),
                                                     RT_HAS(api, destroy), RT_HAS(api, begin_step)}));
  return CheckOpTable(*api.ops);
}

Status CheckModelTable(const rt_model_api& api) {
  RT_RETURN_IF_ERROR(CheckSize(api, "rt_model_api"));
  return CheckMembers("rt_model_api", {RT_HAS(api, match), RT_HAS(api, build)});
}

#undef RT_HAS

Status CheckComponent(const rt_component& component) {
  RT_RETURN_IF_ERROR(CheckSize(component, "rt_component"));
  RT_RETURN_IF_ERROR(CheckText(component.name, "component name"));
  if (component.name.size == 0)
    return {Code::kInvalidArgument,
            "a component of kind " + KindNames(component.kind) + " has an empty name"};
  if (component.api == nullptr)
    return {Code::kInvalidArgument, "component \"" + Text(component.name) + "\" has no table"};
  switch (component.kind) {
    case RT_KIND_DEVICE:
      return CheckDeviceTable(*static_cast<const rt_device_api*>(component.api));
    case RT_KIND_OPS:
      return CheckOpTable(*static_cast<const rt_op_api*>(component.api));
    case RT_KIND_ATTENTION:
    case RT_KIND_LINEAR_ATTENTION:
      return CheckBackendTable(*static_cast<const rt_backend_api*>(component.api));
    case RT_KIND_MODEL:
      return CheckModelTable(*static_cast<const rt_model_api*>(component.api));
    default:
      return {Code::kUnsupported,
              "component \"" + Text(component.name) + "\" has the unknown kind " + Number(component.kind)};
  }
}

Status CheckComponents(const rt_plugin_desc& desc, const rt_manifest& manifest) {
  if (desc.num_components == 0 || desc.num_components > kMaxComponents) {
    return {Code::kInvalidArgument, "num_components: expected 1 to " + Number(kMaxComponents) + ", found " +
                                        Number(desc.num_components)};
  }
  if (desc.components == nullptr)
    return {Code::kInvalidArgument, "components: expected an array, found NULL"};
  if (desc.component_stride < sizeof(rt_component) || desc.component_stride > kMaxStructBytes) {
    return {Code::kBadStruct, "component_stride: expected " + Number(sizeof(rt_component)) + " to " +
                                  Number(kMaxStructBytes) + ", found " + Number(desc.component_stride)};
  }
  uint32_t kinds = 0;
  std::set<std::pair<uint32_t, std::string>> seen;
  for (const rt_component* component : Components(desc)) {
    RT_RETURN_IF_ERROR(CheckComponent(*component).Annotate("component \"" + Text(component->name) + "\""));
    if (!seen.emplace(component->kind, Text(component->name)).second) {
      return {Code::kInvalidArgument, "two components of kind " + KindNames(component->kind) +
                                          " are named \"" + Text(component->name) + "\""};
    }
    kinds |= component->kind;
  }
  if (kinds != manifest.kinds) {
    return {Code::kInvalidArgument, "descriptor and manifest differ: kinds are \"" + KindNames(kinds) +
                                        "\" and \"" + KindNames(manifest.kinds) + "\""};
  }
  return Status::Ok();
}

Status CheckRow(const rt_row& row) {
  RT_RETURN_IF_ERROR(CheckSize(row, "rt_row"));
  for (const auto& [text, name] : {std::pair(row.op, "op"), std::pair(row.kernel, "kernel"),
                                   std::pair(row.unavailable_reason, "unavailable_reason")}) {
    RT_RETURN_IF_ERROR(CheckText(text, name));
  }
  if (row.op.size == 0 || row.kernel.size == 0)
    return {Code::kInvalidArgument, "op and kernel: expected names, found an empty one"};
  if (row.phases == 0 || (row.phases & ~uint32_t{RT_PHASE_ALL}) != 0) {
    return {Code::kInvalidArgument,
            "phases: expected a set of decode, verify, prefill, found " + Number(row.phases)};
  }
  if (row.num_constraints > kMaxConstraints) {
    return {Code::kInvalidArgument, "num_constraints: expected at most " + Number(kMaxConstraints) +
                                        ", found " + Number(row.num_constraints)};
  }
  if (row.num_constraints > 0 && row.constraints == nullptr)
    return {Code::kInvalidArgument, "constraints: expected an array, found NULL"};
  if (row.num_constraints > 0 && row.constraint_stride < sizeof(rt_constraint)) {
    return {Code::kBadStruct, "constraint_stride: expected at least " + Number(sizeof(rt_constraint)) +
                                  ", found " + Number(row.constraint_stride)};
  }
  for (uint32_t i = 0; i < row.num_constraints; ++i) {
    const auto& c = *reinterpret_cast<const rt_constraint*>(reinterpret_cast<const char*>(row.constraints) +
                                                            uint64_t{i} * row.constraint_stride);
    if (c.kind > RT_CONSTRAINT_MULTIPLE)
      return {Code::kUnsupported, "constraint " + Number(i) + " has the unknown kind " + Number(c.kind)};
    if (c.kind == RT_CONSTRAINT_SET && c.values == nullptr)
      return {Code::kInvalidArgument, "constraint " + Number(i) + ": expected values, found NULL"};
    if (c.kind == RT_CONSTRAINT_MULTIPLE && c.lo <= 0)
      return {Code::kInvalidArgument, "constraint " + Number(i) + ": a multiple of " + std::to_string(c.lo)};
  }
  return Status::Ok();
}

std::string ConstraintText(const rt_constraint& c) {
  std::string out = ops::ColumnName(c.column);
  switch (c.kind) {
    case RT_CONSTRAINT_ANY:
      return out + " any";
    case RT_CONSTRAINT_SET:
      out += " in {";
      for (uint32_t i = 0; i < c.num_values; ++i)
        out += (i == 0 ? "" : ", ") + ops::ColumnValueText(c.column, c.values[i]);
      return out + "}";
    case RT_CONSTRAINT_RANGE: {
      const bool open = c.hi == std::numeric_limits<int64_t>::max();
      return out + (open ? " >= " + std::to_string(c.lo)
                         : " " + std::to_string(c.lo) + ".." + std::to_string(c.hi));
    }
    case RT_CONSTRAINT_MULTIPLE:
      return out + " multiple of " + std::to_string(c.lo) +
             (c.hi == 0 ? "" : " up to " + std::to_string(c.hi));
    default:
      return out + " ?";
  }
}

}  // namespace

std::vector<const rt_component*> Components(const rt_plugin_desc& desc) {
  std::vector<const rt_component*> out;
  for (uint32_t i = 0; i < desc.num_components; ++i) {
    const char* at = reinterpret_cast<const char*>(desc.components) + uint64_t{i} * desc.component_stride;
    out.push_back(reinterpret_cast<const rt_component*>(at));
  }
  return out;
}

Status ValidateDescriptor(const rt_plugin_desc* desc, const rt_manifest& manifest) {
  if (desc == nullptr) return {Code::kInvalidArgument, RT_PLUGIN_ENTRY_NAME " returned NULL"};
  RT_RETURN_IF_ERROR(CheckSize(*desc, "rt_plugin_desc"));
  RT_RETURN_IF_ERROR(CheckSame(desc->abi_major, manifest.abi_major, "abi_major"));
  RT_RETURN_IF_ERROR(CheckSame(desc->abi_minor_built, manifest.abi_minor_built, "abi_minor_built"));
  RT_RETURN_IF_ERROR(CheckSame(desc->abi_minor_needed, manifest.abi_minor_needed, "abi_minor_needed"));
  RT_RETURN_IF_ERROR(CheckSame(desc->abi_draft, manifest.abi_draft, "abi_draft"));
  RT_RETURN_IF_ERROR(CheckSame(desc->name, manifest.name, "name"));
  RT_RETURN_IF_ERROR(CheckSame(desc->vendor, manifest.vendor, "vendor"));
  RT_RETURN_IF_ERROR(CheckSame(desc->version, manifest.version, "version"));
  RT_RETURN_IF_ERROR(CheckComponents(*desc, manifest));
  return CheckMembers("rt_plugin_desc",
                      {{"init", desc->init != nullptr}, {"shutdown", desc->shutdown != nullptr}});
}

const rt_op_api* OpTable(const rt_component& component) {
  switch (component.kind) {
    case RT_KIND_OPS:
      return static_cast<const rt_op_api*>(component.api);
    case RT_KIND_ATTENTION:
    case RT_KIND_LINEAR_ATTENTION:
      return static_cast<const rt_backend_api*>(component.api)->ops;
    default:
      return nullptr;
  }
}

Result<std::vector<const rt_row*>> ReadRows(const rt_op_api& api, rt_plugin_ctx* ctx) {
  const rt_row* first = nullptr;
  uint32_t count = 0, stride = 0;
  if (const int32_t code = api.rows(ctx, &first, &count, &stride); code != RT_OK) {
    return StatusFromError(code, rt_error{}).Annotate("rows");
  }
  if (count > kMaxRows)
    return {Code::kInvalidArgument,
            "rows: expected at most " + Number(kMaxRows) + ", found " + Number(count)};
  if (count > 0 && first == nullptr) return {Code::kInvalidArgument, "rows: expected an array, found NULL"};
  if (count > 0 && (stride < sizeof(rt_row) || stride > kMaxStructBytes)) {
    return {Code::kBadStruct, "rows: expected a stride of " + Number(sizeof(rt_row)) + " to " +
                                  Number(kMaxStructBytes) + ", found " + Number(stride)};
  }
  std::vector<const rt_row*> rows;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* row =
        reinterpret_cast<const rt_row*>(reinterpret_cast<const char*>(first) + uint64_t{i} * stride);
    RT_RETURN_IF_ERROR(CheckRow(*row).Annotate("row " + Number(i)));
    rows.push_back(row);
  }
  return rows;
}

Status StatusFromError(int32_t code, const rt_error& error) {
  if (code == RT_OK) return Status::Ok();
  const bool known = code > RT_OK && code <= RT_ALREADY_EXISTS;
  std::string message(error.message, strnlen(error.message, sizeof error.message));
  if (message.empty()) message = "no message";
  if (!known) message += " (unknown status code " + std::to_string(code) + ")";
  return {known ? static_cast<Code>(code) : Code::kInternal, message};
}

nlohmann::json RowToJson(const rt_row& row) {
  nlohmann::json out;
  out["op"] = Text(row.op);
  out["version"] = row.op_version;
  out["phases"] = nlohmann::json::array();
  for (const uint32_t phase : {RT_PHASE_DECODE, RT_PHASE_VERIFY, RT_PHASE_PREFILL}) {
    if ((row.phases & phase) != 0) out["phases"].push_back(ops::PhaseName(phase));
  }
  out["kernel"] = Text(row.kernel);
  out["score"] = row.score;
  out["constraints"] = nlohmann::json::array();
  for (uint32_t i = 0; i < row.num_constraints; ++i) {
    const char* at = reinterpret_cast<const char*>(row.constraints) + uint64_t{i} * row.constraint_stride;
    out["constraints"].push_back(ConstraintText(*reinterpret_cast<const rt_constraint*>(at)));
  }
  out["guarantees"] = nlohmann::json::array();
  for (const auto& [bit, name] :
       {std::pair<uint32_t, const char*>(RT_ROW_RUN_DETERMINISTIC, "run_deterministic"),
        {RT_ROW_BATCH_INVARIANT, "batch_invariant"},
        {RT_ROW_NAN_SAFE_PADDING, "nan_safe_padding"},
        {RT_ROW_CHECKPOINTS, "checkpoints"}}) {
    if ((row.guarantees & bit) != 0) out["guarantees"].push_back(name);
  }
  static constexpr const char* kCapture[] = {"none", "one_token", "uniform_batch", "any"};
  out["capture"] = row.capture < 4 ? kCapture[row.capture] : "unknown";
  static constexpr const char* kUnavailable[] = {"", "hardware", "fixable", "disabled"};
  out["unavailable"] = row.unavailable < 4 ? kUnavailable[row.unavailable] : "unknown";
  out["unavailable_reason"] = Text(row.unavailable_reason);
  return out;
}

Result<nlohmann::json> DevicesToJson(const rt_device_api& api, rt_plugin_ctx* ctx) {
  uint32_t count = 0;
  RT_RETURN_IF_ERROR(
      CallPlugin([&](rt_error* error) { return api.enumerate(ctx, &count, error); }).Annotate("enumerate"));
  if (count > kMaxDevices)
    return {Code::kInvalidArgument,
            "enumerate: expected at most " + Number(kMaxDevices) + " devices, found " + Number(count)};
  nlohmann::json out = nlohmann::json::array();
  for (uint32_t i = 0; i < count; ++i) {
    rt_device_info info = {};
    info.struct_size = sizeof info;
    RT_RETURN_IF_ERROR(CallPlugin([&](rt_error* error) {
                         return api.info(ctx, i, &info, error);
                       }).Annotate("info of device " + Number(i)));
    const auto text = [](const char(&field)[RT_DEVICE_TEXT_BYTES]) {
      return std::string(field, strnlen(field, sizeof field));
    };
    out.push_back({{"name", text(info.name)},
                   {"arch", text(info.arch)},
                   {"driver", text(info.driver)},
                   {"memory_bytes", info.memory_bytes},
                   {"memory_free_bytes", info.memory_free_bytes},
                   {"units", info.num_units}});
  }
  return out;
}

}  // namespace rt
