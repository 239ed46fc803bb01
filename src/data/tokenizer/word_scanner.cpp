#include "data/tokenizer/word_scanner.h"

#include <array>

#include "data/tokenizer/unicode.h"

namespace hrm::data {
namespace {

constexpr std::array<uint8_t, 128> kAscii = [] {
  std::array<uint8_t, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[c] = letter ? kLetter : c >= '0' && c <= '9' ? kNumber : space ? kSpace : 0;
  }
  return classes;
}();
constexpr uint8_t kKinds = kLetter | kNumber | kSpace;  // none of them: punctuation, marks and everything else

// The kind of a character, and where the next one begins.
struct Seen {
  unsigned kind;
  const char* next;
};

inline Seen see(const char* at) {
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) [[likely]] {
    return {kAscii[byte], at + 1};
  }
  static const UnicodeTable& table = UnicodeTable::get();
  const Character c = character_at(at);
  return {table.classes(c.code) & static_cast<unsigned>(kKinds), at + c.bytes};
}

// Skips at most `most` characters of this kind.
inline const char* skip(const char* at, const char* end, unsigned kind, int most = INT32_MAX) {
  for (; at < end && most > 0; --most) {
    const Seen c = see(at);
    if (c.kind != kind) break;
    at = c.next;
  }
  return at;
}

inline bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

inline char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

// Matches 's, 't, 're, 've, 'm, 'll, 'd at an apostrophe; null if none matches. If case is ignored, U+017F, the long s,
// also counts as s.
template <bool kAnyCase>
const char* contraction(const char* at, const char* end) {
  const auto letter = [&](int i) { return at + i >= end ? '\0' : kAnyCase ? lower(at[i]) : at[i]; };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  if (kAnyCase && first == '\xC5' && second == '\xBF') return at + 3;
  return nullptr;
}

// \s+(?!\S)|\s+ for white space that ends at `run_end`: at the end of the text, all of it. Otherwise the last character
// is left for the next word, unless it is the only one.
inline const char* white_space(const char* first_end, const char* run_end, const char* end) {
  if (run_end == end || run_end == first_end) return run_end;
  do --run_end;
  while ((static_cast<unsigned char>(*run_end) & 0xC0) == 0x80);
  return run_end;
}

const char* scan_gpt2(const char* at, const char* end) {
  if (*at == '\'') {
    if (const char* stop = contraction<false>(at, end)) return stop;
  }
  const Seen first = see(at);
  if (*at == ' ' && first.next < end) {
    const Seen second = see(first.next);
    if (second.kind != kSpace) return skip(second.next, end, second.kind);
  }
  const char* stop = skip(first.next, end, first.kind);
  return first.kind == kSpace ? white_space(first.next, stop, end) : stop;
}

template <int kDigits>
const char* scan_qwen(const char* at, const char* end) {
  if (*at == '\'') {
    if (const char* stop = contraction<true>(at, end)) return stop;
  }
  const Seen first = see(at);
  if (first.kind == kLetter) return skip(first.next, end, kLetter);
  if (first.kind == kNumber) return skip(first.next, end, kNumber, kDigits - 1);
  const char* others = first.kind == 0 ? at : nullptr;
  if (first.next < end && !is_line_end(*at)) {
    const Seen second = see(first.next);
    if (second.kind == kLetter) return skip(second.next, end, kLetter);
    if (*at == ' ' && second.kind == 0) others = first.next;
  }
  if (others != nullptr) {
    const char* stop = skip(others, end, 0);
    while (stop < end && is_line_end(*stop)) ++stop;
    return stop;
  }
  const char* stop = skip(first.next, end, kSpace);
  // \s*[\r\n]+ extends to the last line end in the white space.
  for (const char* last = stop; last > at; --last) {
    if (is_line_end(last[-1])) return last;
  }
  return white_space(first.next, stop, end);
}

}  // namespace

WordScanner find_word_scanner(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return scan_gpt2;
  if (pattern == kQwenPattern) return scan_qwen<1>;
  if (pattern == kLlama3Pattern) return scan_qwen<3>;
  return nullptr;
}

}  // namespace hrm::data
