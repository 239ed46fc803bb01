#pragma once
// The byte-level alphabet of GPT-2 (https://github.com/openai/gpt-2, encoder.py), which writes a token's bytes as text.
// Bytes that are printable in Latin-1 stand for themselves; the other 68, in order, are U+0100 to U+0143. A space is
// "Ġ".

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hrm {

// The character of each byte, below U+0144.
constexpr std::array<uint16_t, 256> kByteLevelCharacters = [] {
  std::array<uint16_t, 256> characters{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = itself ? static_cast<uint16_t>(byte) : next++;
  }
  return characters;
}();

// Bytes as characters of the alphabet, in UTF-8.
std::string byte_level_text(std::string_view bytes);

// The inverse. Returns nullopt if a character is not in the alphabet or the text is not UTF-8.
std::optional<std::string> byte_level_bytes(std::string_view text);

// SentencePiece's fallback token for a byte: "<0x0A>".
std::string byte_fallback_token(unsigned char byte);

// The byte of a fallback token, parsed as in the `tokenizers` library; nullopt for any other text.
std::optional<unsigned char> byte_fallback_byte(std::string_view token);

}  // namespace hrm
