#include "hrm/base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "hrm/base/error.h"

namespace hrm {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Optimal string alignment distance: insert, delete, replace, swap of neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// Length of the well-formed UTF-8 character at the start of `text`; 0 when there is none (Unicode, table 3-7).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto tail = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if (first == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
    if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogate
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

std::string formatted(const char* format, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value, unit);
  return text;
}

std::string two_units(long long big, const char* big_unit, long long small, const char* small_unit) {
  char text[64];
  std::snprintf(text, sizeof(text), "%lld %s %02lld %s", big, big_unit, small, small_unit);
  return text;
}

}  // namespace

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t shorter = std::min(word.size(), candidate.size());
    const size_t limit = std::max<size_t>(1, longer / 3);
    if (shorter == 0 || longer > 1000 || longer - shorter > limit) continue;
    const size_t distance = edit_distance(word, candidate);
    // One changed letter of a word of one letter is another word.
    if (distance > limit || distance >= longer) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return formatted("%.1f %s", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e15) return "unknown";
  if (seconds < 0.995) return formatted("%.2f %s", seconds, "s");
  if (seconds < 9.95) return formatted("%.1f %s", seconds, "s");
  const long long whole = std::llround(seconds);
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return two_units(whole / 60, "min", whole % 60, "s");
  const long long minutes = std::llround(seconds / 60);
  if (minutes < 60 * 24) return two_units(minutes / 60, "h", minutes % 60, "min");
  const long long hours = std::llround(seconds / 3600);
  return two_units(hours / 24, "d", hours % 24, "h");
}

namespace {

// `escape(c)`: what stands for the byte c, or null where it stays. Bytes that are not UTF-8 never stay.
template <class Escape>
std::string escaped(std::string_view text, const Escape& escape) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    size_t length = utf8_length(text.substr(i));
    // U+0080 to U+009F are control characters too; terminals obey some of them.
    if (length == 2 && c == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0) length = 0;
    if (const char* instead = escape(c)) {
      out += instead;
    } else if (length == 0 || ((c < 0x20 || c == 0x7F) && c != '\n' && c != '\t')) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02X", c);
      out += code;
      length = 1;
    } else {
      out += text.substr(i, length);
    }
    i += std::max<size_t>(1, length);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, [](unsigned char c) -> const char* {
    switch (c) {
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\t':
        return "\\t";
      case '\r':
        return "\\r";
      default:
        return nullptr;
    }
  });
}

std::string printable_lines(std::string_view text) {
  return escaped(text, [](unsigned char) -> const char* { return nullptr; });
}

std::string printable_start(std::string_view text, size_t most) {
  if (text.size() <= most) return printable(text);
  // Not in the middle of a character: the part would look like damage.
  size_t end = most;
  while (end > 0 && most - end < 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string escaped_markup(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '&') {
      out += "&amp;";
    } else if (byte == '<') {
      out += "&lt;";
    } else if (byte == '>') {
      out += "&gt;";
    } else if (byte == '"') {
      out += "&quot;";
    } else if (byte == '\'') {
      out += "&#39;";
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += "\xEF\xBF\xBD";
    } else if (text.substr(i, 3) == "\xEF\xBF\xBE" || text.substr(i, 3) == "\xEF\xBF\xBF") {
      out += "\xEF\xBF\xBD";
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_plain_file_name(std::string_view name) {
  constexpr size_t kLongest = 128;
  const auto plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kLongest && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), plain);
}

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  require(path.starts_with("~/"), ExitCode::usage, "'", printable_start(path),
          "' begins with a tilde, which only ~/ may: the home folder; write the whole path, or ./",
          printable_start(path), " for what is called so");
  const char* const home = std::getenv("HOME");
  require(home != nullptr && home[0] == '/', ExitCode::usage, "'", printable_start(path),
          "': HOME does not name the home folder; write the whole path");
  return home + path.substr(1);
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    if (first != std::string_view::npos) parts.emplace_back(part.substr(first, last - first + 1));
    begin = end + 1;
  }
  return parts;
}

}  // namespace hrm
