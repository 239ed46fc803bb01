#pragma once
// What the files of lior_step share: the input checks and the plain ATen reference.

#include <tuple>

#include "hrm/ops/geometry.h"

namespace hrm::ops {

using LiorResult = std::tuple<at::Tensor, at::Tensor>;  // action, speed

// Throw c10::Error with the op's name and the shapes.
void check_metric(const char* op, const at::Tensor& v, const at::Tensor& metric);
void check_lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps);

namespace reference {

LiorResult lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                     double dtau);

}  // namespace reference
}  // namespace hrm::ops
