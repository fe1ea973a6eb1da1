// The layering of the repository as checks on its text: who may include whom, what the core may not name,
// what each folder holds. The table is that of docs and README: kernels <- plugins -> plugin_sdk <- runtime;
// models -> plugin_sdk; A -> B: A may include B.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace rt::testing {

struct Violation {
  std::string file;  // relative to the repository
  int line = 0;      // 0: the whole file or folder
  std::string message;

  std::string ToString() const;
};

struct SourceFile {
  std::string path;  // relative to the repository, '/' separated
  std::string text;
};

// All text files under the code folders of `root`; build trees and hidden folders are left out.
std::vector<SourceFile> ReadTree(const std::filesystem::path& root);

bool IsCode(const std::string& path);      // C, C++ or CUDA source or header
bool IsTestFile(const std::string& path);  // in a folder tests/ or testing/, or named *_test, *_bench,
                                           // *_fuzz, *_testing, *_fixture, test_*

// #include directives of one file, in order: line, name, whether in quotes.
struct Include {
  int line;
  std::string name;
  bool quoted;
};
std::vector<Include> FindIncludes(const std::string& text);

// Every include of `file` against the table; `known` holds all paths of the repository.
std::vector<Violation> CheckIncludes(const SourceFile& file, const std::set<std::string>& known);

// Public headers (plugin_sdk/include) stand alone: C headers include C standard headers and each other; C++
// headers the standard library and each other.
std::vector<Violation> CheckPublicHeader(const SourceFile& file);

// Production files of runtime/ name no vendor, model or model family: neither in code nor in comments.
std::vector<Violation> CheckNames(const SourceFile& file);

// Each folder with code in it or below holds a README.md; a tree of public headers is described one level
// above its include/.
std::vector<Violation> CheckReadmes(const std::vector<SourceFile>& files);

}  // namespace rt::testing
