// Emits the program of one checkpoint.
#pragma once

#include "models/gdn/gdn_arch.h"

#include <rt/plugin/model.hpp>

namespace rt::models::gdn {

// Mixers are linear_mixer or attention_mixer, the feed-forward part is gated_mlp.
Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b);

}  // namespace rt::models::gdn
