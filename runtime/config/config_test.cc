#include "runtime/config/config.h"

#include "runtime/config/config_schema.h"
#include "runtime/config/suggest.h"
#include "runtime/config/yaml_tree.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

namespace rt {
namespace {

namespace fs = std::filesystem;

Result<Config> ParseText(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return Config::Parse(text, "c.yaml", "/srv/conf", overrides);
}

std::string Message(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const Result<Config> config = ParseText(text, overrides);
  return config.ok() ? "(accepted)" : config.status().message();
}

TEST(Config, EmptyTextGivesTheDefaults) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "model:\nserver:\n"}) {
    const Result<Config> config = ParseText(text);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->server.port, 8080);
    EXPECT_EQ(config->model.compute_dtype, "bfloat16");
    EXPECT_TRUE(config->sources.empty());
  }
}

TEST(Config, ReadsEveryFormOfValue) {
  const Result<Config> config = ParseText(R"(
model: {path: zoo/tiny, tokenizer: /abs/tok, weights: "random:18446744073709551615", name: 'yes'}
plugins:
  paths: [a/b, ../c]
  required: [cpu]
  probe: false
  probe_timeout_s: 2
  options:
    cpu: {isa: avx2, threads: 3, huge: true, ratio: 0.5, list: [1, x], none: }
cache: {memory: 1.5GiB, block_size: 16}
negotiation:
  strict: true
  pin:
    norm: k0
    linear_mixer: {decode: k1, prefill: k2}
    linear_mixer.verify: k3
server: {port: 0, max_body_bytes: 4096}
)");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->model.path, "/srv/conf/zoo/tiny");
  EXPECT_EQ(config->model.tokenizer, "/abs/tok");
  EXPECT_EQ(config->model.weights, "random:18446744073709551615");
  EXPECT_EQ(config->model.name, "yes");
  EXPECT_EQ(config->plugins.paths, (std::vector<std::string>{"/srv/conf/a/b", "/srv/c"}));
  EXPECT_FALSE(config->plugins.probe);
  EXPECT_EQ(config->plugins.probe_timeout_s, 2.0);
  EXPECT_EQ(config->plugins.options.at("cpu").dump(),
            R"({"huge":true,"isa":"avx2","list":[1,"x"],"none":null,"ratio":0.5,"threads":3})");
  EXPECT_EQ(config->cache.memory, int64_t{3} << 29);
  EXPECT_EQ(config->negotiation.pin, (std::map<std::string, std::string>{{"norm", "k0"},
                                                                         {"linear_mixer.decode", "k1"},
                                                                         {"linear_mixer.prefill", "k2"},
                                                                         {"linear_mixer.verify", "k3"}}));
  EXPECT_EQ(config->server.port, 0);
}

struct BadCase {
  const char* text;
  const char* message;  // a trailing * stands for the words of the YAML library
};

TEST(Config, NamesThePlaceAndCauseOfEveryMistake) {
  const BadCase cases[] = {
      {"server:\n  prot: 1\n", "c.yaml:2:3: unknown key \"server.prot\"; did you mean \"server.port\"?"},
      {"sever:\n  port: 1\n", "c.yaml:1:1: unknown key \"sever\"; did you mean \"server\"?"},
      {"port: 1\n", "c.yaml:1:1: unknown key \"port\"; did you mean \"server.port\"?"},
      {"zebra: 1\n", "c.yaml:1:1: unknown key \"zebra\""},
      {"server.port: 1\n",
       "c.yaml:1:1: unknown key \"server.port\"; sections are nested: \"server:\" on a line of its own"},
      {"server:\n  port: 1\n  port: 2\n", "c.yaml:3:3: duplicate key \"server.port\", first given in line 2"},
      {"server: {port: 1}\nmodel: {}\nserver: {}\n",
       "c.yaml:3:1: duplicate key \"server\", first given in line 1"},
      {"server:\n  port: \"8\"\n", "c.yaml:2:9: server.port: expected an integer, found the text \"8\""},
      {"server:\n  port: 8.0\n", "c.yaml:2:9: server.port: expected an integer, found the number 8.0"},
      {"server:\n  port: 1e3\n", "c.yaml:2:9: server.port: expected an integer, found the number 1e3"},
      {"server:\n  port: true\n", "c.yaml:2:9: server.port: expected an integer, found the boolean true"},
      {"server:\n  port: ~\n", "c.yaml:2:9: server.port: expected an integer, found nothing"},
      {"server:\n  port: 0x10\n", "c.yaml:2:9: server.port: expected an integer, found the text \"0x10\""},
      {"server:\n  port: [1]\n", "c.yaml:2:9: server.port: expected an integer, found a list"},
      {"server:\n  port: {a: 1}\n", "c.yaml:2:9: server.port: expected an integer, found a section"},
      {"server:\n  port: -1\n", "c.yaml:2:9: server.port: expected 0 to 65535, found -1"},
      {"server:\n  port: 65536\n", "c.yaml:2:9: server.port: expected 0 to 65535, found 65536"},
      {"server:\n  port: 99999999999999999999\n",
       "c.yaml:2:9: server.port: expected 0 to 65535, found 99999999999999999999"},
      {"server: 8\n", "c.yaml:1:9: server: expected a section, found the integer 8"},
      {"- a\n", "c.yaml:1:1: expected sections such as model:, found a list"},
      {"hello\n", "c.yaml:1:1: expected sections such as model:, found the text \"hello\""},
      {"negotiation:\n  strict: yes\n",
       "c.yaml:2:11: negotiation.strict: expected true or false, found the text \"yes\""},
      {"negotiation:\n  strict: \"true\"\n",
       "c.yaml:2:11: negotiation.strict: expected true or false, found the text \"true\""},
      {"negotiation:\n  strict: 1\n",
       "c.yaml:2:11: negotiation.strict: expected true or false, found the integer 1"},
      {"negotiation:\n  strict: True\n",
       "c.yaml:2:11: negotiation.strict: expected true or false, found the text \"True\""},
      {"model:\n  compute_dtype: bf16\n",
       "c.yaml:2:18: model.compute_dtype: expected bfloat16 or float32, found \"bf16\""},
      {"model:\n  compute_dtype: flaot32\n",
       "c.yaml:2:18: model.compute_dtype: expected bfloat16 or float32, found \"flaot32\"; did you mean "
       "\"float32\"?"},
      {"model:\n  compute_dtype: 32\n",
       "c.yaml:2:18: model.compute_dtype: expected bfloat16 or float32, found the integer 32"},
      {"model:\n  weights: random\n",
       "c.yaml:2:12: model.weights: expected checkpoint or random:<seed>, found \"random\""},
      {"model:\n  weights: 'random:'\n",
       "c.yaml:2:12: model.weights: expected checkpoint or random:<seed>, found \"random:\""},
      {"model:\n  weights: random:-1\n",
       "c.yaml:2:12: model.weights: expected checkpoint or random:<seed>, found \"random:-1\""},
      {"model:\n  name: 7\n", "c.yaml:2:9: model.name: expected a text, found the integer 7"},
      {"model:\n  path: false\n", "c.yaml:2:9: model.path: expected a path, found the boolean false"},
      {"plugins:\n  paths: a\n",
       "c.yaml:2:10: plugins.paths: expected a list of paths, found the text \"a\""},
      {"plugins:\n  required: [cpu, 3]\n",
       "c.yaml:2:19: plugins.required: expected a text, found the integer 3"},
      {"plugins:\n  probe_timeout_s: .inf\n",
       "c.yaml:2:20: plugins.probe_timeout_s: expected a finite number, found the number .inf"},
      {"plugins:\n  probe_timeout_s: 1e999\n",
       "c.yaml:2:20: plugins.probe_timeout_s: expected a finite number, found the number 1e999"},
      {"plugins:\n  probe_timeout_s: 0\n",
       "c.yaml:2:20: plugins.probe_timeout_s: expected 0.01 to 600, found 0"},
      {"plugins:\n  options: [cpu]\n",
       "c.yaml:2:12: plugins.options: expected a section of plugin names, found a list"},
      {"plugins:\n  options: {cpu: 3}\n",
       "c.yaml:2:18: plugins.options.cpu: expected a section of options, found the integer 3"},
      {"plugins:\n  options: {cpu: {a: 1, a: 2}}\n",
       "c.yaml:2:25: duplicate key \"plugins.options.cpu.a\", first given in line 2"},
      {"cache:\n  memory: 2 gigs\n",
       "c.yaml:2:11: cache.memory: expected a number of bytes such as 1048576, 512MiB or 2GiB, found the "
       "text \"2 gigs\""},
      {"cache:\n  memory: -2GiB\n",
       "c.yaml:2:11: cache.memory: expected a number of bytes such as 1048576, 512MiB or 2GiB, found the "
       "text \"-2GiB\""},
      {"negotiation:\n  pin: {norm: 1}\n",
       "c.yaml:2:15: negotiation.pin.norm: expected a kernel name, found the integer 1"},
      {"a: 1\n---\nb: 2\n", "c.yaml:3:1: a second document; a configuration is one document"},
      {"server: !!map {port: 1}\n", "c.yaml:1:9: tags are not supported, found tag:yaml.org,2002:map"},
      {"b: &x {port: 1}\nserver:\n  <<: *x\n",
       "c.yaml:1:1: unknown key \"b\"\nc.yaml:3:3: merge keys (<<) are not supported"},
      {"server: &a [*a]\n", "c.yaml:1:13: an anchor that contains itself"},
      {"server: *nowhere\n", "c.yaml:1:9: not valid YAML: *"},
      {"server:\n\tport: 1\n", "c.yaml:2:6: not valid YAML: *"},
      {"server: {port: 1\n", "c.yaml:2:1: not valid YAML: *"},
      {"? [a, b]\n: 1\n", "c.yaml:1:3: expected a name as key, found a list"},
  };
  for (const BadCase& c : cases) {
    std::string expected = c.message, found = Message(c.text);
    if (expected.back() == '*') {
      expected.pop_back();
      found = found.substr(0, expected.size());
    }
    EXPECT_EQ(found, expected) << "for:\n" << c.text;
  }
}

TEST(Config, ReportsAllMistakesAtOnce) {
  EXPECT_EQ(Message("server: {port: x, hots: y}\nlog: {level: loud}\n"),
            "c.yaml:1:16: server.port: expected an integer, found the text \"x\"\n"
            "c.yaml:1:19: unknown key \"server.hots\"; did you mean \"server.host\"?\n"
            "c.yaml:2:14: log.level: expected debug, info, warn or error, found \"loud\"");
}

TEST(Config, AnchorsStandForTheirValue) {
  const Result<Config> config =
      ParseText("plugins: {required: &names [cpu], deny: []}\nnegotiation: {deny: *names}\n");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->negotiation.deny, std::vector<std::string>{"cpu"});
}

TEST(Config, RefusesWhatWouldExhaustMemoryOrStack) {
  const std::string deep =
      "plugins: {options: {p: {k: " + std::string(100, '[') + std::string(100, ']') + "}}}";
  EXPECT_NE(Message(deep).find("nested deeper than 32 levels"), std::string::npos) << Message(deep);
  const std::string deeper = "plugins: " + std::string(200000, '[') + std::string(200000, ']');
  EXPECT_EQ(Message(deeper).rfind("c.yaml:1:", 0), 0u) << Message(deeper);
  std::string bomb = "plugins: {options: {p: {a0: &a0 [x, x, x, x, x, x, x, x, x, x]";
  for (int i = 1; i < 9; ++i) {
    bomb += ", a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += (j ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]";
  }
  bomb += "}}}";
  EXPECT_EQ(Message(bomb), "c.yaml: aliases expand to more than 20000 values or 32 levels");
  EXPECT_EQ(Message(std::string(YamlTree::kMaxBytes + 1, ' ')),
            "c.yaml: 1048577 bytes, at most 1048576 are read");
  EXPECT_EQ(Message(std::string("log:\0x", 6)), "c.yaml: not a text file (NUL at byte 4)");
}

TEST(Config, OverridesWinOverTheFileAndAreRecorded) {
  const Result<Config> config =
      ParseText("server: {port: 1, host: a}\n",
                {"server.port=2", "model.name=7", "model.weights=random:3", "plugins.required=[cpu, gdn]",
                 "plugins.options.cpu.isa=avx2", "plugins.options.cpu.threads=2",
                 "negotiation.pin.norm.decode=k", "cache.memory=2GiB", "server={drain_timeout_s: 3}"});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->server.port, 2);
  EXPECT_EQ(config->server.drain_timeout_s, 3);
  EXPECT_EQ(config->model.name, "7");
  EXPECT_EQ(config->plugins.required, (std::vector<std::string>{"cpu", "gdn"}));
  EXPECT_EQ(config->plugins.options.at("cpu").dump(), R"({"isa":"avx2","threads":2})");
  EXPECT_EQ(config->negotiation.pin.at("norm.decode"), "k");
  EXPECT_EQ(config->cache.memory, int64_t{2} << 30);
  EXPECT_EQ(config->Source("server.port"), "--set");
  EXPECT_EQ(config->Source("server.host"), "c.yaml:1");
  EXPECT_EQ(config->Source("log.level"), "default");
}

TEST(Config, RefusesBadOverridesByName) {
  EXPECT_EQ(Message("", {"server.prot=1"}),
            "--set server.prot: unknown key \"server.prot\"; did you mean \"server.port\"?");
  EXPECT_EQ(Message("", {"server.port"}), "--set server.port: expected key=value");
  EXPECT_EQ(Message("", {"=1"}), "--set =1: expected key=value");
  EXPECT_EQ(Message("", {"server.port=true"}),
            "--set server.port: server.port: expected an integer, found the boolean true");
  EXPECT_EQ(Message("", {"server.port=1e3"}),
            "--set server.port: server.port: expected an integer, found the number 1e3");
  EXPECT_EQ(Message("", {"server.port="}),
            "--set server.port: server.port: expected an integer, found nothing");
  EXPECT_EQ(Message("", {"negotiation.strict=on"}),
            "--set negotiation.strict: negotiation.strict: expected true or false, found the text \"on\"");
  EXPECT_EQ(
      Message("", {"plugins.options.cpu=1"}),
      "--set plugins.options.cpu: unknown key \"plugins.options.cpu\"; did you mean \"plugins.options\"?");
}

TEST(Config, PathsOfOverridesAreRelativeToTheWorkingFolder) {
  const Result<Config> config = ParseText("model: {path: m}\n", {"model.tokenizer=t"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->model.path, "/srv/conf/m");
  EXPECT_EQ(config->model.tokenizer, (fs::current_path() / "t").string());
}

TEST(Config, ExplainListsEveryKeyOnce) {
  const Result<Config> config =
      ParseText("log: {level: warn}\n", {"negotiation.pin.norm=k", "plugins.options.cpu.isa=avx2"});
  ASSERT_TRUE(config.ok());
  std::set<std::string> seen;
  for (const ConfigEntry& entry : config->Explain()) EXPECT_TRUE(seen.insert(entry.key).second) << entry.key;
  EXPECT_EQ(seen.size(), ConfigSchema().size());  // the two free-form sections give one entry each here
  EXPECT_EQ(seen.count("negotiation.pin.norm"), 1u);
  EXPECT_EQ(seen.count("plugins.options.cpu.isa"), 1u);
}

TEST(Config, SchemaDefaultsSatisfyTheirOwnRules) {
  // Every default, written back as an override, must be accepted and give the same value.
  const Config defaults;
  for (const KeySpec& spec : ConfigSchema()) {
    if (spec.form == KeyForm::kOptions || spec.form == KeyForm::kPins) continue;
    const nlohmann::json value = KeyValue(spec, defaults);
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const Result<Config> config = ParseText("", {std::string(spec.key) + "=" + text});
    ASSERT_TRUE(config.ok()) << spec.key << ": " << config.status().message();
    EXPECT_EQ(KeyValue(spec, *config), value) << spec.key;
    EXPECT_NE(ConfigReference().find("| `" + std::string(spec.key) + "` |"), std::string::npos);
  }
}

TEST(Config, LoadReportsUnreadableFiles) {
  std::string pattern = (fs::temp_directory_path() / "rt_config_XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  EXPECT_EQ(Config::Load(folder / "none.yaml", {}).status().message(),
            (folder / "none.yaml").string() + ": no such file");
  EXPECT_EQ(Config::Load(folder, {}).status().message(), folder.string() + ": not a regular file");
  std::ofstream(folder / "empty.yaml").close();
  EXPECT_TRUE(Config::Load(folder / "empty.yaml", {}).ok());
  std::ofstream(folder / "a.yaml") << "model: {path: m}\n";
  const Result<Config> config = Config::Load(folder / "a.yaml", {});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->model.path, (folder / "m").string());
  fs::remove_all(folder);
}

TEST(Config, RandomDamageNeverCrashesTheReader) {
  const std::string good =
      "model: {path: \"a\", name: 'x'}\nplugins:\n  paths: [a, &b c]\n  options:\n    cpu: {isa: avx2, l: "
      "[1, 2.5, *b]}\n"
      "negotiation:\n  pin:\n    norm: |\n      k\n";
  const std::string alphabet = "{}[]:,&*!|>'\"%@`#-? \n\t\\a1.~<\x80\xff";
  std::mt19937 random(7);
  for (int round = 0; round < 5000; ++round) {
    std::string text = good;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 8);
      else
        text[at] = alphabet[random() % alphabet.size()];
      if (text.empty()) text.push_back('x');
    }
    const Result<Config> config = ParseText(text);
    EXPECT_TRUE(config.ok() || config.status().message().rfind("c.yaml", 0) == 0) << text;
  }
}

TEST(Suggest, DistanceCountsInsertionsDeletionsSubstitutionsAndSwaps) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("port", "prot"), 1u);
  EXPECT_EQ(EditDistance("port", "ports"), 1u);
  EXPECT_EQ(EditDistance("port", "part"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(NearestName("zzz", {"port"}), "");
}

}  // namespace
}  // namespace rt
