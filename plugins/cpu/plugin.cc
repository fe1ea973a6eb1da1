// librt_cpu.so: entry point.
#include "plugins/cpu/cpu_plugin.h"

namespace rt::cpu {
namespace {

plugin::OpProvider& GetOps(rt_plugin_ctx* ctx) { return *Instance::Of(ctx).ops; }
plugin::BackendProvider& GetAttention(rt_plugin_ctx* ctx) { return *Instance::Of(ctx).attention; }
plugin::BackendProvider& GetLinearAttention(rt_plugin_ctx* ctx) { return *Instance::Of(ctx).linear_attention; }

const rt_component kComponents[] = {
    {sizeof(rt_component), RT_KIND_DEVICE, {"cpu", 3}, &kDeviceApi},
    {sizeof(rt_component), RT_KIND_OPS, {"cpu_ops", 7}, &plugin::OpApi<GetOps>::table},
    {sizeof(rt_component), RT_KIND_ATTENTION, {"cpu_attention", 13}, &plugin::BackendApi<GetAttention>::table},
    {sizeof(rt_component), RT_KIND_LINEAR_ATTENTION, {"cpu_linear_attention", 20}, &plugin::BackendApi<GetLinearAttention>::table},
};

int32_t Init(const rt_host* host, rt_plugin_ctx** ctx, rt_error* error) {
  return plugin::Guard(error, [&]() -> Status {
    RT_RETURN_IF_ERROR(plugin::CheckStruct(host, "rt_host"));
    auto instance = std::make_unique<Instance>();
    RT_ASSIGN_OR_RETURN(instance->options, ParseOptions(plugin::View(host->options_json)));
    kernels::ThreadPool::Options pool;
    pool.num_threads = instance->options.num_threads;
    pool.pin = instance->options.pin;
    pool.spin_us = instance->options.spin_us;
    std::string why;
    instance->pool = kernels::ThreadPool::Create(pool, &why);
    if (instance->pool == nullptr) return {Code::kResourceExhausted, "thread pool: " + why};
    const std::vector<Level> levels = Levels(instance->options);
    const kernels::Parallel parallel = instance->pool->parallel();
    instance->ops = MakeOps(levels, parallel);
    instance->attention = MakeAttention(levels, parallel);
    instance->linear_attention = MakeLinearAttention(levels, parallel);
    *ctx = reinterpret_cast<rt_plugin_ctx*>(instance.release());
    return Status::Ok();
  });
}

void Shutdown(rt_plugin_ctx* ctx) { delete &Instance::Of(ctx); }

}  // namespace
}  // namespace rt::cpu

RT_PLUGIN(RT_KIND_DEVICE | RT_KIND_OPS | RT_KIND_ATTENTION | RT_KIND_LINEAR_ATTENTION, "cpu", "DeltaRT", "0.1.0", "x86-64 avx2 avx512bf16", rt::cpu::kComponents, rt::cpu::Init, rt::cpu::Shutdown)
