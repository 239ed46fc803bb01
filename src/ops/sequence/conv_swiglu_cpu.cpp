// One pass over the rows, instead of the reference's eight (forward) or about twenty (backward). The sums of the taps
// are taken sample by sample, so the number of threads does not change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/common/vector_loops.h"
#include "ops/sequence/conv_swiglu_impl.h"

namespace hrm::ops::cpu {
namespace {

// The taps and the bias of all channels, each contiguous.
struct Taps {
  std::vector<float> w0, w1, bias;

  Taps(const at::Tensor& taps, const at::Tensor& bias_in) {
    const at::Tensor pairs = taps.contiguous(), bias_row = bias_in.contiguous();
    const auto* pair = pairs.const_data_ptr<float>();
    const auto* b = bias_row.const_data_ptr<float>();
    for (int64_t i = 0; i < bias_row.numel(); ++i) {
      w0.push_back(pair[2 * i]);
      w1.push_back(pair[2 * i + 1]);
      bias.push_back(b[i]);
    }
  }
};

// 1 / sigmoid(x), as in swiglu_cpu.cpp.
HRM_INLINE float inverse_sigmoid(float x) {
  return 1.0f + exp_of(-x);
}

// silu'(x).
HRM_INLINE float silu_slope(float x) {
  const float s = 1.0f / inverse_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

HRM_FOR_EACH_CPU void conv_gate_row(const float* __restrict gate, const float* __restrict up, float* __restrict u,
                                    int64_t width) {
  for (int64_t i = 0; i < width; ++i) u[i] = gate[i] / inverse_sigmoid(gate[i]) * up[i];
}

HRM_FOR_EACH_CPU void convolve_row(const float* __restrict before, const float* __restrict u,
                                   const float* __restrict w0, const float* __restrict w1, const float* __restrict bias,
                                   float* __restrict act, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float c = before[i] * w0[i] + u[i] * w1[i] + bias[i];
    act[i] = c / inverse_sigmoid(c);
  }
}

// The gradient of c.
HRM_FOR_EACH_CPU void conv_slope_row(const float* __restrict grad, const float* __restrict before,
                                     const float* __restrict u, const float* __restrict w0, const float* __restrict w1,
                                     const float* __restrict bias, float* __restrict grad_c, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    grad_c[i] = grad[i] * silu_slope(before[i] * w0[i] + u[i] * w1[i] + bias[i]);
  }
}

HRM_FOR_EACH_CPU void add_tap_gradients(const float* __restrict grad_c, const float* __restrict before,
                                        const float* __restrict u, float* __restrict sum0, float* __restrict sum1,
                                        float* __restrict sum_bias, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    sum0[i] += grad_c[i] * before[i];
    sum1[i] += grad_c[i] * u[i];
    sum_bias[i] += grad_c[i];
  }
}

HRM_FOR_EACH_CPU void conv_gradient_row(const float* __restrict grad_c, const float* __restrict grad_next,
                                        const float* __restrict w0, const float* __restrict w1,
                                        const float* __restrict gate, const float* __restrict up,
                                        float* __restrict grad_gate, float* __restrict grad_up, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    const float grad_u = grad_next[i] * w0[i] + grad_c[i] * w1[i];
    grad_up[i] = grad_u * (gate[i] / inverse_sigmoid(gate[i]));
    grad_gate[i] = grad_u * up[i] * silu_slope(gate[i]);
  }
}

}  // namespace

at::Tensor conv_swiglu(const at::Tensor& gate_up, const at::Tensor& taps, const at::Tensor& bias) {
  const at::Tensor from = gate_up.contiguous();
  const int64_t length = gate_up.size(1), width = gate_up.size(2) / 2;
  const at::Tensor act = at::empty({gate_up.size(0), length, width}, gate_up.options());
  if (act.numel() == 0) return act;
  const Taps t(taps, bias);
  const auto* from_data = from.const_data_ptr<float>();
  auto* act_data = act.mutable_data_ptr<float>();
  // About 16k elements for each task, otherwise starting a thread costs more than the work.
  const int64_t grain = std::max<int64_t>(1, 16384 / width);
  at::parallel_for(0, gate_up.size(0) * length, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> before(static_cast<size_t>(width)), u(before.size());
    const auto gate_of = [&](int64_t row, float* to) {
      const float* gate = from_data + row * 2 * width;
      conv_gate_row(gate, gate + width, to, width);
    };
    if (begin % length > 0) gate_of(begin - 1, before.data());
    for (int64_t row = begin; row < end; ++row) {
      if (row % length == 0) std::fill(before.begin(), before.end(), 0.0f);
      gate_of(row, u.data());
      convolve_row(before.data(), u.data(), t.w0.data(), t.w1.data(), t.bias.data(), act_data + row * width, width);
      std::swap(before, u);
    }
  });
  return act;
}

ConvSwigluGrads conv_swiglu_backward(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& taps,
                                     const at::Tensor& bias, bool needs_weight) {
  const at::Tensor from = gate_up.contiguous(), grads = grad_act.contiguous();
  const int64_t samples = gate_up.size(0), length = gate_up.size(1), width = gate_up.size(2) / 2;
  const at::Tensor grad = at::empty(gate_up.sizes(), gate_up.options());
  const at::Tensor sums = needs_weight ? at::zeros({samples, 3, width}, gate_up.options()) : at::Tensor();
  const Taps t(taps, bias);
  const auto* from_data = from.const_data_ptr<float>();
  const auto* grads_data = grads.const_data_ptr<float>();
  auto* grad_data = grad.mutable_data_ptr<float>();
  auto* sums_data = needs_weight ? sums.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, width == 0 ? 0 : samples, 1, [&](int64_t begin, int64_t end) {
    const auto size = static_cast<size_t>(width);
    std::vector<float> before(size), u(size), grad_c(size), grad_next(size);
    for (int64_t sample = begin; sample < end; ++sample) {
      const auto slope_of = [&](int64_t position, float* to) {
        const int64_t row = sample * length + position;
        const float* gate = from_data + row * 2 * width;
        conv_gate_row(gate, gate + width, u.data(), width);
        conv_slope_row(grads_data + row * width, before.data(), u.data(), t.w0.data(), t.w1.data(), t.bias.data(), to,
                       width);
        if (needs_weight) {
          float* sum = sums_data + sample * 3 * width;
          add_tap_gradients(to, before.data(), u.data(), sum, sum + width, sum + 2 * width, width);
        }
        std::swap(before, u);
      };
      std::fill(before.begin(), before.end(), 0.0f);
      if (length > 0) slope_of(0, grad_c.data());
      for (int64_t position = 0; position < length; ++position) {
        if (position + 1 < length) {
          slope_of(position + 1, grad_next.data());
        } else {
          std::fill(grad_next.begin(), grad_next.end(), 0.0f);
        }
        const int64_t offset = (sample * length + position) * 2 * width;
        conv_gradient_row(grad_c.data(), grad_next.data(), t.w0.data(), t.w1.data(), from_data + offset,
                          from_data + offset + width, grad_data + offset, grad_data + offset + width, width);
        std::swap(grad_c, grad_next);
      }
    }
  });
  if (!needs_weight) return {grad, at::Tensor(), at::Tensor()};
  const at::Tensor total = sums.sum(0);
  return {grad, total.narrow(0, 0, 2).t().contiguous(), total.select(0, 2).contiguous()};
}

}  // namespace hrm::ops::cpu
