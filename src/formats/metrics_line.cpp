#include "hrm/formats/metrics_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <system_error>

#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr uint32_t kNoKey = UINT32_MAX;        // its values are left out
constexpr uint32_t kStepKey = UINT32_MAX - 1;  // the line's `step`
constexpr double kLargestStep = 9007199254740992.0;

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

// Cuts after whole characters.
void cut_text(std::string& text, size_t most) {
  if (text.size() <= most) return;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  text.resize(most);
}

}  // namespace

bool MetricsLineReader::read(std::string_view line) {
  at_ = line.data();
  end_ = at_ + line.size();
  values_.clear();
  texts_.clear();
  path_.clear();
  has_step_ = false;
  position_ = 0;
  skip_space();
  const bool whole = take('{') && read_object(1);
  skip_space();
  if (whole && at_ == end_ && has_step_) return true;
  values_.clear();
  texts_.clear();
  return false;
}

void MetricsLineReader::skip_space() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
}

bool MetricsLineReader::take(char c) {
  if (at_ == end_ || *at_ != c) return false;
  ++at_;
  return true;
}

bool MetricsLineReader::read_word(std::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) return false;
  at_ += word.size();
  return true;
}

// Behind the opening brace.
bool MetricsLineReader::read_object(int depth) {
  if (depth > kMaxMetricsDepth) return false;
  skip_space();
  if (take('}')) return true;
  const size_t outer = path_.size();
  do {
    skip_space();
    bool ok = true;
    uint32_t key = kNoKey;
    if (depth == 1) {
      key = top_level_key(ok);
      ++position_;
    } else {
      ok = read_string(word_);
      path_ += "/" + word_;
    }
    skip_space();
    if (!ok || !take(':') || !read_value(depth, key)) return false;
    path_.resize(outer);
    skip_space();
  } while (take(','));
  return take('}');
}

bool MetricsLineReader::read_list(int depth) {
  if (depth > kMaxMetricsDepth) return false;
  skip_space();
  if (take(']')) return true;
  const size_t outer = path_.size();
  size_t i = 0;
  do {
    path_ += "/" + std::to_string(i);
    const size_t kept_values = values_.size(), kept_texts = texts_.size();
    skip_space();
    if (!read_value(depth, kNoKey)) return false;
    if (i++ >= kMaxMetricsList) {
      left_out_ += values_.size() - kept_values + texts_.size() - kept_texts;
      values_.resize(kept_values);
      texts_.resize(kept_texts);
    }
    path_.resize(outer);
    skip_space();
  } while (take(','));
  return take(']');
}

// The key at this place: in most lines it is the one of the line before. kNoKey: that of path_, to be looked up.
uint32_t MetricsLineReader::top_level_key(bool& ok) {
  if (position_ < guesses_.size() && read_word(guesses_[position_].raw)) {
    if (guesses_[position_].key == kNoKey) path_ = guesses_[position_].name;
    return guesses_[position_].key;
  }
  const char* begin = at_;
  ok = read_string(path_);
  if (!ok) return kNoKey;
  const uint32_t key = path_ == "step" ? kStepKey : kNoKey;
  if (position_ >= guesses_.size() && position_ < kMaxMetricsKeys) guesses_.resize(position_ + 1);
  if (position_ < guesses_.size()) guesses_[position_] = {std::string(begin, at_), path_, key};
  return key;
}

uint32_t MetricsLineReader::key_of(const std::string& name) {
  if (const auto found = index_.find(name); found != index_.end()) return found->second;
  if (keys_.size() >= kMaxMetricsKeys || name.size() > kMaxMetricsKeyBytes || !is_utf8(name)) return kNoKey;
  keys_.push_back(name);
  const auto key = static_cast<uint32_t>(keys_.size() - 1);
  index_.emplace(keys_.back(), key);
  return key;
}

// That of path_. A guess of this place saves it the next time.
uint32_t MetricsLineReader::look_up(int depth) {
  const uint32_t key = key_of(path_);
  if (depth == 1 && position_ <= guesses_.size()) guesses_[position_ - 1].key = key;
  return key;
}

bool MetricsLineReader::add(uint32_t key, double number) {
  if (key == kStepKey) {
    has_step_ = number == std::floor(number) && std::abs(number) <= kLargestStep;
    if (has_step_) step_ = static_cast<int64_t>(number);
    return has_step_;
  }
  if (key == kNoKey) {
    ++left_out_;
  } else {
    values_.push_back({key, number});
  }
  return true;
}

// `key`: known already, or kNoKey: that of path_.
bool MetricsLineReader::read_value(int depth, uint32_t key) {
  skip_space();
  if (at_ == end_) return false;
  const char first = *at_;
  if (first == '{' || first == '[') {
    if (key == kStepKey) return false;
    ++at_;
    // A guess that named a number before.
    if (key != kNoKey) path_ = keys_[key];
    return first == '{' ? read_object(depth + 1) : read_list(depth + 1);
  }
  const bool known = key != kNoKey;
  if (first == '"') {
    std::string text;
    if (key == kStepKey || !read_string(text)) return false;
    if (!known) key = look_up(depth);
    cut_text(text, kMaxMetricsText);
    if (key == kNoKey || !is_utf8(text)) {
      ++left_out_;
    } else {
      texts_.push_back({key, std::move(text)});
    }
    return true;
  }
  double number = std::numeric_limits<double>::quiet_NaN();
  if (first == 'n') {
    if (!read_word("null")) return false;
  } else if (first == 't') {
    if (!read_word("true")) return false;
    number = 1;
  } else if (first == 'f') {
    if (!read_word("false")) return false;
    number = 0;
  } else if (!read_number(number)) {
    return false;
  }
  if (!known) key = look_up(depth);
  return add(key, number);
}

bool MetricsLineReader::read_number(double& number) {
  if (read_word("NaN") || read_word("Infinity") || read_word("-Infinity")) return true;  // number is NaN
  const char* digits = at_ + (at_ != end_ && *at_ == '-');
  if (digits == end_ || *digits < '0' || *digits > '9') return false;
  const auto [next, error] = std::from_chars(at_, end_, number);
  if (error == std::errc::result_out_of_range) {
    // Too large for a double, or too small: then it is 0.
    number = std::strtod(std::string(at_, next).c_str(), nullptr);
  } else if (error != std::errc{}) {
    return false;
  }
  at_ = next;
  if (!std::isfinite(number)) number = std::numeric_limits<double>::quiet_NaN();
  return true;
}

bool MetricsLineReader::read_string(std::string& out) {
  out.clear();
  if (!take('"')) return false;
  for (;;) {
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
    out.append(begin, at_);
    if (at_ == end_) return false;
    if (take('"')) return true;
    if (!take('\\') || !read_escape(out)) return false;
  }
}

bool MetricsLineReader::read_unicode(uint32_t& unit) {
  if (end_ - at_ < 4) return false;
  const auto [next, error] = std::from_chars(at_, at_ + 4, unit, 16);
  if (error != std::errc{} || next != at_ + 4) return false;
  at_ = next;
  return true;
}

bool MetricsLineReader::read_escape(std::string& out) {
  if (at_ == end_) return false;
  const char c = *at_++;
  static constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const size_t i = kNames.find(c); i != kNames.npos) {
    out += kMeanings[i];
    return true;
  }
  uint32_t unit = 0, low = 0;
  if (c != 'u' || !read_unicode(unit)) return false;
  const bool pair = unit >= 0xd800 && unit < 0xdc00 && end_ - at_ >= 6 && at_[0] == '\\' && at_[1] == 'u';
  if (pair) {
    at_ += 2;
    if (!read_unicode(low)) return false;
    if (low >= 0xdc00 && low < 0xe000) {
      append_utf8(out, 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
      return true;
    }
    append_utf8(out, 0xfffd);
    unit = low;
  }
  append_utf8(out, unit >= 0xd800 && unit < 0xe000 ? 0xfffd : unit);
  return true;
}

}  // namespace hrm
