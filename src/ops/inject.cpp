#include "hrm/ops/inject.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/inject_impl.h"

namespace hrm::ops {

void check_inject(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "hrm::inject: a and b must have one shape, got ", a.sizes(), " and ", b.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() && a.device() == b.device(), "hrm::inject: a is ", a.scalar_type(),
              " on ", a.device(), ", b is ", b.scalar_type(), " on ", b.device(), " (shape ", a.sizes(), ")");
  TORCH_CHECK(at::isFloatingType(a.scalar_type()), "hrm::inject: a and b must have a floating-point dtype, got ",
              a.scalar_type(), " (shape ", a.sizes(), ")");
}

at::Tensor inject(const at::Tensor& a, const at::Tensor& b) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hrm::inject", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  return op.call(a, b);
}

namespace {

at::Tensor inject_cpu(const at::Tensor& a, const at::Tensor& b) {
  check_inject(a, b);
  return reference::inject(a, b);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("inject(Tensor a, Tensor b) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("inject", &inject_cpu);
}

}  // namespace hrm::ops
