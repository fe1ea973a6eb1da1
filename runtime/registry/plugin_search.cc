#include "runtime/registry/plugin_search.h"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rt {
namespace {

namespace fs = std::filesystem;

bool HasRaisedPrivileges() {
  return getauxval(AT_SECURE) != 0 || getuid() != geteuid() || getgid() != getegid();
}

bool IsPluginFileName(const std::string& name) {
  constexpr std::string_view kPrefix = "librt_", kSuffix = ".so";
  return name.size() > kPrefix.size() + kSuffix.size() && name.compare(0, kPrefix.size(), kPrefix) == 0 &&
         name.compare(name.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0;
}

// Whoever may write the file, or replace it in its folder, runs code as us.
void CheckPermissions(const struct stat& info, const char* what, const std::string& path,
                      PluginCandidate* candidate) {
  // In a sticky folder such as /tmp others cannot replace our file.
  const bool others_write = (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0;
  if (others_write)
    candidate->problem = std::string(what) + " " + path + " is writable by everybody (chmod o-w)";
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    const std::string text = std::string(what) + " " + path + " belongs to user " +
                             std::to_string(info.st_uid) + ", neither root nor this process's user";
    if (HasRaisedPrivileges())
      candidate->problem = text;
    else
      candidate->warnings.push_back(text);
  }
}

PluginCandidate MakeCandidate(const fs::path& named, PluginSource source) {
  PluginCandidate candidate;
  candidate.named = named;
  candidate.path = named;
  candidate.source = source;
  struct stat link = {}, info = {};
  const bool is_link = lstat(named.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
  if (stat(named.c_str(), &info) != 0) {
    const int error = errno;
    std::error_code ignored;
    candidate.problem =
        is_link && error == ENOENT
            ? "a symbolic link to " + fs::read_symlink(named, ignored).string() + ", which does not exist"
        : error == ENOENT ? "no such file"
                          : std::string("cannot be examined: ") + std::strerror(error);
    return candidate;
  }
  if (!S_ISREG(info.st_mode)) {
    candidate.problem = S_ISDIR(info.st_mode) ? "a folder, expected a file" : "not a regular file";
    return candidate;
  }
  std::error_code error;
  const fs::path canonical = fs::canonical(named, error);
  if (!error) candidate.path = canonical;
  candidate.device = info.st_dev;
  candidate.inode = info.st_ino;
  CheckPermissions(info, "the file", candidate.path.string(), &candidate);
  struct stat folder = {};
  if (candidate.problem.empty() && stat(candidate.path.parent_path().c_str(), &folder) == 0) {
    CheckPermissions(folder, "its folder", candidate.path.parent_path().string(), &candidate);
  }
  return candidate;
}

class Search {
 public:
  explicit Search(PluginSearchResult* result) : result_(result) {}

  // A file or a folder that somebody named: its absence is a finding.
  void AddNamed(const std::string& path, PluginSource source) {
    const fs::path absolute = fs::absolute(path);
    std::error_code error;
    if (fs::is_directory(absolute, error))
      AddFolder(absolute, source);
    else
      result_->candidates.push_back(MakeCandidate(absolute, source));
  }

  // A folder; an absent one is none.
  void AddFolder(const fs::path& folder, PluginSource source) {
    std::error_code error;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (IsPluginFileName(entry.path().filename().string())) files.push_back(entry.path());
    }
    result_->folders.push_back(folder.lexically_normal().string());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) result_->candidates.push_back(MakeCandidate(file, source));
  }

 private:
  PluginSearchResult* result_;
};

void AddEnvironment(Search* search, PluginSearchResult* result) {
  const char* value = std::getenv("RT_PLUGIN_PATH");
  if (value == nullptr || *value == 0) return;
  if (HasRaisedPrivileges()) {
    result->notes.push_back("RT_PLUGIN_PATH is ignored: this process runs with raised privileges");
    return;
  }
  const std::string list = value;
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find(':', start), list.size());
    const std::string item = list.substr(start, end - start);
    start = end + 1;
    if (item.empty()) continue;  // would be the working folder
    if (fs::path(item).is_absolute())
      search->AddNamed(item, PluginSource::kEnvironment);
    else
      result->notes.push_back("RT_PLUGIN_PATH: \"" + item + "\" is ignored: expected an absolute path");
  }
}

}  // namespace

const char* PluginSourceName(PluginSource source) {
  switch (source) {
    case PluginSource::kExplicit:
      return "command line";
    case PluginSource::kConfig:
      return "plugins.paths";
    case PluginSource::kEnvironment:
      return "RT_PLUGIN_PATH";
    case PluginSource::kInstalled:
      return "installed";
    case PluginSource::kBuildTree:
      return "build tree";
  }
  return "";
}

PluginSearchResult SearchPlugins(const PluginSearchOptions& options) {
  PluginSearchResult result;
  Search search(&result);
  for (const std::string& path : options.explicit_paths) search.AddNamed(path, PluginSource::kExplicit);
  for (const std::string& path : options.config_paths) search.AddNamed(path, PluginSource::kConfig);
  if (options.use_environment) AddEnvironment(&search, &result);
  std::error_code error;
  const fs::path exe = fs::read_symlink("/proc/self/exe", error);
  if (options.use_installed && !error) {
    const fs::path root = exe.parent_path().parent_path();
    search.AddFolder(root / "lib/deltart/plugins", PluginSource::kInstalled);
    std::error_code ignored;
    if (fs::exists(root / "CMakeCache.txt", ignored))
      search.AddFolder(root / "plugins", PluginSource::kBuildTree);
  }
  return result;
}

}  // namespace rt
