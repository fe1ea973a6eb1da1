// Stage 1 of loading a plugin: run it in a child process first, so that one that crashes, hangs, aborts or
// exits harms nobody.
//
// The child is the installed helper `rt-plugin-probe` (posix_spawn, never a bare fork: drivers do not survive
// one). It loads the file, queries and checks the descriptor, runs init, reads devices and rows, runs
// shutdown, and writes one JSON object a line:
// {"step": "…"} before each step, at the end {"done": {…}}, or {"error": {…}} where it stopped.
#pragma once

#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <string>

namespace rt {

struct ProbeOptions {
  std::string helper;  // path of rt-plugin-probe
  std::chrono::milliseconds timeout{10000};
  std::string options_json = "{}";  // handed to init
};

// What the plugin said about itself: {"name","vendor","version","warnings":[text],
// "components":[{"kind","name","rows":[…],"devices":[…]}]}; or why it could not: the loader's full text, its
// own error, "crashed in its constructor with SIGILL (Illegal instruction)", "did not answer within 10 s (in
// rt_plugin_query_v1)", …
Result<nlohmann::json> ProbePlugin(const std::string& plugin_path, const ProbeOptions& options);

// The helper beside the running executable; "" if there is none.
std::string FindProbeHelper();

// Libraries of DT_NEEDED, transitively, as the dynamic linker finds them: [{"name","path"}], path "" = NOT
// FOUND. Runs the dynamic linker's own listing mode in a child: no code of the file runs.
Result<nlohmann::json> ListNeeds(const std::string& plugin_path, std::chrono::milliseconds timeout);

}  // namespace rt
