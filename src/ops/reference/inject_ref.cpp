// The readable version, the CPU implementation, and the oracle of the CUDA kernel.
#include <ATen/ATen.h>

#include "ops/inject_impl.h"

namespace hrm::ops::reference {

at::Tensor inject(const at::Tensor& a, const at::Tensor& b) {
  return at::add(a.contiguous(), b.contiguous());
}

}  // namespace hrm::ops::reference
