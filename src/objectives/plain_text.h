#pragma once
// Unicode helpers for the rewards of model-written texts.

#include <string>
#include <string_view>

namespace hrm::objectives {

// The characters without white space at both ends. Invalid UTF-8 becomes U+FFFD.
std::u32string trimmed_characters(std::string_view text);

bool is_space(char32_t c);
bool is_word_character(char32_t c);  // letters, marks, decimal digits, connectors: \w
bool is_capital(char32_t c);
bool is_small(char32_t c);
char32_t to_lower(char32_t c);

std::string to_utf8(std::u32string_view characters);

// Case-folded and composed (Unicode, sections 3.13 and 3.11). Texts that differ in nothing else give equal results.
std::string folded(std::string_view text);

}  // namespace hrm::objectives
