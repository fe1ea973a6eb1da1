#include "runtime/weights/load_plan.h"

#include "runtime/weights/error_list.h"
#include "runtime/weights/name_match.h"

#include <algorithm>
#include <set>
#include <utility>

namespace rt::weights {
namespace {

std::string FileOf(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  return checkpoint.file(tensor.file).path().filename().string();
}

std::string AcceptedText(const WeightRequest& request) {
  std::string text;
  for (const DType dtype : request.accepted)
    text += (text.empty() ? "" : " or ") + std::string(NameOf(dtype));
  return text.empty() ? "a type that converts to " + std::string(NameOf(request.dtype)) : text;
}

bool Accepts(const WeightRequest& request, DType stored) {
  const auto& accepted = request.accepted;
  if (!accepted.empty() && std::find(accepted.begin(), accepted.end(), stored) == accepted.end())
    return false;
  return CanConvert(stored, request.dtype);
}

void CheckTensor(const Checkpoint& checkpoint, const WeightRequest& request, const CheckpointTensor& tensor,
                 ErrorList* errors) {
  const std::string where = "tensor " + tensor.name + " (" + FileOf(checkpoint, tensor) + ")";
  const bool fits = tensor.shape == request.shape ||
                    (request.any_shape && ElementCount(tensor.shape) == ElementCount(request.shape));
  if (!fits) {
    errors->Add(Code::kInvalidArgument, where + ": expected shape " + ShapeText(request.shape) + ", found " +
                                            ShapeText(tensor.shape));
  }
  if (!Accepts(request, tensor.dtype)) {
    errors->Add(Code::kInvalidArgument,
                where + ": expected " + AcceptedText(request) + ", found " + NameOf(tensor.dtype));
  } else if (request.finite != FiniteRule::kAny && !CanConvert(tensor.dtype, DType::kF32)) {
    errors->Add(
        Code::kUnsupported,
        where + ": NaN and infinities are looked for in BF16, F16 and F32, found " + NameOf(tensor.dtype));
  }
}

// "1 tensor", "2 tensors"
std::string Tensors(size_t count) { return std::to_string(count) + (count == 1 ? " tensor" : " tensors"); }

// The first pattern that fits, or null.
const std::string* SkippedBy(const std::vector<std::string>& skip, const std::string& name) {
  const auto it = std::find_if(skip.begin(), skip.end(),
                               [&](const std::string& glob) { return GlobMatches(glob, name); });
  return it == skip.end() ? nullptr : &*it;
}

void ReportAbsent(const std::vector<std::string_view>& absent, ErrorList* errors) {
  if (absent.empty()) return;
  ErrorList names;
  for (const std::string_view name : absent) names.Add(Code::kNotFound, std::string(name));
  errors->Add(Code::kNotFound, Tensors(absent.size()) + " absent that the model needs: " + names.Text());
}

// The nearest name is looked for among the absent ones first: a misspelt tensor then explains both findings.
void ReportUnknown(const Checkpoint& checkpoint, const std::vector<const CheckpointTensor*>& unknown,
                   const std::vector<std::string_view>& absent,
                   const std::vector<std::string_view>& requested, ErrorList* errors) {
  if (unknown.empty()) return;
  ErrorList names;
  for (const CheckpointTensor* tensor : unknown) {
    std::string text = tensor->name + " (" + FileOf(checkpoint, *tensor);
    if (names.count() < ErrorList::kMaxListed) {
      std::string_view nearest = NearestName(tensor->name, absent);
      if (nearest.empty()) nearest = NearestName(tensor->name, requested);
      if (!nearest.empty()) text += "; nearest name in use: " + std::string(nearest);
    }
    names.Add(Code::kInvalidArgument, text + ")");
  }
  errors->Add(Code::kInvalidArgument,
              Tensors(unknown.size()) +
                  " unknown, neither used by the model nor skipped by a pattern: " + names.Text());
}

}  // namespace

Status LoadPlan::AddRequests(const std::vector<WeightRequest>& requests) {
  ErrorList errors;
  std::map<std::pair<std::string, DType>, size_t> items;
  std::map<std::string, const WeightRequest*> first_of;
  for (const WeightRequest& request : requests) {
    const auto [first, is_first] = first_of.emplace(request.name, &request);
    if (!is_first && first->second->shape != request.shape) {
      errors.Add(Code::kInvalidArgument, "tensor " + request.name + ": requested as " +
                                             ShapeText(first->second->shape) + " and as " +
                                             ShapeText(request.shape));
    }
    const auto [item, is_new] = items.emplace(std::pair(request.name, request.dtype), items_.size());
    item_of_.push_back(item->second);
    if (!is_new) {
      FiniteRule& rule = items_[item->second].request.finite;
      rule = std::max(rule, request.finite);
      continue;
    }
    const auto elements = ElementCount(request.shape);
    const auto size = static_cast<uint64_t>(BitsOf(request.dtype));
    uint64_t bits = 0;
    if (!elements || __builtin_mul_overflow(*elements, size, &bits) || bits % 8 != 0 ||
        request.elements_per_head < 1) {
      errors.Add(Code::kInvalidArgument, "tensor " + request.name + ": cannot be requested as " +
                                             NameOf(request.dtype) + " " + ShapeText(request.shape) +
                                             " with " + std::to_string(request.elements_per_head) +
                                             " elements per head");
    }
    items_.push_back({request, nullptr, elements.value_or(0), bits / 8});
    total_bytes_ += bits / 8;
  }
  return errors.ToStatus();
}

Result<LoadPlan> LoadPlan::Random(uint64_t seed, const std::vector<WeightRequest>& requests) {
  LoadPlan plan;
  plan.seed_ = seed;
  RT_RETURN_IF_ERROR(plan.AddRequests(requests).Annotate("random weights"));
  for (const Item& item : plan.items_) {
    if (item.request.dtype == DType::kBf16 || item.request.dtype == DType::kF32) continue;
    return {Code::kUnsupported, "random weights: tensor " + item.request.name +
                                    ": expected BF16 or F32, got " + NameOf(item.request.dtype)};
  }
  return plan;
}

Result<LoadPlan> LoadPlan::FromCheckpoint(const Checkpoint& checkpoint,
                                          const std::vector<WeightRequest>& requests,
                                          const std::vector<std::string>& skip) {
  LoadPlan plan;
  plan.checkpoint_ = &checkpoint;
  const std::string where = checkpoint.folder().string();
  RT_RETURN_IF_ERROR(plan.AddRequests(requests).Annotate(where));
  ErrorList errors;
  // Each request checks on its own: shared items may differ in the types they accept.
  for (const WeightRequest& request : requests) {
    if (const CheckpointTensor* tensor = checkpoint.Find(request.name))
      CheckTensor(checkpoint, request, *tensor, &errors);
  }
  errors.Add(plan.BindToCheckpoint(skip));
  RT_RETURN_IF_ERROR(errors.ToStatus().Annotate(where));
  return plan;
}

Status LoadPlan::BindToCheckpoint(const std::vector<std::string>& skip) {
  ErrorList errors;
  std::vector<std::string_view> absent, requested;
  std::set<std::string_view> seen;
  for (Item& item : items_) {
    const std::string& name = item.request.name;
    item.source = checkpoint_->Find(name);
    if (!seen.insert(name).second) continue;
    requested.push_back(name);
    if (!item.source) absent.push_back(name);
    if (const std::string* glob = SkippedBy(skip, name)) {
      errors.Add(Code::kInvalidArgument,
                 "tensor " + name + " is used by the model and skipped by the pattern " + *glob);
    }
  }
  std::vector<const CheckpointTensor*> unknown;
  for (const CheckpointTensor& tensor : checkpoint_->tensors()) {
    if (seen.contains(tensor.name)) continue;
    if (SkippedBy(skip, tensor.name)) {
      skipped_.push_back(tensor.name);
    } else {
      unknown.push_back(&tensor);
    }
  }
  ReportAbsent(absent, &errors);
  ReportUnknown(*checkpoint_, unknown, absent, requested, &errors);
  return errors.ToStatus();
}

}  // namespace rt::weights
