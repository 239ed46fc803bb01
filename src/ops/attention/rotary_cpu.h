#pragma once
// The rotation of q and k on the CPU.

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops::cpu {

// Like the functions of hrm::ops::reference with the same names, for float32. For unsupported inputs they do nothing
// and return false or nullopt.
bool rotate_qkv(const at::Tensor& qkv, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                const at::Tensor& sin);
std::optional<at::Tensor> rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                              const at::Tensor& grad_v, const std::optional<at::Tensor>& cos,
                                              const std::optional<at::Tensor>& sin);

}  // namespace hrm::ops::cpu
