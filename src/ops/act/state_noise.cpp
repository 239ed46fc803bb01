#include "hrm/ops/state_noise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/act/state_noise_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {

void add_state_noise_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                      int64_t seed) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, int64_t)> op(
      "hrm::add_state_noise_");
  op(z, keys, segments, std, seed);
}

void check_state_noise(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std) {
  TORCH_CHECK(z.dim() >= 1 && at::isFloatingType(z.scalar_type()) && z.is_contiguous() && std >= 0,
              "hrm::add_state_noise_: z must be contiguous rows of a floating-point dtype and std at least 0, got ",
              z.sizes(), " ", z.scalar_type(), " and ", std);
  const auto check_numbers = [&](const char* name, const at::Tensor& t) {
    TORCH_CHECK(t.dim() == 1 && t.size(0) == z.size(0) && t.scalar_type() == at::kLong && t.device() == z.device() &&
                    t.is_contiguous(),
                "hrm::add_state_noise_: ", name, " must be one int64 for each row of z ", z.sizes(), " on ", z.device(),
                ", got ", t.sizes(), " ", t.scalar_type(), " on ", t.device());
  };
  check_numbers("keys", keys);
  check_numbers("segments", segments);
  TORCH_CHECK(z.size(0) == 0 || z.numel() / z.size(0) <= int64_t{4} << 32, "hrm::add_state_noise_: a row of z has ",
              z.numel() / std::max<int64_t>(z.size(0), 1), " elements, more than 2^34");
}

namespace {

void add_state_noise_cpu_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                          int64_t seed) {
  check_state_noise(z, keys, segments, std);
  reference::add_state_noise_(z, keys, segments, std, seed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("add_state_noise_(Tensor(a!) z, Tensor keys, Tensor segments, float std, int seed) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("add_state_noise_", &add_state_noise_cpu_);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("add_state_noise_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
