// The distinct tokens of one sequence with their counts, as the sampler's penalties need them; kept
// incrementally.
//
// A step in flight may still read the lists it was given while the engine already appends newer tokens, and
// at most two steps are in flight; so there are two copies, used in turn, each brought up to date just before
// its step is enqueued.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace rt {

class TokenHistory {
 public:
  struct View {
    std::span<const int32_t> ids;            // in order of first appearance
    std::span<const int32_t> output_counts;  // how often each was generated
    std::span<const uint8_t> in_prompt;      // 1 if the prompt has it
  };

  // `tokens` are all tokens of the sequence known by now; it only grows between calls. The view stays valid
  // until the second next call.
  View At(uint64_t step_id, std::span<const int32_t> tokens, int32_t num_prompt_tokens);

 private:
  struct Copy {
    std::vector<int32_t> ids;
    std::vector<int32_t> output_counts;
    std::vector<uint8_t> in_prompt;
    size_t num_applied = 0;  // tokens
  };

  std::unordered_map<int32_t, int32_t> index_;  // token id -> place; the same in both copies
  std::array<Copy, 2> copies_;
};

}  // namespace rt
