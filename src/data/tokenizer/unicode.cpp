#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "hrm/base/error.h"

namespace hrm::data {
namespace {

constexpr char32_t kEnd = 0x110000;

bool is_circled_letter(char32_t c) {  // Other_Alphabetic that is not letter, mark or number
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_white_space(char32_t c, utf8proc_category_t category) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

uint8_t classes_of(char32_t c, utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return kNumber | kWord;
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark | kWord;
    case UTF8PROC_CATEGORY_PC:
      return kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    default:
      if (c < 0x80 && std::string_view("$+<=>^`|~").find(static_cast<char>(c)) != std::string_view::npos) {
        return kPunctuation;
      }
      if (is_white_space(c, category)) return kSpace;
      return is_circled_letter(c) || c == 0x200C || c == 0x200D ? kWord : 0;
  }
}

// The full decomposition, canonical or `compatible`, sorted. A Unicode character gives at most 18.
size_t decompose(char32_t c, utf8proc_int32_t* out, size_t room, bool compatible = false) {
  int last_class = 0;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  const auto got = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out, static_cast<utf8proc_ssize_t>(room),
                                           static_cast<utf8proc_option_t>(options), &last_class);
  require(got >= 1 && static_cast<size_t>(got) <= room, ExitCode::unexpected, "utf8proc decomposes U+",
          static_cast<uint32_t>(c), " into ", got, " characters");
  return static_cast<size_t>(got);
}

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

constexpr size_t kMostDecomposed = 32;

// Normalizes a part that is at the text's beginning, or begins with a character that never composes with previous ones.
void normalize_part(std::string_view part, NormalizationForm form, std::vector<utf8proc_int32_t>& codes,
                    std::string& out) {
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  codes.clear();
  for (size_t at = 0; at < part.size();) {
    const Character c = character_at(part.data() + at);
    at += c.bytes;
    const size_t before = codes.size();
    codes.resize(before + kMostDecomposed);
    codes.resize(before + decompose(c.code, codes.data() + before, kMostDecomposed, compatible));
  }
  // utf8proc sorts by exchanging neighbours, which would take hours for a long hostile run of marks.
  for (size_t begin = 0; begin < codes.size();) {
    if (combining_class(codes[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(begin),
                     codes.begin() + static_cast<std::ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  auto length = static_cast<utf8proc_ssize_t>(codes.size());
  if (form == NormalizationForm::nfc || form == NormalizationForm::nfkc) {
    length = utf8proc_normalize_utf32(codes.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    require(length >= 0, ExitCode::unexpected, "utf8proc: ", utf8proc_errmsg(length));
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(static_cast<char32_t>(codes[static_cast<size_t>(i)]), out);
}

// Length of the well-formed character at the beginning, or 0. Then `bad` is the length of a maximal ill-formed part, at
// least 1, and `cut` says whether only the end of a character is missing.
unsigned well_formed(const unsigned char* at, size_t left, unsigned& bad, bool& cut) {
  bad = 1;
  cut = false;
  const unsigned first = at[0];
  if (first < 0x80) return 1;
  const unsigned length = first >= 0xC2 && first <= 0xDF   ? 2
                          : first >= 0xE0 && first <= 0xEF ? 3
                          : first >= 0xF0 && first <= 0xF4 ? 4
                                                           : 0;
  if (length == 0) return 0;
  // The second byte has its own range: no overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (unsigned i = 1; i < length; ++i) {
    bad = i;
    if (i == left) {
      cut = true;
      return 0;
    }
    const unsigned byte = at[i];
    if (i == 1 ? byte < low || byte > high : (byte & 0xC0) != 0x80) return 0;
  }
  return length;
}

// The position of the next non-ASCII byte, from `at` on.
size_t skip_ascii(std::string_view text, size_t at) {
  for (uint64_t eight; at + 8 <= text.size(); at += 8) {
    std::memcpy(&eight, text.data() + at, 8);
    if ((eight & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

UnicodeTable::UnicodeTable() {
  std::vector<uint8_t> all(kEnd);
  for (char32_t c = 0; c < kEnd; ++c) {
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    all[c] = classes_of(c, static_cast<utf8proc_category_t>(property->category));
    if (property->combining_class != 0) all[c] |= kComposes;
  }
  for (char32_t c = 0; c < kEnd; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    const bool hangul = c >= 0xAC00 && c <= 0xD7A3;
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0 || hangul) continue;
    // The last character may compose with the first of the next part, and a character that is not its own NFC changes.
    utf8proc_int32_t codes[kMostDecomposed];
    const size_t count = decompose(c, codes, kMostDecomposed);
    if (count > 1) all[static_cast<size_t>(codes[count - 1])] |= kComposes;
    const auto composed = utf8proc_normalize_utf32(codes, static_cast<utf8proc_ssize_t>(count),
                                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (composed != 1 || static_cast<char32_t>(codes[0]) != c) all[c] |= kComposes;
  }
  for (char32_t c = 0x1161; c <= 0x1175; ++c) all[c] |= kComposes;  // vowels and final consonants of Hangul
  for (char32_t c = 0x11A8; c <= 0x11C2; ++c) all[c] |= kComposes;
  std::map<std::vector<uint8_t>, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(block << 8);
    const auto [at, fresh] =
        known.emplace(std::vector<uint8_t>(begin, begin + 256), static_cast<uint16_t>(known.size()));
    if (fresh) blocks_.insert(blocks_.end(), begin, begin + 256);
    index_[block] = at->second;
  }
}

size_t utf8_prefix(std::string_view text) {
  for (size_t at = 0;;) {
    at = skip_ascii(text, at);
    if (at == text.size()) return at;
    unsigned bad;
    bool cut;
    const unsigned length =
        well_formed(reinterpret_cast<const unsigned char*>(text.data()) + at, text.size() - at, bad, cut);
    if (length == 0) return at;
    at += length;
  }
}

void append_utf8(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

size_t append_utf8_lossy(std::string_view bytes, bool complete, std::string& out) {
  size_t at = 0, begin = 0;  // beginning of the well-formed bytes not yet appended
  while (at < bytes.size()) {
    unsigned bad;
    bool cut;
    const unsigned length =
        well_formed(reinterpret_cast<const unsigned char*>(bytes.data()) + at, bytes.size() - at, bad, cut);
    if (length > 0) {
      at += length;
      continue;
    }
    if (cut && !complete) break;
    out.append(bytes, begin, at - begin);
    out += "\xEF\xBF\xBD";
    at += bad;
    begin = at;
  }
  out.append(bytes, begin, at - begin);
  return at;
}

bool normalize_nfc(std::string_view text, std::string& out) {
  const UnicodeTable& table = UnicodeTable::get();
  std::vector<utf8proc_int32_t> codes;
  bool changed = false;
  size_t copied = 0;  // everything before is in `out`
  size_t last = 0;    // begin of the last character that does not compose with previous ones
  std::string part;
  for (size_t at = 0; at < text.size();) {
    const size_t ascii = skip_ascii(text, at);
    if (ascii > at) last = ascii - 1;
    at = ascii;
    if (at == text.size()) break;
    const Character c = character_at(text.data() + at);
    if ((table.classes(c.code) & kComposes) == 0) {
      last = at;
      at += c.bytes;
      continue;
    }
    // The part extends to the next character that does not compose with previous ones.
    size_t end = at + c.bytes;
    while (end < text.size()) {
      const Character next = character_at(text.data() + end);
      if ((table.classes(next.code) & kComposes) == 0) break;
      end += next.bytes;
    }
    const size_t begin = std::max(last, copied);
    part.clear();
    normalize_part(text.substr(begin, end - begin), NormalizationForm::nfc, codes, part);
    if (part != text.substr(begin, end - begin)) {
      if (!changed) out.clear();
      changed = true;
      out.append(text, copied, begin - copied).append(part);
      copied = end;
    }
    last = end;
    at = end;
  }
  if (changed) out.append(text, copied, text.size() - copied);
  return changed;
}

bool normalize(std::string_view text, NormalizationForm form, std::string& out) {
  if (form == NormalizationForm::nfc) return normalize_nfc(text, out);
  std::vector<utf8proc_int32_t> codes;
  std::string made;
  bool changed = false;
  // ASCII stays unchanged and does not compose with previous characters, so each ASCII character begins a part.
  for (size_t at = 0; at < text.size();) {
    const size_t ascii = skip_ascii(text, at);
    if (ascii == text.size()) {
      made.append(text, at);
      break;
    }
    const size_t begin = ascii > at ? ascii - 1 : ascii;
    made.append(text, at, begin - at);
    size_t end = ascii;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    const size_t before = made.size();
    normalize_part(text.substr(begin, end - begin), form, codes, made);
    changed = changed || std::string_view(made).substr(before) != text.substr(begin, end - begin);
    at = end;
  }
  if (changed) out = std::move(made);
  return changed;
}

void append_lower_case(char32_t c, std::string& out) {
  if (c == 0x130) {
    out += "i\u0307";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

}  // namespace hrm::data
