#include "runtime/negotiation/negotiation.h"
#include "runtime/negotiation/rows.h"

#include <rt/plugin/op_defs.h>
#include <rt/plugin/plugin.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

namespace rt {

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kChosen: return "chosen";
    case Verdict::kEligible: return "eligible";
    case Verdict::kRefused: return "refused";
    case Verdict::kUnavailable: return "unavailable";
    case Verdict::kDenied: return "denied";
    case Verdict::kNotRequested: return "not requested";
  }
  return "?";
}

namespace {

// Phases a text generation engine runs; verify joins with speculation.
constexpr uint32_t kPhases[] = {RT_PHASE_DECODE, RT_PHASE_PREFILL};

std::string OpPhase(const Decision& d) { return d.phase == RT_PHASE_ALL ? d.op : fmt::format("{}/{}", d.op, ops::PhaseName(d.phase)); }

class Negotiator {
 public:
  Negotiator(Program* program, uint32_t act, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device)
      : program_(*program), providers_(providers), policy_(policy), device_(device) {
    result_.dtypes.act = act;
  }

  Result<NegotiationResult> Run() {
    RT_RETURN_IF_ERROR(ResolveCaches());
    RT_RETURN_IF_ERROR(ExpandUnclaimed());
    MergeLinears(&program_);
    RT_RETURN_IF_ERROR(ChooseLayout(RT_KIND_LINEAR_ATTENTION, {RT_STATE_LAYOUT_VPANEL16, RT_STATE_LAYOUT_VK, RT_STATE_LAYOUT_KV}));
    RT_RETURN_IF_ERROR(ChooseLayout(RT_KIND_ATTENTION, {RT_KV_LAYOUT_HND, RT_KV_LAYOUT_NHD}));
    RT_RETURN_IF_ERROR(BuildStages());
    NoteFindings();
    return Strict();
  }

 private:
  static const char* RoleName(uint32_t role) {
    return role == RT_CACHE_RECURRENT ? "recurrent_state" : role == RT_CACHE_CONV ? "conv_state" : role == RT_CACHE_LATENT ? "latent_kv" : "kv";
  }
  // Caches of an attention layer share one decision; so do all latent rows.
  static uint32_t DecisionRole(uint32_t role) { return role == RT_CACHE_VALUE ? uint32_t{RT_CACHE_KEY} : role; }

  // dtypes that some available row can store, from the column's constraints.
  uint32_t StorableSet(uint32_t column) const {
    uint32_t set = 0;
    for (const KernelProvider& provider : providers_) {
      const rt_row* rows = nullptr;
      uint32_t count = 0, stride = 0;
      if (provider.ops->rows(provider.ctx, &rows, &count, &stride) != RT_OK) continue;
      for (uint32_t r = 0; r < count; ++r) {
        const auto& row = *reinterpret_cast<const rt_row*>(reinterpret_cast<const char*>(rows) + size_t{r} * stride);
        if (row.unavailable != RT_UNAVAILABLE_NONE) continue;
        for (uint32_t dtype : {RT_DTYPE_F32, RT_DTYPE_BF16, RT_DTYPE_F16}) {
          bool speaks = false;
          for (uint32_t i = 0; i < row.num_constraints; ++i) {
            const auto* c = reinterpret_cast<const rt_constraint*>(reinterpret_cast<const char*>(row.constraints) + size_t{i} * row.constraint_stride);
            speaks |= c->column == column;
          }
          if (speaks && FilterRow(row, {{column, 0, dtype}}).empty()) set |= 1u << dtype;
        }
      }
    }
    return set;
  }

  static std::string SetText(uint32_t set) {
    std::string text;
    for (uint32_t dtype : {RT_DTYPE_F32, RT_DTYPE_BF16, RT_DTYPE_F16}) {
      if (set & (1u << dtype)) text += (text.empty() ? "" : ", ") + std::string(ops::DTypeName(dtype));
    }
    return "{" + text + "}";
  }

  // user request ∩ model's set ∩ storable set, with who decided.
  Result<CacheDecision> ResolveRole(uint32_t role, uint32_t requested, const ProgramCache& cache, uint32_t column) {
    CacheDecision d;
    d.role = role;
    d.name = RoleName(role);
    d.requested = requested;
    d.model_default = cache.default_dtype;
    d.model_set = cache.dtype_set;
    d.kernel_set = StorableSet(column);
    const uint32_t fallback = cache.default_dtype == RT_DTYPE_NONE ? result_.dtypes.act : cache.default_dtype;
    d.chosen = requested == RT_DTYPE_NONE ? fallback : requested;
    d.decided_by = requested != RT_DTYPE_NONE ? "user" : cache.default_dtype == RT_DTYPE_NONE ? "compute dtype" : "model";
    const uint32_t bit = 1u << d.chosen;
    std::string why;
    if ((d.model_set & bit) == 0) why = fmt::format("the model allows {}", SetText(d.model_set));
    // With no row at all the op itself is refused later, which says more.
    if (why.empty() && d.kernel_set != 0 && (d.kernel_set & bit) == 0) why = fmt::format("the loaded kernels store {}", SetText(d.kernel_set));
    if (why.empty()) return d;
    const std::string text = fmt::format("{} dtype {} ({}): {}", d.name, ops::DTypeName(d.chosen), d.decided_by, why);
    const uint32_t usable = d.model_set & d.kernel_set;
    if (requested == RT_DTYPE_NONE || !policy_.allow_fallback || (usable & (1u << fallback)) == 0) return {Code::kUnsupported, text};
    d.chosen = fallback;
    d.decided_by = "fallback";
    Downgrade(text + fmt::format("; using {}", ops::DTypeName(fallback)));
    return d;
  }

  Status ResolveCaches() {
    result_.dtypes.caches.resize(program_.caches.size());
    std::map<uint32_t, CacheDecision> by_role;
    for (size_t i = 0; i < program_.caches.size(); ++i) {
      const ProgramCache& cache = program_.caches[i];
      const bool kv = cache.extent == RT_CACHE_PER_TOKENS;
      const uint32_t role = DecisionRole(cache.role);
      if (by_role.count(role) == 0) {
        const uint32_t requested = kv ? policy_.kv_dtype : role == RT_CACHE_CONV ? policy_.conv_dtype : policy_.state_dtype;
        const uint32_t column = kv ? uint32_t{RT_COL_KV_DTYPE} : role == RT_CACHE_CONV ? uint32_t{RT_COL_CONV_DTYPE} : uint32_t{RT_COL_STATE_DTYPE};
        RT_ASSIGN_OR_RETURN(by_role[role], ResolveRole(role, requested, cache, column));
      }
      CacheDecision& d = by_role[role];
      ++d.num_caches;
      result_.dtypes.caches[i].dtype = d.chosen;
      if (kv) result_.dtypes.caches[i].block_size = policy_.kv_block_size;
    }
    for (auto& [role, d] : by_role) result_.caches.push_back(d);
    return Status::Ok();
  }

  // ---- decisions ----

  static bool Same(const Decision& a, const Decision& b) {
    const auto equal = [](const rt_column_value& x, const rt_column_value& y) { return x.column == y.column && x.value == y.value; };
    return a.op == b.op && a.version == b.version && a.phase == b.phase && a.attrs == b.attrs && std::equal(a.columns.begin(), a.columns.end(), b.columns.begin(), b.columns.end(), equal);
  }

  // Judges, honouring `fallback: allow` for explicit requests.
  Decision Judge(const ProgramOp& op, uint32_t phase) const {
    const ops::OpDef& def = *ops::FindOp(op.op, op.version);
    const ops::OpInstance instance = Instantiate(program_, op, result_.dtypes);
    return JudgeRows(def, instance, phase, providers_, policy_, device_);
  }

  size_t Record(Decision decision) {
    for (size_t i = 0; i < result_.decisions.size(); ++i) {
      if (Same(result_.decisions[i], decision)) {
        ++result_.decisions[i].num_ops;
        return i;
      }
    }
    decision.num_ops = 1;
    result_.decisions.push_back(std::move(decision));
    return result_.decisions.size() - 1;
  }

  Status NoRow(const Decision& d, const std::string& label) const {
    std::string ask;
    if (d.requested != "auto") ask = fmt::format(" as the configuration asks ({})", d.requested);
    return {Code::kUnsupported, fmt::format("{}: no kernel can run {}{}: {}", label, OpPhase(d), ask, CandidatesText(d))};
  }

  // Retries without the explicit request when the user allows it.
  Result<Decision> JudgeOrFallBack(const ProgramOp& op, uint32_t phase) {
    Decision d = Judge(op, phase);
    if (d.chosen >= 0 || d.requested == "auto" || !policy_.allow_fallback) return d;
    NegotiationPolicy open = policy_;
    open.pins.clear();
    open.attention_backend = open.linear_attention_backend = "auto";
    const ops::OpDef& def = *ops::FindOp(op.op, op.version);
    Decision free = JudgeRows(def, Instantiate(program_, op, result_.dtypes), phase, providers_, open, device_);
    if (free.chosen < 0) return d;
    free.requested = d.requested;
    Downgrade(fmt::format("{}: {} was asked for and cannot serve: {}; using {}", OpPhase(d), d.requested, CandidatesText(d), free.candidates[static_cast<size_t>(free.chosen)].kernel));
    return free;
  }

  void Downgrade(std::string text) {
    for (const Finding& f : result_.findings) {
      if (f.text == text) return;
    }
    result_.findings.push_back({Severity::kWarn, true, std::move(text)});
  }

  // ---- composites without phases ----

  Status ExpandUnclaimed() {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ops::OpDef& def = *ops::FindOp(program_.ops[i].op, program_.ops[i].version);
      if (!def.composite || def.phased) continue;
      RT_ASSIGN_OR_RETURN(Decision d, JudgeOrFallBack(program_.ops[i], RT_PHASE_ALL));
      if (d.chosen >= 0) continue;
      if (d.requested != "auto") return NoRow(d, program_.ops[i].label);
      NoteDecomposed(d);
      d.decomposed = true;
      Record(std::move(d));
      RT_RETURN_IF_ERROR(ExpandComposite(&program_, i, result_.dtypes));
      --i;  // the first piece may be a composite too
    }
    return Status::Ok();
  }

  // A decomposition is a downgrade only where a composite row was offered and refused.
  void NoteDecomposed(const Decision& d) {
    const bool offered = std::any_of(d.candidates.begin(), d.candidates.end(), [](const Candidate& c) { return c.verdict == Verdict::kRefused; });
    if (offered) Downgrade(fmt::format("{}: runs as its pieces because the fused rows refused: {}", OpPhase(d), CandidatesText(d)));
  }

  // ---- phased ops and layouts ----

  // Whether rows of this kind decide the order of this cache.
  static bool HasLayout(uint32_t kind, uint32_t role) {
    if (kind != RT_KIND_ATTENTION) return role == RT_CACHE_RECURRENT;
    return role == RT_CACHE_KEY || role == RT_CACHE_VALUE || role == RT_CACHE_LATENT;
  }
  void SetLayout(uint32_t kind, uint32_t layout) {
    for (size_t i = 0; i < program_.caches.size(); ++i) {
      if (HasLayout(kind, program_.caches[i].role)) result_.dtypes.caches[i].layout = layout;
    }
    for (CacheDecision& d : result_.caches) {
      if (HasLayout(kind, d.role)) d.layout = layout;
    }
  }

  struct PhasedChoice {
    Decision decision;                // of the op itself
    std::vector<ProgramOp> pieces;    // when decomposed
    std::vector<Decision> piece_decisions;
    int64_t score = 0;
  };

  Result<PhasedChoice> ChoosePhased(Program* program, const ProgramOp& op, uint32_t phase) {
    PhasedChoice choice;
    RT_ASSIGN_OR_RETURN(choice.decision, JudgeOrFallBack(op, phase));
    Decision& d = choice.decision;
    if (d.chosen >= 0) {
      choice.score = d.candidates[static_cast<size_t>(d.chosen)].score;
      return choice;
    }
    const ops::OpDef& def = *ops::FindOp(op.op, op.version);
    // An explicit request names a fused kernel or a plugin; pieces of that plugin still honour it.
    if (!def.composite) return NoRow(d, op.label);
    RT_ASSIGN_OR_RETURN(choice.pieces, ExpandPieces(program, op, result_.dtypes));
    d.decomposed = true;
    for (const ProgramOp& piece : choice.pieces) {
      const ops::OpDef& piece_def = *ops::FindOp(piece.op, piece.version);
      Decision pd = JudgeRows(piece_def, Instantiate(*program, piece, result_.dtypes), phase, providers_, policy_, device_);
      if (pd.chosen < 0) {
        if (d.candidates.empty()) return NoRow(pd, piece.label);
        return {Code::kUnsupported, NoRow(d, op.label).message() + "; and not as its pieces either: " + NoRow(pd, piece.label).message()};
      }
      const Candidate& chosen = pd.candidates[static_cast<size_t>(pd.chosen)];
      // A pin of the composite says nothing about its pieces by name, so they are held to it here.
      const bool asked = d.requested != "auto" && pd.requested == "auto" && piece_def.kind == def.kind;
      if (asked && !MatchesName(d.requested, chosen.plugin)) return NoRow(d, op.label);
      choice.score += chosen.score;
      choice.piece_decisions.push_back(std::move(pd));
    }
    choice.score /= static_cast<int64_t>(choice.pieces.size()) * 2;  // a fused row of the same band wins
    return choice;
  }

  // Prefill, decode and the cache must agree on one layout: the feasible one with the best total score.
  Status ChooseLayout(uint32_t kind, const std::vector<uint32_t>& layouts) {
    std::optional<uint32_t> best;
    int64_t best_score = -1;
    Status first_error;
    bool any = false;
    const std::vector<Finding> findings = result_.findings;
    for (uint32_t layout : layouts) {
      SetLayout(kind, layout);
      Program scratch = program_;
      int64_t score = 0;
      Status status;
      for (const ProgramOp& op : program_.ops) {
        const ops::OpDef& def = *ops::FindOp(op.op, op.version);
        if (def.kind != kind || !def.phased) continue;
        any = true;
        for (uint32_t phase : kPhases) {
          auto choice = ChoosePhased(&scratch, op, phase);
          if (!choice.ok()) {
            status = choice.status();
            break;
          }
          score += choice->score;
        }
        if (!status.ok()) break;
      }
      result_.findings = findings;
      if (!any) return Status::Ok();
      if (status.ok() && score > best_score) {
        best = layout;
        best_score = score;
      }
      if (!status.ok() && first_error.ok()) first_error = status;
    }
    if (!best) return first_error;
    SetLayout(kind, *best);
    return Status::Ok();
  }

  Status BuildStages() {
    const std::vector<ProgramOp> ops_list = program_.ops;
    for (const ProgramOp& op : ops_list) {
      const ops::OpDef& def = *ops::FindOp(op.op, op.version);
      if (!def.phased) {
        RT_ASSIGN_OR_RETURN(Decision d, JudgeOrFallBack(op, RT_PHASE_ALL));
        if (d.chosen < 0) return NoRow(d, op.label);
        result_.stages.push_back({op, RT_PHASE_ALL, def.kind, Record(std::move(d))});
        continue;
      }
      for (uint32_t phase : kPhases) RT_RETURN_IF_ERROR(AddPhased(op, phase, def.kind));
    }
    return Status::Ok();
  }

  Status AddPhased(const ProgramOp& op, uint32_t phase, uint32_t kind) {
    RT_ASSIGN_OR_RETURN(PhasedChoice choice, ChoosePhased(&program_, op, phase));
    if (choice.decision.decomposed) NoteDecomposed(choice.decision);
    const size_t decision = Record(std::move(choice.decision));
    if (choice.pieces.empty()) {
      result_.stages.push_back({op, phase, kind, decision});
      return Status::Ok();
    }
    for (size_t i = 0; i < choice.pieces.size(); ++i) {
      result_.stages.push_back({choice.pieces[i], phase, kind, Record(std::move(choice.piece_decisions[i]))});
    }
    return Status::Ok();
  }

  // ---- findings ----

  void NoteFindings() {
    std::set<std::string> seen;
    for (const Decision& d : result_.decisions) {
      if (d.chosen < 0) continue;
      const Candidate& chosen = d.candidates[static_cast<size_t>(d.chosen)];
      for (const Candidate& c : d.candidates) {
        if (c.verdict != Verdict::kUnavailable || c.score <= chosen.score) continue;
        const bool fixable = c.unavailable == RT_UNAVAILABLE_FIXABLE;
        std::string text = fmt::format("{}: {} ranks higher than {} but is unavailable: {}", OpPhase(d), c.kernel, chosen.kernel, c.reasons.empty() ? "" : c.reasons[0]);
        if (seen.insert(text).second) result_.findings.push_back({fixable ? Severity::kWarn : Severity::kInfo, fixable, std::move(text)});
      }
    }
  }

  Result<NegotiationResult> Strict() {
    if (policy_.strict) {
      std::string text;
      for (const Finding& f : result_.findings) {
        if (f.downgrade) text += (text.empty() ? "" : "; ") + f.text;
      }
      if (!text.empty()) return {Code::kUnsupported, "negotiation.strict: " + text};
    }
    return std::move(result_);
  }

  Program& program_;
  const std::vector<KernelProvider>& providers_;
  const NegotiationPolicy& policy_;
  rt_device_ref device_;
  NegotiationResult result_;
};

}  // namespace

Result<NegotiationResult> Negotiate(Program* program, uint32_t act_dtype, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device) {
  return Negotiator(program, act_dtype, providers, policy, device).Run();
}

Result<Decision> NegotiateOp(const ops::OpInstance& op, uint32_t phase, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device) {
  const ops::OpDef* def = ops::FindOp(op.op, op.version);
  if (def == nullptr) return {Code::kUnsupported, fmt::format("unknown op {} version {}", op.op, op.version)};
  RT_RETURN_IF_ERROR(ops::CheckInstance(*def, op));
  Decision d = JudgeRows(*def, op, phase, providers, policy, device);
  if (d.chosen < 0) return {Code::kUnsupported, fmt::format("no kernel can run {}: {}", d.op, CandidatesText(d))};
  d.num_ops = 1;
  return d;
}

}  // namespace rt
