#pragma once
// One metric of a run over its steps, in bounded memory: neighbouring values share a bucket, which keeps their smallest
// and largest value with the steps of both. So a spike of one step stays visible, however long the run.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hrm::dashboard {

// Points to draw, by rising step. Every point is a value of the file.
struct Points {
  std::vector<int64_t> steps;
  std::vector<double> values;
  // Mean of each column, at its middle value's step; empty where each column has one value.
  std::vector<int64_t> mean_steps;
  std::vector<double> means;
  std::vector<int64_t> not_finite;  // first step of each bucket with values that are not finite
};

class Curve {
 public:
  // At most `capacity` (>= 2) buckets are kept. A step that is not above the last one replaces what is there from that
  // step on. A value that is not finite is remembered as such.
  void add(int64_t step, double value, size_t capacity);

  // Forgets the values of `step` and later. Of a bucket that holds earlier values, too, those stay, and its extremes
  // may be of forgotten ones.
  void forget_from(int64_t step);

  // Of the steps from..to: two points (minimum, maximum) for each of at most `columns` columns of equal width.
  Points thin(int64_t from, int64_t to, size_t columns) const;

  bool empty() const { return buckets_.empty(); }
  int64_t first_step() const { return buckets_.front().first; }
  int64_t last_step() const { return buckets_.back().last; }
  uint64_t count() const { return count_; }            // values added, without those that are not finite
  uint64_t not_finite() const { return not_finite_; }  // values that are not finite
  bool has_latest() const { return has_latest_; }
  double latest() const { return latest_; }  // of the last value that is finite
  size_t buckets() const { return buckets_.size(); }

 private:
  struct Bucket {
    int64_t first = 0, last = 0;
    int64_t at_min = 0, at_max = 0;
    double min = 0, max = 0, sum = 0;
    uint32_t count = 0, not_finite = 0;

    void merge(const Bucket& later);
  };

  std::vector<Bucket> buckets_;
  uint64_t values_per_bucket_ = 1;
  uint64_t count_ = 0, not_finite_ = 0;
  double latest_ = 0;
  bool has_latest_ = false;
};

}  // namespace hrm::dashboard
