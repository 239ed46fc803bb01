#pragma once
// What the files of start_state_ share.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/act/state_draws.h"

namespace hrm::ops {

void check_start_state(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, double std);

namespace reference {

void start_state_(const at::Tensor& z, const at::Tensor& fresh, const at::Tensor& draws, int64_t number, double std,
                  int64_t seed);

}  // namespace reference
}  // namespace hrm::ops
