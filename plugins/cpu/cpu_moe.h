// Rows and plans of the routing and expert ops.
#pragma once

#include "plugins/cpu/cpu_plugin.h"

namespace rt::cpu {

// What the rows of an op accept.
std::vector<plugin::Constraint> MoeRouterConstraints();
std::vector<plugin::Constraint> MoeExpertsConstraints();

// Why a problem that passed the constraints cannot be taken, if so.
void MoeExpertsSupports(const plugin::ProblemView& problem, rt_verdict* verdict);

Result<std::unique_ptr<plugin::Plan>> MakeMoeRouterPlan(kernels::Isa isa, const plugin::ProblemView& problem, const kernels::Parallel& parallel);
Result<std::unique_ptr<plugin::Plan>> MakeMoeExpertsPlan(kernels::Isa isa, const plugin::ProblemView& problem, const rt_plan_desc& desc, const kernels::Parallel& parallel);

}  // namespace rt::cpu
