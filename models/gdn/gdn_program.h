// Emits the program of one checkpoint.
#pragma once

#include "models/gdn/gdn_arch.h"

#include <rt/plugin/model.hpp>

namespace rt::models::gdn {

// Layers as in the published models: x += mixer(norm(x)); x += mlp(norm(x)); final norm; logits. Residual adds are fused into the
// following norm (add_rms_norm), so the residual of layer N is complete after the first op of layer N+1.
Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b);

}  // namespace rt::models::gdn
