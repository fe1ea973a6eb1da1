#include "runtime/text/utf8.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>

namespace rt {
namespace {

// What may follow a lead byte: count of continuation bytes and the allowed range of the first of them (table 3-7).
struct LeadByte {
  uint8_t need;  // 0: not a lead byte
  uint8_t lower;
  uint8_t upper;
};

LeadByte ClassifyLead(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

// Length of the ASCII run at the start, looking at eight bytes a time.
size_t AsciiRun(const char* data, size_t size) {
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (i < size && static_cast<uint8_t>(data[i]) < 0x80) ++i;
  return i;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (true) {
    pos += AsciiRun(text.data() + pos, text.size() - pos);
    if (pos == text.size()) return std::string_view::npos;
    const LeadByte lead = ClassifyLead(static_cast<uint8_t>(text[pos]));
    if (lead.need == 0 || pos + lead.need >= text.size()) return pos;
    const auto first = static_cast<uint8_t>(text[pos + 1]);
    if (first < lead.lower || first > lead.upper) return pos;
    for (size_t k = 2; k <= lead.need; ++k) {
      if ((static_cast<uint8_t>(text[pos + k]) & 0xC0) != 0x80) return pos;
    }
    pos += lead.need + 1u;
  }
}

char32_t DecodeUtf8At(std::string_view text, size_t pos, size_t* size) {
  const auto byte = [&](size_t k) { return static_cast<char32_t>(static_cast<uint8_t>(text[pos + k])); };
  const char32_t b0 = byte(0);
  if (b0 < 0x80) return *size = 1, b0;
  if (b0 < 0xE0) return *size = 2, (b0 & 0x1F) << 6 | (byte(1) & 0x3F);
  if (b0 < 0xF0) return *size = 3, (b0 & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return *size = 4, (b0 & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

char32_t DecodeUtf8Before(std::string_view text, size_t pos, size_t* size) {
  size_t start = pos - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return DecodeUtf8At(text, start, size);
}

void AppendUtf8(char32_t cp, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (cp < 0x80) return put(cp);
  if (cp < 0x800) return put(0xC0 | cp >> 6), put(0x80 | (cp & 0x3F));
  if (cp < 0x10000) return put(0xE0 | cp >> 12), put(0x80 | (cp >> 6 & 0x3F)), put(0x80 | (cp & 0x3F));
  put(0xF0 | cp >> 18), put(0x80 | (cp >> 12 & 0x3F)), put(0x80 | (cp >> 6 & 0x3F)), put(0x80 | (cp & 0x3F));
}

bool IsUnicodeSpace(char32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
         (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
         cp == 0x3000;
}

bool IsUnicodeWord(char32_t cp) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool IsTriviallyNfc(std::string_view text) {
  // U+0300 is the first code point whose NFC_Quick_Check is not Yes; its lead byte is 0xCC.
  for (const char c : text) {
    if (static_cast<uint8_t>(c) >= 0xCC) return false;
  }
  return true;
}

std::string ToNfc(std::string_view text) {
  if (IsTriviallyNfc(text)) return std::string(text);
  utf8proc_uint8_t* mapped = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  if (size < 0) return std::string(text);  // only out of memory: the input is valid UTF-8
  std::string result(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return result;
}

void LossyUtf8Decoder::Push(std::string_view bytes, std::string* out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    if (need_ == 0) {
      const size_t run = AsciiRun(bytes.data() + pos, bytes.size() - pos);
      out->append(bytes.substr(pos, run));
      pos += run;
      if (pos == bytes.size()) return;
    }
    PushByte(static_cast<uint8_t>(bytes[pos++]), out);
  }
}

void LossyUtf8Decoder::PushByte(uint8_t byte, std::string* out) {
  if (need_ != 0) {
    if (byte >= lower_ && byte <= upper_) {
      pending_[pending_size_++] = static_cast<char>(byte);
      lower_ = 0x80;
      upper_ = 0xBF;
      if (--need_ == 0) {
        out->append(pending_, pending_size_);
        pending_size_ = 0;
      }
      return;
    }
    Finish(out);  // the held bytes were a maximal ill-formed part; `byte` starts anew
  }
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  const LeadByte lead = ClassifyLead(byte);
  if (lead.need == 0) {
    out->append(kReplacement);
    return;
  }
  need_ = lead.need;
  lower_ = lead.lower;
  upper_ = lead.upper;
  pending_[0] = static_cast<char>(byte);
  pending_size_ = 1;
}

void LossyUtf8Decoder::Finish(std::string* out) {
  if (pending_size_ != 0) out->append(kReplacement);
  pending_size_ = 0;
  need_ = 0;
}

}  // namespace rt
