#include "commands/dashboard/run_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace hrm::dashboard {
namespace {

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kProbe = 256;  // bytes that tell whether the file was rewritten

// Buckets of all curves together: 16 MB for a run.
constexpr size_t kAllBuckets = 250000, kMostBuckets = 4096, kFewestBuckets = 64;

size_t capacity_of(size_t keys) {
  return std::clamp(kAllBuckets / std::max<size_t>(keys, 1), kFewestBuckets, kMostBuckets);
}

// Fills `out` from `offset` on; shorter at the end of the file.
void read_at(int fd, uint64_t offset, size_t bytes, std::string& out) {
  out.resize(bytes);
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, out.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  out.resize(done);
}

}  // namespace

void RunReader::start_again() {
  lines_ = MetricsLineReader();
  curves_.clear();
  texts_.clear();
  blocks_.clear();
  head_.clear();
  tail_.clear();
  in_long_line_ = false;
  offset_ = good_lines_ = damaged_lines_ = 0;
  first_step_ = last_step_ = 0;
  ++generation_;
}

// Whether what was read of it is still there.
bool RunReader::is_same_file(int fd) const {
  struct stat status {};
  if (fstat(fd, &status) != 0 || status.st_dev != device_ || status.st_ino != inode_ ||
      static_cast<uint64_t>(status.st_size) < offset_) {
    return false;
  }
  std::string now;
  read_at(fd, 0, head_.size(), now);
  if (now != head_) return false;
  read_at(fd, offset_ - tail_.size(), tail_.size(), now);
  return now == tail_;
}

void RunReader::remember_end(int fd) {
  const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kProbe, offset_));
  if (head_.size() < bytes) read_at(fd, 0, bytes, head_);
  read_at(fd, offset_ - bytes, bytes, tail_);
}

void RunReader::take_line(std::string_view line, Block& block) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  if (!lines_.read(line)) {
    ++damaged_lines_;
    return;
  }
  const int64_t step = lines_.step();
  // A run that was resumed without cutting its file: what it does again replaces what it did before.
  if (good_lines_ > 0 && step < last_step_) {
    for (Curve& curve : curves_) curve.forget_from(step + 1);
    for (auto& texts : texts_) {
      while (!texts.empty() && texts.back().step > step) texts.pop_back();
    }
  }
  first_step_ = good_lines_ == 0 ? step : std::min(first_step_, step);
  last_step_ = step;
  ++good_lines_;
  block.first = block.bytes == 0 ? step : std::min(block.first, step);
  block.last = block.bytes == 0 ? step : std::max(block.last, step);
  block.bytes += line.size() + 1;
  curves_.resize(lines_.keys().size());
  texts_.resize(lines_.keys().size());
  const size_t capacity = capacity_of(curves_.size());
  for (const MetricsValue& value : lines_.values()) curves_[value.key].add(step, value.number, capacity);
  for (const MetricsText& text : lines_.texts()) {
    auto& kept = texts_[text.key];
    kept.push_back({step, text.text});
    if (kept.size() > kTexts) kept.pop_front();
  }
}

bool RunReader::advance(std::chrono::milliseconds budget) {
  const auto until = std::chrono::steady_clock::now() + budget;
  const Descriptor file = open_();
  if (!file) {
    if (offset_ > 0) start_again();
    file_bytes_ = 0;
    return true;
  }
  struct stat status {};
  if (!is_same_file(file.get()) || fstat(file.get(), &status) != 0) {
    start_again();
    if (fstat(file.get(), &status) != 0) return true;
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  file_bytes_ = static_cast<uint64_t>(status.st_size);
  bool at_end = false;
  do {
    size_t bytes = kBlock;
    read_at(file.get(), offset_, bytes, buffer_);
    size_t last = buffer_.rfind('\n');
    // A line that is longer than a block.
    while (last == buffer_.npos && buffer_.size() == bytes && bytes < kMaxLine) {
      bytes *= 2;
      read_at(file.get(), offset_, bytes, buffer_);
      last = buffer_.rfind('\n');
    }
    at_end = buffer_.size() < bytes;
    if (last == buffer_.npos) {
      if (at_end) break;
      offset_ += buffer_.size();
      in_long_line_ = true;
      continue;
    }
    Block block{.offset = offset_};
    const std::string_view whole(buffer_.data(), last + 1);
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = whole.find('\n', begin);
      if (std::exchange(in_long_line_, false)) {
        ++damaged_lines_;
      } else {
        take_line(whole.substr(begin, end - begin), block);
      }
      begin = end + 1;
    }
    if (block.bytes > 0) {
      block.bytes = whole.size();
      blocks_.push_back(block);
    }
    offset_ += whole.size();
  } while (!at_end && std::chrono::steady_clock::now() < until);
  remember_end(file.get());
  return at_end;
}

std::vector<Points> RunReader::points(const std::vector<uint32_t>& keys, int64_t from, int64_t to, size_t columns) {
  std::vector<const Curve*> wanted;
  static const Curve kNone;
  bool coarse = false;
  for (const uint32_t key : keys) {
    wanted.push_back(key < curves_.size() ? &curves_[key] : &kNone);
    coarse = coarse || wanted.back()->buckets() < wanted.back()->count() + wanted.back()->not_finite();
  }
  std::vector<Curve> exact;
  uint64_t bytes = 0;
  const auto overlaps = [&](const Block& block) { return block.last >= from && block.first <= to; };
  for (const Block& block : blocks_) bytes += overlaps(block) ? block.bytes : 0;
  if (const Descriptor file = coarse && bytes <= kMaxReread ? open_() : Descriptor();
      file && is_same_file(file.get())) {
    exact.resize(keys.size());
    MetricsLineReader lines;
    std::vector<size_t> place;  // of a key of `lines` in `keys`
    std::string text;
    int64_t before = 0;
    bool any = false;
    for (const Block& block : blocks_) {
      if (!overlaps(block)) continue;
      read_at(file.get(), block.offset, block.bytes, text);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        const bool good = lines.read(std::string_view(text).substr(begin, end - begin));
        begin = end + 1;
        if (!good) continue;
        for (size_t i = place.size(); i < lines.keys().size(); ++i) {
          const auto found = std::find_if(keys.begin(), keys.end(), [&](uint32_t key) {
            return key < this->keys().size() && this->keys()[key] == lines.keys()[i];
          });
          place.push_back(static_cast<size_t>(found - keys.begin()));
        }
        if (any && lines.step() < before) {
          for (Curve& curve : exact) curve.forget_from(lines.step() + 1);
        }
        before = lines.step();
        any = true;
        if (before < from || before > to) continue;
        for (const MetricsValue& value : lines.values()) {
          if (place[value.key] < exact.size()) exact[place[value.key]].add(before, value.number, kMostBuckets * 4);
        }
      }
    }
    for (size_t i = 0; i < keys.size(); ++i) wanted[i] = &exact[i];
  }
  std::vector<Points> out;
  for (const Curve* curve : wanted) out.push_back(curve->thin(from, to, columns));
  return out;
}

}  // namespace hrm::dashboard
