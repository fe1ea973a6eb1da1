#include "tests/e2e/model_setup.h"

#include "kernels/common/isa.h"

#include <spdlog/spdlog.h>

#include <cctype>
#include <stdexcept>

namespace rt::testing {

void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.name; }

std::vector<ModelCase> Families() {
  return {{"tiny-gdn", std::filesystem::path(RT_ZOO_DIR) / "tiny-gdn"},
          {"tiny-kda", std::filesystem::path(RT_TESTDATA_DIR) / "models/tiny-kda"}};
}

std::vector<ModelCase> GoldenModels() {
  std::vector<ModelCase> models = Families();
  for (const char* name : {"qwen3_5_odd", "kimi_linear"})
    models.push_back({name, std::filesystem::path(RT_TESTDATA_DIR) / "models/micro" / name});
  return models;
}

std::vector<std::string> IsaLevels() {
  std::vector<std::string> levels;
  if (kernels::CpuSupports(kernels::Isa::kAvx512Bf16)) levels.push_back("avx512bf16");
  if (kernels::CpuSupports(kernels::Isa::kAvx2)) levels.push_back("avx2");
  return levels;
}

std::unique_ptr<Session> OpenSession(const ModelSetup& setup) {
  spdlog::set_level(spdlog::level::err);  // start-up tables of hundreds of sessions hide what a test prints
  Config config;
  config.model.path = setup.model.folder.string();
  config.model.compute_dtype = setup.compute_dtype;
  config.cache.state_dtype = setup.state_dtype;
  config.engine.max_sequences = setup.max_sequences;
  config.engine.max_step_tokens = setup.max_step_tokens;
  config.engine.prefill_chunk = setup.prefill_chunk;
  config.negotiation.deny = setup.deny;
  config.plugins.probe = false;  // tests/bad_plugins covers it
  nlohmann::json options = {{"threads", setup.num_threads}, {"pin", false}};
  if (!setup.isa.empty()) options["isa"] = setup.isa;
  config.plugins.options["cpu"] = std::move(options);
  auto session = std::make_unique<Session>(std::move(config));
  session->set_fill_arena_byte(setup.fill_arena_byte);
  const Status status = session->Prepare();
  if (!status.ok()) throw std::runtime_error(setup.model.name + ": " + status.ToString());
  return session;
}

std::string TestName(std::string text) {
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
}

}  // namespace rt::testing
