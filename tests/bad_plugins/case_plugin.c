/* One small plugin, wrong in the one way that RT_CASE_<NAME> selects; none defined: a correct plugin.
 * RT_CASE_PLUGIN_NAME is its name. It brings one `ops` component with one row. */
#include <rt/plugin/ops.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT(literal) \
  { literal, sizeof(literal) - 1 }

#if !defined(RT_CASE_NO_MANIFEST)
RT_PLUGIN_MANIFEST(RT_KIND_OPS, RT_CASE_PLUGIN_NAME, "DeltaRT tests", "1.0.0", "any");
#endif

#if defined(RT_CASE_SIGILL_IN_CONSTRUCTOR)
__attribute__((constructor)) static void Start(void) { __builtin_trap(); }
#elif defined(RT_CASE_HANG_IN_CONSTRUCTOR)
__attribute__((constructor)) static void Start(void) {
  for (;;) pause();
}
#elif defined(RT_CASE_EXIT_IN_CONSTRUCTOR)
__attribute__((constructor)) static void Start(void) {
  puts("licence server not reachable");
  exit(7);
}
#endif

#if defined(RT_CASE_UNDEFINED_SYMBOL)
int rt_case_defined_nowhere(void);
#elif defined(RT_CASE_MISSING_LIBRARY)
int rt_case_from_missing_library(void);
#endif

/* A plugin that keeps its instances apart: ctx is a count. */
struct rt_plugin_ctx {
  int32_t live;
};
static struct rt_plugin_ctx instance;

static const rt_row row = {
    .struct_size = sizeof(rt_row),
    .phases = RT_PHASE_ALL,
#if defined(RT_CASE_BAD_ROW)
    .op = TEXT(""),
#else
    .op = TEXT("rms_norm"),
#endif
    .op_version = 1,
    .score = 100,
    .kernel = TEXT("rms_norm.test"),
    .guarantees = RT_ROW_RUN_DETERMINISTIC,
    .unavailable = RT_UNAVAILABLE_DISABLED,
    .unavailable_reason = TEXT("a test plugin runs nothing"),
};

static int32_t Rows(rt_plugin_ctx* ctx, const rt_row** rows, uint32_t* count, uint32_t* stride) {
  (void)ctx;
#if defined(RT_CASE_CRASH_IN_ROWS)
  raise(SIGSEGV);
#endif
  *rows = &row;
  *count = 1;
  *stride = sizeof row;
  return RT_OK;
}

static int32_t Supports(rt_plugin_ctx* ctx, uint32_t row_idx, const rt_problem* problem,
                        rt_verdict* verdict) {
  (void)ctx, (void)row_idx, (void)problem;
  verdict->ok = 0;
  return RT_OK;
}
static int32_t PlanCreate(rt_plugin_ctx* ctx, const rt_plan_desc* desc, rt_plan** plan, rt_error* error) {
  (void)ctx, (void)desc, (void)plan, (void)error;
  return RT_UNSUPPORTED;
}
static void PlanDestroy(rt_plugin_ctx* ctx, rt_plan* plan) { (void)ctx, (void)plan; }
static int32_t PlanInfo(rt_plugin_ctx* ctx, rt_plan* plan, rt_plan_info* info) {
  (void)ctx, (void)plan, (void)info;
  return RT_UNSUPPORTED;
}
#if !defined(RT_CASE_NO_EXECUTE)
static int32_t Execute(rt_plugin_ctx* ctx, rt_plan* plan, const rt_exec_args* args, rt_error* error) {
  (void)ctx, (void)plan, (void)args, (void)error;
  return RT_UNSUPPORTED;
}
#endif

static const rt_op_api ops = {
    .struct_size = sizeof(rt_op_api),
    .rows = Rows,
    .supports = Supports,
    .plan_create = PlanCreate,
    .plan_destroy = PlanDestroy,
    .plan_info = PlanInfo,
#if !defined(RT_CASE_NO_EXECUTE)
    .execute = Execute,
#endif
};

static const rt_component components[] = {{
    .struct_size = sizeof(rt_component),
#if defined(RT_CASE_OTHER_KINDS)
    .kind = RT_KIND_ATTENTION | RT_KIND_OPS,
#else
    .kind = RT_KIND_OPS,
#endif
#if defined(RT_CASE_EMPTY_COMPONENT_NAME)
    .name = TEXT(""),
#else
    .name = TEXT("test"),
#endif
#if !defined(RT_CASE_NO_TABLE)
    .api = &ops,
#endif
}};

static int32_t Init(const rt_host* host, rt_plugin_ctx** ctx, rt_error* error) {
#if defined(RT_CASE_ABORT_IN_INIT)
  abort();
#elif defined(RT_CASE_HANG_IN_INIT)
  for (;;) pause();
#elif defined(RT_CASE_UNKNOWN_STATUS)
  (void)host, (void)ctx, (void)error;
  return 4242;
#elif defined(RT_CASE_NO_DRIVER)
  (void)host, (void)ctx;
  strcpy(error->message, "libwarp.so.3: cannot open shared object file (install the driver, 550 or later)");
  return RT_UNAVAILABLE;
#endif
  if (host->options_json.size > 2) { /* more than {} */
    snprintf(error->message, sizeof error->message, "unknown options %.*s", (int)host->options_json.size,
             host->options_json.data);
    return RT_INVALID_ARGUMENT;
  }
  const rt_str name = TEXT(RT_CASE_PLUGIN_NAME), text = TEXT("ready");
  host->log(host->self, RT_LOG_DEBUG, name, text);
  ++instance.live;
  *ctx = &instance;
  return RT_OK;
}

static void Shutdown(rt_plugin_ctx* ctx) {
#if defined(RT_CASE_CRASH_IN_SHUTDOWN)
  raise(SIGBUS);
#endif
  --ctx->live;
}

static const rt_plugin_desc desc = {
#if defined(RT_CASE_SMALL_DESCRIPTOR)
    .struct_size = 16,
#elif defined(RT_CASE_HUGE_DESCRIPTOR)
    .struct_size = 1 << 30,
#else
    .struct_size = sizeof(rt_plugin_desc),
#endif
    .abi_major = RT_ABI_MAJOR,
    .abi_minor_built = RT_ABI_MINOR,
#if defined(RT_CASE_OTHER_DRAFT)
    .abi_draft = RT_ABI_DRAFT + 1,
#else
    .abi_draft = RT_ABI_DRAFT,
#endif
#if defined(RT_CASE_NO_COMPONENTS)
    .num_components = 0,
#else
    .num_components = 1,
#endif
#if defined(RT_CASE_SMALL_STRIDE)
    .component_stride = 8,
#else
    .component_stride = sizeof(rt_component),
#endif
#if defined(RT_CASE_OTHER_NAME)
    .name = TEXT("impostor"),
#else
    .name = TEXT(RT_CASE_PLUGIN_NAME),
#endif
    .vendor = TEXT("DeltaRT tests"),
    .version = TEXT("1.0.0"),
    .components = components,
#if !defined(RT_CASE_NO_INIT)
    .init = Init,
#endif
    .shutdown = Shutdown,
};

#if defined(RT_CASE_NO_ENTRY)
RT_EXPORT const rt_plugin_desc* some_other_library(void) { return &desc; }
#else
RT_EXPORT const rt_plugin_desc* rt_plugin_query_v1(void) {
  (void)ops, (void)Init; /* some cases leave them out */
#if defined(RT_CASE_NULL_QUERY)
  return desc.struct_size != 0 ? NULL : &desc;
#elif defined(RT_CASE_HANG_IN_QUERY)
  for (;;) pause();
#elif defined(RT_CASE_UNDEFINED_SYMBOL)
  return rt_case_defined_nowhere() != 0 ? &desc : NULL;
#elif defined(RT_CASE_MISSING_LIBRARY)
  return rt_case_from_missing_library() != 0 ? &desc : NULL;
#endif
  return &desc;
}
#endif
