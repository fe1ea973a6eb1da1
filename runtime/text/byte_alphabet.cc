#include "runtime/text/byte_alphabet.h"

#include <array>

#include "runtime/text/utf8.h"

namespace rt {
namespace {

constexpr int kAlphabetEnd = 0x100 + 68;

struct Tables {
  std::array<char32_t, 256> to_code_point{};
  std::array<int16_t, kAlphabetEnd> to_byte{};
};

constexpr bool SpellsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.to_byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t cp = SpellsItself(byte) ? static_cast<char32_t>(byte) : next++;
    tables.to_code_point[static_cast<size_t>(byte)] = cp;
    tables.to_byte[cp] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

char32_t ByteToAlphabet(uint8_t byte) { return kTables.to_code_point[byte]; }

std::optional<std::string> AlphabetToBytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0, size = 0; pos < token.size(); pos += size) {
    const char32_t cp = DecodeUtf8At(token, pos, &size);
    if (cp >= kAlphabetEnd || kTables.to_byte[cp] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kTables.to_byte[cp]));
  }
  return bytes;
}

}  // namespace rt
