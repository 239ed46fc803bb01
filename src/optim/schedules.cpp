#include "hrm/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hrm::optim {
namespace {

double cosine(double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

double progress_of(int64_t done, int64_t span) {
  return std::clamp(static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, span)), 0.0, 1.0);
}

double wsd_factor(int64_t done, int64_t span, const WsdOptions& options) {
  const int64_t rest = options.decay >= 0 ? std::max<int64_t>(0, span - options.decay) : span / 2;
  const int64_t stable = options.stable >= 0 ? options.stable : rest;
  const int64_t decay = options.decay >= 0 ? options.decay : span - stable;
  const double progress = done < stable ? 0.0 : progress_of(done - stable, decay);
  switch (options.shape) {
    case config::WsdShape::one_minus_sqrt:
      return 1 - std::sqrt(progress);
    case config::WsdShape::linear:
      return 1 - progress;
    case config::WsdShape::cosine:
      break;
  }
  return cosine(progress);
}

}  // namespace

double scheduled(config::Schedule schedule, double base, int64_t step, int64_t total, int64_t warmup, double min_ratio,
                 const WsdOptions& wsd) {
  double factor = 1;
  const int64_t done = step - warmup;
  const int64_t span = total - warmup;
  switch (schedule) {
    case config::Schedule::cosine:
      factor = cosine(progress_of(done, span));
      break;
    case config::Schedule::constant:
      break;
    case config::Schedule::linear:
      factor = 1 - progress_of(done, span);
      break;
    case config::Schedule::wsd:
      factor = wsd_factor(done, span, wsd);
      break;
  }
  if (step < warmup) return base * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup));
  return base * (min_ratio + (1 - min_ratio) * factor);
}

}  // namespace hrm::optim
