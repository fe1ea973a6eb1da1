#include "runtime/engine/token_history.h"

namespace rt {

TokenHistory::View TokenHistory::At(uint64_t step_id, std::span<const int32_t> tokens,
                                    int32_t num_prompt_tokens) {
  Copy& copy = copies_[step_id & 1];
  for (; copy.num_applied < tokens.size(); ++copy.num_applied) {
    const int32_t token = tokens[copy.num_applied];
    const bool is_prompt = copy.num_applied < static_cast<size_t>(num_prompt_tokens);
    const auto [entry, inserted] = index_.try_emplace(token, static_cast<int32_t>(index_.size()));
    const size_t place = static_cast<size_t>(entry->second);
    if (place == copy.ids.size()) {
      copy.ids.push_back(token);
      copy.output_counts.push_back(0);
      copy.in_prompt.push_back(0);
    }
    if (is_prompt)
      copy.in_prompt[place] = 1;
    else
      ++copy.output_counts[place];
  }
  return {copy.ids, copy.output_counts, copy.in_prompt};
}

}  // namespace rt
