// libFuzzer target of the readers of config.json: any text gives a program or an error, never a crash, hang or leak. The first byte
// chooses the family.
#include "models/gdn/gdn_program.h"
#include "models/kda/kda_program.h"
#include "tests/models/model_testing.h"

namespace {

constexpr int64_t kLargest = 4096;  // expert matrices: larger programs take long to name, and show nothing more

void BuildGdn(const std::string& config) {
  static const auto arch = rt::models::gdn::ParseArch(rt::testing::ShippedArch("gdn/arch/qwen3_5.yaml").json).value();
  const auto sizes = rt::models::gdn::ParseSizes(arch, config);
  if (!sizes.ok()) return;
  (void)rt::testing::RecordProgram({}, [&](rt::plugin::ProgramBuilder* b) { return rt::models::gdn::BuildProgram(arch, *sizes, true, b); });
}

void BuildKda(const std::string& config) {
  static const auto arch = rt::models::kda::ParseArch(rt::testing::ShippedArch("kda/arch/kimi_linear.yaml").json).value();
  const auto sizes = rt::models::kda::ParseSizes(arch, config);
  if (!sizes.ok() || sizes->num_layers * sizes->num_experts > kLargest) return;
  (void)rt::testing::RecordProgram({}, [&](rt::plugin::ProgramBuilder* b) { return rt::models::kda::BuildProgram(arch, *sizes, true, b); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string config(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? BuildGdn(config) : BuildKda(config);
  return 0;
}
