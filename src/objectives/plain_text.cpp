#include "objectives/plain_text.h"

#include <utf8proc.h>

#include <cstdlib>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::objectives {
namespace {

std::string well_formed(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string out;
  data::append_utf8_lossy(text, /*complete=*/true, out);
  return out;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

bool is_space(char32_t c) {
  return (data::UnicodeTable::get().classes(c) & data::kSpace) != 0;
}

bool is_word_character(char32_t c) {
  return (data::UnicodeTable::get().classes(c) & data::kWord) != 0;
}

bool is_capital(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}

bool is_small(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL;
}

char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::u32string trimmed_characters(std::string_view text) {
  const std::string utf8 = well_formed(text);
  std::u32string out;
  for (size_t at = 0; at < utf8.size();) {
    const data::Character c = data::character_at(utf8.data() + at);
    if (!out.empty() || !is_space(c.code)) out += c.code;
    at += c.bytes;
  }
  while (!out.empty() && is_space(out.back())) out.pop_back();
  return out;
}

std::string to_utf8(std::u32string_view characters) {
  std::string out;
  for (const char32_t c : characters) {
    utf8proc_uint8_t bytes[4];
    const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
  return out;
}

std::string folded(std::string_view text) {
  const std::string utf8 = well_formed(text);
  utf8proc_uint8_t* made = nullptr;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_CASEFOLD);
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()),
                                   static_cast<utf8proc_ssize_t>(utf8.size()), &made, options);
  require(length >= 0, ExitCode::unexpected, "a text of ", human_bytes(utf8.size()),
          " cannot be case-folded: ", utf8proc_errmsg(length));
  std::string out(reinterpret_cast<const char*>(made), static_cast<size_t>(length));
  std::free(made);
  return out;
}

}  // namespace hrm::objectives
