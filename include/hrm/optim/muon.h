#pragma once
// Muon: momentum whose matrices are made orthogonal (K. Jordan and others, "Muon: An optimizer for hidden layers in
// neural networks", 2024; the scale that matches AdamW: Liu et al., arXiv 2502.16982, 2025).
//
//   m = mu m + (1 - mu) g;  u = (1 - mu) g + mu m                    (Nesterov's momentum, from the scaled gradient)
//   p = p (1 - lr wd) - lr s NS(u)
//   s = sqrt(max(1, rows / columns)) for "original", 0.2 sqrt(max(rows, columns)) for "match_rms_adamw"
//
// make_optimizer() for muon updates so the groups with `matrices`, all others by AdamW. A parameter of more than two
// dimensions counts as [first, all others].

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "hrm/config/optim_settings.h"

namespace hrm::optim {

// The factor s of a matrix.
double muon_scale(config::MuonScale scale, int64_t rows, int64_t columns);

// Matrices of one shape are iterated together, in stacks of at most this many elements, or one by one if a matrix has
// more. All stacks share their buffers, which are therefore no larger than the largest stack: 128 MiB each in float32.
constexpr int64_t kMuonStackElements = int64_t{1} << 25;

// Bytes of the buffers for matrices of these (rows, columns) and this precision of the iteration.
int64_t muon_buffer_bytes(const std::vector<std::pair<int64_t, int64_t>>& matrices, config::MuonPrecision precision);

// Buffers of one iteration over a stack of matrices, which live as long as their user: (n, rows, columns) or squares of
// (n, k, k), k the smaller of both. Contiguous, all on one device.
struct NewtonSchulzBuffers {
  at::Tensor direction;   // (n, rows, columns) float32: what goes in
  at::Tensor x, next;     // in the precision of the iteration; x is `direction` itself for float32
  at::Tensor gram, poly;  // (n, k, k) in that precision
};

// NS: drives all singular values of each matrix towards 1 (they end at about 0.7 to 1.2; small ones lower), five times
//   A = X X^T;  X = a X + (b A + c A A) X,   (a, b, c) = (3.4445, -4.7750, 2.0315)
// from X = direction / (its Frobenius norm + 1e-7). Tall matrices use A = X^T X from the other side, which is the same.
// Returns scale * NS(direction), float32, in `direction` or `next`, which are overwritten. A zero matrix stays zero.
// float32 products are exact (no TF32) whatever the process allows; bfloat16 ones are as fast as the GPU's. On the
// current stream, without host synchronisation; may be captured.
at::Tensor newton_schulz_(const NewtonSchulzBuffers& buffers, double scale);

// The same for one matrix or a stack of them, float32, which are left alone. precision: kFloat or kBFloat16.
at::Tensor newton_schulz(const at::Tensor& matrices, at::ScalarType precision);

}  // namespace hrm::optim
