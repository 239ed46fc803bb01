#include "hrm/tasks/sampling.h"

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"

namespace hrm::tasks {
namespace {

// Logits are divided in float32.
constexpr double kLeastTemperature = 1e-6;

}  // namespace

void check(const SamplingOptions& o) {
  require(std::isfinite(o.temperature) && (o.temperature == 0 || o.temperature >= kLeastTemperature), ExitCode::usage,
          "a temperature is 0 (the best token each time), or at least ", kLeastTemperature, ", not ", o.temperature);
  require(o.top_k >= 0, ExitCode::usage, "top_k is 0 (all tokens) or above, not ", o.top_k);
  require(o.top_p >= 0 && o.top_p <= 1, ExitCode::usage, "top_p is in 0..1, not ", o.top_p);
  require(o.min_p >= 0 && o.min_p <= 1, ExitCode::usage, "min_p is in 0..1, not ", o.min_p);
}

std::vector<double> sampling_draws(uint64_t seed, uint64_t key, int64_t count) {
  CounterRng rng(seed, Stream::token, key);
  std::vector<double> draws(static_cast<size_t>(count));
  for (double& draw : draws) {
    const uint64_t high = rng.next(), low = rng.next();
    draw = static_cast<double>((high << 32 | low) >> 11) * 0x1.0p-53;
  }
  return draws;
}

}  // namespace hrm::tasks
