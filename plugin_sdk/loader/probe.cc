#include "plugin_sdk/loader/probe.h"

#include "plugin_sdk/loader/child_process.h"
#include "plugin_sdk/loader/static_check.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace rt {
namespace {

std::string SignalText(int number) {
  const char* name = sigabbrev_np(number);
  const char* text = sigdescr_np(number);
  if (name == nullptr) return "signal " + std::to_string(number);
  return "SIG" + std::string(name) + " (" + (text == nullptr ? "" : text) + ")";
}

std::string Seconds(std::chrono::milliseconds time) {
  std::ostringstream out;
  out << static_cast<double>(time.count()) / 1000.0 << " s";
  return out.str();
}

// The last words of a dying plugin, e.g. "terminate called after throwing …", on one line.
std::string LastWords(const std::string& output) {
  constexpr size_t kMost = 300;
  std::string out;
  for (const char c : output) {
    if (c == '\n' || c == '\r' || c == '\t' || c == ' ') {
      if (!out.empty() && out.back() != ' ') out += ' ';
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += byte < 0x20 || byte >= 0x7f ? '?' : c;
    }
    if (out.size() >= kMost) break;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out.empty() ? "" : "; it printed: " + out;
}

// What the plugin was doing, in words that its author knows.
std::string StepText(const std::string& step) {
  if (step == "load") return "its constructor";
  if (step == "query") return RT_PLUGIN_ENTRY_NAME;
  if (step == "done") return "its exit";
  return step;
}

struct Report {
  std::string step;      // the last one begun
  nlohmann::json done;   // null unless it came to its end
  nlohmann::json error;  // null unless it stopped by itself
};

Report ReadReport(const std::string& text) {
  Report report;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    if (object.contains("step") && object["step"].is_string())
      report.step = object["step"].get<std::string>();
    if (object.contains("done")) report.done = object["done"];
    if (object.contains("error")) report.error = object["error"];
  }
  return report;
}

Status ErrorFrom(const nlohmann::json& error) {
  if (!error.is_object() || !error.contains("message") || !error["message"].is_string())
    return {Code::kInternal, "the probe's report is damaged"};
  const int code =
      error.contains("code") && error["code"].is_number_integer() ? error["code"].get<int>() : RT_INTERNAL;
  return {code > RT_OK && code <= RT_ALREADY_EXISTS ? static_cast<Code>(code) : Code::kInternal,
          error["message"].get<std::string>()};
}

}  // namespace

Result<nlohmann::json> ProbePlugin(const std::string& plugin_path, const ProbeOptions& options) {
  RT_ASSIGN_OR_RETURN(const ChildOutcome outcome,
                      RunChild({options.helper, plugin_path, options.options_json}, options.timeout));
  const Report report = ReadReport(outcome.report);
  if (outcome.timed_out) {
    return {Code::kDeadlineExceeded,
            "did not answer within " + Seconds(options.timeout) + " (in " + StepText(report.step) + ")"};
  }
  if (!report.error.is_null()) return ErrorFrom(report.error);
  if (outcome.signal != 0) {
    return {Code::kInternal, "crashed in " + StepText(report.step) + " with " + SignalText(outcome.signal) +
                                 LastWords(outcome.output)};
  }
  if (!report.done.is_object()) {
    return {Code::kInternal, "ended the process in " + StepText(report.step) + " with exit code " +
                                 std::to_string(outcome.exit_code) + LastWords(outcome.output)};
  }
  return report.done;
}

std::string FindProbeHelper() {
  std::error_code error;
  const std::filesystem::path exe = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path helper = exe.parent_path() / "rt-plugin-probe";
  return access(helper.c_str(), X_OK) == 0 ? helper.string() : std::string();
}

Result<nlohmann::json> ListNeeds(const std::string& plugin_path, std::chrono::milliseconds timeout) {
  RT_ASSIGN_OR_RETURN(const ElfInfo self, ReadPluginFile("/proc/self/exe"));
  if (self.interpreter.empty()) return {Code::kUnavailable, "this executable names no dynamic linker"};
  RT_ASSIGN_OR_RETURN(const ChildOutcome outcome,
                      RunChild({self.interpreter, plugin_path}, timeout, {"LD_TRACE_LOADED_OBJECTS=1"}));
  if (outcome.timed_out)
    return {Code::kDeadlineExceeded, "the dynamic linker did not answer within " + Seconds(timeout)};
  // Lines of the form "	libm.so.6 => /lib/…/libm.so.6 (0x…)", "	libx.so => not found", "
  // /lib64/ld-linux-x86-64.so.2 (0x…)".
  nlohmann::json needs = nlohmann::json::array();
  std::istringstream lines(outcome.output);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t arrow = line.find(" => ");
    if (line.empty() || line[0] != '\t' || arrow == std::string::npos) continue;
    std::string path = line.substr(arrow + 4);
    path = path.substr(0, path.rfind(" (0x"));
    needs.push_back({{"name", line.substr(1, arrow - 1)}, {"path", path == "not found" ? "" : path}});
  }
  return needs;
}

}  // namespace rt
