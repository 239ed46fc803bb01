#pragma once
// How the state of a reasoner moves that shall settle: damped, and with noise (EqR, arXiv 2605.21488).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::ops {

// (1 - damping) * update + damping * state + std * eps, added up in float32 and rounded once.
//
// update, state: (R, ...) contiguous, one shape and dtype: float32, bfloat16 or float16 (float64 on the CPU). eps is
// standard normal, by Box and Muller. It depends only on (seed, draws[r] + number, place in the row).
//
// draws: (R) int64 = key * 2^16 + the number of the segment's first update, on update's device; may be undefined if std
// is 0. number: which update of the segment this is. A row has at most 2^34 elements. CPU and GPU agree up to the
// rounding of logarithm and cosine. Differentiable in update and state. Runs on the current stream. Throws c10::Error
// that names what does not fit.
at::Tensor damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         int64_t number, double damping, double std, int64_t seed);

}  // namespace hrm::ops
