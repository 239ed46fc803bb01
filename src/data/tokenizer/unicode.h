#pragma once
// Unicode functions of the tokenizers: UTF-8, a few character classes, normalization forms. The data is utf8proc's
// (Unicode 15 in Debian 12).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

enum CharacterClass : uint8_t {
  kLetter = 1,        // \p{L}
  kNumber = 2,        // \p{N}
  kSpace = 4,         // \s: White_Space, 25 characters
  kWord = 8,          // \w in Rust's regular expressions: Alphabetic, marks, decimal digits, connectors, joiners
  kComposes = 16,     // NFC may change it, move it, or join it with previous characters
  kPunctuation = 32,  // \p{P}, and ASCII's $+<=>^`|~
  kMark = 64          // \p{M}
};

// Classes of all code points, in a two-level table. Built once from utf8proc in about 20 ms; shared by all threads.
class UnicodeTable {
 public:
  static const UnicodeTable& get();

  uint8_t classes(char32_t character) const {
    return character < 0x110000 ? blocks_[static_cast<size_t>(index_[character >> 8]) << 8 | (character & 0xFF)] : 0;
  }

 private:
  UnicodeTable();

  std::array<uint16_t, 0x1100> index_{};
  std::vector<uint8_t> blocks_;
};

// Appends the character as UTF-8.
void append_utf8(char32_t character, std::string& out);

// The length of the text's longest prefix that is well-formed UTF-8 (Unicode, table 3-7).
size_t utf8_prefix(std::string_view text);

// The character at `at` in well-formed UTF-8, and its length in bytes.
struct Character {
  char32_t code;
  unsigned bytes;
};
inline Character character_at(const char* at) {
  const auto byte = [at](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// The character that ends before `end`, which must not be the beginning of the text.
inline Character character_before(const char* end) {
  const char* at = end - 1;
  while ((static_cast<unsigned char>(*at) & 0xC0) == 0x80) --at;
  return character_at(at);
}

// Appends the bytes, with U+FFFD for each maximal ill-formed part (Unicode, section 3.9; Rust's from_utf8_lossy). With
// `complete` = false, more bytes may follow, and an unfinished character at the end is not consumed. Returns the number
// of bytes consumed.
size_t append_utf8_lossy(std::string_view bytes, bool complete, std::string& out);

// Normalization form C of well-formed UTF-8 (Unicode, section 3.11). True: `out` holds it. False: the text already has
// that form, and `out` is unchanged. Linear in the length of the text, except for sorting runs of marks.
bool normalize_nfc(std::string_view text, std::string& out);

enum class NormalizationForm { nfc, nfd, nfkc, nfkd };
// The same for each of the forms (Unicode Standard Annex 15).
bool normalize(std::string_view text, NormalizationForm form, std::string& out);

// Appends the lower case of a character; for U+0130 this is two characters.
void append_lower_case(char32_t character, std::string& out);

}  // namespace hrm::data
