#include "hrm/ops/start_state.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <numbers>

#include "ops/act/start_state_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {

void start_state_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number, double std,
                  int64_t seed) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, double, int64_t)> op(
      "hrm::start_state_");
  op(z, fresh, draws, number, std, seed);
}

at::Tensor truncated_normal(const at::Tensor& u, double std) {
  if (std == 0) return at::zeros_like(u);
  const double scale = std * kTruncatedWidening;
  return at::erfinv(u).mul_(std::numbers::sqrt2 * scale).clamp_(-2 * scale, 2 * scale);
}

void check_start_state(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, double std) {
  TORCH_CHECK(z.dim() >= 1 && at::isFloatingType(z.scalar_type()) && z.is_contiguous() && std >= 0,
              "hrm::start_state_: z must be contiguous rows of a floating-point dtype and std at least 0, got ",
              z.sizes(), " ", z.scalar_type(), " and ", std);
  const auto of_rows = [&](const at::Tensor& t, at::ScalarType type) {
    return t.dim() == 1 && t.size(0) == z.size(0) && t.scalar_type() == type && t.device() == z.device() &&
           t.is_contiguous();
  };
  TORCH_CHECK(of_rows(fresh, at::kBool), "hrm::start_state_: fresh must be one bool for each row of z ", z.sizes(),
              " on ", z.device(), ", got ", fresh.sizes(), " ", fresh.scalar_type(), " on ", fresh.device());
  TORCH_CHECK(of_rows(draws, at::kLong), "hrm::start_state_: draws must be one int64 for each row of z ", z.sizes(),
              " on ", z.device(), ", got ", draws.sizes(), " ", draws.scalar_type(), " on ", draws.device());
  TORCH_CHECK(z.size(0) == 0 || z.numel() / z.size(0) <= int64_t{4} << 32, "hrm::start_state_: a row of z has ",
              z.numel() / std::max<int64_t>(z.size(0), 1), " elements, more than 2^34");
}

namespace {

void start_state_cpu_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number, double std,
                      int64_t seed) {
  check_start_state(z, fresh, draws, std);
  reference::start_state_(z, fresh, draws, number, std, seed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("start_state_(Tensor(a!) z, Tensor fresh, Tensor draws, int number, float std, int seed) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("start_state_", &start_state_cpu_);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("start_state_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
