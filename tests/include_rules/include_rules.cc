#include "tests/include_rules/include_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace rt::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::array kFolders = {"configs", "kernels", "models", "plugin_sdk",
                                 "plugins", "runtime", "tests",  "tools"};
constexpr std::array kCodeExtensions = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp"};
constexpr std::array kTextExtensions = {".cmake", ".in", ".j2",  ".json", ".md",
                                        ".py",    ".sh", ".txt", ".yaml"};
constexpr std::string_view kPublicTree = "plugin_sdk/include/";

template <typename List>
bool Contains(const List& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string Stem(const std::string& path) { return fs::path(path).stem().string(); }
std::string Extension(const std::string& path) { return fs::path(path).extension().string(); }

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// "plugins/<name>/" and "models/<family>/" are units of their own; elsewhere the top folder is.
std::string UnitOf(const std::string& path) {
  const std::vector<std::string> parts = Split(path, '/');
  const bool own_units = parts.size() > 2 && (parts[0] == "plugins" || parts[0] == "models");
  return own_units ? parts[0] + "/" + parts[1] : parts[0];
}

std::string TopOf(const std::string& path) { return path.substr(0, path.find('/')); }

// Empty if `from` may include `to`, both paths of the repository; otherwise why not.
std::string Refusal(const std::string& from, const std::string& to) {
  const std::string from_top = TopOf(from), to_top = TopOf(to);
  if (from_top == "tools") return "";
  if (to_top == "tools") return "nothing includes tools/";
  if (IsTestFile(from)) return "";
  if (to_top == "tests") return "only test files include tests/";
  if (IsTestFile(to)) return "production code does not include a test's header";
  if (UnitOf(from) == UnitOf(to)) return "";
  if (from_top == "kernels") return "kernels/ includes nothing of ours outside kernels/";
  if (from_top == "plugin_sdk") return "plugin_sdk/ includes only plugin_sdk/";
  if (to_top == "plugin_sdk") return "";
  if (from_top == "plugins")
    return to_top == "kernels" ? "" : "a plugin includes itself, kernels/ and plugin_sdk/";
  if (from_top == "models") {
    return UnitOf(to) == "models/common" ? "" : "a model includes itself, models/common/ and plugin_sdk/";
  }
  return from_top + "/ includes itself and plugin_sdk/";
}

bool IsCStandard(std::string_view name) {
  static constexpr std::array kHeaders = {"assert.h", "errno.h",    "float.h",  "inttypes.h", "limits.h",
                                          "math.h",   "stdalign.h", "stdarg.h", "stdbool.h",  "stddef.h",
                                          "stdint.h", "stdio.h",    "stdlib.h", "string.h",   "time.h"};
  return Contains(kHeaders, name);
}

// "kBlockDataKDAState" -> k, block, data, kda, state: words as a reader sees them, lower case.
std::vector<std::string> WordsOf(std::string_view line) {
  std::vector<std::string> words(1);
  const auto is_upper = [&](std::size_t i) {
    return i < line.size() && std::isupper(static_cast<unsigned char>(line[i]));
  };
  const auto is_lower = [&](std::size_t i) {
    return i < line.size() && std::islower(static_cast<unsigned char>(line[i]));
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (!is_upper(i) && !is_lower(i)) {
      words.emplace_back();
      continue;
    }
    const bool starts_word =
        is_upper(i) && i > 0 && (is_lower(i - 1) || (is_upper(i - 1) && is_lower(i + 1)));
    if (starts_word) words.emplace_back();
    words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(line[i])));
  }
  return words;
}

// The forbidden name in a line, or empty. Long names count inside longer words, short ones as words of their
// own.
std::string ForbiddenName(const std::string& line) {
  static constexpr std::array kAnywhere = {"qwen", "olmo", "kimi", "rocm", "nvidia", "cuda", "deltanet"};
  static constexpr std::array kWords = {"aiter", "amd", "amx", "gdn", "glm", "intel", "kda"};
  std::string lower = line;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* name : kAnywhere) {
    if (lower.find(name) != std::string::npos) return name;
  }
  for (const std::string& word : WordsOf(line)) {
    if (Contains(kWords, word)) return word;
  }
  return "";
}

}  // namespace

std::string Violation::ToString() const {
  return file + (line > 0 ? ":" + std::to_string(line) : "") + ": " + message;
}

bool IsCode(const std::string& path) { return Contains(kCodeExtensions, Extension(path)); }

bool IsTestFile(const std::string& path) {
  const std::vector<std::string> folders = Split(path, '/');
  if (Contains(folders, "tests") || Contains(folders, "testing")) return true;
  const std::vector<std::string> words = Split(Stem(path), '_');
  if (words.front() == "test") return true;
  static constexpr std::array kTestWords = {"test", "bench", "fuzz", "testing", "fixture"};
  return std::any_of(words.begin() + 1, words.end(),
                     [](const std::string& word) { return Contains(kTestWords, word); });
}

std::vector<SourceFile> ReadTree(const fs::path& root) {
  std::vector<SourceFile> files;
  for (const char* folder : kFolders) {
    if (!fs::is_directory(root / folder)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder); it != fs::recursive_directory_iterator();
         ++it) {
      const std::string name = it->path().filename().string();
      if (it->is_directory() && (name.front() == '.' || name.starts_with("build")))
        it.disable_recursion_pending();
      const std::string extension = it->path().extension().string();
      if (!it->is_regular_file() ||
          !(Contains(kCodeExtensions, extension) || Contains(kTextExtensions, extension)))
        continue;
      std::ifstream in(it->path(), std::ios::binary);
      files.push_back(
          {fs::relative(it->path(), root).generic_string(), {std::istreambuf_iterator<char>(in), {}}});
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::vector<Include> FindIncludes(const std::string& text) {
  std::vector<Include> includes;
  const std::vector<std::string> lines = Split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    const auto skip_blanks = [&] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip_blanks();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_blanks();
    if (!line.starts_with("include")) continue;
    const std::size_t open = line.find_first_of("<\"");
    if (open == std::string_view::npos) continue;
    const bool quoted = line[open] == '"';
    const std::size_t close = line.find(quoted ? '"' : '>', open + 1);
    if (close == std::string_view::npos) continue;
    includes.push_back(
        {static_cast<int>(i) + 1, std::string(line.substr(open + 1, close - open - 1)), quoted});
  }
  return includes;
}

std::vector<Violation> CheckIncludes(const SourceFile& file, const std::set<std::string>& known) {
  std::vector<Violation> violations;
  for (const Include& include : FindIncludes(file.text)) {
    const bool public_header = include.name.starts_with("rt/");
    const bool ours = include.quoted || public_header || Contains(kFolders, TopOf(include.name));
    if (!ours) continue;
    const std::string target = public_header ? std::string(kPublicTree) + include.name : include.name;
    std::string message;
    if (!known.contains(target)) {
      message = "no such file in the repository (includes are rooted there; system headers take <>)";
    } else {
      message = Refusal(file.path, target);
    }
    if (!message.empty())
      violations.push_back({file.path, include.line, "includes " + include.name + ": " + message});
  }
  return violations;
}

std::vector<Violation> CheckPublicHeader(const SourceFile& file) {
  std::vector<Violation> violations;
  if (!file.path.starts_with(kPublicTree)) return violations;
  const bool is_c = Extension(file.path) == ".h";
  for (const Include& include : FindIncludes(file.text)) {
    const std::string extension = Extension(include.name);
    const bool sibling =
        !include.quoted && include.name.starts_with("rt/plugin/") && (!is_c || extension == ".h");
    const bool standard_cpp =
        !is_c && !include.quoted && extension.empty() && include.name.find('/') == std::string::npos;
    if (sibling || standard_cpp || (!include.quoted && IsCStandard(include.name))) continue;
    violations.push_back({file.path, include.line,
                          "includes " + include.name + ": a public " + (is_c ? "C" : "C++") +
                              " header takes its standard library and <rt/plugin/...> only"});
  }
  return violations;
}

std::vector<Violation> CheckNames(const SourceFile& file) {
  std::vector<Violation> violations;
  if (TopOf(file.path) != "runtime" || IsTestFile(file.path)) return violations;
  const std::vector<std::string> lines = Split(file.text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string name = ForbiddenName(lines[i]);
    if (name.empty()) continue;
    violations.push_back({file.path, static_cast<int>(i) + 1,
                          "names '" + name + "': the core knows no vendor, model or family"});
  }
  return violations;
}

std::vector<Violation> CheckReadmes(const std::vector<SourceFile>& files) {
  std::set<std::string> folders, described;
  for (const SourceFile& file : files) {
    const std::size_t slash = file.path.rfind('/');
    if (slash == std::string::npos) continue;
    std::string folder = file.path.substr(0, slash);
    if (FileName(file.path) == "README.md") described.insert(folder);
    if (!IsCode(file.path)) continue;
    folder = folder.substr(0, (folder + "/").find("/include/"));
    for (std::size_t end = folder.size(); end != std::string::npos && end > 0;
         end = folder.rfind('/', end - 1)) {
      folders.insert(folder.substr(0, end));
    }
  }
  std::vector<Violation> violations;
  for (const std::string& folder : folders) {
    if (!described.contains(folder)) violations.push_back({folder, 0, "has code but no README.md"});
  }
  return violations;
}

}  // namespace rt::testing
