#include "hrm/ops/state_noise.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/act/state_noise_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {

void add_state_noise_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segment, double std,
                      int64_t seed) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, int64_t)> op(
      "hrm::add_state_noise_");
  op(z, keys, segment, std, seed);
}

void check_state_noise(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segment, double std) {
  TORCH_CHECK(z.dim() >= 1 && at::isFloatingType(z.scalar_type()) && z.is_contiguous() && std >= 0,
              "hrm::add_state_noise_: z must be contiguous rows of a floating-point dtype and std at least 0, got ",
              z.sizes(), " ", z.scalar_type(), " and ", std);
  TORCH_CHECK(keys.dim() == 1 && keys.size(0) == z.size(0) && keys.scalar_type() == at::kLong &&
                  keys.device() == z.device() && keys.is_contiguous(),
              "hrm::add_state_noise_: keys must be one int64 for each row of z ", z.sizes(), " on ", z.device(),
              ", got ", keys.sizes(), " ", keys.scalar_type(), " on ", keys.device());
  TORCH_CHECK(segment.dim() == 0 && segment.scalar_type() == at::kLong && segment.device() == z.device(),
              "hrm::add_state_noise_: segment must be one int64 on ", z.device(), ", got ", segment.sizes(), " ",
              segment.scalar_type(), " on ", segment.device());
  TORCH_CHECK(z.size(0) == 0 || z.numel() / z.size(0) <= int64_t{4} << 32, "hrm::add_state_noise_: a row of z has ",
              z.numel() / std::max<int64_t>(z.size(0), 1), " elements, more than 2^34");
}

namespace {

void add_state_noise_cpu_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segment, double std,
                          int64_t seed) {
  check_state_noise(z, keys, segment, std);
  reference::add_state_noise_(z, keys, segment, std, seed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("add_state_noise_(Tensor(a!) z, Tensor keys, Tensor segment, float std, int seed) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("add_state_noise_", &add_state_noise_cpu_);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("add_state_noise_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
