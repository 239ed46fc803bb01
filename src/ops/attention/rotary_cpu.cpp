// Rotates q and k by their positions in one pass, where the reference needs six. Elements are independent, so the
// number of threads does not change the result.
#include "ops/attention/rotary_cpu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "ops/common/lanes.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops::cpu {

namespace {

// One head at one position: (a, b) -> (a cos - b sin, b cos + a sin), or by -angle if sign is -1. `to` may be `from`.
void turn_head(const float* from, float* to, const float* cos, const float* sin, float sign, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Lanes a = load(from + i), b = load(from + half + i), c = load(cos + i), s = load(sin + i) * sign;
    store(to + i, a * c - b * s);
    store(to + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = from[i], b = from[half + i], c = cos[i], s = sin[i] * sign;
    to[i] = a * c - b * s;
    to[half + i] = b * c + a * s;
  }
}

// Positions per task: about 16k elements.
int64_t rotary_grain(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

bool takes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat;
}

}  // namespace

bool rotate_qkv(const at::Tensor& qkv, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                const at::Tensor& sin) {
  if (!takes(qkv) || !qkv.is_contiguous() || !to.is_contiguous()) return false;
  const int64_t positions = qkv.size(1), rows = qkv.size(0) * positions, width = qkv.size(2);
  const int64_t head_dim = width / (3 * heads), half = head_dim / 2;
  const at::Tensor cosines = cos.contiguous(), sines = sin.contiguous();
  const auto *cos_data = cosines.const_data_ptr<float>(), *sin_data = sines.const_data_ptr<float>();
  const auto* from_data = qkv.const_data_ptr<float>();
  auto* to_data = to.mutable_data_ptr<float>();
  at::parallel_for(0, rows, rotary_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from_row = from_data + row * width;
      float* to_row = to_data + row * width;
      const int64_t angle = row % positions * half;
      for (int64_t head = 0; head < 2 * heads; ++head) {
        turn_head(from_row + head * head_dim, to_row + head * head_dim, cos_data + angle, sin_data + angle, 1, half);
      }
      if (to_row != from_row) {
        std::memcpy(to_row + 2 * heads * head_dim, from_row + 2 * heads * head_dim,
                    static_cast<size_t>(heads * head_dim) * sizeof(float));
      }
    }
  });
  return true;
}

std::optional<at::Tensor> rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                              const at::Tensor& grad_v, const OptionalTensor& cos,
                                              const OptionalTensor& sin) {
  if (!takes(grad_q)) return std::nullopt;
  const int64_t batch = grad_q.size(0), heads = grad_q.size(1), positions = grad_q.size(2), head_dim = grad_q.size(3);
  const int64_t half = head_dim / 2, width = 3 * heads * head_dim;
  at::Tensor out = at::empty({batch, positions, width}, grad_q.options());
  const at::Tensor cosines = cos ? cos->contiguous() : at::Tensor(), sines = sin ? sin->contiguous() : at::Tensor();
  const auto* cos_data = cos ? cosines.const_data_ptr<float>() : nullptr;
  const auto* sin_data = sin ? sines.const_data_ptr<float>() : nullptr;
  at::Tensor grads[3] = {grad_q, grad_k, grad_v};
  for (at::Tensor& grad : grads) {
    if (grad.stride(3) != 1) grad = grad.contiguous();
  }
  auto* out_data = out.mutable_data_ptr<float>();
  at::parallel_for(0, batch * positions, rotary_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / positions, position = row % positions;
      float* to = out_data + row * width;
      for (int part = 0; part < 3; ++part) {
        const at::Tensor& grad = grads[part];
        const float* from = grad.const_data_ptr<float>() + sample * grad.stride(0) + position * grad.stride(2);
        for (int64_t head = 0; head < heads; ++head, to += head_dim) {
          const float* head_from = from + head * grad.stride(1);
          if (part < 2 && cos_data != nullptr) {
            turn_head(head_from, to, cos_data + position * half, sin_data + position * half, -1, half);
          } else {
            std::memcpy(to, head_from, static_cast<size_t>(head_dim) * sizeof(float));
          }
        }
      }
    }
  });
  return out;
}

}  // namespace hrm::ops::cpu
