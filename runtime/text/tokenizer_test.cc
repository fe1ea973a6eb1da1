#include "runtime/text/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "runtime/text/test_tokenizers.h"

namespace rt {
namespace {

using Ids = std::vector<int32_t>;

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = test::LoadOrDie(GetParam());
  nlohmann::json golden_ = test::LoadGolden(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Models, GoldenTokenizer, testing::Values("tiny-gdn", "tiny-kda"), [](const auto& info) {
  return std::string(info.param) == "tiny-gdn" ? "TinyGdn" : "TinyKda";
});

TEST_P(GoldenTokenizer, EveryGoldenStringEncodesAndDecodesAsRecorded) {
  ASSERT_EQ(golden_["tokenizer"].size(), 76u);
  for (const auto& entry : golden_["tokenizer"]) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = tokenizer_->Encode(text, /*allow_special=*/true);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    EXPECT_EQ(*ids, entry["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->Decode(*ids, false), entry["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(*ids, true), entry["decoded_skip_special"].get<std::string>());
  }
}

TEST_P(GoldenTokenizer, EveryGoldenChatTextEncodesAsRecorded) {
  ASSERT_EQ(golden_["chats"].size(), 20u);
  for (const auto& chat : golden_["chats"]) {
    EXPECT_EQ(tokenizer_->Encode(chat["text"].get<std::string>(), true).value(), chat["ids"].get<Ids>()) << chat["name"];
  }
}

TEST_P(GoldenTokenizer, CutSequencesDecodeAsRecorded) {
  ASSERT_EQ(golden_["decode_partial"].size(), 17u);
  for (const auto& entry : golden_["decode_partial"]) {
    EXPECT_EQ(tokenizer_->Decode(entry["ids"].get<Ids>(), false), entry["decoded"].get<std::string>()) << entry["ids"];
  }
}

TEST_P(GoldenTokenizer, DecodingWhatWasEncodedGivesTheNormalizedText) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      const char32_t limits[] = {0x80, 0x250, 0x700, 0x3100, 0xD800};
      AppendUtf8(random() % limits[random() % 5], &text);
      if (random() % 16 == 0) AppendUtf8(0x1F300 + random() % 0x300, &text);
      if (random() % 16 == 0) text += "\u200D";
      if (random() % 16 == 0) text += "<|im_end|>";
    }
    const bool allow_special = round % 2 == 0;
    const auto ids = tokenizer_->Encode(text, allow_special);
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(tokenizer_->Decode(*ids, false), ToNfc(text)) << "round " << round;
  }
}

TEST_P(GoldenTokenizer, TextOfEverySpecialTokenStaysTextForAUser) {
  for (const AddedToken& token : tokenizer_->added_tokens()) {
    const std::string text = "a" + token.content + "b";
    const Ids with = tokenizer_->Encode(text, true).value();
    EXPECT_NE(std::find(with.begin(), with.end(), token.id), with.end()) << token.content;
    const Ids without = tokenizer_->Encode(text, false).value();
    EXPECT_EQ(std::find(without.begin(), without.end(), token.id) == without.end(), token.special) << token.content;
    EXPECT_EQ(tokenizer_->Decode(without, true), text);
  }
}

TEST_P(GoldenTokenizer, OnlyTheSpecialTokenWithAProtectedByteStaysText) {
  const std::string text = "<|im_end|><|im_end|>";
  const int32_t end = tokenizer_->TokenToId("<|im_end|>");
  const size_t second[] = {10};
  const Ids ids = tokenizer_->Encode(text, true, second).value();
  EXPECT_EQ(ids[0], end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(tokenizer_->Decode(ids, false), text);
}

TEST_P(GoldenTokenizer, ManyThreadsGetTheSameTokens) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const auto& entry : golden_["tokenizer"]) {
        const auto ids = tokenizer_->Encode(entry["text"].get_ref<const std::string&>(), true);
        if (!ids.ok() || *ids != entry["ids"].get<Ids>()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(GoldenTokenizer, LongRunsOfOneKindAreEncodedWithoutLoss) {
  for (const char* unit : {" ", "\n", "a", "<", "<|", "\xF0\x9F\x98\x80", "e\u0301", "1", "\t \n"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    const auto ids = tokenizer_->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    EXPECT_EQ(tokenizer_->Decode(*ids, false), ToNfc(text));
  }
}

TEST_P(GoldenTokenizer, TheVocabularyIsReadWhole) {
  EXPECT_EQ(tokenizer_->num_tokens(), 4096u);
  EXPECT_EQ(tokenizer_->id_limit(), 4096);
  EXPECT_EQ(tokenizer_->TokenToId("<|im_start|>"), 4088);
  EXPECT_EQ(tokenizer_->TokenToId("no such token"), -1);
  EXPECT_TRUE(tokenizer_->IsSpecial(4089));
  EXPECT_FALSE(tokenizer_->IsSpecial(4090));  // <think>
}

TEST(Tokenizer, IllFormedTextIsRefusedWithItsByteOffset) {
  const auto tokenizer = test::FromJsonOrDie(test::SmallTokenizerJson());
  const auto ids = tokenizer->Encode("ab\xFFz", true);
  EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ids.status().message(), "text: expected UTF-8, found an ill-formed sequence at byte 2");
}

TEST(Tokenizer, EveryTokenOfAVocabularyWithIdGapsRoundTrips) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["added_tokens"].push_back({{"id", 163606}, {"content", "<think2>"}});
  json["added_tokens"].push_back({{"id", 163607}, {"content", "</think2>"}});
  const auto tokenizer = test::FromJsonOrDie(json);
  EXPECT_EQ(tokenizer->num_tokens(), 263u);
  EXPECT_EQ(tokenizer->id_limit(), 163608);
  for (const AddedToken& token : tokenizer->added_tokens()) {
    EXPECT_EQ(tokenizer->Encode(token.content, true).value(), Ids{token.id});
    EXPECT_EQ(tokenizer->Decode(Ids{token.id}, false), token.content);
    EXPECT_EQ(tokenizer->TokenToId(token.content), token.id);
  }
  EXPECT_EQ(tokenizer->Decode(Ids{'x', 299, 1 << 30, -1, 'y'}, false), "xy");
  EXPECT_FALSE(tokenizer->HasToken(299));
}

TEST(Tokenizer, MergesFollowTheirRank) {
  const auto tokenizer = test::FromJsonOrDie(test::SmallTokenizerJson());
  EXPECT_EQ(tokenizer->Encode("abc", true).value(), Ids{257});
  EXPECT_EQ(tokenizer->Encode("bc", true).value(), Ids{258});
  EXPECT_EQ(tokenizer->Encode("abbc", true).value(), (Ids{256, 258}));
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWordThatIsAToken) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["model"]["vocab"]["xyz"] = 259;  // no merge leads to it
  EXPECT_EQ(test::FromJsonOrDie(json)->Encode("xyz", true).value(), (Ids{'x', 'y', 'z'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(test::FromJsonOrDie(json)->Encode("xyz", true).value(), Ids{259});
}

TEST(Tokenizer, FlagsOfAddedTokensAreHonoured) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["added_tokens"] = {{{"id", 300}, {"content", "WORD"}, {"single_word", true}},
                          {{"id", 301}, {"content", "[L]"}, {"lstrip", true}},
                          {{"id", 302}, {"content", "[R]"}, {"rstrip", true}},
                          {{"id", 303}, {"content", "caf\u00E9"}, {"normalized", true}},
                          {{"id", 304}, {"content", "na\u00EF"}, {"normalized", false}}};
  const auto tokenizer = test::FromJsonOrDie(json);
  const auto encode = [&](std::string_view text) { return tokenizer->Encode(text, true).value(); };
  EXPECT_EQ(encode("WORD,"), (Ids{300, ','}));
  EXPECT_EQ(encode("WORDS"), (Ids{'W', 'O', 'R', 'D', 'S'}));
  EXPECT_EQ(encode("_WORD"), (Ids{'_', 'W', 'O', 'R', 'D'}));
  EXPECT_EQ(encode("x \u3000[L] y"), (Ids{'x', 301, ' ', 'y'}));
  EXPECT_EQ(encode("x [R] \ny"), (Ids{'x', ' ', 302, 'y'}));
  EXPECT_EQ(encode("cafe\u0301"), Ids{303});
  EXPECT_EQ(encode("na\u00EF"), Ids{304});
  EXPECT_EQ(encode("nai\u0308"), (Ids{'n', 'a', 0xC3, 0xAF}));  // looked for before normalization
}

TEST(Tokenizer, ProtectionFollowsTextThroughNormalization) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["added_tokens"] = {{{"id", 300}, {"content", "<|end|>"}, {"special", true}, {"normalized", true}}};
  const auto tokenizer = test::FromJsonOrDie(json);
  const std::string text = "e\u0301<|end|><|end|>";
  const size_t second[] = {text.size() - 7};
  EXPECT_EQ(tokenizer->Encode(text, true, second).value(),
            (Ids{0xC3, 0xA9, 300, '<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(tokenizer->Encode(text, true).value(), (Ids{0xC3, 0xA9, 300, 300}));
}

TEST(Tokenizer, TheLongestOfOverlappingAddedTokensWins) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["added_tokens"] = {{{"id", 300}, {"content", "<a"}}, {{"id", 301}, {"content", "<a>"}}};
  const auto tokenizer = test::FromJsonOrDie(json);
  EXPECT_EQ(tokenizer->Encode("<a><a", true).value(), (Ids{301, 300}));
}

TEST(Tokenizer, SplitPatternsInSequenceApplyOneAfterTheOther) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["model"]["merges"] = {"a b", "1 1", "11 11"};
  json["model"]["vocab"]["11"] = 259;
  json["model"]["vocab"]["1111"] = 260;
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\p{N}{1,3}"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", "Removed"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(test::FromJsonOrDie(json)->Encode("ab.1111ab", true).value(), (Ids{256, 259, '1', '1', 256}));
}

TEST(Tokenizer, MongolianVowelSeparatorIsNotASpace) {
  // \s is White_Space here: with PCRE2's own \s this character would leave its word.
  nlohmann::json json = test::SmallTokenizerJson();
  json["pre_tokenizer"]["use_regex"] = false;
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}, {"behavior", "Removed"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto tokenizer = test::FromJsonOrDie(json);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("a\u180Eb \u2003c", true).value(), false), "a\u180Ebc");
}

TEST(Tokenizer, PostProcessorTemplatesGivePrefixAndSuffix) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  const auto tokenizer = test::FromJsonOrDie(json);
  EXPECT_EQ(tokenizer->prefix_ids(), Ids{300});
  EXPECT_TRUE(tokenizer->suffix_ids().empty());
}

TEST(Tokenizer, AMissingFileIsNotFoundByName) {
  const auto result = Tokenizer::Load("/nonexistent/tokenizer.json");
  EXPECT_EQ(result.status().code(), Code::kNotFound);
  EXPECT_EQ(result.status().message(), "/nonexistent/tokenizer.json: cannot be opened");
}

}  // namespace
}  // namespace rt
