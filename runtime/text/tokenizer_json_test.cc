#include "runtime/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include "runtime/text/test_tokenizers.h"

namespace rt {
namespace {

using nlohmann::json;

struct BadCase {
  const char* name;
  void (*bend)(json*);
  Code code;
  const char* message;  // a part of it
};

const BadCase kBadCases[] = {
    {"WordPiece", [](json* j) { (*j)["model"]["type"] = "WordPiece"; }, Code::kUnsupported,
     "model.type: expected BPE, found \"WordPiece\""},
    {"ByteFallback", [](json* j) { (*j)["model"]["byte_fallback"] = true; }, Code::kUnsupported, "model.byte_fallback"},
    {"Dropout", [](json* j) { (*j)["model"]["dropout"] = 0.1; }, Code::kUnsupported, "model.dropout"},
    {"WordSuffix", [](json* j) { (*j)["model"]["end_of_word_suffix"] = "</w>"; }, Code::kUnsupported,
     "model.end_of_word_suffix: expected null, found \"</w>\""},
    {"ModelMissing", [](json* j) { j->erase("model"); }, Code::kUnsupported, "model: expected an object, found null"},
    {"VocabIsArray", [](json* j) { (*j)["model"]["vocab"] = json::array({1}); }, Code::kUnsupported, "model.vocab"},
    {"IdIsText", [](json* j) { (*j)["model"]["vocab"]["ab"] = "256"; }, Code::kDataLoss,
     "model.vocab[\"ab\"]: expected an integer id"},
    {"IdTwice", [](json* j) { (*j)["model"]["vocab"]["ab"] = 97; }, Code::kDataLoss, "id 97 already belongs to"},
    {"IdNegative", [](json* j) { (*j)["model"]["vocab"]["ab"] = -2; }, Code::kDataLoss, "found -2"},
    {"IdHuge", [](json* j) { (*j)["model"]["vocab"]["ab"] = 4'000'000'000u; }, Code::kDataLoss, "found 4000000000"},
    {"ByteMissing", [](json* j) { (*j)["model"]["vocab"].erase("a"); }, Code::kDataLoss, "found none for byte 97 (\"a\")"},
    {"MergeUnknown", [](json* j) { (*j)["model"]["merges"].push_back("x y"); }, Code::kDataLoss,
     "model.merges[3]: \"xy\" is not in model.vocab"},
    {"MergeOfThree", [](json* j) { (*j)["model"]["merges"].push_back("a b c"); }, Code::kDataLoss,
     "model.merges[3]: expected"},
    {"MergeIsNumber", [](json* j) { (*j)["model"]["merges"].push_back(5); }, Code::kDataLoss, "model.merges[3]: expected"},
    {"MergesMissing", [](json* j) { (*j)["model"].erase("merges"); }, Code::kUnsupported, "model.merges"},
    {"Lowercase", [](json* j) { (*j)["normalizer"] = {{"type", "Lowercase"}}; }, Code::kUnsupported,
     "normalizer: expected NFC, a Sequence of NFC, or null, found {\"type\":\"Lowercase\"}"},
    {"NormalizerText", [](json* j) { (*j)["normalizer"] = "NFC"; }, Code::kUnsupported, "normalizer"},
    {"NoPreTokenizer", [](json* j) { (*j)["pre_tokenizer"] = nullptr; }, Code::kUnsupported, "pre_tokenizer"},
    {"Metaspace", [](json* j) { (*j)["pre_tokenizer"] = {{"type", "Metaspace"}}; }, Code::kUnsupported, "\"Metaspace\""},
    {"PrefixSpace", [](json* j) { (*j)["pre_tokenizer"]["add_prefix_space"] = true; }, Code::kUnsupported,
     "add_prefix_space"},
    {"OnlyDigits", [](json* j) { (*j)["pre_tokenizer"] = {{"type", "Digits"}}; }, Code::kUnsupported, "ByteLevel"},
    {"BadRegex",
     [](json* j) {
       (*j)["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
     },
     Code::kUnsupported, "pattern \"(a\": missing closing parenthesis"},
    {"SplitMerged",
     [](json* j) {
       (*j)["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "MergedWithNext"}};
     },
     Code::kUnsupported, "behavior: expected Isolated or Removed, found \"MergedWithNext\""},
    {"NestedSequence",
     [](json* j) {
       (*j)["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Sequence"}}}}};
     },
     Code::kUnsupported, "a Sequence inside a Sequence"},
    {"Decoder", [](json* j) { (*j)["decoder"] = {{"type", "Metaspace"}}; }, Code::kUnsupported, "decoder: expected ByteLevel"},
    {"PostProcessor", [](json* j) { (*j)["post_processor"] = {{"type", "BertProcessing"}}; }, Code::kUnsupported,
     "post_processor"},
    {"TemplateUnknown",
     [](json* j) {
       (*j)["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "<none>"}}}}}}};
     },
     Code::kDataLoss, "token \"<none>\" does not exist"},
    {"AddedWithoutId", [](json* j) { (*j)["added_tokens"][0].erase("id"); }, Code::kDataLoss, "added_tokens[0]"},
    {"AddedEmpty", [](json* j) { (*j)["added_tokens"][1]["content"] = ""; }, Code::kDataLoss,
     "added_tokens[1]: content is empty"},
    {"AddedIdTaken", [](json* j) { (*j)["added_tokens"][1]["id"] = 97; }, Code::kDataLoss, "id 97 already belongs to \"a\""},
    {"AddedTwoIds",
     [](json* j) {
       (*j)["added_tokens"][1] = {{"id", 400}, {"content", "ab"}};
     },
     Code::kDataLoss, "\"ab\" has id 400 here but 256 elsewhere"},
    {"AddedIsObject", [](json* j) { (*j)["added_tokens"] = json::object(); }, Code::kUnsupported, "added_tokens"},
};

class BadTokenizerJson : public testing::TestWithParam<BadCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, BadTokenizerJson, testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadTokenizerJson, IsRefusedByName) {
  json bent = test::SmallTokenizerJson();
  GetParam().bend(&bent);
  const auto result = ParseTokenizerJson(bent.dump());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), GetParam().code) << result.status().ToString();
  EXPECT_NE(result.status().message().find(GetParam().message), std::string::npos) << result.status().ToString();
}

TEST(TokenizerJson, EveryCutOfAFileIsRefused) {
  const std::string whole = test::SmallTokenizerJson().dump();
  ASSERT_TRUE(ParseTokenizerJson(whole).ok());
  for (size_t size = 0; size < whole.size(); size += 13) {
    EXPECT_EQ(ParseTokenizerJson(whole.substr(0, size)).status().code(), Code::kDataLoss) << size;
  }
}

TEST(TokenizerJson, DeepNestingIsRefusedNotACrash) {
  EXPECT_EQ(ParseTokenizerJson(std::string(200'000, '[')).status().code(), Code::kDataLoss);
  EXPECT_EQ(ParseTokenizerJson("[1]").status().message(), "expected a JSON object, found array");
}

TEST(TokenizerJson, MergesAsPairsAndAsTextGiveTheSameTable) {
  json pairs = test::SmallTokenizerJson();
  pairs["model"]["merges"] = json::array();
  for (const auto& [left, right] : {std::pair("a", "b"), {"ab", "c"}, {"b", "c"}}) {
    pairs["model"]["merges"].push_back(json::array({left, right}));
  }
  const auto from_pairs = ParseTokenizerJson(pairs.dump());
  const auto from_text = ParseTokenizerJson(test::SmallTokenizerJson().dump());
  ASSERT_TRUE(from_pairs.ok() && from_text.ok());
  ASSERT_EQ(from_pairs->merges.size(), from_text->merges.size());
  for (size_t i = 0; i < from_text->merges.size(); ++i) {
    EXPECT_EQ(from_pairs->merges[i].merged, from_text->merges[i].merged);
  }
}

}  // namespace
}  // namespace rt
