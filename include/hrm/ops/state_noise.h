#pragma once
// Noise on the recurrent state of a reasoner, so that several rollouts of a puzzle take different ways (PTRM, arXiv
// 2605.19943).

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// z[r] += std * eps for each row r whose key is not negative; the others keep their bits. eps is standard normal, by
// Box and Muller, and depends only on (seed, key, segment, place in the row): not on the batch or on the other rows.
//
// z: (R, ...) contiguous, float32, bfloat16 or float16 (float64 on the CPU). The sum is rounded once from float32.
// keys: (R) int64, below 2^47. segments: (R) int64 from 0 to 65535, on z's device, so that a captured graph draws anew
// when they move on. A row has at most 2^34 elements. CPU and GPU agree up to the rounding of logarithm and cosine.
// Runs on the current stream; no derivative. Throws c10::Error that names what does not fit.
void add_state_noise_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                      int64_t seed);

}  // namespace hrm::ops
