#pragma once
// Reads metrics.jsonl of a run while it grows: only what is new, in bounded memory.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "commands/dashboard/curve.h"
#include "commands/dashboard/run_files.h"
#include "hrm/formats/metrics_line.h"

namespace hrm::dashboard {

struct LoggedText {
  int64_t step = 0;
  std::string text;
};

class RunReader {
 public:
  static constexpr size_t kMaxLine = size_t{16} << 20;  // a longer line counts as damaged
  static constexpr uint64_t kMaxReread = uint64_t{64} << 20;
  static constexpr size_t kTexts = 20;  // kept of each key

  // `open`: opens metrics.jsonl; none where it is gone.
  explicit RunReader(std::function<Descriptor()> open) : open_(std::move(open)) {}

  // Reads on for about this long; at least one block. Returns whether all whole lines have been read. A line without a
  // line break waits until it is complete. A file that was replaced, cut or rewritten (as a resumed run does) is read
  // from its beginning, with a new generation().
  bool advance(std::chrono::milliseconds budget);

  // Points of a metric. A part of the run that is small enough is read from the file again, exactly; the curve's
  // buckets are the answer for larger parts. Keys beyond keys() have no points.
  std::vector<Points> points(const std::vector<uint32_t>& keys, int64_t from, int64_t to, size_t columns);

  const std::deque<std::string>& keys() const { return lines_.keys(); }
  const Curve& curve(uint32_t key) const { return curves_[key]; }
  const std::deque<LoggedText>& texts(uint32_t key) const { return texts_[key]; }
  bool has_steps() const { return good_lines_ > 0; }
  int64_t first_step() const { return first_step_; }
  int64_t last_step() const { return last_step_; }
  uint64_t good_lines() const { return good_lines_; }
  uint64_t damaged_lines() const { return damaged_lines_; }
  uint64_t left_out() const { return lines_.left_out(); }
  uint64_t bytes_read() const { return offset_; }
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t generation() const { return generation_; }

 private:
  struct Block {
    uint64_t offset = 0, bytes = 0;
    int64_t first = 0, last = 0;  // smallest and largest step in it
  };

  void start_again();
  bool is_same_file(int fd) const;
  void remember_end(int fd);
  void take_line(std::string_view line, Block& block);

  std::function<Descriptor()> open_;
  MetricsLineReader lines_;
  std::vector<Curve> curves_;
  std::vector<std::deque<LoggedText>> texts_;
  std::vector<Block> blocks_;
  uint64_t device_ = 0, inode_ = 0;
  uint64_t offset_ = 0, file_bytes_ = 0;
  std::string head_, tail_;  // the first bytes, and those before offset_
  bool in_long_line_ = false;
  int64_t first_step_ = 0, last_step_ = 0;
  uint64_t good_lines_ = 0, damaged_lines_ = 0, generation_ = 0;
  std::string buffer_;
};

}  // namespace hrm::dashboard
