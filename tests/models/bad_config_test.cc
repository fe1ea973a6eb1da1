// config.json is outside data: whatever stands in it, a family gives sizes whose program builds, or an error that names the key.
#include "models/gdn/gdn_program.h"
#include "models/kda/kda_program.h"
#include "tests/models/model_testing.h"

#include <gtest/gtest.h>

#include <functional>

namespace rt {
namespace {

using nlohmann::json;

// ParseSizes, then BuildProgram with random weights; the first error.
using Load = std::function<Status(const std::string& config)>;

template <typename Arch, typename Parse, typename Build>
Load Loader(const Arch& arch, Parse parse, Build build) {
  return [=](const std::string& config) -> Status {
    const auto sizes = parse(arch, config);
    if (!sizes.ok()) return sizes.status();
    return testing::RecordProgram({}, [&](plugin::ProgramBuilder* b) { return build(arch, *sizes, true, b); }).status();
  };
}

struct Family {
  std::string config_path;
  Load load;
};

std::vector<Family> Families() {
  const auto gdn = models::gdn::ParseArch(testing::ShippedArch("gdn/arch/qwen3_5.yaml").json).value();
  const auto kda = models::kda::ParseArch(testing::ShippedArch("kda/arch/kimi_linear.yaml").json).value();
  const Load load_gdn = Loader(gdn, models::gdn::ParseSizes, models::gdn::BuildProgram), load_kda = Loader(kda, models::kda::ParseSizes, models::kda::BuildProgram);
  const std::string data = RT_TESTDATA_DIR;
  return {{std::string(RT_ZOO_DIR) + "/tiny-gdn/config.json", load_gdn}, {data + "/models/tiny-kda/config.json", load_kda}, {data + "/models/micro/kimi_linear/config.json", load_kda}};
}

std::vector<json> BadValues() {
  return {nullptr, true, false, -1, 0, 1, 3, 2147483647, int64_t{1} << 40, uint64_t{1} << 63, 1e300, -0.5, "", "x", json::array(), {0, -1, 5}, {"a", "linear_attention"},
          json::object(), {{"a", 1}}};
}

void ExpectNamed(const Status& status, const std::string& what) {
  if (status.ok()) return;
  EXPECT_FALSE(status.message().empty()) << what;
  EXPECT_NE(status.code(), Code::kInternal) << what << ": " << status.ToString();
}

TEST(BadConfig, EveryKeyMayHoldAnythingOrBeAbsent) {
  for (const Family& family : Families()) {
    const json config = testing::ReadJson(family.config_path);
    ASSERT_TRUE(family.load(config.dump()).ok()) << family.load(config.dump()).ToString();
    int refused = 0;
    const auto check = [&](const json& changed, const std::string& what) {
      const Status status = family.load(changed.dump());
      ExpectNamed(status, family.config_path + " " + what);
      refused += status.ok() ? 0 : 1;
    };
    const json flat = config.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      json absent = config;
      const json::json_pointer at(pointer);
      json& parent = absent[at.parent_pointer()];
      if (parent.is_object()) parent.erase(at.back());
      check(absent, pointer + " absent");
      for (const json& bad : BadValues()) {
        json changed = config;
        changed[at] = bad;
        check(changed, pointer + " = " + bad.dump());
      }
    }
    EXPECT_GE(refused, 100) << "nothing was changed that matters: " << family.config_path;
  }
}

TEST(BadConfig, TextThatIsNoObjectIsAnError) {
  for (const Family& family : Families()) {
    for (const char* text : {"", "{", "[]", "null", "1", "\"a\"", "{}", "\xff\xfe", "{\"vocab_size\":1e999}"}) EXPECT_FALSE(family.load(text).ok()) << text;
    EXPECT_FALSE(family.load(std::string(100000, '[')).ok());
    const std::string whole = testing::ReadText(family.config_path);
    const size_t end = whole.find_last_of('}');
    for (size_t cut = 0; cut <= end; cut += 7) EXPECT_FALSE(family.load(whole.substr(0, cut)).ok()) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace rt
