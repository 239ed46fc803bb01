#pragma once
// Random states that samples start from (EqR, arXiv 2605.21488).

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Overwrites the rows of z where `fresh` is true with draws from a normal distribution that is truncated at two
// standard deviations and rescaled, so that its standard deviation is `std`. They depend only on (seed, draws[r] +
// number, place in the row).
//
// z: (R, ...) contiguous, float32, bfloat16 or float16 (float64 on the CPU). fresh: (R) bool. draws: (R) int64 = key *
// 2^16. number: tells the states of one row apart. A row has at most 2^34 elements. CPU and GPU agree up to the
// rounding of the inverse error function. Runs on the current stream; no derivative. Throws c10::Error that names what
// does not fit.
void start_state_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number, double std,
                  int64_t seed);

// The same distribution from u, uniform in (erf(-sqrt2), erf(sqrt2)): erfinv(u) * sqrt2 * c, clipped to +-2c, with c =
// 1.1368472343 * std. float32 or float64, any shape and device; std 0 gives zeros.
at::Tensor truncated_normal(const at::Tensor& u, double std);

}  // namespace hrm::ops
