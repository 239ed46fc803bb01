#pragma once
// Checks of fp8_block that hold on every device: each part is the op of the compute dtype, and then quantize_fp8_pair.

#include <string>
#include <tuple>
#include <vector>

#include "hrm/ops/fp8_block.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/quantized/fp8_linear_cases.h"

namespace hrm::ops::testing {

// 8-bit numbers that are those wanted, but for a few that lie between two: a float32 rounding before the last one may
// differ between kernels.
inline void expect_pair(const Fp8Pair& ours, const at::Tensor& x, const at::Tensor& slot, bool e5m2,
                        const std::string& what) {
  const at::Tensor fresh = slot.clone();
  const auto [values, transposed] = quantize_fp8_pair(x, fresh, e5m2);
  const auto near = [&](const at::Tensor& got, const at::Tensor& want, const char* part) {
    ASSERT_EQ(got.sizes(), want.sizes()) << what << part;
    ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what << part;
    const at::Tensor a = got.to(at::kFloat), b = want.to(at::kFloat);
    // A step of the format, or of its subnormal numbers.
    const at::Tensor step = b.abs().mul(e5m2 ? 0.25 : 0.125).clamp_min(e5m2 ? 0x1p-16 : 0x1p-9);
    EXPECT_TRUE((a - b).abs().le(step).all().item<bool>()) << what << part << ": " << describe_differences(a, b);
    EXPECT_LE(a.ne(b).to(at::kFloat).mean().item<double>(), 2e-3) << what << part;
  };
  near(ours.values, values, ": values");
  if (ours.transposed.defined()) {
    near(ours.transposed, transposed, ": transposed");
    expect_same_bits(ours.transposed.t().contiguous().view(at::kByte), ours.values.view(at::kByte), what + ": both");
  }
  EXPECT_NEAR(ours.slot[2].item<float>() / x.abs().max().to(at::kFloat).item<float>(), 1, 0.01) << what;
}

// Each part counts what quantize_fp8_pair counts of the same numbers, but for a few at the limit that round otherwise.
inline void check_block_counts(int64_t rows, int64_t width, at::ScalarType dtype, bool e5m2, at::Device device) {
  const std::string what = cat("counts ", dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", width);
  const double largest = e5m2 ? kFp8MaxE5m2 : kFp8Max;
  const auto expect_same = [&](const at::Tensor& got, const at::Tensor& numbers, double scale, bool gradient,
                               const char* part) {
    const at::Tensor want = wide_slot(scale, gradient && e5m2, device);
    quantize_fp8_pair(numbers.contiguous(), want, gradient && e5m2);
    const Fp8Counts a = fp8_counts(got.unsqueeze(0)), b = fp8_counts(want.unsqueeze(0));
    EXPECT_EQ(a.rows.item<int64_t>(), rows) << what << part;
    const auto clamped = static_cast<double>(b.clamped.item<int64_t>());
    EXPECT_GT(clamped, 0.02 * static_cast<double>(numbers.numel())) << what << part << ": too few to test";
    EXPECT_NEAR(static_cast<double>(a.clamped.item<int64_t>()), clamped, 0.01 * clamped + 2) << what << part;
  };
  const at::Tensor x = normal({rows, width}, 1, dtype, device), weight = at::ones({width}, at::device(device));
  const at::Tensor norm_slot = wide_slot(300, false, device);
  weighted_rms_norm_fp8(x, weight, 1e-5, norm_slot, true);
  expect_same(norm_slot, std::get<0>(weighted_rms_norm_forward(x, weight, 1e-5)), 300, false, ", norm");

  const at::Tensor gate_up = normal({rows, 2 * width}, 2, dtype, device),
                   grad = normal({rows, width}, 3, dtype, device);
  const at::Tensor act_slot = wide_slot(1500, false, device), grad_slot = wide_slot(2 * largest, e5m2, device);
  swiglu_fp8(gate_up, act_slot);
  expect_same(act_slot, swiglu(gate_up), 1500, false, ", SwiGLU");
  swiglu_backward_fp8(grad, gate_up, grad_slot, e5m2, act_slot, true, true);
  expect_same(grad_slot, swiglu_backward(grad, gate_up), 2 * largest, true, ", gradient of SwiGLU");
  EXPECT_EQ(fp8_counts(act_slot.unsqueeze(0)).rows.item<int64_t>(), rows) << what << ": the backward pass counts none";

  const at::Tensor heads = grad.view({1, rows, -1, 16}), qkv_slot = wide_slot(0.7 * largest, e5m2, device);
  qkv_heads_backward_fp8(heads, heads, heads, {}, {}, qkv_slot, e5m2, true);
  expect_same(qkv_slot, at::cat({grad, grad, grad}, 1), 0.7 * largest, true, ", heads");

  // A fused product, where there is one.
  const Fp8LinearCase c = make_fp8_linear(rows, 64, 256, dtype, true, device);
  const auto x8 = std::get<0>(quantize_fp8_pair(c.x, c.x_slot, false, true, false));
  const at::Tensor whole_slot = wide_slot(1500, false, device);
  const Fp8Swiglu whole = fp8_linear_swiglu({x8, {}, c.x_slot}, c.weight, whole_slot, dtype);
  expect_same(whole_slot, swiglu(whole.gate_up), 1500, false, ", product with a gate");
}

inline void check_norm_fp8(int64_t rows, int64_t width, at::ScalarType dtype, bool transposed, at::Device device) {
  const std::string what = cat("norm ", dtype, " ", rows, " x ", width);
  const at::Tensor x = normal({rows, width}, 1, dtype, device) * 3, slot = wide_slot(32, false, device);
  const at::Tensor weight = normal({width}, 2, at::kFloat, device) + 1;
  const Fp8Normed ours = weighted_rms_norm_fp8(x, weight, 1e-5, slot, transposed);
  const auto [y, rstd] = weighted_rms_norm_forward(x, weight, 1e-5);
  EXPECT_EQ(ours.y.transposed.defined(), transposed) << what;
  expect_pair(ours.y, y, slot, false, what);
  EXPECT_TRUE(at::allclose(ours.rstd, rstd, 1e-5, 0)) << what;
  // Computed again, the same bits, and the slot stays as it is.
  const auto again = [&](const Fp8Normed& normed, const char* scale) {
    const at::Tensor before = normed.y.slot.clone();
    const at::Tensor across = weighted_rms_norm_transposed_fp8(x, weight, normed.rstd, normed.y.slot);
    expect_same_bits(across.view(at::kByte), normed.y.values.view(at::kByte).t().contiguous(), what + scale);
    expect_same_bits(normed.y.slot, before, what + scale);
  };
  again(ours, ", again");
  const Fp8Normed now = weighted_rms_norm_fp8(x, weight, 1e-5, slot, transposed, 1);
  again(now, ", again by a current scale");
  expect_pair({now.y.values, now.y.transposed, slot}, y, now.y.slot, false, what + ", current");
}

inline void check_swiglu_fp8(int64_t rows, int64_t width, at::ScalarType dtype, bool e5m2, at::Device device) {
  const std::string what = cat("swiglu ", dtype, e5m2 ? " e5m2 " : " e4m3 ", rows, " x ", width);
  const at::Tensor gate_up = normal({rows, 2 * width}, 1, dtype, device) * 2;
  const at::Tensor grad = normal({rows, width}, 2, dtype, device) / 100;
  const at::Tensor slot = wide_slot(16, false, device);
  const at::Tensor act = swiglu(gate_up), want = swiglu_backward(grad, gate_up);
  const Fp8Pair ours = swiglu_fp8(gate_up, slot);
  EXPECT_FALSE(ours.transposed.defined());
  expect_pair(ours, act, slot, false, what);
  for (const bool trains_gate_up : {true, false}) {
    for (const bool trains_down : {true, false}) {
      const at::Tensor grad_slot = wide_slot(2048, e5m2, device), act_slot = wide_slot(16, false, device);
      const Fp8SwigluGradient back =
          swiglu_backward_fp8(grad, gate_up, grad_slot, e5m2, act_slot, trains_gate_up, trains_down);
      EXPECT_EQ(back.gate_up.transposed.defined(), trains_gate_up) << what;
      expect_pair(back.gate_up, want, grad_slot, e5m2, what + ", gradient");
      EXPECT_EQ(act_slot[2].item<float>(), 0) << what << ": the amax is the forward pass's";
      ASSERT_EQ(back.act_transposed.defined(), trains_down) << what;
      if (trains_down) {
        expect_same_bits(back.act_transposed.t().contiguous().view(at::kByte), ours.values.view(at::kByte),
                         what + ", activations");
      }
    }
  }
  const at::Tensor grad_slot = wide_slot(2048, e5m2, device);
  const Fp8SwigluGradient now = swiglu_backward_fp8(grad, gate_up, grad_slot, e5m2, slot, true, true, 0);
  expect_pair({now.gate_up.values, now.gate_up.transposed, grad_slot}, want, now.gate_up.slot, e5m2,
              what + ", current gradient");
  const double amax = want.abs().max().to(at::kFloat).item<double>();
  EXPECT_NEAR(now.gate_up.slot[0].item<double>() * amax / (e5m2 ? kFp8MaxE5m2 : kFp8Max), 1, 0.01) << what;
  const Fp8Pair current = swiglu_fp8(gate_up, slot, 0);
  expect_pair({current.values, {}, slot}, act, current.slot, false, what + ", current");
}

// The product with its gate: what the product and the gate give, to a rounding of the product.
inline void check_linear_swiglu(int64_t rows, int64_t in, int64_t width, at::ScalarType dtype, at::Device device) {
  const std::string what = cat("product with a gate, ", dtype, " ", rows, " x ", in, " -> 2 x ", width);
  const Fp8LinearCase c = make_fp8_linear(rows, in, 2 * width, dtype, true, device);
  const auto x8 = std::get<0>(quantize_fp8_pair(c.x, c.x_slot, false, true, false));
  const at::Tensor slot = wide_slot(64, false, device);
  const Fp8Swiglu ours = fp8_linear_swiglu({x8, {}, c.x_slot}, c.weight, slot, dtype);
  ASSERT_EQ(ours.gate_up.scalar_type(), dtype) << what;
  expect_product(ours.gate_up, exact_fp8_linear(c).y, in > 2048 ? 0 : in, what);
  expect_pair(ours.act, swiglu(ours.gate_up), slot, false, what);
  EXPECT_EQ(ours.act.slot.data_ptr(), slot.data_ptr()) << what;
  const Fp8Swiglu now = fp8_linear_swiglu({x8, {}, c.x_slot}, c.weight, slot, dtype, 0);
  expect_pair({now.act.values, {}, slot}, swiglu(now.gate_up), now.act.slot, false, what + ", current");
}

// strided: gradients as attention gives them, (B, H, T, hd) transposed.
inline void check_qkv_gradient_fp8(int64_t batch, int64_t length, const QkvSizes& sizes, at::ScalarType dtype,
                                   bool e5m2, bool rotated, bool strided, at::Device device) {
  const std::string what = cat("qkv ", dtype, e5m2 ? " e5m2 " : " e4m3 ", batch, " x ", length, " x ", sizes.heads, "+",
                               sizes.kv_heads, " x ", sizes.head_dim, rotated ? " rotated" : "");
  const auto heads = [&](int64_t count, uint64_t seed) {
    const at::Tensor t =
        normal({batch, strided ? count : length, strided ? length : count, sizes.head_dim}, seed, dtype, device) / 100;
    return strided ? t.transpose(1, 2) : t;
  };
  const at::Tensor q = heads(sizes.heads, 1), k = heads(sizes.kv_heads, 2), v = heads(sizes.kv_heads, 3);
  at::Tensor cos, sin;
  if (rotated) {
    const at::Tensor angle = normal({length, sizes.head_dim / 2}, 4, at::kFloat, device) * 3;
    cos = angle.cos();
    sin = angle.sin();
  }
  const at::Tensor slot = wide_slot(2048, e5m2, device);
  const at::Tensor want = std::get<0>(qkv_heads_backward(q, k, v, {}, {.cos = cos, .sin = sin}, false)).flatten(0, 1);
  for (const bool transposed : {true, false}) {
    const Fp8Pair ours = qkv_heads_backward_fp8(q, k, v, cos, sin, slot, e5m2, transposed);
    EXPECT_EQ(ours.transposed.defined(), transposed) << what;
    expect_pair(ours, want, slot, e5m2, what);
  }
  const at::Tensor again = wide_slot(2048, e5m2, device);
  const Fp8Pair now = qkv_heads_backward_fp8(q, k, v, cos, sin, again, e5m2, true, 0);
  expect_pair({now.values, now.transposed, again}, want, now.slot, e5m2, what + ", current");
}

inline void check_fp8_residual(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, at::Device device) {
  const Fp8LinearCase c = make_fp8_linear(rows, in, out, dtype, true, device);
  const at::Tensor x = c.x.detach().clone().requires_grad_(), master = c.master.detach().clone().requires_grad_();
  const at::Tensor residual = normal({rows, out}, 9, dtype, device).requires_grad_();
  const at::Tensor grad = at::full_like(c.master, 0.5);
  const at::Tensor y = fp8_linear(x, c.weight, c.x_slot, c.grad_slot, c.e5m2, master, grad, {}, residual);
  const std::vector<at::Tensor> grads = torch::autograd::grad({y}, {x, residual}, {c.grad_y});
  const Fp8LinearResult without = run_fp8_linear(c), exact = exact_fp8_linear(c);
  const std::string what = cat("residual ", dtype, " ", rows, " x ", in, " -> ", out);
  expect_product(y.detach(), exact.y + residual.detach().to(at::kDouble), in > 2048 ? 0 : in, what);
  expect_same_bits(grads[0], without.grad_x, what + ", gradient of x");
  expect_same_bits(grad, without.grad_weight, what + ", gradient of weight");
  expect_same_bits(grads[1], c.grad_y, what + ", gradient of the residual");
}

}  // namespace hrm::ops::testing
