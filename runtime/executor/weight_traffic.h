// How many bytes of weights a step must read, for reports of achieved bandwidth.
#pragma once

#include "runtime/program/program.h"

#include <cstdint>
#include <vector>

namespace rt {

// Bytes of weights that a step of `num_tokens` decoded tokens reads from memory, each weight once: every matrix whole, one row of an
// embedding a token, and of a mixture of E experts the share that somebody chose. One token reads K/E; more tokens read 1 - (1 - K/E)^n,
// the mean for independent, even choices. Tokens of one text choose alike and read less, so a bandwidth from this number is at most too
// high there. `bytes` [program.weights]: size of each weight.
uint64_t StepWeightBytes(const Program& program, const std::vector<uint64_t>& bytes, int64_t num_tokens);

}  // namespace rt
