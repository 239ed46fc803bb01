#include "hrm/parallel/slow_ranks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string ms(double value) {
  return cat(std::round(value * 10) / 10, " ms");
}

}  // namespace

SlowRanks::SlowRanks(int ranks, int64_t steps, double factor)
    : ranks_(ranks),
      steps_(steps),
      factor_(factor),
      own_ms_(static_cast<size_t>(ranks)),
      slow_(static_cast<size_t>(ranks), false) {}

void SlowRanks::set_mesh(std::function<std::string(int rank)> place_of, std::vector<std::string> axes) {
  place_of_ = std::move(place_of);
  axes_ = std::move(axes);
  waited_ms_.assign(axes_.size(), 0);
}

std::string SlowRanks::add(const double* own_ms, const double* waited_ms) {
  for (size_t axis = 0; waited_ms != nullptr && axis < axes_.size(); ++axis) waited_ms_[axis] += waited_ms[axis];
  for (size_t rank = 0; rank < own_ms_.size(); ++rank) own_ms_[rank].push_back(own_ms[rank]);
  if (static_cast<int64_t>(own_ms_[0].size()) < steps_) return "";

  std::vector<double> medians, known;
  for (auto& steps : own_ms_) {
    steps.erase(std::remove_if(steps.begin(), steps.end(), [](double value) { return std::isnan(value); }),
                steps.end());
    medians.push_back(median(steps));
    if (!steps.empty()) known.push_back(medians.back());
    steps.clear();
  }
  const double usual = median(known);
  std::string axis;  // on which the others wait
  if (const auto longest = std::max_element(waited_ms_.begin(), waited_ms_.end());
      longest != waited_ms_.end() && *longest > 0) {
    axis = cat("; they wait most on the ", axes_[static_cast<size_t>(longest - waited_ms_.begin())], " axis, ",
               ms(*longest / static_cast<double>(steps_ * ranks_)), " a step");
  }
  std::fill(waited_ms_.begin(), waited_ms_.end(), 0);
  std::string text;
  for (size_t rank = 0; rank < medians.size(); ++rank) {
    const bool slow = medians[rank] > factor_ * usual;
    if (slow && !slow_[rank]) {
      text += cat(text.empty() ? "rank " : ", rank ", rank, " (", ms(medians[rank]),
                  place_of_ ? "; " + place_of_(static_cast<int>(rank)) : "", ")");
    }
    slow_[rank] = slow;
  }
  if (text.empty()) return text;
  return cat("slow, and all others wait: ", text, " where the median of ", ranks_, " ranks works ", ms(usual),
             " a step", axis, "; is its GPU throttled or shared, its host short of cores?");
}

}  // namespace hrm::parallel
