// Emits the program of one checkpoint.
#pragma once

#include "models/kda/kda_arch.h"

namespace rt::models::kda {

// Mixers are linear_mixer with one decay a key channel, or mla_mixer; the feed-forward part is gated_mlp or moe_block.
Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b);

}  // namespace rt::models::kda
