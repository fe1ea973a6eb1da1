#include "plugins/cpu/cpu_plugin.h"

#include <nlohmann/json.hpp>

namespace rt::cpu {

using nlohmann::json;

Result<Options> ParseOptions(std::string_view json_text) {
  const json root = json::parse(json_text, nullptr, false);
  if (!root.is_object()) return {Code::kInvalidArgument, "plugins.options.cpu: expected a mapping"};
  Options options;
  for (const auto& [key, value] : root.items()) {
    const std::string name = "plugins.options.cpu." + key;
    if (key == "threads" || key == "spin_us") {
      const int max = key == "threads" ? 1024 : 1000000;
      if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > max) {
        return {Code::kInvalidArgument, name + ": expected an integer from 0 to " + std::to_string(max) + ", found " + value.dump()};
      }
      (key == "threads" ? options.num_threads : options.spin_us) = value.get<int>();
    } else if (key == "pin") {
      if (!value.is_boolean()) return {Code::kInvalidArgument, name + ": expected true or false, found " + value.dump()};
      options.pin = value.get<bool>();
    } else if (key == "isa") {
      if (value != "auto" && value != "avx512bf16" && value != "avx2") {
        return {Code::kInvalidArgument, name + ": expected auto, avx512bf16 or avx2, found " + value.dump()};
      }
      options.isa = value.get<std::string>();
    } else {
      return {Code::kInvalidArgument, name + ": unknown option; known are threads, pin, spin_us, isa"};
    }
  }
  return options;
}

std::vector<Level> Levels(const Options& options) {
  std::vector<Level> levels = {{kernels::Isa::kAvx512Bf16, "avx512bf16", 330, RT_UNAVAILABLE_NONE, ""}, {kernels::Isa::kAvx2, "avx2", 310, RT_UNAVAILABLE_NONE, ""}};
  for (Level& level : levels) {
    if (!kernels::CpuSupports(level.isa)) {
      level.unavailable = RT_UNAVAILABLE_HARDWARE;
      level.reason = std::string("this CPU lacks ") + (level.isa == kernels::Isa::kAvx512Bf16 ? "AVX-512 F/BW/DQ/VL with AVX512_BF16" : "AVX2, FMA or F16C");
    } else if (options.isa != "auto" && options.isa != level.name) {
      level.unavailable = RT_UNAVAILABLE_DISABLED;
      level.reason = "plugins.options.cpu.isa is " + options.isa;
    }
  }
  return levels;
}

}  // namespace rt::cpu
