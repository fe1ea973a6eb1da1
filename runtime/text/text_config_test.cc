#include "runtime/text/text_config.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "runtime/text/test_tokenizers.h"

namespace rt {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "rt_text_config_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(TextConfig, TrainedModelsAreReadWhole) {
  for (const char* model : {"tiny-gdn", "tiny-kda"}) {
    const auto tokenizer = test::LoadOrDie(model);
    const TextConfig config = TextConfig::Load(test::ModelDir(model), tokenizer.get()).value();
    EXPECT_EQ(config.eos_ids, (Ids{4089, 4087}));
    EXPECT_EQ(config.pad_id, 4087);
    EXPECT_EQ(config.model_max_length, 32768);
    EXPECT_EQ(config.special_tokens.at("eos_token"), "<|im_end|>");
    EXPECT_EQ(config.special_tokens.count("bos_token"), 0u);
    EXPECT_EQ(config.chat_templates.count("default"), 1u);
    EXPECT_EQ(config.sampling.temperature, 0.6);
    EXPECT_EQ(config.sampling.top_k, 20);
    EXPECT_EQ(config.sampling.min_p, std::nullopt);
  }
}

TEST(TextConfig, EndTokensAreTheUnionOfAllFiles) {
  const Folder folder;
  folder.Write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  folder.Write("config.json", R"({"eos_token_id": 8, "text_config": {"eos_token_id": 9, "pad_token_id": 3}})");
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}, "model_max_length": 1e30})");
  const auto tokenizer = test::FromJsonOrDie(test::SmallTokenizerJson());
  const TextConfig config = TextConfig::Load(folder.path(), tokenizer.get()).value();
  EXPECT_EQ(config.eos_ids, (Ids{7, 8, 9, 300}));
  EXPECT_EQ(config.pad_id, 3);
  EXPECT_EQ(config.model_max_length, std::nullopt);
  EXPECT_EQ(TextConfig::Load(folder.path(), nullptr).value().eos_ids, (Ids{7, 8, 9}));
}

TEST(TextConfig, TemplatesComeFromEitherPlaceAndFilesWin) {
  const Folder folder;
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  using Templates = std::map<std::string, std::string>;
  EXPECT_EQ(TextConfig::Load(folder.path(), nullptr).value().chat_templates, (Templates{{"default", "a"}, {"tool_use", "b"}}));
  folder.Write("chat_template.jinja", "file");
  folder.Write("additional_chat_templates/rag.jinja", "rag");
  EXPECT_EQ(TextConfig::Load(folder.path(), nullptr).value().chat_templates,
            (Templates{{"default", "file"}, {"rag", "rag"}, {"tool_use", "b"}}));
}

TEST(TextConfig, AnEmptyFolderGivesAnEmptyConfig) {
  const Folder folder;
  const TextConfig config = TextConfig::Load(folder.path(), nullptr).value();
  EXPECT_TRUE(config.eos_ids.empty());
  EXPECT_TRUE(config.chat_templates.empty());
}

TEST(TextConfig, BrokenFilesAreNamedWithTheField) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"config.json", "{", "config.json: expected a JSON object"},
      {"config.json", "[1]", "config.json: expected a JSON object"},
      {"config.json", R"({"eos_token_id": "x"})", "config.json: eos_token_id: expected a token id or a list of them, found \"x\""},
      {"config.json", R"({"eos_token_id": [1, -1]})", "config.json: eos_token_id: expected a token id"},
      {"config.json", R"({"text_config": {"pad_token_id": 1.5}})", "config.json: text_config: pad_token_id: expected"},
      {"generation_config.json", R"({"temperature": "hot"})", "generation_config.json: temperature: expected a number, found \"hot\""},
      {"generation_config.json", R"({"top_k": 2.5})", "top_k: expected an integer, found 2.5"},
      {"tokenizer_config.json", R"({"bos_token": 5})", "bos_token: expected text or an object with content, found 5"},
      {"tokenizer_config.json", R"({"chat_template": 5})", "chat_template: expected text or a list of {name, template}"},
      {"tokenizer_config.json", R"({"chat_template": [{"name": "a"}]})", "chat_template: expected text or a list"},
      {"chat_template.jinja", "\xFF", "chat template \"default\" is not UTF-8"},
  };
  for (const auto& [file, text, message] : cases) {
    const Folder folder;
    folder.Write(file, text);
    const auto config = TextConfig::Load(folder.path(), nullptr);
    EXPECT_EQ(config.status().code(), Code::kDataLoss) << text;
    EXPECT_NE(config.status().message().find(message), std::string::npos) << config.status().message();
  }
}

}  // namespace
}  // namespace rt
