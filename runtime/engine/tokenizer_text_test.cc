#include "runtime/engine/tokenizer_text.h"

#include "runtime/text/test_tokenizers.h"

#include <gtest/gtest.h>

#include <random>

namespace rt {
namespace {

// Ids below 256 are bytes.
std::unique_ptr<Tokenizer> ByteTokenizer() { return test::FromJsonOrDie(test::SmallTokenizerJson()); }

struct Streamed {
  std::string text;
  int32_t stop_index = -1;
  size_t num_tokens = 0;
};

Streamed Stream(const Tokenizer& tokenizer, const GenerationRequest& request, const std::vector<int32_t>& ids,
                size_t min_tokens = 0) {
  TokenizerTextFactory factory(&tokenizer);
  auto decoder = factory.New(request);
  EXPECT_TRUE(decoder.ok()) << decoder.status().ToString();
  Streamed result;
  for (const int32_t id : ids) {
    ++result.num_tokens;
    result.stop_index = (*decoder)->Push(id, result.num_tokens > min_tokens, &result.text);
    if (result.stop_index >= 0) return result;
  }
  (*decoder)->Finish(&result.text);
  return result;
}

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

TEST(TokenizerText, AStopStringIsFoundWhereverItLiesAndCutsTheText) {
  const auto tokenizer = ByteTokenizer();
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += static_cast<char>('a' + random() % 3);
    std::string stop;
    for (size_t i = 0; i < 1 + random() % 4; ++i) stop += static_cast<char>('a' + random() % 3);
    GenerationRequest request;
    request.stop.stop_strings = {"zz", stop};
    request.stop.include_stop_string = trial % 2 == 1;
    const Streamed streamed = Stream(*tokenizer, request, Bytes(text));
    const size_t at = text.find(stop);
    ASSERT_EQ(streamed.stop_index, at == std::string::npos ? -1 : 1) << text << " / " << stop;
    const size_t shown = at == std::string::npos ? text.size() : at + (trial % 2 == 1 ? stop.size() : 0);
    ASSERT_EQ(streamed.text, text.substr(0, shown)) << text << " / " << stop;
    if (at != std::string::npos) {
      ASSERT_EQ(streamed.num_tokens, at + stop.size()) << text << " / " << stop;
    }
  }
}

TEST(TokenizerText, CharactersAndStopStringsMaySpanTokensAtAnyByte) {
  const auto tokenizer = ByteTokenizer();
  GenerationRequest request;
  request.stop.stop_strings = {"\u7d42\u308f\u308a"};
  const std::string text = "\u4f60\u597d \U0001F469\u200D\U0001F680 ";
  EXPECT_EQ(Stream(*tokenizer, request, Bytes(text + "\u7d42\u308f\u308a more")).text, text);
  // Cut inside the stop string: what was held back is shown, a torn character as U+FFFD.
  EXPECT_EQ(Stream(*tokenizer, request, Bytes(text + "\u7d42\u308f")).text, text + "\u7d42\u308f");
  const std::string torn = (text + "\u7d42\u308f").substr(0, text.size() + 4);
  EXPECT_EQ(Stream(*tokenizer, request, Bytes(torn)).text, text + "\u7d42\uFFFD");
}

TEST(TokenizerText, SpecialTokensAreShownOnlyWhenAskedFor) {
  const auto tokenizer = ByteTokenizer();
  GenerationRequest request;
  EXPECT_EQ(Stream(*tokenizer, request, {'a', 300, 'b'}).text, "ab");
  request.skip_special_tokens = false;
  EXPECT_EQ(Stream(*tokenizer, request, {'a', 300, 'b'}).text, "a<|end|>b");
}

TEST(TokenizerText, TextBeforeMinTokensIsNotSearched) {
  const auto tokenizer = ByteTokenizer();
  GenerationRequest request;
  request.stop.stop_strings = {"ab"};
  EXPECT_EQ(Stream(*tokenizer, request, Bytes("abxabx"), 2).text, "abx");
  EXPECT_EQ(Stream(*tokenizer, request, Bytes("abxabx"), 6).text, "abxabx");
}

TEST(TokenizerText, AnEmptyStopStringIsRefused) {
  const auto tokenizer = ByteTokenizer();
  TokenizerTextFactory factory(tokenizer.get());
  GenerationRequest request;
  request.stop.stop_strings = {""};
  EXPECT_EQ(factory.New(request).status().code(), Code::kInvalidArgument);
}

TEST(DefaultSamplingTest, FollowsTheCheckpointAndKeepsTheRest) {
  TextConfig::SamplingDefaults defaults;
  EXPECT_EQ(DefaultSampling(defaults).temperature, 1.0f);
  defaults.temperature = 0.6;
  defaults.top_k = 20;
  defaults.top_p = 0.95;
  defaults.do_sample = true;
  const SamplingParams params = DefaultSampling(defaults);
  EXPECT_EQ(params.temperature, 0.6f);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.top_p, 0.95f);
  EXPECT_EQ(params.min_p, 0.0f);
  defaults.do_sample = false;
  EXPECT_EQ(DefaultSampling(defaults).temperature, 0.0f);
}

}  // namespace
}  // namespace rt
