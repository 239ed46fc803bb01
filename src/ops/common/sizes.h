#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace hrm::ops {

// `tensor`'s sizes with another last one.
inline std::vector<int64_t> with_last_size(const at::Tensor& tensor, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.back() = size;
  return sizes;
}

}  // namespace hrm::ops
