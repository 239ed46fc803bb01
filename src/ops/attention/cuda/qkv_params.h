#pragma once
// From tensors to the parameters of the heads' kernels, for the launchers.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "hrm/ops/qkv_heads.h"
#include "ops/attention/cuda/qkv_heads.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops::cuda {

// Tables and weights have the layout of the kernels: they are parameters, or come from nn::make_rotary_table or a
// gather.
inline QkvRows qkv_rows(int64_t rows, const QkvSizes& s, const QkvHeadOptions& o, at::ScalarType type) {
  const auto floats = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; };
  QkvRows out{};
  out.cos = floats(o.cos);
  out.sin = floats(o.sin);
  out.q_weight = floats(o.q_weight);
  out.k_weight = floats(o.k_weight);
  out.rows = rows;
  out.table_rows = o.cos.defined() ? o.cos.size(0) : 1;
  out.heads = static_cast<int>(s.heads);
  out.kv_heads = static_cast<int>(s.kv_heads);
  out.head_dim = static_cast<int>(s.head_dim);
  out.eps = static_cast<float>(o.eps);
  out.element = element_of(type);
  return out;
}

inline QkvHeadOptions contiguous_options(const QkvHeadOptions& o) {
  const auto rows = [](const at::Tensor& t) { return t.defined() ? t.contiguous() : t; };
  return {rows(o.cos), rows(o.sin), rows(o.q_weight), rows(o.k_weight), o.eps};
}

// The kernels read heads at any distance that is a multiple of 16 bytes, but a head's elements must be contiguous.
inline at::Tensor with_heads(const at::Tensor& grad, bool must_align) {
  const int64_t n = 16 / static_cast<int64_t>(grad.element_size());
  const bool aligned = reinterpret_cast<uintptr_t>(grad.const_data_ptr()) % 16 == 0 && grad.stride(0) % n == 0 &&
                       grad.stride(1) % n == 0 && grad.stride(2) % n == 0;
  if (grad.stride(3) == 1 && (aligned || !must_align)) return grad;
  return aligned_rows(grad);
}

// The gradients of q, k and v in the parameters, and the copies of them that a launch may need.
class HeadGradients {
 public:
  HeadGradients(QkvHeadsBackward& params, const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                bool must_align)
      : grads_{with_heads(grad_q, must_align), with_heads(grad_k, must_align), with_heads(grad_v, must_align)} {
    for (size_t part = 0; part < grads_.size(); ++part) {
      params.grads[part] = grads_[part].const_data_ptr();
      params.batch_stride[part] = grads_[part].stride(0);
      params.row_stride[part] = grads_[part].stride(1);
      params.head_stride[part] = grads_[part].stride(2);
    }
  }

 private:
  std::array<at::Tensor, 3> grads_;
};

}  // namespace hrm::ops::cuda
