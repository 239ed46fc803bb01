#pragma once
// The draws of add_state_noise_, for host and device. No torch headers.

#include <cmath>
#include <cstdint>

#include "hrm/base/philox.h"

namespace hrm::ops {

// Four standard normal numbers of block `number` of a row.
HRM_HOST_DEVICE inline void normal_block(const CounterRng& rng, uint32_t number, float* normals) {
  uint32_t words[4];
  rng.block(number, words);
  for (int pair = 0; pair < 4; pair += 2) {
    // In (0, 1] and [0, 1), multiples of 2^-24.
    const float first = static_cast<float>((words[pair] >> 8) + 1) * 0x1.0p-24f;
    const float angle = 6.283185307f * static_cast<float>(words[pair + 1] >> 8) * 0x1.0p-24f;
    const float radius = sqrtf(-2 * logf(first));
    normals[pair] = radius * cosf(angle);
    normals[pair + 1] = radius * sinf(angle);
  }
}

HRM_HOST_DEVICE inline CounterRng noise_of_row(uint64_t seed, int64_t key, int64_t segment) {
  return {seed, Stream::state_noise, (static_cast<uint64_t>(key) << 16) + static_cast<uint64_t>(segment)};
}

}  // namespace hrm::ops
