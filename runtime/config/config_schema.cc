#include "runtime/config/config_schema.h"

#include <cmath>
#include <sstream>

namespace rt {
namespace {

using Texts = std::vector<std::string>;
constexpr double kMaxTokens = 1 << 24;  // bound of token counts: ids and offsets are 32-bit
constexpr double kMaxSeconds = 86400;
constexpr double kMaxBytes = 1ull << 50;

// A capture-free lambda converts to exactly one alternative of KeyPlace, chosen by its return type.
#define RT_AT(member) +[](Config& c) { return &c.member; }

const std::vector<KeySpec>& Table() {
  static const std::vector<KeySpec> table = {
      {"model.path", KeyForm::kPath, RT_AT(model.path), "model folder in Hugging Face layout"},
      {"model.tokenizer", KeyForm::kPath, RT_AT(model.tokenizer),
       "folder with tokenizer.json, or that file, if not in the model folder"},
      {"model.weights", KeyForm::kText, RT_AT(model.weights),
       "`checkpoint`, or `random:<seed>` to make weights for benchmarks", Texts{"checkpoint", "random:"}},
      {"model.compute_dtype", KeyForm::kText, RT_AT(model.compute_dtype),
       "dtype of activations and resident weights", Texts{"bfloat16", "float32"}},
      {"model.max_context",
       KeyForm::kInteger,
       RT_AT(model.max_context),
       "longest sequence in tokens; 0 = the model's own limit",
       {},
       0,
       kMaxTokens},
      {"model.name", KeyForm::kText, RT_AT(model.name), "name in reports; empty = the folder's name"},

      {"plugins.paths", KeyForm::kPathList, RT_AT(plugins.paths),
       "plugin files or folders, searched before RT_PLUGIN_PATH and the installed folder"},
      {"plugins.required", KeyForm::kTextList, RT_AT(plugins.required), "plugin names that must load"},
      {"plugins.deny", KeyForm::kTextList, RT_AT(plugins.deny), "plugin names that are never loaded"},
      {"plugins.probe", KeyForm::kBool, RT_AT(plugins.probe), "try each plugin in a child process first"},
      {"plugins.probe_timeout_s",
       KeyForm::kNumber,
       RT_AT(plugins.probe_timeout_s),
       "time a plugin has to answer the probe",
       {},
       0.01,
       600},
      {"plugins.options", KeyForm::kOptions, RT_AT(plugins.options),
       "plugins.options.<plugin>.<key>: handed to that plugin, which checks it"},

      {"device.name", KeyForm::kText, RT_AT(device.name), "device component to run on"},
      {"device.threads",
       KeyForm::kInteger,
       RT_AT(device.threads),
       "worker threads; 0 = all cores",
       {},
       0,
       4096},

      {"cache.memory",
       KeyForm::kBytes,
       RT_AT(cache.memory),
       "memory of KV blocks and state slots, bytes or text such as 2GiB; 0 = decided from what is free",
       {},
       0,
       kMaxBytes},
      {"cache.state_dtype", KeyForm::kText, RT_AT(cache.state_dtype), "storage dtype of the recurrent state",
       Texts{"auto", "float32", "bfloat16", "float16"}},
      {"cache.kv_dtype", KeyForm::kText, RT_AT(cache.kv_dtype), "storage dtype of keys and values",
       Texts{"auto", "float32", "bfloat16", "float16"}},
      {"cache.conv_dtype", KeyForm::kText, RT_AT(cache.conv_dtype), "storage dtype of convolution windows",
       Texts{"auto", "float32", "bfloat16", "float16"}},
      {"cache.block_size",
       KeyForm::kInteger,
       RT_AT(cache.block_size),
       "tokens of a KV block; 0 = the backend's preference",
       {},
       0,
       4096},
      {"cache.type", KeyForm::kText, RT_AT(cache.type), "how finished prefixes are kept", Texts{"naive"}},
      {"cache.geometry", KeyForm::kText, RT_AT(cache.geometry), "how blocks and slots share memory",
       Texts{"slabs", "unified"}},

      {"engine.max_sequences",
       KeyForm::kInteger,
       RT_AT(engine.max_sequences),
       "sequences that run at once",
       {},
       1,
       65536},
      {"engine.max_step_tokens",
       KeyForm::kInteger,
       RT_AT(engine.max_step_tokens),
       "tokens of one step",
       {},
       1,
       kMaxTokens},
      {"engine.prefill_chunk",
       KeyForm::kInteger,
       RT_AT(engine.prefill_chunk),
       "most prompt tokens of one sequence in one step",
       {},
       1,
       kMaxTokens},
      {"engine.queue_limit",
       KeyForm::kInteger,
       RT_AT(engine.queue_limit),
       "requests that may wait; more are refused",
       {},
       1,
       1 << 20},

      {"negotiation.strict", KeyForm::kBool, RT_AT(negotiation.strict),
       "every downgrade is a start-up error"},
      {"negotiation.fallback", KeyForm::kText, RT_AT(negotiation.fallback),
       "what happens to an explicit request that cannot be met", Texts{"error", "allow"}},
      {"negotiation.pin", KeyForm::kPins, RT_AT(negotiation.pin),
       "negotiation.pin.<op>[.<phase>]: the kernel to use"},
      {"negotiation.deny", KeyForm::kTextList, RT_AT(negotiation.deny),
       "plugins or kernels that are never chosen"},

      {"attention.backend", KeyForm::kText, RT_AT(attention.backend), "`auto`, or a plugin or kernel name"},
      {"linear_attention.backend", KeyForm::kText, RT_AT(linear_attention.backend),
       "`auto`, or a plugin or kernel name"},

      {"server.host", KeyForm::kText, RT_AT(server.host), "address to listen on"},
      {"server.port",
       KeyForm::kInteger,
       RT_AT(server.port),
       "port to listen on; 0 = any free one",
       {},
       0,
       65535},
      {"server.model_name", KeyForm::kText, RT_AT(server.model_name),
       "model id of the API; empty = model.name"},
      {"server.max_body_bytes",
       KeyForm::kBytes,
       RT_AT(server.max_body_bytes),
       "largest request body",
       {},
       1024,
       1 << 30},
      {"server.max_connections",
       KeyForm::kInteger,
       RT_AT(server.max_connections),
       "open connections; more are refused",
       {},
       1,
       65536},
      {"server.header_timeout_s",
       KeyForm::kNumber,
       RT_AT(server.header_timeout_s),
       "time to send a request",
       {},
       0.01,
       kMaxSeconds},
      {"server.idle_timeout_s",
       KeyForm::kNumber,
       RT_AT(server.idle_timeout_s),
       "time a connection may stay silent",
       {},
       0.01,
       kMaxSeconds},
      {"server.drain_timeout_s",
       KeyForm::kNumber,
       RT_AT(server.drain_timeout_s),
       "time running requests have after SIGTERM",
       {},
       0,
       kMaxSeconds},

      {"log.level", KeyForm::kText, RT_AT(log.level), "least important messages shown",
       Texts{"debug", "info", "warn", "error"}},
      {"log.format", KeyForm::kText, RT_AT(log.format), "form of log lines", Texts{"text", "json"}},

      {"text.python", KeyForm::kText, RT_AT(text.python), "interpreter that renders chat templates"},
      {"text.template_timeout_s",
       KeyForm::kNumber,
       RT_AT(text.template_timeout_s),
       "time a chat template may take",
       {},
       0.01,
       600},
  };
  return table;
}

#undef RT_AT

std::string RangeText(const KeySpec& spec) {
  std::ostringstream out;
  if (!spec.choices.empty()) {
    for (size_t i = 0; i < spec.choices.size(); ++i) {
      const std::string& choice = spec.choices[i];
      out << (i == 0 ? "" : ", ") << '`' << choice << (choice.back() == ':' ? "<seed>" : "") << '`';
    }
  } else if (spec.form == KeyForm::kInteger || spec.form == KeyForm::kNumber ||
             spec.form == KeyForm::kBytes) {
    out.precision(15);
    out << spec.lo << " to " << spec.hi;
  }
  return out.str();
}

}  // namespace

std::span<const KeySpec> ConfigSchema() { return Table(); }

const KeySpec* FindKey(const std::string& key) {
  for (const KeySpec& spec : Table()) {
    if (key == spec.key) return &spec;
  }
  return nullptr;
}

nlohmann::json KeyValue(const KeySpec& spec, const Config& config) {
  // The places give mutable pointers; nothing is written through them here.
  return std::visit([&](auto place) { return nlohmann::json(*place(const_cast<Config&>(config))); },
                    spec.place);
}

const char* KeyFormName(KeyForm form) {
  switch (form) {
    case KeyForm::kText:
      return "text";
    case KeyForm::kPath:
      return "path";
    case KeyForm::kPathList:
      return "list of paths";
    case KeyForm::kTextList:
      return "list of texts";
    case KeyForm::kBool:
      return "true or false";
    case KeyForm::kInteger:
      return "integer";
    case KeyForm::kNumber:
      return "number";
    case KeyForm::kBytes:
      return "bytes";
    case KeyForm::kOptions:
      return "section";
    case KeyForm::kPins:
      return "section";
  }
  return "";
}

std::string ConfigReference() {
  const Config defaults;
  std::ostringstream out;
  out << "| key | form | default | values | meaning |\n|---|---|---|---|---|\n";
  for (const KeySpec& spec : Table()) {
    out << "| `" << spec.key << "` | " << KeyFormName(spec.form) << " | `" << KeyValue(spec, defaults).dump()
        << "` | " << RangeText(spec) << " | " << spec.doc << " |\n";
  }
  return out.str();
}

}  // namespace rt
