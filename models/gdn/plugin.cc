// librt_gdn.so: the model component of the Gated DeltaNet family.
#include "models/gdn/gdn_arch.h"
#include "models/gdn/gdn_program.h"

#include <rt/plugin/model.hpp>

#include <algorithm>

namespace rt::models::gdn {
namespace {

int32_t Match(rt_plugin_ctx*, const rt_model_request* request, rt_model_match* match) {
  return plugin::Guard(nullptr, [&]() -> Status {
    RT_RETURN_IF_ERROR(plugin::CheckStruct(request, "rt_model_request"));
    RT_RETURN_IF_ERROR(plugin::CheckStruct(match, "rt_model_match"));
    const auto refuse = [&](const std::string& why) {
      match->score = 0;
      plugin::CopyText(match->reason, sizeof match->reason, why);
      return Status::Ok();
    };
    const auto arch = ParseArch(plugin::View(request->arch_json));
    if (!arch.ok()) return refuse(arch.status().message());
    const auto sizes = ParseSizes(*arch, plugin::View(request->config_json));
    if (!sizes.ok()) return refuse(sizes.status().message());
    match->score = 100;
    plugin::CopyText(match->reason, sizeof match->reason, "served by architecture " + arch->name);
    return Status::Ok();
  });
}

int32_t Build(rt_plugin_ctx*, const rt_model_request* request, const rt_builder* builder, rt_error* error) {
  return plugin::Guard(error, [&]() -> Status {
    RT_RETURN_IF_ERROR(plugin::CheckStruct(request, "rt_model_request"));
    RT_RETURN_IF_ERROR(plugin::CheckStruct(builder, "rt_builder"));
    RT_ASSIGN_OR_RETURN(const Arch arch, ParseArch(plugin::View(request->arch_json)));
    RT_ASSIGN_OR_RETURN(const Sizes sizes, ParseSizes(arch, plugin::View(request->config_json)));
    plugin::ProgramBuilder b(*builder);
    return BuildProgram(arch, sizes, request->random_weights != 0, &b);
  });
}

constexpr rt_model_api kApi = {sizeof(rt_model_api), 0, Match, Build};
const rt_component kComponents[] = {{sizeof(rt_component), RT_KIND_MODEL, {"gdn", 3}, &kApi}};

int32_t Init(const rt_host* host, rt_plugin_ctx** ctx, rt_error* error) {
  return plugin::Guard(error, [&]() -> Status {
    RT_RETURN_IF_ERROR(plugin::CheckStruct(host, "rt_host"));
    const json options = json::parse(plugin::View(host->options_json), nullptr, false);
    if (!options.is_object()) return {Code::kInvalidArgument, "plugins.options.gdn: expected a mapping"};
    if (!options.empty()) return {Code::kInvalidArgument, "plugins.options.gdn." + options.begin().key() + ": unknown option; this plugin has none"};
    static char instance;  // no state; any non-null pointer
    *ctx = reinterpret_cast<rt_plugin_ctx*>(&instance);
    return Status::Ok();
  });
}
void Shutdown(rt_plugin_ctx*) {}

}  // namespace
}  // namespace rt::models::gdn

RT_PLUGIN(RT_KIND_MODEL, "gdn", "DeltaRT", "0.1.0", "any", rt::models::gdn::kComponents, rt::models::gdn::Init, rt::models::gdn::Shutdown)
