#include "runtime/session/session.h"

#include <rt/plugin/op_defs.h>
#include <rt/plugin/plugin.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace rt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kDefaultBlockSize = 16;  // tokens of a KV block; the CPU backends' preference

Result<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {Code::kNotFound, path.string() + ": cannot be read"};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

uint32_t DTypeOrAuto(const std::string& name) { return ops::DTypeFromName(name); }

// Inputs and attributes of the ops that no model names.
ops::OpInstance SampleInstance(const rt_attrs_sample& attrs, int32_t vocab_size) {
  constexpr int64_t R = RT_DIM_ROWS;
  const auto tensor = [](uint32_t dtype, std::vector<int64_t> dims) { return ops::TensorInfo{true, dtype, std::move(dims)}; };
  ops::OpInstance op;
  op.op = RT_OP_SAMPLE;
  op.attrs = &attrs;
  op.inputs = {tensor(RT_DTYPE_F32, {R, vocab_size})};
  for (uint32_t i = 1; i < RT_SAMPLE_NUM_INPUTS; ++i) op.inputs.push_back(tensor(RT_DTYPE_F32, {R}));
  for (uint32_t i = 0; i < RT_SAMPLE_NUM_OUTPUTS; ++i) op.outputs.push_back(tensor(RT_DTYPE_I32, {R}));
  return op;
}

ops::OpInstance SelectIdsInstance(const rt_attrs_none& attrs) {
  const ops::TensorInfo ids = {true, RT_DTYPE_I32, {RT_DIM_TOKENS}};
  ops::OpInstance op;
  op.op = RT_OP_SELECT_IDS;
  op.attrs = &attrs;
  op.inputs = {ids, ids, ids};
  op.outputs = {ids};
  return op;
}

}  // namespace

Session::~Session() {
  engine_.reset();  // before the runner, and the runner before the plugins
  runner_.reset();
}

std::string Session::model_name() const {
  if (!config_.server.model_name.empty()) return config_.server.model_name;
  if (!config_.model.name.empty()) return config_.model.name;
  fs::path path = fs::path(config_.model.path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

Status Session::LoadPlugins(const std::vector<std::string>& explicit_plugins) {
  stage_ = SessionStage::kPlugins;
  PluginRegistryOptions options = PluginRegistryOptions::From(config_);
  options.explicit_paths = explicit_plugins;
  // device.threads belongs to the device plugin of that name.
  if (config_.device.threads > 0) {
    json device_options = json::parse(options.options_json.count(config_.device.name) ? options.options_json[config_.device.name] : "{}");
    if (!device_options.contains("threads")) device_options["threads"] = config_.device.threads;
    options.options_json[config_.device.name] = device_options.dump();
  }
  RT_ASSIGN_OR_RETURN(plugins_, PluginRegistry::Load(options));
  plugins_->LogSummary();
  for (const LoadedComponent* c : plugins_->Components(RT_KIND_OPS | RT_KIND_ATTENTION | RT_KIND_LINEAR_ATTENTION)) {
    KernelProvider provider = {c->plugin, c->name, c->kind, c->ctx, nullptr, nullptr};
    if (c->kind == RT_KIND_OPS) {
      provider.ops = &c->table<rt_op_api>();
    } else {
      provider.backend = &c->table<rt_backend_api>();
      provider.ops = provider.backend->ops;
    }
    providers_.push_back(provider);
  }
  for (const LoadedComponent* c : plugins_->Components(RT_KIND_DEVICE)) {
    if (c->name != config_.device.name && c->plugin != config_.device.name) continue;
    RT_ASSIGN_OR_RETURN(device_, OpenDevice(c->ctx, &c->table<rt_device_api>(), 0));
    spdlog::info("device {}: {} [{}], {} threads, {:.1f} GiB free", config_.device.name, device_.info.name, device_.info.arch, device_.info.num_units,
                 static_cast<double>(device_.info.memory_free_bytes) / (1u << 30));
    return Status::Ok();
  }
  std::string rejected;
  for (const RejectedPlugin& r : plugins_->rejected()) rejected += fmt::format("; {}: {}", r.path, r.reason);
  return {Code::kUnavailable, fmt::format("device.name: no loaded plugin offers device \"{}\"{}", config_.device.name, rejected)};
}

Status Session::LoadModel() {
  stage_ = SessionStage::kModel;
  if (config_.model.path.empty()) return {Code::kInvalidArgument, "model.path: expected a model folder, found nothing"};
  const fs::path folder = config_.model.path;
  const std::string config_path = (folder / "config.json").string();
  RT_ASSIGN_OR_RETURN(const std::string config_json, ReadFile(config_path));
  RT_ASSIGN_OR_RETURN(const std::vector<ArchFile> files, LoadArchFiles({}));
  RT_ASSIGN_OR_RETURN(arch_, FindArch(files, config_json, config_path));
  const LoadedComponent* model = nullptr;
  for (const LoadedComponent* c : plugins_->Components(RT_KIND_MODEL)) {
    if (c->name == arch_.plugin) model = c;
  }
  if (model == nullptr) {
    std::string rejected;
    for (const RejectedPlugin& r : plugins_->rejected()) {
      if (r.name == arch_.plugin) rejected += fmt::format(" ({}: {})", r.path, r.reason);
    }
    return {Code::kUnavailable, fmt::format("{}: architecture {} needs model plugin \"{}\", which is not loaded{}", config_path, arch_.name, arch_.plugin, rejected)};
  }
  const bool random = config_.model.weights != "checkpoint";
  if (random) {
    RT_ASSIGN_OR_RETURN(random_seed_, weights::ParseRandomSeed(config_.model.weights));
  } else {
    RT_ASSIGN_OR_RETURN(checkpoint_, weights::Checkpoint::Open(folder));
    for (const std::string& warning : checkpoint_->warnings()) spdlog::warn("checkpoint: {}", warning);
  }
  rt_model_request request = {sizeof request, random ? 1u : 0u, plugin::Str(config_json), plugin::Str(arch_.json)};
  const auto& api = model->table<rt_model_api>();
  rt_model_match match = {};
  match.struct_size = sizeof match;
  if (api.match(model->ctx, &request, &match) != RT_OK || match.score <= 0) {
    return {Code::kInvalidArgument, fmt::format("{}: model plugin {} refuses it: {}", folder.string(), arch_.plugin, match.reason)};
  }
  ProgramRecorder recorder([this](std::string_view name) { return checkpoint_ && checkpoint_->Find(name) != nullptr; });
  rt_error error = NewError();
  RT_RETURN_IF_ERROR(FromAbi(api.build(model->ctx, &request, &recorder.table(), &error), error, folder.string()));
  auto program = recorder.Finish();
  if (!program.ok()) return program.status().Annotate("model plugin " + arch_.plugin);
  program_ = std::move(program).value();
  for (const std::string& note : program_.notes) spdlog::info("model: {}", note);
  if (config_.model.max_context > program_.info.max_context) {
    stage_ = SessionStage::kConfig;
    return {Code::kInvalidArgument, fmt::format("model.max_context: expected at most {} (the model's own limit), found {}", program_.info.max_context, config_.model.max_context)};
  }
  return Status::Ok();
}

NegotiationPolicy Session::Policy() const {
  NegotiationPolicy policy;
  policy.strict = config_.negotiation.strict;
  policy.allow_fallback = config_.negotiation.fallback == "allow";
  policy.pins = config_.negotiation.pin;
  policy.deny = config_.negotiation.deny;
  policy.attention_backend = config_.attention.backend;
  policy.linear_attention_backend = config_.linear_attention.backend;
  policy.state_dtype = DTypeOrAuto(config_.cache.state_dtype);
  policy.conv_dtype = DTypeOrAuto(config_.cache.conv_dtype);
  policy.kv_dtype = DTypeOrAuto(config_.cache.kv_dtype);
  policy.kv_block_size = config_.cache.block_size > 0 ? config_.cache.block_size : kDefaultBlockSize;
  return policy;
}

Status Session::NegotiateKernels() {
  stage_ = SessionStage::kNegotiation;
  if (config_.cache.geometry != "slabs") return {Code::kUnsupported, "cache.geometry: only slabs is built in so far, found " + config_.cache.geometry};
  const uint32_t act = ops::DTypeFromName(config_.model.compute_dtype);
  const NegotiationPolicy policy = Policy();
  RT_ASSIGN_OR_RETURN(negotiated_, Negotiate(&program_, act, providers_, policy, device_.ref));
  const int32_t vocab = program_.info.vocab_size;
  const rt_attrs_sample sample = {sizeof sample, static_cast<uint32_t>(vocab_limit_ > 0 ? std::min(vocab_limit_, vocab) : vocab), DeviceRunner::kMaxTop, 0};
  const rt_attrs_none none = {sizeof none, 0};
  RT_ASSIGN_OR_RETURN(sample_, NegotiateOp(SampleInstance(sample, vocab), RT_PHASE_ALL, providers_, policy, device_.ref));
  RT_ASSIGN_OR_RETURN(select_ids_, NegotiateOp(SelectIdsInstance(none), RT_PHASE_ALL, providers_, policy, device_.ref));
  negotiated_.decisions.push_back(sample_);
  negotiated_.decisions.push_back(select_ids_);
  for (const std::string& line : SummaryLines(negotiated_)) spdlog::info("kernel {}", line);
  for (const Finding& f : negotiated_.findings) {
    spdlog::log(f.severity == Severity::kWarn ? spdlog::level::warn : spdlog::level::info, "negotiation: {}", f.text);
  }
  return Status::Ok();
}

Result<RunnerOptions> Session::Options() const {
  RunnerOptions options;
  options.max_sequences = static_cast<int32_t>(config_.engine.max_sequences);
  options.max_step_tokens = static_cast<int32_t>(config_.engine.max_step_tokens);
  options.block_size_tokens = static_cast<int32_t>(config_.cache.block_size > 0 ? config_.cache.block_size : kDefaultBlockSize);
  const int32_t limit = program_.info.max_context;
  options.max_context = config_.model.max_context > 0 ? static_cast<int32_t>(config_.model.max_context) : limit;
  options.fill_arena_byte = fill_arena_byte_;
  return options;
}

Status Session::LoadWeights() {
  stage_ = SessionStage::kWeights;
  DeviceRunner::Parts parts;
  RT_ASSIGN_OR_RETURN(parts.options, Options());
  parts.program = program_;
  parts.negotiated = negotiated_;
  parts.sample = sample_;
  parts.select_ids = select_ids_;
  parts.providers = providers_;
  parts.device = device_;
  weights::LoadOptions load;
  load.num_threads = static_cast<int>(device_.info.num_units);
  load.progress = progress_;
  std::vector<std::string> warnings;
  const WeightSource source = {checkpoint_ ? &*checkpoint_ : nullptr, random_seed_};
  RT_ASSIGN_OR_RETURN(runner_, DeviceRunner::Create(std::move(parts), source, load, &warnings));
  for (const std::string& warning : warnings) spdlog::warn("weights: {}", warning);
  spdlog::info("memory: weights {:.1f} MiB, activations {:.1f} MiB, workspace {:.1f} MiB; state slot {} bytes, KV block {} bytes", static_cast<double>(runner_->weight_bytes()) / (1 << 20),
               static_cast<double>(runner_->activation_bytes()) / (1 << 20), static_cast<double>(runner_->workspace_bytes()) / (1 << 20), runner_->cache_geometry().state_slot_bytes,
               runner_->cache_geometry().kv_block_bytes);
  return Status::Ok();
}

Status Session::Prepare(const std::vector<std::string>& explicit_plugins) {
  RT_RETURN_IF_ERROR(LoadPlugins(explicit_plugins));
  RT_RETURN_IF_ERROR(LoadModel());
  RT_RETURN_IF_ERROR(NegotiateKernels());
  return LoadWeights();
}

EngineConfig Session::DefaultEngineConfig() const {
  EngineConfig engine;
  const RunnerLimits limits = runner_->limits();
  engine.max_sequences = limits.max_sequences;
  engine.max_step_tokens = limits.max_step_tokens;
  engine.max_context_tokens = limits.max_context_tokens;
  engine.prefill_chunk = static_cast<int32_t>(config_.engine.prefill_chunk);
  engine.max_waiting = static_cast<int32_t>(config_.engine.queue_limit);
  engine.cache_bytes = config_.cache.memory;
  if (engine.cache_bytes == 0) {
    // Room for every sequence at full context, but at most half of what is free; a few slabs' worth is kept for rounding.
    const CacheGeometry g = runner_->cache_geometry();
    const int64_t blocks = (int64_t{limits.max_context_tokens} + g.block_size_tokens - 1) / g.block_size_tokens + 1;
    const int64_t wanted = (limits.max_sequences + 2) * (blocks * g.kv_block_bytes + 2 * g.state_slot_bytes) * 11 / 10 + (8 << 20);
    engine.cache_bytes = std::min(wanted, static_cast<int64_t>(device_.info.memory_free_bytes / 2));
  }
  return engine;
}

Status Session::StartEngine(TextDecoderFactory* text, std::vector<int32_t> eos_token_ids, const EngineConfig* adjust) {
  stage_ = SessionStage::kEngine;
  EngineConfig engine = adjust != nullptr ? *adjust : DefaultEngineConfig();
  engine.eos_token_ids = std::move(eos_token_ids);
  RT_ASSIGN_OR_RETURN(engine_, Engine::Create(std::move(engine), runner_.get(), text));
  RT_RETURN_IF_ERROR(engine_->WaitReady());
  const EngineStats stats = engine_->Stats();
  spdlog::info("engine: ready; {} KV blocks of {} tokens and {} state slots at most share the cache", stats.kv_blocks_total, runner_->cache_geometry().block_size_tokens, stats.state_slots_total);
  return Status::Ok();
}

std::string Session::ExplainText() const {
  std::string text = fmt::format("model    {} ({}, plugin {})\ndevice   {} [{}], {} threads\ncompute  {}\n", config_.model.path, arch_.name, arch_.plugin, device_.info.name, device_.info.arch, device_.info.num_units,
                                 config_.model.compute_dtype);
  for (const LoadedPlugin& p : plugins_->loaded()) text += fmt::format("plugin   {} {} ({})  {}\n", p.name, p.version, p.vendor, p.path);
  for (const RejectedPlugin& r : plugins_->rejected()) text += fmt::format("refused  {}  {}: {}\n", r.path, r.stage, r.reason);
  text += "\n" + ReportText(negotiated()) + "\nsummary\n";
  for (const std::string& line : SummaryLines(negotiated())) text += "  " + line + "\n";
  return text;
}

std::string Session::ExplainJson() const {
  json root = json::parse(ReportJson(negotiated()));
  root["model"] = {{"path", config_.model.path}, {"architecture", arch_.name}, {"plugin", arch_.plugin}, {"compute_dtype", config_.model.compute_dtype}};
  root["device"] = {{"name", device_.info.name}, {"arch", device_.info.arch}, {"threads", device_.info.num_units}};
  root["plugins"] = json::array();
  for (const LoadedPlugin& p : plugins_->loaded()) root["plugins"].push_back({{"name", p.name}, {"version", p.version}, {"vendor", p.vendor}, {"path", p.path}, {"build_id", p.build_id}});
  root["refused"] = json::array();
  for (const RejectedPlugin& r : plugins_->rejected()) root["refused"].push_back({{"path", r.path}, {"stage", r.stage}, {"reason", r.reason}});
  return root.dump(2);
}

}  // namespace rt
