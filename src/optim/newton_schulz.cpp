#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/optim/muon.h"

namespace hrm::optim {
namespace {

constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

// A process may allow TF32 for float32 GEMMs; a float32 iteration disables it.
class ExactProducts {
 public:
  explicit ExactProducts(bool wanted) : changed_(wanted && at::globalContext().allowTF32CuBLAS()) {
    if (changed_) at::globalContext().setAllowTF32CuBLAS(false);
  }
  ~ExactProducts() {
    if (changed_) at::globalContext().setAllowTF32CuBLAS(true);
  }
  ExactProducts(const ExactProducts&) = delete;
  ExactProducts& operator=(const ExactProducts&) = delete;

 private:
  bool changed_;
};

}  // namespace

double muon_scale(config::MuonScale scale, int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return scale == config::MuonScale::original ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
}

at::Tensor newton_schulz_(const NewtonSchulzBuffers& buffers, double scale) {
  const at::NoGradGuard no_grad;
  const bool exact = buffers.x.scalar_type() == at::kFloat;
  const ExactProducts exact_products(exact);
  at::Tensor x = buffers.x, next = buffers.next, gram = buffers.gram, poly = buffers.poly;
  const at::Tensor norm = at::linalg_vector_norm(buffers.direction, 2, {1, 2}, /*keepdim=*/true).add_(1e-7);
  at::div_out(x, buffers.direction, norm);
  const bool tall = x.size(1) > x.size(2);
  for (int i = 0; i < kIterations; ++i) {
    const double last = i + 1 == kIterations ? scale : 1;
    if (tall) {
      at::bmm_out(gram, x.transpose(1, 2), x);
    } else {
      at::bmm_out(gram, x, x.transpose(1, 2));
    }
    at::baddbmm_out(poly, gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    at::baddbmm_out(next, x, tall ? x : poly, tall ? poly : x, /*beta=*/kA * last, /*alpha=*/last);
    std::swap(x, next);
  }
  if (exact) return x;
  return at::Tensor(buffers.direction).copy_(x);
}

at::Tensor newton_schulz(const at::Tensor& matrices, at::ScalarType precision) {
  require(precision == at::kFloat || precision == at::kBFloat16, ExitCode::unexpected,
          "the Newton-Schulz iteration supports only float32 and bfloat16");
  const at::Tensor stack = matrices.dim() == 2 ? matrices.unsqueeze(0) : matrices;
  const int64_t k = std::min(stack.size(1), stack.size(2));
  NewtonSchulzBuffers buffers;
  buffers.direction = stack.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const auto options = buffers.direction.options().dtype(precision);
  buffers.next = at::empty(stack.sizes(), options);
  buffers.x = precision == at::kFloat ? buffers.direction : at::empty(stack.sizes(), options);
  buffers.gram = at::empty({stack.size(0), k, k}, options);
  buffers.poly = at::empty({stack.size(0), k, k}, options);
  return newton_schulz_(buffers, 1).view(matrices.sizes());
}

}  // namespace hrm::optim
