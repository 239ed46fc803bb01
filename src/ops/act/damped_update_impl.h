#pragma once
// What the files of damped_update share.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "ops/act/state_draws.h"

namespace hrm::ops {

void check_damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         double damping, double std);

namespace reference {

at::Tensor damped_update(const at::Tensor& update, const at::Tensor& state, const std::optional<at::Tensor>& draws,
                         int64_t number, double damping, double std, int64_t seed);

}  // namespace reference
}  // namespace hrm::ops
