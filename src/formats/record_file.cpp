#include "hrm/formats/record_file.h"

#include <algorithm>
#include <utility>

namespace hrm {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";
constexpr size_t kFirstLook = size_t{64} << 10;
constexpr const char* kNotClosed = "the array that the file begins with is not closed; is the file complete?";
constexpr size_t kMostShown = kMaxJsonlLine + 1;  // of one record

// Follows a JSON text from character to character.
class Nesting {
 public:
  void take(char c) {
    if (in_text_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_text_ = false;
      }
      return;
    }
    if (c == '"') in_text_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
  }
  // Not inside of a text, an object or a list.
  bool outside() const { return !in_text_ && depth_ <= 0; }
  bool in_text() const { return in_text_; }

 private:
  bool in_text_ = false, escaped_ = false;
  int64_t depth_ = 0;
};

}  // namespace

bool is_record_file_name(const std::filesystem::path& path) {
  const std::string suffix = content_suffix(path);
  return suffix == ".jsonl" || suffix == ".json";
}

std::string spread_record_advice(std::string_view line) {
  const size_t first = line.find_first_not_of(kJsonSpace);
  if (first == std::string_view::npos || line[first] != '{') return "";
  Nesting nesting;
  for (const char c : line) nesting.take(c);
  if (nesting.in_text() || nesting.outside()) return "";
  return "; where a record goes over several lines, the file must be one array: 'jq -s . FILE' makes one of records, "
         "'jq .NAME FILE' takes one out of an object";
}

RecordFile::RecordFile(const std::filesystem::path& path, ExitCode code) : input_(path, code), code_(code) {
  start();
}

RecordFile::RecordFile(std::span<const std::byte> bytes, const std::string& origin, ExitCode code)
    : input_(bytes, origin, code), code_(code) {
  start();
}

void RecordFile::start() {
  const std::string_view text = input_.view(kFirstLook);
  const size_t first = text.find_first_not_of(kJsonSpace);
  is_array_ = first != std::string_view::npos && text[first] == '[';
  if (!is_array_) return;
  line_ += static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<int64_t>(first), '\n'));
  input_.skip(first + 1);
}

bool RecordFile::next(JsonlLine& record) {
  return is_array_ ? next_element(record) : next_line(record);
}

bool RecordFile::next_line(JsonlLine& record) {
  while (true) {
    if (std::exchange(rest_follows_, false)) skip_line();
    size_t searched = 0, end = std::string_view::npos;
    std::string_view text = input_.view(kFirstLook);
    while (true) {
      if (text.empty()) return false;
      end = text.find('\n', searched);
      if (end != std::string_view::npos || input_.at_end() || text.size() >= kMostShown) break;
      searched = text.size();
      text = input_.view(std::min(2 * text.size(), kMostShown));
    }
    record = {0, line_++, text.substr(0, std::min(end, kMostShown))};
    if (end == std::string_view::npos) {
      rest_follows_ = !input_.at_end();
      input_.skip(text.size());
    } else {
      input_.skip(end + 1);
    }
    if (record.text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (record.text.ends_with('\r')) record.text.remove_suffix(1);
    return true;
  }
}

// What is left of a line that is too long to be kept.
void RecordFile::skip_line() {
  for (std::string_view text; !(text = input_.view(kFirstLook)).empty();) {
    const size_t end = text.find('\n');
    input_.skip(std::min(end, text.size() - 1) + 1);
    if (end != std::string_view::npos) return;
  }
}

bool RecordFile::next_element(JsonlLine& record) {
  char next = next_character();
  if (!ended_ && begun_) {
    if (next == ',') {
      input_.skip(1);
      next = next_character();
      if (next == ']') fail_here("the array has a comma, but no record behind it");
    } else if (next != ']') {
      fail_here(next == '\0' ? kNotClosed : "the array has no comma between two records");
    }
  }
  if (!ended_ && next == ']') {
    ended_ = true;
    input_.skip(1);
    next = next_character();
  }
  if (ended_) {
    if (next != '\0') fail_here("something follows the end of the array, which must be all of the file");
    return false;
  }
  if (next == '\0') fail_here(kNotClosed);
  begun_ = true;
  const std::string_view text = element();
  record = {0, line_, text};
  line_ += static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  input_.skip(text.size());
  return true;
}

// The next one that is not white space, which stays; '\0' at the end.
char RecordFile::next_character() {
  for (std::string_view text; !(text = input_.view(1)).empty();) {
    const size_t found = std::min(text.find_first_not_of(kJsonSpace), text.size());
    line_ += static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<int64_t>(found), '\n'));
    input_.skip(found);
    if (found < text.size()) return text[found] == '\0' ? ' ' : text[found];
  }
  return '\0';
}

// The value that begins here, to its end.
std::string_view RecordFile::element() {
  std::string_view text = input_.view(kFirstLook);
  const bool scalar = std::string_view("{[\"").find(text[0]) == std::string_view::npos;
  Nesting nesting;
  for (size_t size = 0;;) {
    for (; size < std::min(text.size(), kMostShown); ++size) {
      if (scalar && (text[size] == ',' || text[size] == ']' || kJsonSpace.find(text[size]) != std::string_view::npos)) {
        // A comma where a value should be: the parser of records says so.
        return text.substr(0, std::max<size_t>(size, 1));
      }
      nesting.take(text[size]);
      if (!scalar && nesting.outside()) return text.substr(0, size + 1);
    }
    if (size >= kMostShown) fail_here("a record is larger than 16 MiB");
    if (input_.at_end()) fail_here(kNotClosed);
    text = input_.view(2 * text.size());
  }
}

void RecordFile::fail_here(const char* reason) const {
  fail(code_, input_.origin(), ":", line_, ": ", reason);
}

}  // namespace hrm
