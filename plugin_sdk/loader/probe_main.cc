// rt-plugin-probe PLUGIN.so OPTIONS_JSON: the child of probe.h. Reports on file descriptor 3; standard output
// and error are the plugin's. Nothing here catches a crash: dying is an answer.
#include "plugin_sdk/loader/descriptor.h"
#include "plugin_sdk/loader/static_check.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// Sanitized builds: let signals kill, so that the parent sees them.
extern "C" RT_EXPORT const char* __asan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0:detect_leaks=0";
}
extern "C" RT_EXPORT const char* __tsan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0:report_bugs=0";
}
extern "C" RT_EXPORT const char* __ubsan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0:handle_abort=0";
}

namespace rt {
namespace {

constexpr int kReportFd = 3;

void Write(const nlohmann::json& object) {
  const std::string line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  size_t at = 0;
  while (at < line.size()) {
    const ssize_t count = write(kReportFd, line.data() + at, line.size() - at);
    if (count < 0 && errno != EINTR) _exit(3);  // the parent is gone
    if (count > 0) at += static_cast<size_t>(count);
  }
}

void Step(const char* name) { Write({{"step", name}}); }

void HostLog(void*, int32_t level, rt_str, rt_str text) {
  if (level < RT_LOG_WARN)
    return;  // what is printed explains a crash; the host logs the rest when it loads the plugin
  std::fprintf(stderr, "%.*s\n", static_cast<int>(std::min<uint64_t>(text.size, 4096)), text.data);
}
const void* HostInterface(void*, rt_str) { return nullptr; }

// Flush-to-zero and denormals-are-zero bits; -ffast-math sets them from a constructor.
unsigned FloatMode() {
#if defined(__x86_64__)
  return _mm_getcsr() & 0x8040u;
#else
  return 0;
#endif
}

Result<nlohmann::json> DescribeComponent(const rt_component& component, rt_plugin_ctx* ctx) {
  nlohmann::json out = {{"kind", KindNames(component.kind)},
                        {"name", std::string(component.name.data, component.name.size)}};
  if (component.kind == RT_KIND_DEVICE) {
    RT_ASSIGN_OR_RETURN(out["devices"],
                        DevicesToJson(*static_cast<const rt_device_api*>(component.api), ctx));
  }
  if (const rt_op_api* table = OpTable(component)) {
    RT_ASSIGN_OR_RETURN(const std::vector<const rt_row*> rows, ReadRows(*table, ctx));
    out["rows"] = nlohmann::json::array();
    for (const rt_row* row : rows) out["rows"].push_back(RowToJson(*row));
  }
  return out;
}

Result<nlohmann::json> Probe(const std::string& path, const std::string& options) noexcept {
  RT_ASSIGN_OR_RETURN(const ElfInfo elf, ReadPluginFile(path));
  RT_RETURN_IF_ERROR(CheckPluginElf(elf, HostAbi::Current()));
  const unsigned float_mode = FloatMode();
  nlohmann::json out = {{"warnings", nlohmann::json::array()}, {"components", nlohmann::json::array()}};

  Step("load");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {Code::kUnavailable, std::string("cannot be loaded: ") + dlerror()};
  if (FloatMode() != float_mode)
    out["warnings"].push_back("loading it sets flush-to-zero for the thread: it was linked with -ffast-math");

  Step("query");
  const auto query = reinterpret_cast<rt_plugin_query_fn>(dlsym(library, RT_PLUGIN_ENTRY_NAME));
  if (query == nullptr) return {Code::kUnsupported, std::string("not a plugin: ") + dlerror()};
  const rt_plugin_desc* desc = query();
  RT_RETURN_IF_ERROR(ValidateDescriptor(desc, *elf.manifest));

  Step("init");
  const rt_host host = {sizeof(rt_host), RT_ABI_MINOR, nullptr, HostLog, {options.data(), options.size()},
                        HostInterface};
  rt_plugin_ctx* ctx = nullptr;
  RT_RETURN_IF_ERROR(
      CallPlugin([&](rt_error* error) { return desc->init(&host, &ctx, error); }).Annotate("init failed"));

  Step("its tables");
  for (const rt_component* component : Components(*desc)) {
    RT_ASSIGN_OR_RETURN(nlohmann::json described, DescribeComponent(*component, ctx));
    out["components"].push_back(std::move(described));
  }
  Step("shutdown");
  desc->shutdown(ctx);
  out["name"] = elf.manifest->name;
  out["vendor"] = elf.manifest->vendor;
  out["version"] = elf.manifest->version;
  return out;
}

// No core file, and no life beyond the parent's. The time-out is the parent's.
void Confine() {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

}  // namespace
}  // namespace rt

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: rt-plugin-probe PLUGIN.so OPTIONS_JSON (report on file descriptor 3)\n");
    return 2;
  }
  rt::Confine();
  const rt::Result<nlohmann::json> answer = rt::Probe(argv[1], argv[2]);
  if (answer.ok()) {
    rt::Write({{"done", *answer}});
  } else {
    rt::Write(
        {{"error",
          {{"code", static_cast<int>(answer.status().code())}, {"message", answer.status().message()}}}});
  }
  _exit(0);  // static destructors of the plugin are not the question
}
