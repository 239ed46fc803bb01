#pragma once
// What the files of decode_attention_ share: the input checks and the plain ATen reference.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_decode_attention(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& lengths, const at::Tensor& cos, const at::Tensor& sin,
                            const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                            double eps, int64_t window);

namespace reference {

at::Tensor decode_attention_(const at::Tensor& qkv, const at::Tensor& keys, const at::Tensor& values,
                             const at::Tensor& lengths, const at::Tensor& cos, const at::Tensor& sin,
                             const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                             double eps, int64_t window);

}  // namespace reference
}  // namespace hrm::ops
