#include "json_entries.h"

#include <iterator>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/config/load.h"

namespace hrm::config {
namespace {

using nlohmann::json;

// A key's path is kept for every object that is open, so depth costs memory by its square.
constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxKey = 256;  // of one name in a path

// Reads characters and counts the lines passed. The lexer has read exactly up to a key's closing quote when it reports
// the key, so the count then is the key's line.
class LineCountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineCountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  bool operator==(const LineCountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  int* line_;
};

// What is wrong with the text, from the parser's "[json.exception...] parse error at line L, column C: ...".
struct SyntaxError {
  int line;
  std::string what;
};
SyntaxError read_syntax_error(const std::string& message, int current_line) {
  SyntaxError error{current_line, message.substr(message.find("] ") + 2)};
  const size_t at = message.find("at line ");
  if (at != std::string::npos) {
    error.line = std::stoi(message.substr(at + 8));
    error.what = message.substr(message.find(": ", at) + 2);
  }
  if (error.what.find("unexpected '}'; expected string literal") != std::string::npos ||
      error.what.find("unexpected ']'") != std::string::npos) {
    error.what += "; remove the comma after the last entry";
  } else if (error.what.find("unexpected string literal; expected '}'") != std::string::npos) {
    error.what += "; a comma is missing after the entry before";
  }
  return error;
}

class EntryCollector : public nlohmann::json_sax<json> {
 public:
  EntryCollector(const std::string& name, const int& line) : name_(name), line_(line) {}

  std::vector<JsonEntry> entries;

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(value); }
  bool binary(binary_t&) override { return scalar(nullptr); }

  bool start_object(std::size_t) override {
    check_depth();
    if (arrays_ > 0) return true;
    if (inside_) add(json::object());
    inside_ = true;
    prefixes_.push_back(prefix_);
    prefix_ = key_.empty() ? "" : key_ + ".";
    return true;
  }
  bool key(string_t& value) override {
    if (arrays_ > 0) return true;
    require(value.size() <= kMaxKey, ExitCode::usage, name_, ":", line_, ": the key '", printable_start(value),
            "' is longer than ", kMaxKey, " bytes");
    key_ = prefix_ + value;
    key_line_ = line_;
    return true;
  }
  bool end_object() override {
    if (arrays_ > 0) return true;
    prefix_ = prefixes_.back();
    prefixes_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    check_depth();
    if (arrays_++ == 0) add(json::array());
    return true;
  }
  bool end_array() override {
    --arrays_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override {
    const SyntaxError error = read_syntax_error(e.what(), line_);
    fail(ExitCode::usage, name_, ":", error.line, ": this is not valid JSON: ", printable_start(error.what, 300));
  }

 private:
  void check_depth() const {
    require(prefixes_.size() + static_cast<size_t>(arrays_) < kMaxDepth, ExitCode::usage, name_, ":", line_,
            ": the entries nest more than ", kMaxDepth, " deep");
  }
  bool scalar(json value) {
    if (arrays_ == 0) add(std::move(value));
    return true;
  }
  void add(json value) {
    require(inside_, ExitCode::usage, name_, ":", line_,
            ": a configuration is a JSON object; put its entries between { and }");
    const auto [first, is_new] = lines_.emplace(key_, key_line_);
    require(is_new, ExitCode::usage, name_, ":", key_line_, ": key '", printable_start(key_),
            "' = ", printable_start(value.dump()), " occurs twice, first in line ", first->second,
            "; keep one of them");
    entries.push_back({key_, key_line_, std::move(value)});
  }

  const std::string& name_;
  const int& line_;
  bool inside_ = false;
  int arrays_ = 0;
  int key_line_ = 1;
  std::string key_;
  std::string prefix_;
  std::vector<std::string> prefixes_;
  std::unordered_map<std::string, int> lines_;
};

}  // namespace

std::vector<JsonEntry> parse_json_entries(const std::string& text, const std::string& name) {
  require(text.size() <= kMaxConfigBytes, ExitCode::usage, name, ": a configuration of ", human_bytes(text.size()),
          " is too long; at most ", human_bytes(kMaxConfigBytes), " are read");
  int line = 1;
  EntryCollector collector(name, line);
  const LineCountingIterator begin(text.data(), &line), end(text.data() + text.size(), &line);
  json::sax_parse(begin, end, &collector, json::input_format_t::json, /*strict=*/true, /*ignore_comments=*/true);
  return std::move(collector.entries);
}

}  // namespace hrm::config
