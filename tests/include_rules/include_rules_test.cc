#include "tests/include_rules/include_rules.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rt::testing {
namespace {

std::string Join(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) text += violation.ToString() + "\n";
  return text;
}

class Repository : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { files_ = ReadTree(RT_SOURCE_DIR); }

  template <typename Check>
  static std::vector<Violation> OfCode(Check check) {
    std::vector<Violation> all;
    for (const SourceFile& file : files_) {
      if (!IsCode(file.path)) continue;
      const std::vector<Violation> found = check(file);
      all.insert(all.end(), found.begin(), found.end());
    }
    return all;
  }

  static std::vector<SourceFile> files_;
};
std::vector<SourceFile> Repository::files_;

TEST_F(Repository, ScanSeesEveryCodeFolder) {
  for (const std::string folder :
       {"kernels/", "plugin_sdk/", "plugin_sdk/include/rt/plugin/", "runtime/", "tests/"}) {
    EXPECT_TRUE(std::any_of(files_.begin(), files_.end(), [&](const SourceFile& file) {
      return IsCode(file.path) && file.path.starts_with(folder) && !FindIncludes(file.text).empty();
    })) << folder;
  }
}

TEST_F(Repository, IncludesGoInTheAllowedDirections) {
  std::set<std::string> known;
  for (const SourceFile& file : files_) known.insert(file.path);
  EXPECT_EQ(Join(OfCode([&](const SourceFile& file) { return CheckIncludes(file, known); })), "");
}

TEST_F(Repository, PublicHeadersStandAlone) { EXPECT_EQ(Join(OfCode(CheckPublicHeader)), ""); }

TEST_F(Repository, CoreNamesNoVendorModelOrFamily) {
  std::vector<Violation> all;
  for (const SourceFile& file : files_) {
    const std::vector<Violation> found = CheckNames(file);
    all.insert(all.end(), found.begin(), found.end());
  }
  EXPECT_EQ(Join(all), "");
}

TEST_F(Repository, EveryFolderWithCodeHasAReadme) { EXPECT_EQ(Join(CheckReadmes(files_)), ""); }

// Planted violations: what the checks above must find, one by one.

const std::set<std::string> kKnown = {
    "runtime/engine/testing/fake_model.h",
    "kernels/gemm/gemm.h",
    "kernels/common/isa_testing.h",
    "plugins/cpu/device.h",
    "plugins/other/device.h",
    "models/common/names.h",
    "models/one/one.h",
    "models/two/two.h",
    "plugin_sdk/oracle/dense.h",
    "plugin_sdk/include/rt/plugin/ops.h",
    "runtime/engine/engine.h",
    "tests/helpers/golden.h",
    "tools/make.h",
};

std::string Found(const std::string& path, const std::string& include) {
  return Join(CheckIncludes({path, "// top\n  #  include " + include + "  // why\n"}, kKnown));
}

struct Direction {
  const char* from;
  const char* include;
  bool allowed;
};

TEST(IncludeRules, EveryDirectionOfTheTableIsJudged) {
  const Direction directions[] = {
      {"kernels/norm/norm.cc", "\"kernels/gemm/gemm.h\"", true},
      {"kernels/norm/norm.cc", "\"plugin_sdk/oracle/dense.h\"", false},
      {"kernels/norm/norm.cc", "<rt/plugin/ops.h>", false},
      {"kernels/norm/norm_test.cc", "\"plugin_sdk/oracle/dense.h\"", true},
      {"kernels/norm/norm.cc", "\"kernels/common/isa_testing.h\"", false},
      {"kernels/norm/norm_bench.cc", "\"kernels/common/isa_testing.h\"", true},
      {"plugins/cpu/ops.cc", "\"plugins/cpu/device.h\"", true},
      {"plugins/cpu/ops.cc", "\"kernels/gemm/gemm.h\"", true},
      {"plugins/cpu/ops.cc", "<rt/plugin/ops.h>", true},
      {"plugins/cpu/ops.cc", "\"plugins/other/device.h\"", false},
      {"plugins/cpu/ops.cc", "\"runtime/engine/engine.h\"", false},
      {"plugins/cpu/ops.cc", "\"models/common/names.h\"", false},
      {"models/one/one.cc", "\"models/one/one.h\"", true},
      {"models/one/one.cc", "\"models/common/names.h\"", true},
      {"models/one/one.cc", "<rt/plugin/ops.h>", true},
      {"models/one/one.cc", "\"models/two/two.h\"", false},
      {"models/common/names.cc", "\"models/one/one.h\"", false},
      {"models/one/one.cc", "\"kernels/gemm/gemm.h\"", false},
      {"runtime/cli/main.cc", "\"runtime/engine/engine.h\"", true},
      {"runtime/cli/main.cc", "\"plugin_sdk/oracle/dense.h\"", true},
      {"runtime/cli/main.cc", "\"kernels/gemm/gemm.h\"", false},
      {"runtime/cli/main.cc", "\"plugins/cpu/device.h\"", false},
      {"runtime/cli/main.cc", "\"models/one/one.h\"", false},
      {"runtime/cli/main.cc", "\"tests/helpers/golden.h\"", false},
      {"runtime/cli/main.cc", "\"runtime/engine/testing/fake_model.h\"", false},
      {"runtime/engine/testing/fake_model.cc", "\"runtime/engine/testing/fake_model.h\"", true},
      {"runtime/cli/main_test.cc", "\"tests/helpers/golden.h\"", true},
      {"plugin_sdk/loader/elf.cc", "\"plugin_sdk/oracle/dense.h\"", true},
      {"plugin_sdk/loader/elf.cc", "\"runtime/engine/engine.h\"", false},
      {"plugin_sdk/loader/elf.cc", "\"kernels/gemm/gemm.h\"", false},
      {"tests/e2e/chat_test.cc", "\"kernels/gemm/gemm.h\"", true},
      {"tests/e2e/chat_test.cc", "\"tools/make.h\"", false},
      {"kernels/norm/norm_test.cc", "\"tools/make.h\"", false},
      {"tools/report.cc", "\"tools/make.h\"", true},
      {"tools/report.cc", "\"kernels/gemm/gemm.h\"", true},
  };
  for (const Direction& d : directions) {
    const std::string found = Found(d.from, d.include);
    EXPECT_EQ(found.empty(), d.allowed) << d.from << " includes " << d.include << ": " << found;
  }
}

TEST(IncludeRules, ReportNamesFileLineIncludeAndRule) {
  EXPECT_EQ(Found("kernels/norm/norm.cc", "\"runtime/engine/engine.h\""),
            "kernels/norm/norm.cc:2: includes runtime/engine/engine.h: kernels/ includes nothing of ours "
            "outside kernels/\n");
}

TEST(IncludeRules, UnrootedQuotesAndUnknownPublicHeadersAreRefused) {
  EXPECT_NE(Found("runtime/cli/main.cc", "\"engine.h\""), "");
  EXPECT_NE(Found("runtime/cli/main.cc", "<rt/plugin/nothing.h>"), "");
  EXPECT_NE(Found("kernels/norm/norm.cc", "<runtime/engine/engine.h>"), "");
  EXPECT_EQ(Found("runtime/cli/main.cc", "<vector>"), "");
  EXPECT_EQ(Found("runtime/cli/main.cc", "<nlohmann/json.hpp>"), "");
}

TEST(IncludeRules, PublicHeadersTakeOnlyTheirStandardLibrary) {
  auto found = [](const char* name, const std::string& include) {
    return !CheckPublicHeader({std::string("plugin_sdk/include/rt/plugin/") + name, "#include " + include})
                .empty();
  };
  EXPECT_FALSE(found("a.h", "<stdint.h>"));
  EXPECT_FALSE(found("a.h", "<rt/plugin/b.h>"));
  EXPECT_TRUE(found("a.h", "<rt/plugin/b.hpp>"));
  EXPECT_TRUE(found("a.h", "<vector>"));
  EXPECT_TRUE(found("a.h", "<unistd.h>"));
  EXPECT_FALSE(found("a.hpp", "<vector>"));
  EXPECT_FALSE(found("a.hpp", "<rt/plugin/b.h>"));
  EXPECT_TRUE(found("a.hpp", "<boost/dll.hpp>"));
  EXPECT_TRUE(found("a.hpp", "\"plugin_sdk/oracle/dense.h\""));
}

TEST(IncludeRules, NamesAreFoundInCodeStringsAndComments) {
  auto found = [](const std::string& line) {
    return !CheckNames({"runtime/engine/engine.cc", line}).empty();
  };
  for (const char* line : {"// for Qwen3.5 only", "if (arch == \"OlmoHybrid\")", "kimi_linear",
                           "class GLM5Model", "is_gdn", "struct KDAState", "LoadKda", "USE_CUDA", "libcudart",
                           "rocm/hip", "NVIDIA", "amd", "Intel's", "has_amx()", "aiter", "GatedDeltaNet"}) {
    EXPECT_TRUE(found(line)) << line;
  }
  for (const char* line : {"Code::kDataLoss", "a waiter waits", "intelligent", "Amdahl's law", "block data",
                           "handgun", "RT_KIND_LINEAR_ATTENTION", "delta"}) {
    EXPECT_FALSE(found(line)) << line;
  }
}

TEST(IncludeRules, NamesMayAppearInTestsAndOutsideTheCore) {
  EXPECT_TRUE(CheckNames({"runtime/text/tokenizer_test.cc", "models/zoo/tiny-gdn"}).empty());
  EXPECT_TRUE(CheckNames({"models/gdn/qwen.cc", "qwen"}).empty());
  EXPECT_FALSE(CheckNames({"runtime/text/README.md", "qwen"}).empty());
}

TEST(IncludeRules, FolderWithoutReadmeIsNamedAndHeaderTreesAreDescribedAbove) {
  const std::vector<SourceFile> files = {
      {"a/x.cc", ""},           {"a/README.md", ""}, {"b/y.cu", ""},           {"c/z.txt", ""},
      {"d/include/rt/p.h", ""}, {"d/README.md", ""}, {"e/include/rt/p.h", ""}, {"f/g/h/x.c", ""},
      {"f/g/h/README.md", ""},  {"f/README.md", ""}};
  EXPECT_EQ(Join(CheckReadmes(files)),
            "b: has code but no README.md\ne: has code but no README.md\nf/g: has code but no README.md\n");
}

}  // namespace
}  // namespace rt::testing
