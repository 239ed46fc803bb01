#include "formats/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/jinja/value.h"

namespace hrm::jinja {
namespace {

constexpr char32_t kCombiningIota = 0x345, kSharpS = 0xDF, kDottedI = 0x130, kSigma = 0x3A3, kFinalSigma = 0x3C2;

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
char32_t simple_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

// The characters that c is made of; one where it is made of none.
std::u32string decomposed(char32_t c) {
  std::array<utf8proc_int32_t, 32> out{};
  int last_class = UTF8PROC_BOUNDCLASS_START;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out.data(), out.size(), options, &last_class);
  std::u32string text;
  for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, out.size()); ++i) {
    text += static_cast<char32_t>(out[i]);
  }
  return text;
}

// Full case mapping, which turns some characters into several. utf8proc has the simple mapping. The others are small
// letters without a capital, which become the capitals of their parts.
void append_upper(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
    return;
  }
  if (c == kSharpS) {
    out += "SS";
    return;
  }
  const char32_t upper = simple_upper(c);
  const bool lacks = upper == c && category(c) == UTF8PROC_CATEGORY_LL;
  // Greek capitals with a small iota beside them are of title case.
  const bool has_iota = category(upper) == UTF8PROC_CATEGORY_LT;
  if (lacks || has_iota) {
    const std::u32string parts = decomposed(c);
    const bool is_iota = parts.find(kCombiningIota) != std::u32string::npos;
    if (parts.size() > 1 && (lacks || is_iota)) {
      // What is made of other letters alone, such as a letter with a mark that stands for itself, stays together.
      for (const char32_t part : parts) append_character(simple_upper(part), out);
      return;
    }
  }
  append_character(upper, out);
}

bool is_cased(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}

// Marks and the like, which do not end a word for the rule of the final sigma.
bool is_ignored_by_case(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' ||
         c == 0xB7 || c == 0x2019;
}

// At the end of a word: letters in front of it, none behind it.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  bool before = false;
  while (begin > 0 && !before) {
    size_t at = --begin;
    if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;
    const char32_t c = next_character(text, at);
    if (is_ignored_by_case(c)) continue;
    if (!is_cased(c)) return false;
    before = true;
  }
  if (!before) return false;
  while (end < text.size()) {
    const char32_t c = next_character(text, end);
    if (!is_ignored_by_case(c)) return !is_cased(c);
  }
  return true;
}

void append_lower(std::string_view text, size_t begin, std::string& out) {
  size_t end = begin;
  const char32_t c = next_character(text, end);
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == kDottedI) {
    out += "i\xCC\x87";
  } else if (c == kSigma && is_final_sigma(text, begin, end)) {
    append_character(kFinalSigma, out);
  } else {
    append_character(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void append_title(char32_t c, std::string& out) {
  const auto simple = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
  if (simple != c || category(c) != UTF8PROC_CATEGORY_LL) return append_character(simple, out);
  std::string upper;
  append_upper(c, upper);
  size_t at = 0;
  append_character(next_character(upper, at), out);
  out += lower(std::string_view(upper).substr(at));
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct Span {
  size_t begin, end;
};

// Words between white space. The last one is all that is left when `most` cuts were made.
std::vector<Span> words_of(std::string_view text, int64_t most) {
  std::vector<Span> words;
  size_t at = 0;
  const auto skip = [&](bool spaces) {
    while (at < text.size()) {
      size_t next = at;
      if (is_space(next_character(text, next)) != spaces) return;
      at = next;
    }
  };
  while (true) {
    skip(true);
    if (at == text.size()) return words;
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      words.push_back({at, text.size()});
      return words;
    }
    const size_t begin = at;
    skip(false);
    words.push_back({begin, at});
  }
}

}  // namespace

char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  const size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size == 1 || at + size > text.size()) {
    ++at;
    return first;
  }
  char32_t c = first & (0xFF >> (size + 1));
  for (size_t i = 1; i < size; ++i) c = c << 6 | (byte(at + i) & 0x3F);
  at += size;
  return c;
}

void append_character(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<uint32_t> character_places(std::string_view text) {
  std::vector<uint32_t> places;
  places.reserve(static_cast<size_t>(count_characters(text)) + 1);
  for (size_t at = 0; at < text.size(); next_character(text, at)) places.push_back(static_cast<uint32_t>(at));
  places.push_back(static_cast<uint32_t>(text.size()));
  return places;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_ascii_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string_view strip(std::string_view text, bool left, bool right,
                       const std::optional<std::string_view>& characters) {
  std::u32string set;
  if (characters) {
    for (size_t at = 0; at < characters->size();) set += next_character(*characters, at);
  }
  const auto goes = [&](char32_t c) { return characters ? set.find(c) != std::u32string::npos : is_space(c); };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!goes(next_character(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    size_t at = last;
    if (!goes(next_character(text, at))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string_view>& separator, int64_t most,
                               bool from_right) {
  std::vector<std::string> parts;
  if (!separator) {
    if (!from_right || most < 0) {
      for (const Span& word : words_of(text, most)) parts.emplace_back(text.substr(word.begin, word.end - word.begin));
      return parts;
    }
    // The last words, and what is in front of them.
    const std::vector<Span> words = words_of(text, -1);
    const size_t cut = words.size() - std::min<size_t>(words.size(), static_cast<size_t>(most));
    if (cut > 0) parts.emplace_back(text.substr(0, words[cut - 1].end));
    for (size_t i = cut; i < words.size(); ++i) {
      parts.emplace_back(text.substr(words[i].begin, words[i].end - words[i].begin));
    }
    return parts;
  }
  if (from_right) {
    size_t end = text.size();
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      if (end < separator->size()) break;
      const size_t at = text.substr(0, end).rfind(*separator);
      if (at == std::string_view::npos) break;
      parts.emplace_back(text.substr(at + separator->size(), end - at - separator->size()));
      end = at;
    }
    parts.emplace_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = find_text(text, *separator, begin);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(begin, at - begin));
    begin = at + separator->size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t at = begin, end = begin;
    while (at < text.size()) {
      end = at;
      const char32_t c = next_character(text, at);
      if (is_line_break(c)) {
        if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
        break;
      }
      end = at;
    }
    lines.emplace_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most,
                    size_t most_bytes) {
  std::string out;
  const auto add = [&](std::string_view part) {
    if (out.size() + part.size() > most_bytes) throw Fault("replace makes a text that is too long");
    out += part;
  };
  size_t begin = 0;
  int64_t done = 0;
  while (most < 0 || done < most) {
    // An empty text is in front of every character and at the end.
    size_t at = begin;
    if (old.empty()) {
      if (done > 0) {
        if (begin >= text.size()) break;
        next_character(text, at);
      }
    } else {
      at = find_text(text, old, begin);
      if (at == std::string_view::npos) break;
    }
    add(text.substr(begin, at - begin));
    add(with);
    begin = at + old.size();
    ++done;
  }
  add(text.substr(begin));
  return out;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size() || part.size() > text.size() - from) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

int64_t count_of(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  int64_t count = 0;
  for (size_t at = find_text(text, part); at != std::string_view::npos; at = find_text(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

std::string upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) append_upper(next_character(text, at), out);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); next_character(text, at)) append_lower(text, at, out);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (at == 0) {
      append_title(next_character(text, at), out);
    } else {
      append_lower(text, at, out);
      next_character(text, at);
    }
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    const char32_t c = next_character(text, next);
    if (inside) {
      append_lower(text, at, out);
    } else {
      append_title(c, out);
    }
    inside = is_cased(c);
    at = next;
  }
  return out;
}

bool is_all(std::string_view text, std::string_view what) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const utf8proc_category_t kind = category(c);
    const bool letter = is_cased(c) || kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
    const bool digit = kind == UTF8PROC_CATEGORY_ND;
    bool good = true;
    if (what == "alpha") good = letter;
    if (what == "digit") good = digit;
    if (what == "alnum") good = letter || digit || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
    if (what == "space") good = is_space(c);
    if (what == "upper") good = !is_cased(c) || kind == UTF8PROC_CATEGORY_LU;
    if (what == "lower") good = !is_cased(c) || kind == UTF8PROC_CATEGORY_LL;
    if (!good) return false;
    any = any || (what != "upper" && what != "lower") || is_cased(c);
  }
  return any;
}

std::string python_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const auto hex = [&](const char* start, int digits) {
      out += start;
      for (int i = digits - 1; i >= 0; --i) out += kDigits[c >> (4 * i) & 15];
    };
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_character(c, out);
    } else if (c < 0x100) {
      hex("\\x", 2);
    } else if (c < 0x10000) {
      hex("\\u", 4);
    } else {
      hex("\\U", 8);
    }
  }
  return out + quote;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace hrm::jinja
