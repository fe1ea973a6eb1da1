// C++ face of the program builder for model plugins. Header-only, not ABI.
#pragma once

#include <rt/plugin/plugin.hpp>

#include <array>
#include <span>
#include <string>
#include <vector>

namespace rt::plugin {

// Thin, error-latching wrapper: after the first failure every call is a no-op and status() says what went wrong.
class ProgramBuilder {
 public:
  using Id = uint32_t;
  explicit ProgramBuilder(const rt_builder& builder) : b_(builder) {}

  const Status& status() const { return status_; }
  // For a model's own findings (bad configuration and the like).
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  Id Input(uint32_t which) {
    return Call([&](Id* id, rt_error* e) { return b_.input(b_.self, which, id, e); });
  }
  Id Value(std::string_view name, int64_t rows, int64_t columns, uint32_t dtype = RT_VALUE_ACT) {
    const rt_value_desc desc = {sizeof desc, dtype, Str(name), {rows, columns}};
    return Call([&](Id* id, rt_error* e) { return b_.value(b_.self, &desc, id, e); });
  }
  // A tensor of the checkpoint that fills `rows` rows of a weight.
  struct WeightPart {
    std::string name;
    int64_t rows;
  };
  struct WeightOptions {
    uint32_t dtype = RT_WEIGHT_ACT;
    uint32_t flags = 0;
    uint32_t init = RT_INIT_NORMAL;
    float init_offset = 0;
    uint32_t elements_per_head = 0;
    std::span<const WeightPart> parts = {};  // empty: one tensor called `name`
  };
  Id Weight(std::string_view name, std::initializer_list<int64_t> dims, WeightOptions options) {
    std::vector<rt_weight_part> parts;
    for (const WeightPart& part : options.parts) parts.push_back({Str(part.name), part.rows});
    rt_weight_desc desc = {sizeof desc, options.dtype, Str(name), static_cast<uint32_t>(dims.size()), options.flags, options.init, options.init_offset, {0, 0, 0, 0},
                           parts.data(), static_cast<uint32_t>(parts.size()), options.elements_per_head};
    std::copy_n(dims.begin(), std::min<size_t>(dims.size(), 4), desc.dims);
    return Call([&](Id* id, rt_error* e) { return b_.weight(b_.self, &desc, id, e); });
  }
  Id Weight(std::string_view name, std::initializer_list<int64_t> dims) { return Weight(name, dims, WeightOptions()); }
  Id Cache(rt_cache_desc desc, std::string_view name, std::initializer_list<int64_t> dims) {
    desc.struct_size = sizeof desc;
    desc.name = Str(name);
    desc.ndim = static_cast<uint32_t>(dims.size());
    std::copy_n(dims.begin(), std::min<size_t>(dims.size(), 4), desc.dims);
    return Call([&](Id* id, rt_error* e) { return b_.cache(b_.self, &desc, id, e); });
  }
  template <typename Attrs>
  void Op(std::string_view op, std::string_view label, std::initializer_list<Id> inputs, std::initializer_list<Id> weights,
          std::initializer_list<Id> outputs, std::initializer_list<Id> caches, const Attrs& attrs, uint32_t version = 1) {
    const rt_op_desc desc = {sizeof desc, version, Str(op), Str(label), Count(inputs), Count(weights), Count(outputs), Count(caches),
                             inputs.begin(), weights.begin(), outputs.begin(), caches.begin(), &attrs};
    Call([&](Id*, rt_error* e) { return b_.op(b_.self, &desc, e); });
  }
  void Op(std::string_view op, std::string_view label, std::initializer_list<Id> inputs, std::initializer_list<Id> weights, std::initializer_list<Id> outputs) {
    Op(op, label, inputs, weights, outputs, {}, rt_attrs_none{sizeof(rt_attrs_none), 0});
  }
  void Output(uint32_t which, uint32_t index, Id value) {
    Call([&](Id*, rt_error* e) { return b_.output(b_.self, which, index, value, e); });
  }
  void Info(rt_model_info info) {
    info.struct_size = sizeof info;
    Call([&](Id*, rt_error* e) { return b_.info(b_.self, &info, e); });
  }
  bool HasTensor(std::string_view name) const { return b_.has_tensor(b_.self, Str(name)) != 0; }
  void Skip(std::string_view glob) {
    Call([&](Id*, rt_error* e) { return b_.skip(b_.self, Str(glob), e); });
  }
  void Note(std::string_view text) { b_.note(b_.self, Str(text)); }

 private:
  static uint32_t Count(std::initializer_list<Id> list) { return static_cast<uint32_t>(list.size()); }
  template <typename F>
  Id Call(F&& f) {
    Id id = RT_NO_ID;
    if (!status_.ok()) return id;
    rt_error error = {};
    error.struct_size = sizeof error;
    const int32_t code = f(&id, &error);
    if (code != RT_OK) status_ = Status(static_cast<Code>(code), error.message);
    return id;
  }

  const rt_builder& b_;
  Status status_;
};

}  // namespace rt::plugin
