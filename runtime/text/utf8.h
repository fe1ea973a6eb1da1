// UTF-8 helpers: validation, streaming lossy decoding, NFC. Text inside the runtime is valid UTF-8; model output is bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rt {

// Byte offset of the first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7), or npos.
size_t FindInvalidUtf8(std::string_view text);

// Code point that starts at `pos`; *size receives its length in bytes. `text` must be valid there.
char32_t DecodeUtf8At(std::string_view text, size_t pos, size_t* size);

// Code point that ends just before `pos` (pos > 0, on a border); *size receives its length in bytes.
char32_t DecodeUtf8Before(std::string_view text, size_t pos, size_t* size);

void AppendUtf8(char32_t code_point, std::string* out);

// Unicode White_Space, which is what \s means in the regular expressions of tokenizer.json.
bool IsUnicodeSpace(char32_t code_point);

// A letter, mark, number or connector punctuation: \w.
bool IsUnicodeWord(char32_t code_point);

// Normalization form C of valid UTF-8. Text without a code point >= U+0300 is returned as it is without a table look-up.
std::string ToNfc(std::string_view text);

// True when ToNfc certainly changes nothing, decided by bytes alone.
bool IsTriviallyNfc(std::string_view text);

// Bytes to UTF-8 with U+FFFD for each maximal ill-formed part (Unicode 15, section 3.9), in any number of pieces: the
// concatenated output does not depend on where the input was cut. An incomplete tail is held until it is complete,
// proven wrong by the next byte, or finished.
class LossyUtf8Decoder {
 public:
  void Push(std::string_view bytes, std::string* out);
  // Writes U+FFFD if a sequence is incomplete. The decoder can be used again afterwards.
  void Finish(std::string* out);
  bool holding() const { return pending_size_ != 0; }

 private:
  void PushByte(uint8_t byte, std::string* out);

  char pending_[4] = {};
  uint8_t pending_size_ = 0;
  uint8_t need_ = 0;       // continuation bytes still missing
  uint8_t lower_ = 0x80;   // allowed range of the next continuation byte
  uint8_t upper_ = 0xBF;
};

}  // namespace rt
