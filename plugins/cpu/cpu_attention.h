// What the files of the attention component share: its one backend serves gated attention and latent attention.
#pragma once

#include "plugins/cpu/cpu_plugin.h"
#include "plugins/cpu/step_view.h"

#include <functional>
#include <string_view>

namespace rt::cpu {

// The step as plans of this component see it.
class AttentionStep : public plugin::Backend {
 public:
  const StepView& view() const { return view_; }

 protected:
  StepView view_;
};

// The sequences of one phase, for the kernels of both attentions; rows of activations stay absolute.
template <typename Args>
void PlaceSequences(const rt_step_meta& meta, const StepView::Phase& phase, Args* args) {
  args->num_sequences = phase.num_sequences;
  args->cu_seqlens = meta.cu_seqlens + phase.first_sequence;
  args->context_lens = meta.context_lens + phase.first_sequence;
  args->max_blocks = meta.max_blocks_per_sequence;
  args->block_table = meta.block_table + static_cast<int64_t>(phase.first_sequence) * meta.max_blocks_per_sequence;
}

// Latent attention (cpu_latent_attention.cc): mla_mixer and its pieces.
bool IsLatentOp(std::string_view op);
void AddLatentRows(const Level& level, const std::function<void(plugin::RowSpec)>& add);
void SupportsLatent(const plugin::ProblemView& problem, rt_verdict* verdict);
// `row` is the chosen one. The view outlives the plan.
Result<std::unique_ptr<plugin::Plan>> CreateLatentPlan(const rt_plan_desc& desc, const plugin::RowSpec& row, kernels::Isa isa, const StepView& view, const kernels::Parallel& parallel);

}  // namespace rt::cpu
