// The GPT-2 byte alphabet: byte-level BPE files spell each of the 256 bytes as one printable code point.
// Bytes that are printable in Latin-1 (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF) stand for themselves; the other 68 become
// U+0100, U+0101, ... in byte order. Source: Radford et al. 2019, encoder.py, bytes_to_unicode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rt {

// Code point that spells `byte`.
char32_t ByteToAlphabet(uint8_t byte);

// The bytes that `token` (valid UTF-8) spells, or nullopt if it holds a code point outside the alphabet.
std::optional<std::string> AlphabetToBytes(std::string_view token);

}  // namespace rt
