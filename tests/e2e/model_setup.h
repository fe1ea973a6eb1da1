// Which model a test runs and how it is configured, and the opening of a session for it.
#pragma once

#include "kernels/common/sanitized.h"
#include "runtime/session/session.h"

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace rt::testing {

// A model with goldens. Another family joins every suite by one line in Families().
struct ModelCase {
  std::string name;  // of its folder under golden/
  std::filesystem::path folder;
  bool has_reference = true;  // tests/oracle_model computes it in fp64
};
void PrintTo(const ModelCase& model, std::ostream* out);

// Small trained models, one a family: properties and bf16 rules are judged on these.
std::vector<ModelCase> Families();
// Families plus models of awkward sizes with random weights.
std::vector<ModelCase> GoldenModels();
// ISA levels of the CPU plugin that this machine has, best first.
std::vector<std::string> IsaLevels();

struct ModelSetup {
  ModelCase model;
  std::string isa;  // empty: the plugin's choice
  std::string compute_dtype = "float32";
  std::string state_dtype = "auto";
  int64_t max_sequences = 16;
  int64_t max_step_tokens = 256;
  int64_t prefill_chunk = 256;
  std::vector<std::string> deny;  // negotiation.deny
  int num_threads =
      1;  // of the device; on a busy machine every barrier of more threads waits for the scheduler
  int fill_arena_byte = -1;  // poisons the cache arena
};

// Everything of start-up but the engine. Throws std::runtime_error with the stage's message.
std::unique_ptr<Session> OpenSession(const ModelSetup& setup);

using kernels::kSanitized;
using kernels::Scaled;

// "tiny-gdn" -> "tiny_gdn": what a test name may hold.
std::string TestName(std::string text);

}  // namespace rt::testing
