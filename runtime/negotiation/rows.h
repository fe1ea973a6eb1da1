// Internal to runtime/negotiation: judging rows.
#pragma once

#include "runtime/negotiation/negotiation.h"

namespace rt {

// '*' in `pattern` matches any run of characters.
bool MatchesName(std::string_view pattern, std::string_view name);

// What the configuration asks for: pin of op.phase, pin of op, backend choice of the kind, or "auto".
std::string RequestFor(const NegotiationPolicy& policy, std::string_view op, uint32_t phase, uint32_t kind);

// Judges every row that names this op and phase; the best eligible one is chosen (chosen = -1: none).
Decision JudgeRows(const ops::OpDef& def, const ops::OpInstance& op, uint32_t phase, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device);

// Borrows the decision's columns and attributes.
rt_problem MakeProblem(const Decision& decision, rt_device_ref device);

// All candidates with verdicts and reasons on one line.
std::string CandidatesText(const Decision& decision);

}  // namespace rt
