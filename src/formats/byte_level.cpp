#include "hrm/formats/byte_level.h"

#include <charconv>

namespace hrm {
namespace {

constexpr int kCharacters = 0x144;

// The byte of a character; -1: none.
constexpr std::array<int16_t, kCharacters> kByteOfCharacter = [] {
  std::array<int16_t, kCharacters> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kByteLevelCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::string byte_level_text(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    const uint16_t character = kByteLevelCharacters[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0 | (character >> 6));
      text += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> byte_level_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned character = static_cast<unsigned char>(text[i]);
    if (character >= 0x80) {
      // Two bytes are enough for the whole alphabet.
      if (character < 0xC2 || character > 0xDF || i + 1 == text.size()) return std::nullopt;
      const unsigned tail = static_cast<unsigned char>(text[++i]);
      if ((tail & 0xC0) != 0x80) return std::nullopt;
      character = (character & 0x1F) << 6 | (tail & 0x3F);
    }
    if (character >= kCharacters || kByteOfCharacter[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfCharacter[character]);
  }
  return bytes;
}

std::string byte_fallback_token(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

std::optional<unsigned char> byte_fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const char *begin = token.data() + 3, *const end = begin + 2;
  if (*begin == '+') ++begin;  // Rust's parser of numbers takes a sign
  unsigned char byte = 0;
  const auto [stop, error] = std::from_chars(begin, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return byte;
}

}  // namespace hrm
