#pragma once
// Vectors of four floats: a register of every x86-64 and Arm machine, so that no result depends on the model of the
// CPU.

#include <cstdint>
#include <cstring>

namespace hrm::ops::cpu {

constexpr int64_t kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline void store(float* to, const Lanes& lanes) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

}  // namespace hrm::ops::cpu
