#include "runtime/text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/text/test_tokenizers.h"

namespace rt {
namespace {

using Ids = std::vector<int32_t>;

std::string Stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(&tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    EXPECT_EQ(FindInvalidUtf8(piece), std::string_view::npos);
    text += piece;
  }
  return text + decoder.Finish();
}

TEST(StreamDecoder, EmojiCjkAndJoinersArriveWholeFromByteTokens) {
  const auto tokenizer = test::LoadOrDie("tiny-gdn");
  for (const std::string text : {"\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\u65E5\u672C", "e\u0301\u0323",
                                 "\U0001F3F3\uFE0F\u200D\U0001F308", "\U0010FFFF"}) {
    const Ids ids = tokenizer->Encode(text, false).value();
    StreamDecoder decoder(tokenizer.get(), false);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string piece = decoder.Push(id);
      EXPECT_EQ(piece.find("\uFFFD"), std::string::npos) << text;
      streamed += piece;
    }
    EXPECT_EQ(streamed, ToNfc(text));
    EXPECT_EQ(decoder.Finish(), "");
  }
}

TEST(StreamDecoder, ACutCharacterShowsOnceAndOnlyAtTheEnd) {
  const auto tokenizer = test::LoadOrDie("tiny-gdn");
  StreamDecoder decoder(tokenizer.get(), false);
  EXPECT_EQ(decoder.Push(64), "a");
  EXPECT_EQ(decoder.Push(172), "");  // F0
  EXPECT_EQ(decoder.Push(253), "");  // 9F
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
}

TEST(StreamDecoder, GoldenCutSequencesStreamAsTheyDecode) {
  for (const char* model : {"tiny-gdn", "tiny-kda"}) {
    const auto tokenizer = test::LoadOrDie(model);
    const nlohmann::json golden = test::LoadGolden(model);
    for (const auto& entry : golden["decode_partial"]) {
      EXPECT_EQ(Stream(*tokenizer, entry["ids"].get<Ids>(), false), entry["decoded"].get<std::string>());
    }
  }
}

TEST(StreamDecoder, AnyTokensStreamToWhatTheyDecodeTo) {
  const auto tokenizer = test::LoadOrDie("tiny-gdn");
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(1 + random() % 40);
    // Half of the ids are single bytes, so that characters are often broken.
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (random() % 2 ? 256u : 4200u));
    for (const bool skip : {false, true}) {
      ASSERT_EQ(Stream(*tokenizer, ids, skip), tokenizer->Decode(ids, skip)) << "round " << round;
    }
  }
}

TEST(StreamDecoder, SpecialTokensAreLeftOutOnRequest) {
  const auto tokenizer = test::LoadOrDie("tiny-gdn");
  const Ids ids = tokenizer->Encode("Hi<think>x</think><|im_end|>", true).value();
  EXPECT_EQ(Stream(*tokenizer, ids, true), "Hi<think>x</think>");
  EXPECT_EQ(Stream(*tokenizer, ids, false), "Hi<think>x</think><|im_end|>");
}

}  // namespace
}  // namespace rt
