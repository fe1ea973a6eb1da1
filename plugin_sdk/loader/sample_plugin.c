/* What elf_reader_test reads: a shared object with a manifest, a needed library, a run path and one export.
 * Never loaded. */
#include <math.h>
#include <rt/plugin/base.h>

RT_PLUGIN_MANIFEST(RT_KIND_OPS | RT_KIND_DEVICE, "sample", "DeltaRT tests", "1.2.3", "any");

static volatile double input = 0.5;
double rt_sample_hidden_by_default(void) { return cos(input); }

RT_EXPORT const rt_plugin_desc* rt_plugin_query_v1(void) {
  return rt_sample_hidden_by_default() > 2 ? (const rt_plugin_desc*)&input : 0;
}
