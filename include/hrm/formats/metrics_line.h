#pragma once
// Lines of metrics.jsonl: one JSON object per line, with a whole number `step`. Written for speed: a line whose keys
// are those of the line before costs one comparison per key, so a million lines are read within seconds.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hrm {

struct MetricsValue {
  uint32_t key = 0;   // index in MetricsLineReader::keys()
  double number = 0;  // NaN for null, NaN, Infinity and numbers beyond the range of double
};

struct MetricsText {
  uint32_t key = 0;
  std::string text;  // UTF-8, at most kMaxMetricsText bytes of it
};

inline constexpr size_t kMaxMetricsKeys = 4096;  // values of further keys are left out
inline constexpr size_t kMaxMetricsKeyBytes = 256;
inline constexpr size_t kMaxMetricsText = 4096;
inline constexpr size_t kMaxMetricsList = 256;  // elements of a list; further ones are left out
inline constexpr int kMaxMetricsDepth = 8;

// Reads lines one after the other and keeps the table of keys. Nested objects and lists become keys with slashes:
// {"a": {"b": [1, 2]}} has a/b/0 and a/b/1. true and false are 1 and 0. Beyond JSON it accepts NaN, Infinity and
// -Infinity, which Python writes.
class MetricsLineReader {
 public:
  // `line`: without its line break. Returns false, and holds no values, if it is not such an object or has no whole
  // `step` of at most 2^53.
  bool read(std::string_view line);

  int64_t step() const { return step_; }
  // Of the last line, in its order. A key that occurs twice in a line has two values.
  const std::vector<MetricsValue>& values() const { return values_; }
  const std::vector<MetricsText>& texts() const { return texts_; }

  // All keys so far. The index of a key never changes.
  const std::deque<std::string>& keys() const { return keys_; }
  // Values so far without a key of their own: there are too many keys, the name is too long or is not UTF-8.
  uint64_t left_out() const { return left_out_; }

 private:
  struct Guess {
    std::string raw, name;  // the key as it stood in the line, with quotes, and its meaning
    uint32_t key = 0;
  };

  bool read_object(int depth);
  bool read_list(int depth);
  bool read_value(int depth, uint32_t key);
  bool read_number(double& number);
  bool read_string(std::string& out);
  bool read_escape(std::string& out);
  bool read_unicode(uint32_t& unit);
  bool read_word(std::string_view word);
  void skip_space();
  bool take(char c);
  bool add(uint32_t key, double number);
  uint32_t top_level_key(bool& ok);
  uint32_t key_of(const std::string& name);
  uint32_t look_up(int depth);

  const char* at_ = nullptr;
  const char* end_ = nullptr;
  int64_t step_ = 0;
  bool has_step_ = false;
  std::vector<MetricsValue> values_;
  std::vector<MetricsText> texts_;
  std::deque<std::string> keys_;
  std::unordered_map<std::string_view, uint32_t> index_;  // views of keys_
  std::vector<Guess> guesses_;                            // keys of the line before, by position
  size_t position_ = 0;
  std::string path_, word_;
  uint64_t left_out_ = 0;
};

}  // namespace hrm
