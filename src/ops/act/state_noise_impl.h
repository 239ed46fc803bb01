#pragma once
// What the files of add_state_noise_ share.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/act/state_noise_draw.h"

namespace hrm::ops {

void check_state_noise(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std);

namespace reference {

void add_state_noise_(const at::Tensor& z, const at::Tensor& keys, const at::Tensor& segments, double std,
                      int64_t seed);

}  // namespace reference
}  // namespace hrm::ops
