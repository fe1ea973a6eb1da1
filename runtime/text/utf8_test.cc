#include "runtime/text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/text/byte_alphabet.h"

namespace rt {
namespace {

constexpr size_t kNpos = std::string_view::npos;

std::string Lossy(std::string_view bytes) {
  std::string out;
  LossyUtf8Decoder decoder;
  decoder.Push(bytes, &out);
  decoder.Finish(&out);
  return out;
}

TEST(Utf8, EveryScalarValueIsValidAndDecodesToItself) {
  for (char32_t cp = 0; cp <= 0x10FFFF; cp += cp < 0x3000 ? 1 : 37) {
    if (cp >= 0xD800 && cp <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(cp, &text);
    size_t size = 0;
    ASSERT_EQ(FindInvalidUtf8(text), kNpos) << static_cast<uint32_t>(cp);
    ASSERT_EQ(DecodeUtf8At(text, 0, &size), cp);
    ASSERT_EQ(size, text.size());
    ASSERT_EQ(DecodeUtf8Before("x" + text, text.size() + 1, &size), cp);
    ASSERT_EQ(size, text.size());
  }
}

TEST(Utf8, IllFormedBytesAreFoundAtTheirOffset) {
  EXPECT_EQ(FindInvalidUtf8(""), kNpos);
  EXPECT_EQ(FindInvalidUtf8("0123456789abc\x80"), 13u);
  EXPECT_EQ(FindInvalidUtf8("ab\xC0\x80"), 2u);          // overlong
  EXPECT_EQ(FindInvalidUtf8("\xE0\x9F\xBF"), 0u);        // overlong
  EXPECT_EQ(FindInvalidUtf8("\xED\xA0\x80"), 0u);        // surrogate
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);    // above U+10FFFF
  EXPECT_EQ(FindInvalidUtf8("\xF5\x80\x80\x80"), 0u);
  EXPECT_EQ(FindInvalidUtf8("a\xE6\x97"), 1u);           // cut
  EXPECT_EQ(FindInvalidUtf8("\xE6\x97z"), 0u);
}

TEST(Utf8, EachMaximalIllFormedPartBecomesOneReplacement) {
  // Unicode 15, table 3-8: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64.
  EXPECT_EQ(Lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"), "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(Lossy("\xE6\x97\xA5"), "\u65E5");
}

TEST(Utf8, LossyOutputDoesNotDependOnWhereTheInputIsCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 24; ++i) {
      const uint32_t kind = random() % 4;
      if (kind == 0) bytes.push_back(static_cast<char>(random() & 0xFF));
      if (kind == 1) bytes.push_back(static_cast<char>('a' + random() % 26));
      if (kind >= 2) AppendUtf8(random() % 0xD800, &bytes);
    }
    std::string pieces;
    LossyUtf8Decoder decoder;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t size = 1 + random() % 5;
      std::string out;
      decoder.Push(std::string_view(bytes).substr(pos, size), &out);
      ASSERT_EQ(FindInvalidUtf8(out), kNpos);
      pieces += out;
      pos += size;
    }
    decoder.Finish(&pieces);
    ASSERT_EQ(pieces, Lossy(bytes)) << "round " << round;
  }
}

TEST(Utf8, NfcComposesAndReordersAndLeavesComposedTextAlone) {
  EXPECT_EQ(ToNfc("cafe\u0301"), "caf\u00E9");
  EXPECT_EQ(ToNfc("s\u0307\u0323"), "\u1E69");
  EXPECT_EQ(ToNfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(ToNfc("\u212B"), "\u00C5");
  EXPECT_EQ(ToNfc(std::string("a\0\u0301", 4)), std::string("a\0\u0301", 4));
  EXPECT_EQ(ToNfc("plain \u00E9"), "plain \u00E9");
}

TEST(ByteAlphabet, SpellsAllBytesAndReadsThemBack) {
  std::string all;
  std::string spelled;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    AppendUtf8(ByteToAlphabet(static_cast<uint8_t>(byte)), &spelled);
  }
  EXPECT_EQ(AlphabetToBytes(spelled), all);
  EXPECT_EQ(ByteToAlphabet(' '), U'\u0120');
  EXPECT_EQ(ByteToAlphabet('\n'), U'\u010A');
  EXPECT_EQ(AlphabetToBytes("a b"), std::nullopt);  // a space is not a letter of the alphabet
  EXPECT_EQ(AlphabetToBytes("\u65E5"), std::nullopt);
}

}  // namespace
}  // namespace rt
