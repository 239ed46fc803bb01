#include "commands/dashboard/curve.h"

#include <algorithm>
#include <cmath>

namespace hrm::dashboard {

void Curve::Bucket::merge(const Bucket& later) {
  last = later.last;
  not_finite += later.not_finite;
  if (later.count == 0) return;
  if (count == 0 || later.min < min) {
    min = later.min;
    at_min = later.at_min;
  }
  if (count == 0 || later.max > max) {
    max = later.max;
    at_max = later.at_max;
  }
  sum += later.sum;
  count += later.count;
}

void Curve::add(int64_t step, double value, size_t capacity) {
  if (!buckets_.empty() && step <= buckets_.back().last) forget_from(step);
  Bucket one{.first = step, .last = step, .at_min = step, .at_max = step};
  if (std::isfinite(value)) {
    one.min = one.max = one.sum = value;
    one.count = 1;
    latest_ = value;
    has_latest_ = true;
    ++count_;
  } else {
    one.not_finite = 1;
    ++not_finite_;
  }
  if (!buckets_.empty() && buckets_.back().count + uint64_t{buckets_.back().not_finite} < values_per_bucket_) {
    buckets_.back().merge(one);
    return;
  }
  while (buckets_.size() >= capacity) {
    const size_t pairs = buckets_.size() / 2;
    for (size_t i = 0; i < pairs; ++i) {
      buckets_[i] = buckets_[2 * i];
      buckets_[i].merge(buckets_[2 * i + 1]);
    }
    if (buckets_.size() % 2 == 1) buckets_[pairs] = buckets_.back();
    buckets_.resize(buckets_.size() - pairs);
    values_per_bucket_ *= 2;
  }
  buckets_.push_back(one);
}

void Curve::forget_from(int64_t step) {
  while (!buckets_.empty() && buckets_.back().first >= step) {
    count_ -= buckets_.back().count;
    not_finite_ -= buckets_.back().not_finite;
    buckets_.pop_back();
  }
  if (buckets_.empty()) {
    values_per_bucket_ = 1;
    has_latest_ = false;
    return;
  }
  Bucket& last = buckets_.back();
  if (last.last >= step) last.last = step - 1;
  last.at_min = std::min(last.at_min, last.last);
  last.at_max = std::min(last.at_max, last.last);
  // The exact last value is gone with what was forgotten; the mean of the last bucket stands for it.
  has_latest_ = last.count > 0;
  if (has_latest_) latest_ = last.count == 1 ? last.min : last.sum / last.count;
}

Points Curve::thin(int64_t from, int64_t to, size_t columns) const {
  Points out;
  const auto begin = std::lower_bound(buckets_.begin(), buckets_.end(), from,
                                      [](const Bucket& bucket, int64_t step) { return bucket.last < step; });
  const auto end = std::upper_bound(begin, buckets_.end(), to,
                                    [](int64_t step, const Bucket& bucket) { return step < bucket.first; });
  if (begin == end || columns == 0 || from > to) return out;
  const double first = static_cast<double>(std::max(from, begin->first));
  const double width = (static_cast<double>(std::min(to, (end - 1)->last)) - first + 1) / static_cast<double>(columns);
  const bool all = static_cast<size_t>(end - begin) <= columns;
  bool single = true;
  const auto point = [&](int64_t step, double value) {
    out.steps.push_back(step);
    out.values.push_back(value);
  };
  for (auto bucket = begin; bucket != end;) {
    Bucket column = *bucket;
    const double index = std::floor((static_cast<double>(bucket->first) - first) / width);
    for (++bucket; !all && bucket != end; ++bucket) {
      if (std::floor((static_cast<double>(bucket->first) - first) / width) > index) break;
      column.merge(*bucket);
    }
    if (column.not_finite > 0) out.not_finite.push_back(column.first);
    if (column.count == 0) continue;
    single = single && column.count == 1;
    if (column.at_min == column.at_max) {
      point(column.at_min, column.min);
    } else if (column.at_min < column.at_max) {
      point(column.at_min, column.min);
      point(column.at_max, column.max);
    } else {
      point(column.at_max, column.max);
      point(column.at_min, column.min);
    }
    out.mean_steps.push_back(column.first + (column.last - column.first) / 2);
    // The sum of huge values may overflow.
    const double mean = column.sum / column.count;
    out.means.push_back(std::isfinite(mean) ? mean : column.min / 2 + column.max / 2);
  }
  if (single) {
    out.mean_steps.clear();
    out.means.clear();
  }
  return out;
}

}  // namespace hrm::dashboard
