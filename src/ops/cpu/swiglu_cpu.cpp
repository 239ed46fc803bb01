// One pass over the rows, in place of the reference's two (forward) or four (backward). Elements are independent, so
// the number of threads does not change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "ops/cpu/vector_loops.h"
#include "ops/swiglu_impl.h"

namespace hrm::ops::cpu {
namespace {

// e^x for x in -87..88, outside of it the value at the end of that range; right to 2 units in the last place. x is
// n * ln 2 + r with |r| <= ln 2 / 2; the polynomial is that of Cephes' expf.
HRM_INLINE float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest whole number in the last bits
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = (p * r * r + r) + 1;
  const auto exponent = static_cast<int32_t>(n) + 127;
  return mantissa * __builtin_bit_cast(float, static_cast<int32_t>(static_cast<uint32_t>(exponent) << 23));
}

// 1 / sigmoid(x). Dividing by it loses one rounding less than the product with its inverse.
HRM_INLINE float inverse_sigmoid(float x) {
  return 1.0f + exp_of(-x);
}

HRM_FOR_EACH_CPU void forward_row(const float* __restrict gate, const float* __restrict up, float* __restrict act,
                                  int64_t width) {
  for (int64_t i = 0; i < width; ++i) act[i] = gate[i] / inverse_sigmoid(gate[i]) * up[i];
}

struct Gradients {
  float* gate;
  float* up;
  float* act;  // or null
};

HRM_INLINE void backward_elements(const float* __restrict grad, const float* __restrict gate,
                                  const float* __restrict up, float* __restrict grad_gate, float* __restrict grad_up,
                                  float* __restrict act, bool with_act, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float inverse = inverse_sigmoid(gate[i]);
    const float silu = gate[i] / inverse, s = 1.0f / inverse;
    grad_up[i] = grad[i] * silu;
    grad_gate[i] = grad[i] * up[i] * (s * (1.0f + gate[i] * (1.0f - s)));
    if (with_act) act[i] = silu * up[i];
  }
}

HRM_FOR_EACH_CPU void backward_row(const float* grad, const float* gate, const float* up, const Gradients& to,
                                   int64_t width) {
  if (to.act != nullptr) {
    backward_elements(grad, gate, up, to.gate, to.up, to.act, true, width);
  } else {
    backward_elements(grad, gate, up, to.gate, to.up, nullptr, false, width);
  }
}

// Rows for each task: about 16k elements, else starting a thread costs more than the work.
int64_t grain(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

}  // namespace

void swiglu_out(const at::Tensor& gate_up, const at::Tensor& act) {
  const int64_t width = gate_up.size(-1) / 2, rows = width == 0 ? 0 : act.numel() / width;
  const auto* from_data = gate_up.const_data_ptr<float>();
  auto* act_data = act.mutable_data_ptr<float>();
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = from_data + row * 2 * width;
      forward_row(gate, gate + width, act_data + row * width, width);
    }
  });
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const at::Tensor act = at::empty(swiglu_sizes(gate_up), gate_up.options());
  swiglu_out(gate_up.contiguous(), act);
  return act;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up,
                                                   bool with_act) {
  const at::Tensor from = gate_up.contiguous(), grads = grad_act.contiguous();
  at::Tensor grad = at::empty(gate_up.sizes(), gate_up.options());
  at::Tensor act = with_act ? at::empty(grad_act.sizes(), grad_act.options()) : at::Tensor();
  const int64_t width = gate_up.size(-1) / 2, rows = width == 0 ? 0 : grad_act.numel() / width;
  const auto* from_data = from.const_data_ptr<float>();
  const auto* grads_data = grads.const_data_ptr<float>();
  auto* grad_data = grad.mutable_data_ptr<float>();
  auto* act_data = with_act ? act.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = from_data + row * 2 * width;
      float* to = grad_data + row * 2 * width;
      backward_row(grads_data + row * width, gate, gate + width,
                   {to, to + width, act_data == nullptr ? nullptr : act_data + row * width}, width);
    }
  });
  return {grad, act};
}

}  // namespace hrm::ops::cpu
