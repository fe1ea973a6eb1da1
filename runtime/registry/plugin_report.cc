#include "runtime/registry/plugin_report.h"

#include "plugin_sdk/loader/probe.h"
#include "plugin_sdk/loader/static_check.h"

#include <filesystem>
#include <sstream>

namespace rt {
namespace {

using nlohmann::json;

constexpr size_t kLabelWidth = 9;  // "exports  "

std::string Str(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string Join(const json& list) {
  std::string out;
  for (const json& item : list) out += (out.empty() ? "" : ", ") + Str(item);
  return out;
}

std::string Line(const std::string& label, const std::string& text) {
  return label + std::string(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ') + text + "\n";
}

json ManifestJson(const rt_manifest& m) {
  return {{"name", m.name},
          {"vendor", m.vendor},
          {"version", m.version},
          {"targets", m.targets},
          {"kinds", KindNames(m.kinds)},
          {"abi_major", m.abi_major},
          {"abi_minor_built", m.abi_minor_built},
          {"abi_minor_needed", m.abi_minor_needed},
          {"abi_draft", m.abi_draft},
          {"sanitizer", SanitizerName(m.sanitizer)}};
}

void AddElf(const ElfInfo& elf, json* out) {
  json& o = *out;
  o["machine"] = ElfMachineName(elf.machine);
  o["soname"] = elf.soname;
  o["build_id"] = elf.build_id;
  o["exports"] = elf.exports;
  o["num_unique"] = elf.uniques.size();
  o["static_tls"] = elf.static_tls;
  o["runpath"] = elf.runpath;
  o["manifest"] = elf.manifest.has_value() ? ManifestJson(*elf.manifest) : json();
}

// The needed libraries with their places; an error of the listing itself is only a missing column.
json NeedsJson(const ElfInfo& elf, const std::string& path, std::chrono::milliseconds timeout) {
  json needs = json::array();
  const Result<json> found = ListNeeds(path, timeout);
  for (const std::string& name : elf.needed) {
    json need = {{"name", name}, {"path", nullptr}};
    if (found.ok()) {
      for (const json& line : *found) {
        if (line["name"] == name) need["path"] = line["path"];
      }
    }
    needs.push_back(need);
  }
  return needs;
}

std::string NeedText(const json& need) {
  const std::string name = Str(need["name"]);
  if (need["path"].is_null()) return name;  // the dynamic linker itself, or no listing
  return name + (need["path"] == "" ? " NOT FOUND" : " ok");
}

std::string RowLine(size_t index, const json& row) {
  std::ostringstream out;
  out << (index < 10 ? "  " : " ") << index << " " << Str(row["op"]) << " [" << Join(row["phases"]) << "] "
      << Str(row["kernel"]) << ", score " << row["score"] << "\n";
  if (!row["constraints"].empty()) out << "      needs      " << Join(row["constraints"]) << "\n";
  if (!row["guarantees"].empty()) out << "      guarantees " << Join(row["guarantees"]) << "\n";
  if (row["unavailable"] != "")
    out << "      not here   " << Str(row["unavailable_reason"]) << " (" << Str(row["unavailable"]) << ")\n";
  return out.str();
}

std::string ComponentText(const json& component) {
  std::ostringstream out;
  out << Str(component["kind"]) << " \"" << Str(component["name"]) << "\"\n";
  for (const json& device : component.value("devices", json::array())) {
    out << "    " << Str(device["name"]) << "; " << Str(device["arch"]) << "; " << device["units"]
        << " units, " << device["memory_bytes"].get<uint64_t>() / (1 << 20) << " MiB\n";
  }
  const json rows = component.value("rows", json::array());
  for (size_t i = 0; i < rows.size(); ++i) out << RowLine(i, rows[i]);
  return out.str();
}

}  // namespace

json PluginListJson(const PluginRegistry& registry) {
  json out = {{"loaded", json::array()},
              {"rejected", json::array()},
              {"folders", registry.folders()},
              {"notes", registry.notes()}};
  for (const LoadedPlugin& plugin : registry.loaded()) {
    json components = json::array();
    for (const LoadedComponent& component : plugin.components)
      components.push_back({{"kind", KindNames(component.kind)}, {"name", component.name}});
    out["loaded"].push_back({{"name", plugin.name},
                             {"vendor", plugin.vendor},
                             {"version", plugin.version},
                             {"targets", plugin.targets},
                             {"path", plugin.path},
                             {"source", plugin.source},
                             {"build_id", plugin.build_id},
                             {"components", components},
                             {"warnings", plugin.warnings}});
  }
  for (const RejectedPlugin& plugin : registry.rejected()) {
    out["rejected"].push_back(
        {{"path", plugin.path}, {"name", plugin.name}, {"stage", plugin.stage}, {"reason", plugin.reason}});
  }
  return out;
}

std::string PluginListText(const json& list) {
  std::ostringstream out;
  for (const json& plugin : list["loaded"]) {
    std::string components;
    for (const json& c : plugin["components"])
      components += (components.empty() ? "" : ", ") + Str(c["kind"]) + " " + Str(c["name"]);
    out << Str(plugin["name"]) << " " << Str(plugin["version"]) << " (" << Str(plugin["vendor"])
        << "): " << components << "\n    " << Str(plugin["path"]) << " (" << Str(plugin["source"]) << ")\n";
    for (const json& warning : plugin["warnings"]) out << "    warning: " << Str(warning) << "\n";
  }
  if (list["loaded"].empty())
    out << "no plugin is loaded; looked into: "
        << (list["folders"].empty() ? "no folder" : Join(list["folders"])) << "\n";
  for (const json& plugin : list["rejected"])
    out << "not loaded: " << Str(plugin["path"]) << "\n    " << Str(plugin["stage"]) << ": "
        << Str(plugin["reason"]) << "\n";
  for (const json& note : list["notes"]) out << "note: " << Str(note) << "\n";
  return out.str();
}

json InspectPlugin(const std::string& named, const InspectOptions& options) {
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::canonical(named, ignored);
  const std::string path = canonical.empty() ? named : canonical.string();
  json out = {{"path", path},           {"manifest", nullptr},  {"probe", nullptr},
              {"needs", json::array()}, {"verdict", "refused"}, {"reason", ""}};
  const Result<ElfInfo> elf = ReadPluginFile(path);
  if (!elf.ok()) {
    out["reason"] = elf.status().message();
    return out;
  }
  AddElf(*elf, &out);
  if (const Status status = CheckPluginElf(*elf, HostAbi::Current()); !status.ok()) {
    out["reason"] = status.message();
    return out;
  }
  out["needs"] = NeedsJson(*elf, path, options.timeout);
  for (const json& need : out["needs"]) {
    if (need["path"] == "" && out["reason"] == "") out["reason"] = "missing library " + Str(need["name"]);
  }
  if (out["reason"] != "") return out;
  if (options.run) {
    const std::string helper = options.probe_helper.empty() ? FindProbeHelper() : options.probe_helper;
    const Result<json> probe =
        helper.empty() ? Result<json>(Code::kUnavailable, "rt-plugin-probe is missing beside the executable")
                       : ProbePlugin(path, {helper, options.timeout, options.options_json});
    if (!probe.ok()) {
      out["reason"] = probe.status().message();
      return out;
    }
    out["probe"] = *probe;
  }
  out["verdict"] = "ok";
  return out;
}

std::string InspectText(const json& i) {
  std::ostringstream out;
  const json& m = i["manifest"];
  if (m.is_object()) {
    out << Str(m["name"]) << " " << Str(m["version"]) << " (" << Str(m["vendor"]) << ")   " << Str(m["kinds"])
        << "   build-id " << (i["build_id"] == "" ? "none" : Str(i["build_id"])) << "\n";
  }
  out << Line("file", Str(i["path"]));
  if (m.is_object()) {
    out << Line("abi", "major " + m["abi_major"].dump() + ", built with minor " +
                           m["abi_minor_built"].dump() + ", needs minor " + m["abi_minor_needed"].dump() +
                           ", draft " + m["abi_draft"].dump() + "; sanitizer " + Str(m["sanitizer"]));
    out << Line("targets", Str(m["targets"]));
  }
  if (i.contains("machine")) {
    out << Line("exports", (i["exports"].empty() ? "nothing" : Join(i["exports"])) + "   unique " +
                               i["num_unique"].dump() + "   static-tls " +
                               (i["static_tls"] == true ? "yes" : "no"));
    if (!i["runpath"].empty()) out << Line("runpath", Join(i["runpath"]));
  }
  std::string needs;
  for (const json& need : i["needs"]) needs += (needs.empty() ? "" : "   ") + NeedText(need);
  if (!needs.empty()) out << Line("needs", needs);
  if (i["probe"].is_object()) {
    for (const json& warning : i["probe"].value("warnings", json::array()))
      out << Line("warning", Str(warning));
    for (const json& component : i["probe"].value("components", json::array()))
      out << ComponentText(component);
  }
  out << Line("verdict", i["verdict"] == "ok" ? "ok" : "refused: " + Str(i["reason"]));
  return out.str();
}

}  // namespace rt
