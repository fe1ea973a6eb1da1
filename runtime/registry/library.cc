#include "runtime/registry/library.h"

#include <boost/dll/shared_library.hpp>

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <vector>

namespace rt {
namespace {

// Never destroyed: static destructors of plugins must not run before those of the program, and dlclose is no
// use to us.
void KeepForEver(std::unique_ptr<boost::dll::shared_library> library) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::vector<std::unique_ptr<boost::dll::shared_library>>;
  const std::lock_guard lock(mutex);
  all.push_back(std::move(library));
}

}  // namespace

Result<const rt_plugin_desc*> OpenPluginLibrary(const std::string& absolute_path) {
  auto library = std::make_unique<boost::dll::shared_library>();
  boost::dll::fs::error_code error;
  library->load(absolute_path, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local, error);
  if (error) {
    // Boost reports EBADF whatever happened; the loader's own text is still there.
    const char* text = dlerror();
    return {Code::kUnavailable,
            std::string("cannot be loaded: ") + (text == nullptr ? error.message() : text)};
  }
  if (!library->has(RT_PLUGIN_ENTRY_NAME))
    return {Code::kUnsupported, "not a plugin: it does not export " RT_PLUGIN_ENTRY_NAME};
  const auto query = &library->get<std::remove_pointer_t<rt_plugin_query_fn>>(RT_PLUGIN_ENTRY_NAME);
  KeepForEver(std::move(library));
  return query();
}

}  // namespace rt
