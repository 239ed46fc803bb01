#pragma once
// What the files of the rotor ops share: the input checks and the plain ATen reference.

#include "hrm/ops/geometry.h"

namespace hrm::ops {

// Layers of planes that k angles need.
inline int64_t rotor_layers(int64_t k, int64_t n) {
  const int64_t pairs = n / 2;
  return k == 0 ? 0 : (k + pairs - 1) / pairs;
}

// Throw c10::Error with the op's name and the shapes.
void check_rotor_matrix(const at::Tensor& theta, int64_t n);
void check_rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer);

namespace reference {

at::Tensor rotor_matrix(const at::Tensor& theta, int64_t n);
at::Tensor rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer);

}  // namespace reference
}  // namespace hrm::ops
