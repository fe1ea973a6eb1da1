#include "runtime/executor/weight_store.h"

#include <algorithm>
#include <cstring>

namespace rt {
namespace {

weights::Init InitOf(const ProgramWeight& weight, float* scale) {
  *scale = 0.02f;
  switch (weight.init) {
    case RT_INIT_NORM: return weight.init_offset > 0.5f ? weights::Init::kZero : weights::Init::kOne;
    case RT_INIT_A_LOG: return weights::Init::kALog;
    case RT_INIT_DT_BIAS: return weights::Init::kDtBias;
    case RT_INIT_CONV: *scale = 0.3f; return weights::Init::kNormal;  // about 1/sqrt(taps)
    default: return weights::Init::kNormal;
  }
}

int64_t Product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

}  // namespace

Result<WeightStore> WeightStore::Load(const Program& program, uint32_t act_dtype, const WeightSource& source, const Device& device, const weights::LoadOptions& options,
                                      std::vector<std::string>* warnings) {
  WeightStore store;
  std::vector<weights::WeightRequest> requests;
  std::vector<std::pair<uint32_t, uint64_t>> places;  // weight, byte offset of the part
  for (uint32_t w = 0; w < program.weights.size(); ++w) {
    const ProgramWeight& weight = program.weights[w];
    const uint32_t dtype = ResolveWeightDType(weight.dtype, act_dtype);
    uint64_t offset = 0;
    for (const WeightPart& part : weight.parts) {
      weights::WeightRequest request;
      request.name = part.tensor;
      request.shape = part.dims;
      request.dtype = dtype == RT_DTYPE_F32 ? weights::DType::kF32 : weights::DType::kBf16;
      request.finite = weight.flags & RT_WEIGHT_CHECK_FINITE ? weights::FiniteRule::kGateParameter : weights::FiniteRule::kAny;
      request.any_shape = (weight.flags & RT_WEIGHT_ANY_SHAPE) != 0;
      request.elements_per_head = weight.elements_per_head;
      request.init = InitOf(weight, &request.init_scale);
      requests.push_back(std::move(request));
      places.emplace_back(w, offset);
      offset += static_cast<uint64_t>(Product(part.dims) * ops::DTypeBytes(dtype));
    }
    RT_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(device, offset, "weight " + weight.name));
    store.total_bytes_ += offset;
    store.sizes_.push_back(offset);
    store.buffers_.push_back(std::move(buffer));
  }
  auto planned = source.checkpoint != nullptr ? weights::LoadPlan::FromCheckpoint(*source.checkpoint, requests, program.skip) : weights::LoadPlan::Random(source.random_seed, requests);
  if (!planned.ok()) return planned.status();
  const weights::LoadPlan& plan = *planned;

  // Devices with their own memory are filled through a host copy.
  std::vector<std::vector<std::byte>> staging(device.memory_is_host() ? 0 : program.weights.size());
  std::vector<std::span<std::byte>> targets(plan.items().size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const auto [w, offset] = places[r];
    std::byte* base = static_cast<std::byte*>(store.buffers_[w].data());
    if (!staging.empty()) {
      staging[w].resize(store.buffers_[w].bytes());
      base = staging[w].data();
    }
    targets[plan.item_of(r)] = {base + offset, plan.items()[plan.item_of(r)].bytes};
  }
  RT_ASSIGN_OR_RETURN(std::vector<std::string> found, weights::LoadWeights(plan, targets, options));
  warnings->insert(warnings->end(), found.begin(), found.end());
  if (!staging.empty()) {
    RT_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device));
    for (size_t w = 0; w < staging.size(); ++w) RT_RETURN_IF_ERROR(stream.Copy(store.buffers_[w].data(), staging[w].data(), staging[w].size()));
    RT_RETURN_IF_ERROR(stream.Sync());
  }
  return store;
}

}  // namespace rt
