// Every way in which a plugin file can be broken that we know of, each with its exact message, always beside
// plugins that load.
#include "plugin_sdk/loader/static_check.h"
#include "runtime/registry/plugin_registry.h"
#include "runtime/registry/plugin_report.h"
#include "runtime/registry/plugin_search.h"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

namespace rt {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<char>;

Bytes ReadBytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

void WriteBytes(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

template <typename T>
void Patch(Bytes* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

size_t ManifestOffset(const Bytes& bytes) {
  const auto at = std::search(bytes.begin(), bytes.end(), RT_MANIFEST_MAGIC,
                              RT_MANIFEST_MAGIC + sizeof(RT_MANIFEST_MAGIC));
  return static_cast<size_t>(at - bytes.begin());
}

// Replaces every occurrence of `from` by `to`, of the same length.
void Replace(const std::string& from, const std::string& to, Bytes* bytes) {
  for (auto at = bytes->begin();
       (at = std::search(at, bytes->end(), from.begin(), from.end())) != bytes->end(); ++at) {
    std::copy(to.begin(), to.end(), at);
  }
}

// Whatever the linker wrote as build-id (nothing, perhaps) becomes another one.
void ChangeBuildId(const std::string& hex, Bytes* bytes) {
  std::string id;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    id += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  if (!id.empty()) Replace(id, std::string(id.rbegin(), id.rend()), bytes);
}

fs::path Case(const std::string& name) { return fs::path(RT_CASE_DIR) / ("librt_" + name + ".so"); }

class Registry : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::canonical(fs::temp_directory_path()) / "rt_registry_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.use_environment = false;
    options_.use_installed = false;
    options_.config_paths = {folder_.string()};
    options_.probe_helper = RT_PROBE_HELPER;
    options_.probe_timeout = std::chrono::seconds(20);
    Add("good");
    Add("second");
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path File(const std::string& name) const { return folder_ / ("librt_" + name + ".so"); }
  void Add(const std::string& name) { fs::copy_file(Case(name), File(name)); }
  // A copy of the good plugin, changed, under another file name.
  void AddChanged(const std::string& name, const std::function<void(Bytes*)>& change) {
    Bytes bytes = ReadBytes(Case("good"));
    change(&bytes);
    WriteBytes(File(name), bytes);
  }

  // The reason given for the file `name`; good and second must have loaded all the same.
  std::string ReasonFor(const std::string& name) {
    const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
    if (!registry.ok()) return "Load failed: " + registry.status().message();
    EXPECT_NE((*registry)->Find("good"), nullptr) << PluginListText(PluginListJson(**registry));
    EXPECT_NE((*registry)->Find("second"), nullptr) << PluginListText(PluginListJson(**registry));
    for (const RejectedPlugin& rejected : (*registry)->rejected()) {
      if (fs::path(rejected.path).filename() == File(name).filename())
        return rejected.stage + ": " + rejected.reason;
    }
    return "(loaded)";
  }
  std::string ReasonForCase(const std::string& name) {
    Add(name);
    return ReasonFor(name);
  }

  fs::path folder_;
  PluginRegistryOptions options_;
};

TEST_F(Registry, LoadsGoodPluginsAndTheirComponents) {
  const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
  ASSERT_TRUE(registry.ok()) << registry.status().message();
  ASSERT_EQ((*registry)->loaded().size(), 2u);
  EXPECT_TRUE((*registry)->rejected().empty());
  EXPECT_TRUE((*registry)->notes().empty());
  const LoadedPlugin& plugin = *(*registry)->Find("good");
  EXPECT_EQ(plugin.path, File("good").string());
  EXPECT_EQ(plugin.vendor, "DeltaRT tests");
  EXPECT_EQ(plugin.version, "1.0.0");
  EXPECT_EQ(plugin.source, "plugins.paths");
  EXPECT_TRUE(plugin.warnings.empty()) << plugin.warnings[0];
  ASSERT_EQ(plugin.components.size(), 1u);
  EXPECT_EQ(plugin.components[0].name, "test");
  EXPECT_EQ(plugin.components[0].plugin, "good");
  EXPECT_EQ((*registry)->Components(RT_KIND_OPS).size(), 2u);
  EXPECT_TRUE((*registry)->Components(RT_KIND_MODEL).empty());
  EXPECT_EQ((*registry)->Find("absent"), nullptr);
}

TEST_F(Registry, InitAndShutdownMayBeRepeated) {
  for (int round = 0; round < 3; ++round) {
    const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
    ASSERT_TRUE(registry.ok());
    EXPECT_EQ((*registry)->loaded().size(), 2u);
  }
}

TEST_F(Registry, NamesTheCrashOfAPlugin) {
  EXPECT_EQ(ReasonForCase("sigill_in_constructor"),
            "probe: crashed in its constructor with SIGILL (Illegal instruction)");
  EXPECT_EQ(ReasonForCase("abort_in_init"), "probe: crashed in init with SIGABRT (Aborted)");
  EXPECT_EQ(ReasonForCase("crash_in_rows"), "probe: crashed in its tables with SIGSEGV (Segmentation fault)");
  EXPECT_EQ(ReasonForCase("crash_in_shutdown"), "probe: crashed in shutdown with SIGBUS (Bus error)");
  EXPECT_EQ(ReasonForCase("exit_in_constructor"),
            "probe: ended the process in its constructor with exit code 7; it printed: licence server not "
            "reachable");
  EXPECT_EQ(ReasonForCase("throw_in_constructor"),
            "probe: crashed in its constructor with SIGABRT (Aborted); it printed: terminate called after "
            "throwing an instance of "
            "'std::runtime_error' what(): no licence file");
}

TEST_F(Registry, GivesUpOnAPluginThatHangs) {
  options_.probe_timeout =
      std::chrono::milliseconds(1500);  // ample for the good ones, which answer in milliseconds
  EXPECT_EQ(ReasonForCase("hang_in_constructor"), "probe: did not answer within 1.5 s (in its constructor)");
  fs::remove(File("hang_in_constructor"));
  EXPECT_EQ(ReasonForCase("hang_in_query"), "probe: did not answer within 1.5 s (in rt_plugin_query_v1)");
  fs::remove(File("hang_in_query"));
  EXPECT_EQ(ReasonForCase("hang_in_init"), "probe: did not answer within 1.5 s (in init)");
}

TEST_F(Registry, NamesWhatIsWrongWithTheDescriptor) {
  EXPECT_EQ(ReasonForCase("null_query"), "probe: rt_plugin_query_v1 returned NULL");
  EXPECT_EQ(ReasonForCase("small_descriptor"),
            "probe: rt_plugin_desc struct_size: expected at least 112, found 16");
  EXPECT_EQ(ReasonForCase("huge_descriptor"),
            "probe: rt_plugin_desc struct_size: expected at most 65536, found 1073741824");
  EXPECT_EQ(ReasonForCase("other_draft"), "probe: descriptor and manifest differ: abi_draft is " +
                                              std::to_string(RT_ABI_DRAFT + 1) + " and " +
                                              std::to_string(RT_ABI_DRAFT));
  EXPECT_EQ(ReasonForCase("other_name"),
            "probe: descriptor and manifest differ: name is \"impostor\" and \"other_name\"");
  EXPECT_EQ(ReasonForCase("no_components"), "probe: num_components: expected 1 to 64, found 0");
  EXPECT_EQ(ReasonForCase("small_stride"), "probe: component_stride: expected 32 to 65536, found 8");
  EXPECT_EQ(ReasonForCase("other_kinds"),
            "probe: component \"test\": component \"test\" has the unknown kind 6");
  EXPECT_EQ(ReasonForCase("empty_component_name"),
            "probe: component \"\": a component of kind ops has an empty name");
  EXPECT_EQ(ReasonForCase("no_table"), "probe: component \"test\": component \"test\" has no table");
  EXPECT_EQ(ReasonForCase("no_execute"),
            "probe: component \"test\": rt_op_api.execute: expected a function, found NULL");
  EXPECT_EQ(ReasonForCase("no_init"), "probe: rt_plugin_desc.init: expected a function, found NULL");
  EXPECT_EQ(ReasonForCase("bad_row"), "probe: row 0: op and kernel: expected names, found an empty one");
}

TEST_F(Registry, PassesOnWhatInitSays) {
  EXPECT_EQ(
      ReasonForCase("no_driver"),
      "probe: init failed: libwarp.so.3: cannot open shared object file (install the driver, 550 or later)");
  EXPECT_EQ(ReasonForCase("unknown_status"), "probe: init failed: no message (unknown status code 4242)");
  options_.options_json["extr"] = "{\"depth\":3}";
  AddChanged("extra", [](Bytes* bytes) {  // a plugin of another name: both its names are changed
    Replace("good", "extr", bytes);
  });
  EXPECT_EQ(ReasonFor("extra"), "probe: init failed: unknown options {\"depth\":3}");
}

TEST_F(Registry, ShowsTheLoadersFullText) {
  EXPECT_EQ(ReasonForCase("undefined_symbol"),
            "probe: cannot be loaded: " + File("undefined_symbol").string() +
                ": undefined symbol: rt_case_defined_nowhere");
  EXPECT_EQ(ReasonForCase("missing_library"),
            "probe: cannot be loaded: librtcaseabsent.so: cannot open shared object file: No such file or "
            "directory");
  options_.probe = false;
  fs::remove(File("missing_library"));
  EXPECT_EQ(ReasonFor("undefined_symbol"), "load: cannot be loaded: " + File("undefined_symbol").string() +
                                               ": undefined symbol: rt_case_defined_nowhere");
}

TEST_F(Registry, RefusesFilesThatAreNoPlugins) {
  EXPECT_EQ(ReasonForCase("no_entry"), "static check: not a plugin: it does not export rt_plugin_query_v1");
  EXPECT_EQ(
      ReasonForCase("no_manifest"),
      "static check: no manifest: the ELF section rt_manifest is missing (RT_PLUGIN_MANIFEST makes it)");
  WriteBytes(File("empty"), {});
  EXPECT_EQ(ReasonFor("empty"), "static check: empty file");
  std::ofstream(File("text")) << "hello, world\n";
  EXPECT_EQ(ReasonFor("text"),
            "static check: not an ELF file: it starts with \"hello, w\", expected \"\\x7fELF\"");
  fs::create_directory(File("folder"));
  EXPECT_EQ(ReasonFor("folder"), "file: a folder, expected a file");
  fs::create_symlink("nowhere.so", File("dangling"));
  EXPECT_EQ(ReasonFor("dangling"), "file: a symbolic link to nowhere.so, which does not exist");
  ASSERT_EQ(mkfifo(File("fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReasonFor("fifo"), "file: not a regular file");
}

TEST_F(Registry, RefusesTruncatedFiles) {
  const size_t size = ReadBytes(Case("good")).size();
  const auto truncated_to = [&](size_t bytes) {
    const std::string name = "cut" + std::to_string(bytes);
    AddChanged(name, [&](Bytes* b) { b->resize(bytes); });
    return ReasonFor(name);
  };
  EXPECT_EQ(truncated_to(40), "static check: truncated: the ELF header ends at byte 64, the file has 40");
  EXPECT_EQ(truncated_to(size - 1), "static check: truncated: the section header table ends at byte " +
                                        std::to_string(size) + ", the file has " + std::to_string(size - 1));
  for (const size_t bytes : {size_t{100}, size / 4, size / 2, size - 3000}) {
    EXPECT_EQ(truncated_to(bytes).rfind("static check: truncated: ", 0), 0u) << bytes;
  }
}

TEST_F(Registry, RefusesForeignAndOutdatedFiles) {
  const size_t manifest = ManifestOffset(ReadBytes(Case("good")));
  const auto patched = [&](const std::string& name, size_t offset, auto value) {
    AddChanged(name, [&](Bytes* bytes) { Patch(bytes, offset, value); });
    return ReasonFor(name);
  };
  const uint16_t foreign = HostElfMachine() == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
  EXPECT_EQ(patched("machine", offsetof(Elf64_Ehdr, e_machine), foreign),
            std::string("static check: built for ") + ElfMachineName(foreign) + " (ELF machine " +
                std::to_string(foreign) + "), this host is " + ElfMachineName(HostElfMachine()) + " (" +
                std::to_string(HostElfMachine()) + ")");
  EXPECT_EQ(patched("class32", EI_CLASS, char{ELFCLASS32}),
            "static check: expected a 64-bit ELF file, found a 32-bit one");
  EXPECT_EQ(patched("bigendian", EI_DATA, char{ELFDATA2MSB}),
            "static check: expected a little-endian ELF file, found a big-endian one");
  EXPECT_EQ(patched("relocatable", offsetof(Elf64_Ehdr, e_type), uint16_t{ET_REL}),
            "static check: expected a shared object, found a relocatable object file (ELF type 1)");
  EXPECT_EQ(patched("major0", manifest + offsetof(rt_manifest, abi_major), uint32_t{0}),
            "static check: plugin ABI major 0, this host has 1");
  EXPECT_EQ(patched("major2", manifest + offsetof(rt_manifest, abi_major), uint32_t{2}),
            "static check: plugin ABI major 2, this host has 1");
  EXPECT_EQ(patched("minor", manifest + offsetof(rt_manifest, abi_minor_needed), uint32_t{4}),
            "static check: needs plugin ABI 1.4 or later, this host has 1.0: update the runtime");
  EXPECT_EQ(patched("draft", manifest + offsetof(rt_manifest, abi_draft), uint32_t{99}),
            "static check: built against plugin ABI draft 99, this host has draft " +
                std::to_string(RT_ABI_DRAFT) + ": rebuild the plugin with this runtime's SDK");
  const uint32_t host = HostAbi::Current().sanitizer,
                 other = host == RT_SANITIZER_ADDRESS ? RT_SANITIZER_NONE : RT_SANITIZER_ADDRESS;
  EXPECT_EQ(patched("sanitizer", manifest + offsetof(rt_manifest, sanitizer), other),
            std::string("static check: built with sanitizer ") + SanitizerName(other) + ", this host with " +
                SanitizerName(host) + ": build both alike");
  EXPECT_EQ(patched("noname", manifest + offsetof(rt_manifest, name), char{0}),
            "static check: its manifest has an empty name");
  EXPECT_EQ(patched("kinds", manifest + offsetof(rt_manifest, kinds), uint32_t{1 << 9}),
            "static check: unknown component kinds: 0x200");
}

TEST_F(Registry, RefusesFilesThatEverybodyMayWrite) {
  Add("other_name");
  ASSERT_EQ(chmod(File("other_name").c_str(), 0666), 0);
  EXPECT_EQ(ReasonFor("other_name"),
            "file: the file " + File("other_name").string() + " is writable by everybody (chmod o-w)");
  const fs::path open_folder = folder_ / "open";
  fs::create_directory(open_folder);
  ASSERT_EQ(chmod(open_folder.c_str(), 0777), 0);
  fs::copy_file(Case("no_driver"), open_folder / "librt_no_driver.so");
  options_.config_paths.push_back(open_folder.string());
  EXPECT_EQ(ReasonFor("no_driver"),
            "file: its folder " + open_folder.string() + " is writable by everybody (chmod o-w)");
}

TEST_F(Registry, KeepsOneOfTheSameFileAndNamesTheOther) {
  fs::create_symlink(File("good"), File("link"));
  EXPECT_EQ(ReasonFor("link"), "duplicate: the same file as " + File("good").string() + ", which is used");
  fs::create_hard_link(File("good"), File("z_hard"));
  EXPECT_EQ(ReasonFor("z_hard"), "duplicate: the same file as " + File("good").string() + ", which is used");
  AddChanged("z_copy", [](Bytes*) {});
  EXPECT_EQ(ReasonFor("z_copy"), "duplicate: a copy of " + File("good").string() + ", which is used");
}

TEST_F(Registry, GarbageAfterTheEndOfAFileDoesNoHarm) {
  fs::remove(File("good"));
  AddChanged("good", [](Bytes* bytes) { bytes->insert(bytes->end(), 777, 'x'); });
  EXPECT_EQ(ReasonFor("good"), "(loaded)");
}

TEST_F(Registry, OfOneNameInOneSourceNoneIsChosen) {
  AddChanged("twin", [](Bytes* bytes) { Replace("good", "twin", bytes); });
  AddChanged("twin_b", [&](Bytes* bytes) {
    Replace("good", "twin", bytes);
    Replace("a test plugin runs", "a test plugin RUNS", bytes);  // another build
    ChangeBuildId(ReadPluginFile(File("twin").string())->build_id, bytes);
  });
  const std::string rule = ": none is chosen; remove one, or name one on the command line";
  EXPECT_EQ(ReasonFor("twin"),
            "duplicate: plugin \"twin\" 1.0.0 also exists as " + File("twin_b").string() + rule);
  EXPECT_EQ(ReasonFor("twin_b"),
            "duplicate: plugin \"twin\" 1.0.0 also exists as " + File("twin").string() + rule);
  options_.explicit_paths = {File("twin_b").string()};
  EXPECT_EQ(ReasonFor("twin_b"), "(loaded)");
  EXPECT_EQ(ReasonFor("twin"), "duplicate: plugin \"twin\" is taken from " + File("twin_b").string() +
                                   " (command line comes before plugins.paths)");
}

TEST_F(Registry, ARequiredPluginThatDoesNotLoadIsAnError) {
  Add("null_query");
  options_.required = {"good", "null_query", "seconds"};
  const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
  ASSERT_FALSE(registry.ok());
  EXPECT_EQ(registry.status().message(),
            "required plugin \"null_query\" did not load: " + File("null_query").string() +
                ": rt_plugin_query_v1 returned NULL\n"
                "required plugin \"seconds\" was not found; looked into: " +
                folder_.string() + "; did you mean \"second\"?");
}

TEST_F(Registry, OptionsThatNobodyReadsAreNamed) {
  options_.options_json["goood"] = "{\"a\":1}";
  const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
  ASSERT_TRUE(registry.ok()) << registry.status().message();
  EXPECT_EQ((*registry)->notes(),
            std::vector<std::string>{"plugins.options.goood has no effect: no plugin of that name is loaded; "
                                     "did you mean \"good\"?"});
}

TEST_F(Registry, ADeniedPluginIsNeverRun) {
  Add("sigill_in_constructor");
  options_.deny = {"sigill_in_constructor"};
  EXPECT_EQ(ReasonFor("sigill_in_constructor"), "denied: plugins.deny names it");
}

TEST_F(Registry, AMissingHelperIsSaidLoudly) {
  options_.probe_helper = "/nonexistent/rt-plugin-probe";
  Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
  ASSERT_TRUE(registry.ok());
  ASSERT_EQ((*registry)->rejected().size(), 2u);
  EXPECT_EQ((*registry)->rejected()[0].reason,
            "cannot start /nonexistent/rt-plugin-probe: No such file or directory");
  options_.probe = false;
  registry = PluginRegistry::Load(options_);
  ASSERT_TRUE(registry.ok());
  EXPECT_EQ((*registry)->loaded().size(), 2u);
  EXPECT_EQ((*registry)->notes(),
            std::vector<std::string>{
                "plugins.probe is false: a plugin that crashes while it loads ends this process"});
}

TEST_F(Registry, NamedPathsThatDoNotExistAreReported) {
  options_.explicit_paths = {(folder_ / "none.so").string()};
  const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(options_);
  ASSERT_TRUE(registry.ok());
  ASSERT_EQ((*registry)->rejected().size(), 1u);
  EXPECT_EQ((*registry)->rejected()[0].reason, "no such file");
}

class Search : public Registry {};

TEST_F(Search, OrderIsCommandLineConfigEnvironment) {
  for (const char* name : {"a", "b", "c"}) {
    fs::create_directory(folder_ / name);
    fs::copy_file(Case("good"), folder_ / name / "librt_good.so");
  }
  std::ofstream(folder_ / "c" / "notes.txt") << "no plugin";
  std::ofstream(folder_ / "c" / "libother.so") << "no plugin";
  std::ofstream(folder_ / "c" / "librt_x.so.bak") << "no plugin";
  setenv("RT_PLUGIN_PATH", ((folder_ / "c").string() + "::relative").c_str(), 1);
  const PluginSearchResult result =
      SearchPlugins({{(folder_ / "a").string()}, {(folder_ / "b").string()}, true, false});
  unsetenv("RT_PLUGIN_PATH");
  ASSERT_EQ(result.candidates.size(), 3u);
  EXPECT_EQ(result.candidates[0].path, folder_ / "a" / "librt_good.so");
  EXPECT_EQ(result.candidates[1].path, folder_ / "b" / "librt_good.so");
  EXPECT_EQ(result.candidates[2].path, folder_ / "c" / "librt_good.so");
  EXPECT_EQ(result.candidates[2].source, PluginSource::kEnvironment);
  EXPECT_EQ(result.notes,
            std::vector<std::string>{"RT_PLUGIN_PATH: \"relative\" is ignored: expected an absolute path"});
}

TEST_F(Search, TheWorkingFolderIsNeverSearched) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const PluginSearchResult result = SearchPlugins({{}, {}, true, true});
  fs::current_path(before);
  for (const PluginCandidate& candidate : result.candidates) EXPECT_NE(candidate.path.parent_path(), folder_);
}

class Inspect : public Registry {
 protected:
  nlohmann::json Run(const std::string& name, bool run) {
    InspectOptions options;
    options.run = run;
    options.probe_helper = RT_PROBE_HELPER;
    options.timeout = std::chrono::seconds(20);
    return InspectPlugin(Case(name).string(), options);
  }
};

TEST_F(Inspect, ShowsManifestExportsNeedsAndRows) {
  const nlohmann::json inspection = Run("good", true);
  EXPECT_EQ(inspection["verdict"], "ok") << inspection.dump(2);
  const nlohmann::json& component = inspection["probe"]["components"][0];
  EXPECT_EQ(component["rows"][0]["op"], "rms_norm");
  const std::string text = InspectText(inspection);
  for (const char* part :
       {"good 1.0.0 (DeltaRT tests)   ops", "rt_plugin_query_v1", "libc.so.6 ok", "rms_norm.test, score 100",
        "run_deterministic", "a test plugin runs nothing (disabled)", "verdict  ok\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST_F(Inspect, StaticInspectionRunsNoCodeOfThePlugin) {
  EXPECT_EQ(Run("sigill_in_constructor", false)["verdict"], "ok");
  const nlohmann::json run = Run("sigill_in_constructor", true);
  EXPECT_EQ(run["verdict"], "refused");
  EXPECT_EQ(run["reason"], "crashed in its constructor with SIGILL (Illegal instruction)");
}

TEST_F(Inspect, NamesAMissingLibrary) {
  for (const bool run : {false, true}) {
    const nlohmann::json inspection = Run("missing_library", run);
    EXPECT_EQ(inspection["reason"], "missing library librtcaseabsent.so");
    EXPECT_NE(InspectText(inspection).find("librtcaseabsent.so NOT FOUND"), std::string::npos);
  }
}

}  // namespace
}  // namespace rt
