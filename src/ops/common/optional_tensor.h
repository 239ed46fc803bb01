#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

using OptionalTensor = std::optional<at::Tensor>;

// Autograd passes on undefined tensors where an op takes none.
inline OptionalTensor optional_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace hrm::ops
