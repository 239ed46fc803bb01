#pragma once
// Learning-rate schedules, computed in double precision on the host.

#include <cstdint>

#include "hrm/config/optim_settings.h"

namespace hrm::optim {

// Warmup-stable-decay: constant, then a decay to the minimum ratio.
struct WsdOptions {
  int64_t stable = -1;  // constant steps after the warm-up; -1: what `decay` leaves, or half if that is -1 too
  int64_t decay = -1;   // steps of the decay; -1: the rest
  config::WsdShape shape = config::WsdShape::one_minus_sqrt;
};

// Learning rate at step `step`; the first training step is 1.
//    step < warmup: base * step / max(1, warmup)
//    afterwards:    base * (r + (1 - r) * f(progress)),  r = min_ratio, progress in 0..1 from the warm-up to `total`
//    cosine f = (1 + cos(pi progress)) / 2, linear f = 1 - progress, constant f = 1 (r is not used);
//    wsd f = 1 while constant, then by shape: 1 - sqrt(p), 1 - p, (1 + cos(pi p)) / 2 over `decay` steps.
// Steps beyond the end keep the last rate.
double scheduled(config::Schedule schedule, double base, int64_t step, int64_t total, int64_t warmup, double min_ratio,
                 const WsdOptions& wsd = {});

}  // namespace hrm::optim
