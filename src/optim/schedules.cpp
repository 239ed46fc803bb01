#include "hrm/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hrm/base/error.h"

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
  if (options.shape == "1-sqrt") return 1 - std::sqrt(progress);
  if (options.shape == "linear") return 1 - progress;
  if (options.shape == "cosine") return cosine(progress);
  fail(ExitCode::usage, "unknown decay shape '", options.shape, "' of schedule wsd; use 1-sqrt, linear or cosine");
}

}  // namespace

double scheduled(const std::string& schedule, double base, int64_t step, int64_t total, int64_t warmup,
                 double min_ratio, const WsdOptions& wsd) {
  double factor = 1;
  const int64_t done = step - warmup;
  const int64_t span = total - warmup;
  if (schedule == "cosine") {
    factor = cosine(progress_of(done, span));
  } else if (schedule == "linear") {
    factor = 1 - progress_of(done, span);
  } else if (schedule == "wsd") {
    factor = wsd_factor(done, span, wsd);
  } else {
    require(schedule == "constant", ExitCode::usage, "unknown schedule '", schedule,
            "'; use cosine, constant, linear or wsd");
  }
  if (step < warmup) return base * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup));
  return base * (min_ratio + (1 - min_ratio) * factor);
}

}  // namespace hrm::optim
