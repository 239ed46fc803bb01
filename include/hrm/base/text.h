#pragma once
// Text for people: suggestions, sizes, durations, safe quoting.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hrm {

// The candidate that `word` was probably meant to be, by edit distance (insert, delete, replace, swap of neighbours;
// letter case ignored). Empty when none is near: at most a third of the longer word may differ. The first of equals.
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

// "812 B", "1.5 KiB", "108.3 MiB".
std::string human_bytes(uint64_t bytes);

// "0.35 s", "42 s", "3 min 07 s", "1 h 03 min", "2 d 04 h". Negative or not finite: "unknown".
std::string human_seconds(double seconds);

// Control characters, invalid UTF-8 and DEL as \n, \t or \xNN, so that foreign text cannot steer a terminal or break a
// log line. Backslashes are doubled, so the form can be read back.
std::string printable(std::string_view text);

// The same for a text of several lines: line breaks, tabs and backslashes stay. For logs.
std::string printable_lines(std::string_view text);

// The same of foreign text that may be long: at most `most` bytes of it, then "...".
std::string printable_start(std::string_view text, size_t most = 80);

// Text for HTML and XML: markup characters are escaped. Control characters but line ends and tabs, and U+FFFE and
// U+FFFF, which XML does not allow, become U+FFFD.
std::string escaped_markup(std::string_view text);

// Whether all of the text is well-formed UTF-8 (Unicode, table 3-7).
bool is_utf8(std::string_view text);

// A text without the byte-order mark (EF BB BF) that some editors and Windows programs put in front of it.
std::string_view without_byte_order_mark(std::string_view text);

// A whole number written in decimal digits alone; nothing for any other text, and for one that leaves uint64.
std::optional<uint64_t> whole_number(std::string_view text);

// Whether a name from a file may be used as the name of a file beside it: 1 to 128 of the characters A-Z a-z 0-9 . _ -,
// not starting with . or -. Such a name cannot leave the folder and is not an option of a program.
bool is_plain_file_name(std::string_view name);

// A path with the home folder for a leading "~/", as a shell writes it where the tilde begins a word: behind "key=" it
// does not. Throws Error(ExitCode::usage) for another leading tilde, which would name a folder called "~", and where
// HOME is no whole path.
std::string expand_home(const std::string& path);

// The parts of a list, without the spaces around them; empty ones are skipped.
std::vector<std::string> split_list(std::string_view text, char separator = ',');

}  // namespace hrm
