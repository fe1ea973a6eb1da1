// A plugin whose constructor of a global throws: the C++ runtime ends the process before any entry point
// runs.
#include <rt/plugin/base.h>

#include <stdexcept>

namespace {
struct Global {
  Global() {
    if (volatile bool broken = true; broken) throw std::runtime_error("no licence file");
  }
} global;
}  // namespace

extern "C" {
RT_PLUGIN_MANIFEST(RT_KIND_OPS, "throw_in_constructor", "DeltaRT tests", "1.0.0", "any");
RT_EXPORT const rt_plugin_desc* rt_plugin_query_v1(void) { return nullptr; }
}
