// librt_kda.so: the model component of the Kimi Delta Attention family.
#include "models/common/component.h"
#include "models/kda/kda_arch.h"
#include "models/kda/kda_program.h"

namespace rt::models::kda {
namespace {

struct Family {
  static constexpr const char* kName = "kda";
  static Result<Arch> ParseArch(std::string_view arch_json) { return kda::ParseArch(arch_json); }
  static Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json) { return kda::ParseSizes(arch, config_json); }
  static Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b) {
    return kda::BuildProgram(arch, sizes, random_weights, b);
  }
};
using Component = ModelComponent<Family>;

const rt_component kComponents[] = {{sizeof(rt_component), RT_KIND_MODEL, {"kda", 3}, &Component::kApi}};

}  // namespace
}  // namespace rt::models::kda

RT_PLUGIN(RT_KIND_MODEL, "kda", "DeltaRT", "0.1.0", "any", rt::models::kda::kComponents, rt::models::kda::Component::Init, rt::models::kda::Component::Shutdown)
