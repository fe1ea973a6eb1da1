// Checks of what a plugin hands over once its code runs: descriptor, component tables, rows. Used in the
// probe's child and again in the host, because nothing forces a plugin to answer twice alike.
#pragma once

#include <rt/plugin/backend.h>
#include <rt/plugin/device.h>
#include <rt/plugin/model.h>
#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace rt {

// The size rules of base.h, the manifest's fields, and every component: kind, name, table size, required
// members. `desc` may be NULL (what a broken query returns).
Status ValidateDescriptor(const rt_plugin_desc* desc, const rt_manifest& manifest);

// The components of a validated descriptor, with its stride honoured.
std::vector<const rt_component*> Components(const rt_plugin_desc& desc);

// The op table of a component; NULL for devices and models.
const rt_op_api* OpTable(const rt_component& component);

// The rows of an initialised component, each checked for form: struct size, stride, texts, constraint kinds.
Result<std::vector<const rt_row*>> ReadRows(const rt_op_api& api, rt_plugin_ctx* ctx);

// Unknown codes read as INTERNAL; the message is cut at the buffer's end.
Status StatusFromError(int32_t code, const rt_error& error);

// Calls a plugin function of the form i32 f(…, rt_error*) and turns its answer into a Status.
template <typename F>
Status CallPlugin(F&& call) {
  rt_error error = {};
  error.struct_size = sizeof error;
  const int32_t code = call(&error);
  return StatusFromError(code, error);
}

// For reports:
// {"op","version","phases","kernel","score","constraints":[text],"guarantees":[…],"capture","unavailable","reason"}.
nlohmann::json RowToJson(const rt_row& row);
// {"name","arch","driver","memory_bytes","memory_free_bytes","units"} for each device, or the plugin's error.
Result<nlohmann::json> DevicesToJson(const rt_device_api& api, rt_plugin_ctx* ctx);

}  // namespace rt
