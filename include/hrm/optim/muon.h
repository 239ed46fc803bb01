#pragma once
// Muon: momentum with orthogonalised matrices (K. Jordan and others, "Muon: An optimizer for hidden layers in neural
// networks", 2024). The scale that matches AdamW: Liu et al., arXiv 2502.16982, 2025.
//
//    m = mu m + (1 - mu) g;  u = (1 - mu) g + mu m                    (Nesterov's momentum, from the scaled gradient)
//    p = p (1 - lr wd) - lr s NS(u)
//    s = sqrt(max(1, rows / columns)) for "original", 0.2 sqrt(max(rows, columns)) for "match_rms_adamw"
//
// For muon, make_optimizer() updates the groups with `matrices` this way and all others with AdamW. A parameter with
// more than two dimensions counts as a matrix [first, product of the others].

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "hrm/config/optim_settings.h"

namespace hrm::optim {

// The factor s of a matrix.
double muon_scale(config::MuonScale scale, int64_t rows, int64_t columns);

// Matrices of one shape are iterated together, in stacks of at most this many elements; a larger matrix is its own
// stack. All stacks share buffers of the largest stack's size: 128 MiB each in float32, unless a matrix is larger.
constexpr int64_t kMuonStackElements = int64_t{1} << 25;

// Bytes of the buffers for matrices of these (rows, columns), with this precision of the iteration.
int64_t muon_buffer_bytes(const std::vector<std::pair<int64_t, int64_t>>& matrices, config::MuonPrecision precision);

// Reusable buffers of the iteration over a stack of matrices: (n, rows, columns), or (n, k, k) with k = min(rows,
// columns). Contiguous, on one device.
struct NewtonSchulzBuffers {
  at::Tensor direction;   // (n, rows, columns) float32: the input
  at::Tensor x, next;     // in the iteration's dtype; x is `direction` itself for float32
  at::Tensor gram, poly;  // (n, k, k) in the same dtype
};

// NS: drives all singular values of each matrix towards 1; they end at about 0.7 to 1.2, small ones lower. Five
// iterations
//    A = X X^T;  X = a X + (b A + c A A) X,   (a, b, c) = (3.4445, -4.7750, 2.0315)
// from X = direction / (its Frobenius norm + 1e-7). Tall matrices use the equivalent form with A = X^T X.
//
// Returns scale * NS(direction), float32, in `direction` or `next`, which are overwritten. A zero matrix stays zero.
// float32 GEMMs never use TF32, whatever the process allows; bfloat16 ones run at full speed. Works on the current
// stream without host synchronisation; can be captured.
at::Tensor newton_schulz_(const NewtonSchulzBuffers& buffers, double scale);

// The same for one float32 matrix or a stack, which stay unchanged. precision: kFloat or kBFloat16.
at::Tensor newton_schulz(const at::Tensor& matrices, at::ScalarType precision);

}  // namespace hrm::optim
