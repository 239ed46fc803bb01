#pragma once
// The draws of damped_update and start_state_, for host and device. No torch headers.

#include "ops/act/state_noise_draw.h"

namespace hrm::ops {

// erf(sqrt2), and 1 / the standard deviation of a normal distribution that is cut at +-2.
inline constexpr double kTruncatedUniform = 0.9544997361036416, kTruncatedWidening = 1.1368472343385565;

// Four numbers uniform in (erf(-sqrt2), erf(sqrt2)), of block `number` of a row.
HRM_HOST_DEVICE inline void truncated_uniforms(const CounterRng& rng, uint32_t number, float* uniforms) {
  uint32_t words[4];
  rng.block(number, words);
  for (int i = 0; i < 4; ++i) {
    const double unit = static_cast<double>(words[i] >> 8) * 0x1.0p-24;
    uniforms[i] = static_cast<float>(-kTruncatedUniform + 2 * kTruncatedUniform * unit);
  }
}

HRM_HOST_DEVICE inline CounterRng draws_of_row(uint64_t seed, Stream stream, int64_t draw) {
  return {seed, stream, static_cast<uint64_t>(draw)};
}

}  // namespace hrm::ops
