#pragma once
// Functions of Python's str, for texts in UTF-8. Places are those of characters.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::jinja {

// The character at a place, and the place behind it. The text is UTF-8.
char32_t next_character(std::string_view text, size_t& at);
void append_character(char32_t character, std::string& out);
int64_t count_characters(std::string_view text);
// Bytes of each character's begin, and the end: count + 1 of them. Texts of a template are shorter than 4 GiB.
std::vector<uint32_t> character_places(std::string_view text);

bool is_space(char32_t character);
bool is_printable(char32_t character);
bool is_ascii_text(std::string_view text);

// Those at the ends; without `characters` white space.
std::string_view strip(std::string_view text, bool left, bool right,
                       const std::optional<std::string_view>& characters = std::nullopt);
// Without a separator at runs of white space.
std::vector<std::string> split(std::string_view text, const std::optional<std::string_view>& separator, int64_t most,
                               bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string replace(std::string_view text, std::string_view old, std::string_view with, int64_t most,
                    size_t most_bytes);
// std::string_view::find in linear time, whatever the texts are.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
int64_t count_of(std::string_view text, std::string_view part);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title
// str.isalpha and its like: alpha, digit, alnum, space, upper, lower.
bool is_all(std::string_view text, std::string_view what);
// repr(text).
std::string python_repr(std::string_view text);
// markupsafe.escape.
std::string escaped(std::string_view text);

}  // namespace hrm::jinja
