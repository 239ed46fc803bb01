#include <ATen/ATen.h>

#include "ops/linear/linear_impl.h"

namespace hrm::ops::reference {

// Widens the factors first: products and sums in grad_weight's dtype.
void linear_accumulate_(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = grad_weight.scalar_type();
  grad_weight.addmm_(grad_y.to(type).t(), x.to(type));
}

}  // namespace hrm::ops::reference
