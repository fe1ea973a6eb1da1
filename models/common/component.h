// The model component of a family from three functions, with the checks and conversions that the ABI asks for.
#pragma once

#include "models/common/config.h"

#include <rt/plugin/model.hpp>

namespace rt::models {

// Family: kName, and static
//   Result<Arch> ParseArch(std::string_view arch_json), Result<Sizes> ParseSizes(const Arch&, std::string_view config_json),
//   Status BuildProgram(const Arch&, const Sizes&, bool random_weights, plugin::ProgramBuilder*).
template <typename Family>
struct ModelComponent {
  static int32_t Match(rt_plugin_ctx*, const rt_model_request* request, rt_model_match* match) {
    return plugin::Guard(nullptr, [&]() -> Status {
      RT_RETURN_IF_ERROR(plugin::CheckStruct(request, "rt_model_request"));
      RT_RETURN_IF_ERROR(plugin::CheckStruct(match, "rt_model_match"));
      const auto refuse = [&](const std::string& why) {
        match->score = 0;
        plugin::CopyText(match->reason, sizeof match->reason, why);
        return Status::Ok();
      };
      const auto arch = Family::ParseArch(plugin::View(request->arch_json));
      if (!arch.ok()) return refuse(arch.status().message());
      const auto sizes = Family::ParseSizes(*arch, plugin::View(request->config_json));
      if (!sizes.ok()) return refuse(sizes.status().message());
      match->score = 100;
      plugin::CopyText(match->reason, sizeof match->reason, "served by architecture " + arch->name);
      return Status::Ok();
    });
  }

  static int32_t Build(rt_plugin_ctx*, const rt_model_request* request, const rt_builder* builder, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(plugin::CheckStruct(request, "rt_model_request"));
      RT_RETURN_IF_ERROR(plugin::CheckStruct(builder, "rt_builder"));
      RT_ASSIGN_OR_RETURN(const auto arch, Family::ParseArch(plugin::View(request->arch_json)));
      RT_ASSIGN_OR_RETURN(const auto sizes, Family::ParseSizes(arch, plugin::View(request->config_json)));
      plugin::ProgramBuilder b(*builder);
      return Family::BuildProgram(arch, sizes, request->random_weights != 0, &b);
    });
  }

  static int32_t Init(const rt_host* host, rt_plugin_ctx** ctx, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(plugin::CheckStruct(host, "rt_host"));
      const std::string key = std::string("plugins.options.") + Family::kName;
      const json options = json::parse(plugin::View(host->options_json), nullptr, false);
      if (!options.is_object()) return {Code::kInvalidArgument, key + ": expected a mapping"};
      if (!options.empty()) return {Code::kInvalidArgument, key + "." + options.begin().key() + ": unknown option; this plugin has none"};
      static char instance;  // no state; any non-null pointer
      *ctx = reinterpret_cast<rt_plugin_ctx*>(&instance);
      return Status::Ok();
    });
  }
  static void Shutdown(rt_plugin_ctx*) {}

  static constexpr rt_model_api kApi = {sizeof(rt_model_api), 0, Match, Build};
};

}  // namespace rt::models
