// The typed configuration. Keys, ranges and documentation stand in one table (config_schema.cc); defaults are
// the initial values below.
#pragma once

#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

// One line of Config::Explain().
struct ConfigEntry {
  std::string key;
  nlohmann::json value;
  std::string source;  // "default", "file:line" or "--set"
};

struct Config {
  struct Model {
    std::string path;                    // model folder, Hugging Face layout
    std::string tokenizer;               // folder or tokenizer.json; empty = the model folder
    std::string weights = "checkpoint";  // or "random:<seed>"
    std::string compute_dtype = "bfloat16";
    int64_t max_context = 0;  // tokens; 0 = the model's own limit
    std::string name;         // what clients call it; empty = the folder's name
  } model;

  struct Plugins {
    std::vector<std::string>
        paths;  // files or folders, searched before the environment and the installed folder
    std::vector<std::string> required;  // plugin names that must load
    std::vector<std::string> deny;      // plugin names never loaded
    bool probe = true;
    double probe_timeout_s = 10;
    std::map<std::string, nlohmann::json> options;  // plugin name -> object handed to its init
  } plugins;

  struct Device {
    std::string name = "cpu";
    int64_t threads = 0;  // 0 = all cores
  } device;

  struct Cache {
    int64_t memory = 0;  // bytes; 0 = decided from the device's free memory
    std::string state_dtype = "auto";
    std::string kv_dtype = "auto";
    std::string conv_dtype = "auto";
    int64_t block_size = 0;  // tokens; 0 = the backend's preference
    std::string type = "naive";
    std::string geometry = "slabs";
  } cache;

  struct Engine {
    int64_t max_sequences = 16;
    int64_t max_step_tokens = 512;
    int64_t prefill_chunk = 256;
    int64_t queue_limit = 1024;
  } engine;

  struct Negotiation {
    bool strict = false;
    std::string fallback = "error";
    std::map<std::string, std::string> pin;  // "op" or "op.phase" -> kernel
    std::vector<std::string> deny;           // plugin or kernel names
  } negotiation;

  struct Backend {
    std::string backend = "auto";  // or a plugin or kernel name
  } attention, linear_attention;

  struct Server {
    std::string host = "127.0.0.1";
    int64_t port = 8080;     // 0 = any free port, reported at start
    std::string model_name;  // empty = model.name
    int64_t max_body_bytes = 8 << 20;
    int64_t max_connections = 512;
    double header_timeout_s = 10;
    double idle_timeout_s = 120;
    double drain_timeout_s = 30;
  } server;

  struct Log {
    std::string level = "info";
    std::string format = "text";
  } log;

  struct Text {
    std::string python = "/usr/bin/python3";
    double template_timeout_s = 5;
  } text;

  // Reads a file (empty path: none), then applies `overrides`, each "key=value", which win over the file.
  // Relative paths of the file are relative to its folder, those of overrides to the working directory. The
  // message of an error lists every mistake found, one a line, "file:line:column: …" or "--set key: …".
  static Result<Config> Load(const std::filesystem::path& file, const std::vector<std::string>& overrides);

  // Same from text; `name` stands in messages, `folder` resolves relative paths.
  static Result<Config> Parse(std::string_view text, const std::string& name,
                              const std::filesystem::path& folder, const std::vector<std::string>& overrides);

  // Every key with its value and where that came from, in the order of the schema. User's entries of
  // free-form sections follow their section.
  std::vector<ConfigEntry> Explain() const;

  // "default" if the user set nothing there.
  std::string Source(const std::string& key) const;
  bool IsSet(const std::string& key) const { return sources.count(key) != 0; }

  std::map<std::string, std::string> sources;  // key -> where the user set it
};

}  // namespace rt
