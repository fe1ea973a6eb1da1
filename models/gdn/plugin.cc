// librt_gdn.so: the model component of the Gated DeltaNet family.
#include "models/common/component.h"
#include "models/gdn/gdn_arch.h"
#include "models/gdn/gdn_program.h"

namespace rt::models::gdn {
namespace {

struct Family {
  static constexpr const char* kName = "gdn";
  static Result<Arch> ParseArch(std::string_view arch_json) { return gdn::ParseArch(arch_json); }
  static Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json) { return gdn::ParseSizes(arch, config_json); }
  static Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b) {
    return gdn::BuildProgram(arch, sizes, random_weights, b);
  }
};
using Component = ModelComponent<Family>;

const rt_component kComponents[] = {{sizeof(rt_component), RT_KIND_MODEL, {"gdn", 3}, &Component::kApi}};

}  // namespace
}  // namespace rt::models::gdn

RT_PLUGIN(RT_KIND_MODEL, "gdn", "DeltaRT", "0.1.0", "any", rt::models::gdn::kComponents, rt::models::gdn::Component::Init, rt::models::gdn::Component::Shutdown)
