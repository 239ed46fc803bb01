// The readable version, and the oracle of the kernel.
#include <ATen/ATen.h>

#include "ops/geometry/lior_impl.h"

namespace hrm::ops::reference {

LiorResult lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                     double dtau) {
  const at::Tensor spd = speed(quadratic_form(v, metric), eps);
  return {resilience * spd * dtau, spd};
}

}  // namespace hrm::ops::reference
