// Stage 2 of loading a plugin: into this process, for good. The only user of Boost.DLL.
#pragma once

#include <rt/plugin/base.h>
#include <rt/plugin/status.hpp>

#include <string>

namespace rt {

// Loads the file (now, local), keeps it until the process ends and calls its entry point. Opening a path
// twice gives the same library. Errors carry the loader's full text. The descriptor may be NULL or wrong:
// validate it.
Result<const rt_plugin_desc*> OpenPluginLibrary(const std::string& absolute_path);

}  // namespace rt
