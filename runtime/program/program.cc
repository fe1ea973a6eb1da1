#include "runtime/program/program.h"

#include <rt/plugin/op_defs.h>
#include <rt/plugin/plugin.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace rt {
namespace {

std::string DimText(int64_t dim) { return dim == RT_DIM_TOKENS ? "T" : dim == RT_DIM_ROWS ? "R" : std::to_string(dim); }

std::string ShapeText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += DimText(dims[i]);
  }
  return text + "]";
}

}  // namespace

uint32_t Program::AddValue(ProgramValue value) {
  values.push_back(std::move(value));
  return static_cast<uint32_t>(values.size() - 1);
}

uint32_t ResolveValueDType(uint32_t value_dtype, uint32_t act) {
  if (value_dtype == RT_VALUE_F32) return RT_DTYPE_F32;
  return value_dtype == RT_VALUE_I32 ? uint32_t{RT_DTYPE_I32} : act;
}
uint32_t ResolveWeightDType(uint32_t weight_dtype, uint32_t act) { return weight_dtype == RT_WEIGHT_F32 ? uint32_t{RT_DTYPE_F32} : act; }

ops::OpInstance Instantiate(const Program& program, const ProgramOp& op, const ProgramDTypes& dtypes) {
  ops::OpInstance instance;
  instance.op = op.op;
  instance.version = op.version;
  instance.attrs = op.attrs.data();
  const auto value = [&](uint32_t id) -> ops::TensorInfo {
    if (id == kNoId) return {};
    return {true, ResolveValueDType(program.values[id].dtype, dtypes.act), program.values[id].dims};
  };
  for (uint32_t id : op.inputs) instance.inputs.push_back(value(id));
  for (uint32_t id : op.outputs) instance.outputs.push_back(value(id));
  for (uint32_t id : op.weights) {
    if (id == kNoId) {
      instance.weights.emplace_back();
    } else {
      instance.weights.push_back({true, ResolveWeightDType(program.weights[id].dtype, dtypes.act), program.weights[id].dims});
    }
  }
  for (uint32_t id : op.caches) {
    const ProgramCache& cache = program.caches[id];
    ops::CacheInfo info = {cache.role, cache.default_dtype == RT_DTYPE_NONE ? dtypes.act : cache.default_dtype, 0, 0, cache.dims};
    if (id < dtypes.caches.size()) {
      info.dtype = dtypes.caches[id].dtype;
      info.layout = dtypes.caches[id].layout;
      info.block_size = dtypes.caches[id].block_size;
    }
    instance.caches.push_back(std::move(info));
  }
  return instance;
}

// ---- recorder ----------------------------------------------------------------------------------------------------------------

struct ProgramRecorder::Calls {
  static ProgramRecorder& Self(void* self) { return *static_cast<ProgramRecorder*>(self); }

  static std::string Text(rt_str text) { return std::string(text.data == nullptr ? "" : text.data, text.size); }

  static int32_t Input(void* self, uint32_t which, uint32_t* id, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      if (which != RT_INPUT_TOKEN_IDS && which != RT_INPUT_SAMPLED_ROWS) {
        return {Code::kInvalidArgument, "program input: unknown kind " + std::to_string(which)};
      }
      for (size_t i = 0; i < r.program_.values.size(); ++i) {
        if (r.program_.values[i].input == which) {
          *id = static_cast<uint32_t>(i);
          return Status::Ok();
        }
      }
      ProgramValue value;
      value.name = which == RT_INPUT_TOKEN_IDS ? "token_ids" : "sampled_rows";
      value.dtype = RT_VALUE_I32;
      value.dims = {which == RT_INPUT_TOKEN_IDS ? RT_DIM_TOKENS : RT_DIM_ROWS};
      value.input = which;
      *id = r.program_.AddValue(std::move(value));
      r.written_.push_back(true);
      return Status::Ok();
    });
  }

  static int32_t Value(void* self, const rt_value_desc* desc, uint32_t* id, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      RT_RETURN_IF_ERROR(plugin::CheckStruct(desc, "rt_value_desc"));
      if (desc->dtype > RT_VALUE_I32) return {Code::kInvalidArgument, "value " + Text(desc->name) + ": unknown dtype kind " + std::to_string(desc->dtype)};
      const int64_t rows = desc->dims[0], columns = desc->dims[1];
      if ((rows != RT_DIM_TOKENS && rows != RT_DIM_ROWS) || columns <= 0) {
        return {Code::kInvalidArgument, "value " + Text(desc->name) + ": expected shape [T or R, n > 0], got " + ShapeText({rows, columns})};
      }
      ProgramValue value;
      value.name = Text(desc->name);
      value.dtype = desc->dtype;
      value.dims = {rows, columns};
      *id = r.program_.AddValue(std::move(value));
      r.written_.push_back(false);
      return Status::Ok();
    });
  }

  static Result<std::vector<WeightPart>> Parts(const ProgramWeight& weight, const rt_weight_desc& desc) {
    if (desc.parts == nullptr || desc.num_parts == 0) return std::vector<WeightPart>{{weight.name, weight.dims}};
    std::vector<WeightPart> parts;
    int64_t rows = 0;
    for (uint32_t i = 0; i < desc.num_parts; ++i) {
      WeightPart part = {Text(desc.parts[i].name), weight.dims};
      part.dims[0] = desc.parts[i].rows;
      if (part.tensor.empty() || part.dims[0] <= 0) {
        return {Code::kInvalidArgument, "weight " + weight.name + ": parts[" + std::to_string(i) + "]: expected a tensor name and rows > 0, got \"" + part.tensor + "\" and " + std::to_string(part.dims[0])};
      }
      rows += part.dims[0];
      parts.push_back(std::move(part));
    }
    if (rows != weight.dims[0]) return {Code::kInvalidArgument, "weight " + weight.name + ": parts of " + std::to_string(rows) + " rows, expected " + std::to_string(weight.dims[0])};
    return parts;
  }

  static int32_t Weight(void* self, const rt_weight_desc* desc, uint32_t* id, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      RT_RETURN_IF_ERROR(plugin::CheckStruct(desc, "rt_weight_desc"));
      ProgramWeight weight;
      weight.name = Text(desc->name);
      if (weight.name.empty()) return {Code::kInvalidArgument, "weight: expected a tensor name, got an empty one"};
      if (desc->ndim < 1 || desc->ndim > 4) return {Code::kInvalidArgument, "weight " + weight.name + ": expected 1 to 4 dims, got " + std::to_string(desc->ndim)};
      weight.dims.assign(desc->dims, desc->dims + desc->ndim);
      if (std::any_of(weight.dims.begin(), weight.dims.end(), [](int64_t d) { return d <= 0; })) {
        return {Code::kInvalidArgument, "weight " + weight.name + ": expected positive dims, got " + ShapeText(weight.dims)};
      }
      weight.dtype = desc->dtype;
      weight.flags = desc->flags;
      weight.init = desc->init;
      weight.init_offset = desc->init_offset;
      weight.elements_per_head = std::max(1u, desc->elements_per_head);
      RT_ASSIGN_OR_RETURN(weight.parts, Parts(weight, *desc));
      for (size_t i = 0; i < r.program_.weights.size(); ++i) {
        const ProgramWeight& old = r.program_.weights[i];
        if (old.name != weight.name) continue;
        if (old.dims != weight.dims || old.dtype != weight.dtype) {
          return {Code::kInvalidArgument, "weight " + weight.name + ": asked for as " + ShapeText(old.dims) + " and as " + ShapeText(weight.dims)};
        }
        if (old.parts != weight.parts) return {Code::kInvalidArgument, "weight " + weight.name + ": asked for with other parts than before"};
        *id = static_cast<uint32_t>(i);
        return Status::Ok();
      }
      r.program_.weights.push_back(std::move(weight));
      *id = static_cast<uint32_t>(r.program_.weights.size() - 1);
      return Status::Ok();
    });
  }

  static int32_t Cache(void* self, const rt_cache_desc* desc, uint32_t* id, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      RT_RETURN_IF_ERROR(plugin::CheckStruct(desc, "rt_cache_desc"));
      ProgramCache cache = {Text(desc->name), desc->role, desc->extent, desc->rollback, desc->dtype_set, desc->default_dtype, desc->layer, {}};
      if (desc->ndim < 1 || desc->ndim > 4) return {Code::kInvalidArgument, "cache " + cache.name + ": expected 1 to 4 dims, got " + std::to_string(desc->ndim)};
      if (desc->role < RT_CACHE_KEY || desc->role > RT_CACHE_LATENT) return {Code::kInvalidArgument, "cache " + cache.name + ": unknown role " + std::to_string(desc->role)};
      if (desc->default_dtype != RT_DTYPE_NONE && (desc->dtype_set & (1u << desc->default_dtype)) == 0) {
        return {Code::kInvalidArgument, "cache " + cache.name + ": default dtype " + ops::DTypeName(desc->default_dtype) + " is not in its dtype set"};
      }
      const bool per_tokens = desc->role == RT_CACHE_KEY || desc->role == RT_CACHE_VALUE || desc->role == RT_CACHE_LATENT;
      if (desc->extent != (per_tokens ? RT_CACHE_PER_TOKENS : RT_CACHE_PER_SEQUENCE)) {
        return {Code::kInvalidArgument, "cache " + cache.name + ": extent does not fit its role"};
      }
      cache.dims.assign(desc->dims, desc->dims + desc->ndim);
      r.program_.caches.push_back(std::move(cache));
      *id = static_cast<uint32_t>(r.program_.caches.size() - 1);
      return Status::Ok();
    });
  }

  static Status Ids(const std::string& label, const char* what, const uint32_t* ids, uint32_t count, size_t limit, std::vector<uint32_t>* out) {
    if (count > 64) return {Code::kInvalidArgument, label + ": " + std::to_string(count) + " " + what + ", expected at most 64"};
    for (uint32_t i = 0; i < count; ++i) {
      if (ids[i] != RT_NO_ID && ids[i] >= limit) {
        return {Code::kInvalidArgument, label + ": " + what + "[" + std::to_string(i) + "]: unknown id " + std::to_string(ids[i])};
      }
      out->push_back(ids[i]);
    }
    return Status::Ok();
  }

  static int32_t Op(void* self, const rt_op_desc* desc, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      RT_RETURN_IF_ERROR(plugin::CheckStruct(desc, "rt_op_desc"));
      ProgramOp op;
      op.op = Text(desc->op);
      op.version = desc->version;
      op.label = Text(desc->label);
      const ops::OpDef* def = ops::FindOp(op.op, op.version);
      if (def == nullptr) return {Code::kUnsupported, op.label + ": unknown op " + op.op + " version " + std::to_string(op.version)};
      RT_RETURN_IF_ERROR(Ids(op.label, "inputs", desc->inputs, desc->num_inputs, r.program_.values.size(), &op.inputs));
      RT_RETURN_IF_ERROR(Ids(op.label, "outputs", desc->outputs, desc->num_outputs, r.program_.values.size(), &op.outputs));
      RT_RETURN_IF_ERROR(Ids(op.label, "weights", desc->weights, desc->num_weights, r.program_.weights.size(), &op.weights));
      RT_RETURN_IF_ERROR(Ids(op.label, "caches", desc->caches, desc->num_caches, r.program_.caches.size(), &op.caches));
      if (desc->attrs == nullptr) return {Code::kInvalidArgument, op.label + ": expected attributes, got NULL"};
      const uint32_t bytes = *static_cast<const uint32_t*>(desc->attrs);
      if (bytes != def->attrs_bytes) {
        return {Code::kBadStruct, op.label + ": attributes of " + op.op + ": expected " + std::to_string(def->attrs_bytes) + " bytes, got " + std::to_string(bytes)};
      }
      op.attrs.resize(bytes);
      std::memcpy(op.attrs.data(), desc->attrs, bytes);
      RT_RETURN_IF_ERROR(r.CheckOp(op).Annotate(op.label));
      for (uint32_t id : op.outputs) {
        if (id != kNoId) r.written_[id] = true;
      }
      r.program_.ops.push_back(std::move(op));
      return Status::Ok();
    });
  }

  static int32_t Output(void* self, uint32_t which, uint32_t index, uint32_t value, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      ProgramRecorder& r = Self(self);
      if (value >= r.program_.values.size()) return {Code::kInvalidArgument, "program output: unknown value " + std::to_string(value)};
      if (which == RT_OUTPUT_LOGITS) {
        r.program_.logits = value;
      } else if (which == RT_OUTPUT_HIDDEN) {
        if (r.program_.ops.empty()) return {Code::kInvalidArgument, "program output: a hidden state before the first op"};
        r.program_.hidden[index] = value;
        r.program_.ops.back().completes_layer = static_cast<int32_t>(index);
      } else {
        return {Code::kInvalidArgument, "program output: unknown kind " + std::to_string(which)};
      }
      return Status::Ok();
    });
  }

  static int32_t Info(void* self, const rt_model_info* info, rt_error* error) {
    return plugin::Guard(error, [&]() -> Status {
      RT_RETURN_IF_ERROR(plugin::CheckStruct(info, "rt_model_info"));
      if (info->vocab_size <= 0 || info->hidden_size <= 0 || info->max_context <= 0) {
        return {Code::kInvalidArgument, "model info: vocab_size, hidden_size and max_context: expected > 0"};
      }
      Self(self).program_.info = *info;
      return Status::Ok();
    });
  }

  static int32_t HasTensor(void* self, rt_str name) { return Self(self).has_tensor_(Text(name)) ? 1 : 0; }

  static int32_t Skip(void* self, rt_str glob, rt_error* error) {
    return plugin::Guard(error, [&] {
      Self(self).program_.skip.push_back(Text(glob));
      return Status::Ok();
    });
  }

  static int32_t Note(void* self, rt_str text) {
    return plugin::Guard(nullptr, [&] {
      Self(self).program_.notes.push_back(Text(text));
      return Status::Ok();
    });
  }
};

ProgramRecorder::ProgramRecorder(std::function<bool(std::string_view)> has_tensor) : has_tensor_(std::move(has_tensor)) {
  table_ = {sizeof(rt_builder), 0,           this,         Calls::Input,     Calls::Value, Calls::Weight, Calls::Cache,
            Calls::Op,          Calls::Output, Calls::Info, Calls::HasTensor, Calls::Skip,  Calls::Note};
}

Status ProgramRecorder::CheckOp(const ProgramOp& op) {
  for (uint32_t id : op.inputs) {
    if (id != kNoId && !written_[id]) return {Code::kInvalidArgument, op.op + " reads value " + program_.values[id].name + " before it is written"};
  }
  const ops::OpDef* def = ops::FindOp(op.op, op.version);
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const uint32_t id = op.outputs[i];
    if (id == kNoId) continue;
    const bool in_place = i == 0 && def->inplace_input >= 0 && op.inputs[static_cast<size_t>(def->inplace_input)] == id;
    if (i == 0 && def->inplace_input >= 0 && !in_place) return {Code::kInvalidArgument, op.op + ": output 0 must be input " + std::to_string(def->inplace_input) + " (updated in place)"};
    if (written_[id] && !in_place) return {Code::kInvalidArgument, op.op + " writes value " + program_.values[id].name + " a second time"};
  }
  for (uint32_t id : op.caches) {
    if (id == kNoId) return {Code::kInvalidArgument, op.op + ": caches are not optional"};
    for (const ProgramOp& other : program_.ops) {
      if (std::find(other.caches.begin(), other.caches.end(), id) != other.caches.end()) {
        return {Code::kInvalidArgument, "cache " + program_.caches[id].name + " is owned by " + other.label + " already"};
      }
    }
  }
  return ops::CheckInstance(*def, Instantiate(program_, op, ProgramDTypes()));
}

Result<Program> ProgramRecorder::Finish() {
  if (program_.info.vocab_size <= 0) return {Code::kInvalidArgument, "the model did not state its info"};
  if (program_.logits == kNoId || !written_[program_.logits]) return {Code::kInvalidArgument, "the program writes no logits"};
  const std::vector<int64_t> expected = {RT_DIM_ROWS, program_.info.vocab_size};
  const ProgramValue& logits = program_.values[program_.logits];
  if (logits.dims != expected || logits.dtype != RT_VALUE_F32) {
    return {Code::kInvalidArgument, "logits: expected float32 " + ShapeText(expected) + ", got " + ShapeText(logits.dims)};
  }
  std::vector<bool> used(program_.weights.size(), false), cached(program_.caches.size(), false);
  for (const ProgramOp& op : program_.ops) {
    for (uint32_t id : op.weights) {
      if (id != kNoId) used[id] = true;
    }
    for (uint32_t id : op.caches) cached[id] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return {Code::kInvalidArgument, "weight " + program_.weights[i].name + " is declared but no op uses it"};
  }
  for (size_t i = 0; i < cached.size(); ++i) {
    if (!cached[i]) return {Code::kInvalidArgument, "cache " + program_.caches[i].name + " is declared but no op owns it"};
  }
  return std::move(program_);
}

// ---- rewrites ----------------------------------------------------------------------------------------------------------------

Result<std::vector<ProgramOp>> ExpandPieces(Program* program, const ProgramOp& op, const ProgramDTypes& dtypes) {
  RT_ASSIGN_OR_RETURN(ops::Decomposition d, ops::Decompose(Instantiate(*program, op, dtypes)));
  std::vector<uint32_t> temps;
  for (size_t i = 0; i < d.temps.size(); ++i) {
    ProgramValue value;
    value.name = op.label + ".t" + std::to_string(i);
    value.dtype = d.temps[i].dtype == RT_DTYPE_I32 ? RT_VALUE_I32 : d.temps[i].dtype == dtypes.act ? RT_VALUE_ACT : RT_VALUE_F32;
    value.dims = d.temps[i].dims;
    temps.push_back(program->AddValue(std::move(value)));
  }
  const auto resolve = [&](const ops::PieceRef& ref) -> uint32_t {
    switch (ref.kind) {
      case ops::PieceRef::Kind::kAbsent: return kNoId;
      case ops::PieceRef::Kind::kInput: return op.inputs[ref.index];
      case ops::PieceRef::Kind::kWeight: return op.weights[ref.index];
      case ops::PieceRef::Kind::kOutput: return op.outputs[ref.index];
      case ops::PieceRef::Kind::kCache: return op.caches[ref.index];
      case ops::PieceRef::Kind::kTemp: return temps[ref.index];
    }
    return kNoId;
  };
  std::vector<ProgramOp> pieces;
  for (const ops::Piece& piece : d.pieces) {
    ProgramOp out;
    out.op = piece.op;
    out.label = op.label + "/" + piece.op;
    out.attrs = piece.attrs;
    for (const auto& ref : piece.inputs) out.inputs.push_back(resolve(ref));
    for (const auto& ref : piece.weights) out.weights.push_back(resolve(ref));
    for (const auto& ref : piece.outputs) out.outputs.push_back(resolve(ref));
    for (const auto& ref : piece.caches) out.caches.push_back(resolve(ref));
    pieces.push_back(std::move(out));
  }
  if (!pieces.empty()) pieces.back().completes_layer = op.completes_layer;
  return pieces;
}

Status ExpandComposite(Program* program, size_t op_idx, const ProgramDTypes& dtypes) {
  const ProgramOp op = program->ops[op_idx];
  RT_ASSIGN_OR_RETURN(std::vector<ProgramOp> pieces, ExpandPieces(program, op, dtypes));
  const auto at = program->ops.erase(program->ops.begin() + static_cast<ptrdiff_t>(op_idx));
  program->ops.insert(at, std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end()));
  return Status::Ok();
}

namespace {

// Linear ops that can share one product, in program order.
std::vector<size_t> MergeGroup(const Program& program, size_t first, const std::vector<int>& weight_users) {
  const ProgramOp& lead = program.ops[first];
  std::vector<size_t> group;
  for (size_t i = first; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    if (op.op != RT_OP_LINEAR || op.inputs != lead.inputs || weight_users[op.weights[0]] != 1) continue;
    if (program.values[op.outputs[0]].dtype != program.values[lead.outputs[0]].dtype) continue;
    if (program.weights[op.weights[0]].dtype != program.weights[lead.weights[0]].dtype) continue;
    group.push_back(i);
  }
  return group;
}

void AppendJoined(std::string* text, const char* separator, const std::string& more) {
  if (!text->empty()) *text += separator;
  *text += more;
}

void MergeOne(Program* program, const std::vector<size_t>& group) {
  ProgramWeight merged = program->weights[program->ops[group[0]].weights[0]];
  merged.parts.clear();
  merged.dims[0] = 0;
  merged.name.clear();
  ProgramValue out = program->values[program->ops[group[0]].outputs[0]];
  out.dims[1] = 0;
  out.name.clear();
  const uint32_t out_id = static_cast<uint32_t>(program->values.size());
  std::string label;
  for (size_t i : group) {
    const ProgramOp& op = program->ops[i];
    const ProgramWeight& weight = program->weights[op.weights[0]];
    ProgramValue& value = program->values[op.outputs[0]];
    value.view_of = out_id;
    value.column_offset = out.dims[1];
    out.dims[1] += value.dims[1];
    AppendJoined(&out.name, "+", value.name);
    merged.dims[0] += weight.dims[0];
    AppendJoined(&merged.name, " + ", weight.name);
    merged.parts.insert(merged.parts.end(), weight.parts.begin(), weight.parts.end());
    AppendJoined(&label, "+", op.label);
  }
  program->AddValue(std::move(out));
  program->weights.push_back(std::move(merged));
  ProgramOp& lead = program->ops[group[0]];
  lead.weights = {static_cast<uint32_t>(program->weights.size() - 1)};
  lead.outputs = {out_id};
  lead.label = label;
  for (size_t i = group.size() - 1; i > 0; --i) program->ops.erase(program->ops.begin() + static_cast<ptrdiff_t>(group[i]));
}

// Drops weights that no op uses any more and renumbers the rest.
void CompactWeights(Program* program) {
  std::vector<uint32_t> renumber(program->weights.size(), kNoId);
  std::vector<ProgramWeight> kept;
  for (ProgramOp& op : program->ops) {
    for (uint32_t& id : op.weights) {
      if (id == kNoId) continue;
      if (renumber[id] == kNoId) {
        renumber[id] = static_cast<uint32_t>(kept.size());
        kept.push_back(std::move(program->weights[id]));
      }
      id = renumber[id];
    }
  }
  program->weights = std::move(kept);
}

}  // namespace

int MergeLinears(Program* program) {
  std::vector<int> users(program->weights.size(), 0);
  for (const ProgramOp& op : program->ops) {
    for (uint32_t id : op.weights) {
      if (id != kNoId) ++users[id];
    }
  }
  int removed = 0;
  for (size_t i = 0; i < program->ops.size(); ++i) {
    if (program->ops[i].op != RT_OP_LINEAR || program->ops[i].weights[0] >= users.size() || users[program->ops[i].weights[0]] != 1) continue;
    const std::vector<size_t> group = MergeGroup(*program, i, users);
    if (group.size() < 2) continue;
    MergeOne(program, group);
    users.resize(program->weights.size(), 2);  // merged weights are not merged again
    removed += static_cast<int>(group.size()) - 1;
  }
  CompactWeights(program);
  return removed;
}

// ---- dump --------------------------------------------------------------------------------------------------------------------

namespace {

std::string ValueText(const Program& program, uint32_t id, uint32_t act) {
  if (id == kNoId) return "-";
  const ProgramValue& v = program.values[id];
  std::string text = fmt::format("%{} {}{}", id, ops::DTypeName(ResolveValueDType(v.dtype, act)), ShapeText(v.dims));
  if (v.view_of != kNoId) text += fmt::format(" = %{}[:, {}:{}]", v.view_of, v.column_offset, v.column_offset + v.dims[1]);
  return text;
}

template <typename F>
std::string Join(const std::vector<uint32_t>& ids, F&& text) {
  std::string joined;
  for (uint32_t id : ids) AppendJoined(&joined, ", ", text(id));
  return joined;
}

}  // namespace

std::string DumpProgram(const Program& program, const ProgramDTypes& dtypes) {
  std::string text = fmt::format("program: {} ops, {} values, {} weights, {} caches; compute {}\n", program.ops.size(), program.values.size(),
                                 program.weights.size(), program.caches.size(), ops::DTypeName(dtypes.act));
  for (size_t i = 0; i < program.caches.size(); ++i) {
    const ProgramCache& c = program.caches[i];
    const uint32_t dtype = i < dtypes.caches.size() ? dtypes.caches[i].dtype : c.default_dtype;
    text += fmt::format("  cache #{} {} {}{} per {}\n", i, c.name, ops::DTypeName(dtype), ShapeText(c.dims), c.extent == RT_CACHE_PER_TOKENS ? "token" : "sequence");
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    text += fmt::format("  {:4} {:<18} ({}) -> ({})", i, op.op, Join(op.inputs, [&](uint32_t id) { return ValueText(program, id, dtypes.act); }),
                        Join(op.outputs, [&](uint32_t id) { return ValueText(program, id, dtypes.act); }));
    if (!op.weights.empty()) {
      text += "  w: " + Join(op.weights, [&](uint32_t id) { return id == kNoId ? std::string("-") : program.weights[id].name + ShapeText(program.weights[id].dims); });
    }
    if (!op.caches.empty()) text += "  caches: " + Join(op.caches, [](uint32_t id) { return "#" + std::to_string(id); });
    text += "  ; " + op.label + "\n";
  }
  for (const auto& [layer, value] : program.hidden) text += fmt::format("  hidden {} = %{}\n", layer, value);
  return text + fmt::format("  logits = %{}\n", program.logits);
}

}  // namespace rt
