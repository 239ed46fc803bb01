#include "hrm/ops/dropout.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/dropout/dropout_impl.h"

namespace hrm::ops {

void check_dropout(const char* op, const at::Tensor& x, const at::Tensor& step, double p) {
  TORCH_CHECK(at::isFloatingType(x.scalar_type()) && p >= 0 && p < 1, op,
              ": x must be of a floating-point dtype and p at least 0 and below 1, got ", x.scalar_type(), " and ", p);
  TORCH_CHECK(step.dim() == 0 && step.scalar_type() == at::kLong && step.device() == x.device(), op,
              ": step must be one int64 on ", x.device(), ", got ", step.sizes(), ", ", step.scalar_type(), " on ",
              step.device());
  // A block of random words has a 32-bit number and serves four elements.
  TORCH_CHECK(x.numel() < int64_t{4} << 32, op, ": x has ", x.numel(), " elements, 2^34 or more");
}

void check_dropout_add(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p) {
  check_dropout("hrm::dropout_add_", x, step, p);
  TORCH_CHECK(sum.sizes() == x.sizes() && sum.scalar_type() == x.scalar_type() && sum.device() == x.device() &&
                  sum.is_contiguous(),
              "hrm::dropout_add_: sum must be contiguous and like x, ", x.sizes(), " ", x.scalar_type(), " on ",
              x.device(), ", got ", sum.sizes(), " ", sum.scalar_type(), " on ", sum.device());
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, double, int64_t)> op("hrm::dropout");
  return op(x, step, p, seed);
}

void dropout_add_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, int64_t)> op(
      "hrm::dropout_add_");
  op(sum, x, step, p, seed);
}

namespace {

at::Tensor dropout_cpu(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  check_dropout("hrm::dropout", x, step, p);
  return reference::dropout(x, step, p, seed);
}

void dropout_add_cpu_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  check_dropout_add(sum, x, step, p);
  reference::dropout_add_(sum, x, step, p, seed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("dropout(Tensor x, Tensor step, float p, int seed) -> Tensor");
  m.def("dropout_add_(Tensor(a!) sum, Tensor x, Tensor step, float p, int seed) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("dropout", &dropout_cpu);
  m.impl("dropout_add_", &dropout_add_cpu_);
}

}  // namespace hrm::ops
