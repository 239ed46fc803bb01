#pragma once
// Checks of fp8_rows_block that hold on every device: each part is the op of the compute dtype, and then
// quantize_fp8_rows, to the bit.

#include <string>
#include <tuple>

#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/fp8_rows_block.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/quantized/fp8_rows_cases.h"

namespace hrm::ops::testing {

// same: to the bit; otherwise one in a thousand numbers of 8 bits may be its neighbour.
inline void expect_rows(const Fp8RowsBeside& ours, const at::Tensor& want, const std::optional<at::Tensor>& factors,
                        bool wide, const std::string& what, bool same = true) {
  const auto [values, scales] = quantize_fp8_rows(want, factors);
  ASSERT_EQ(ours.values.sizes(), values.sizes()) << what;
  ASSERT_EQ(ours.values.scalar_type(), at::kFloat8_e4m3fn) << what;
  ASSERT_EQ(ours.scales.sizes(), scales.sizes()) << what;
  EXPECT_EQ(ours.wide.defined(), wide) << what;
  if (same) {
    if (wide) expect_same_bits(ours.wide, want, what + ", wide");
    expect_same_bits(ours.scales, scales, what + ", scales");
    expect_same_bits(ours.values.view(at::kByte), values.view(at::kByte), what + ", values");
    return;
  }
  EXPECT_TRUE(at::allclose(ours.scales, scales, 0.01, 0)) << what;
  EXPECT_LE(ours.values.view(at::kByte).ne(values.view(at::kByte)).to(at::kFloat).mean().item<double>(), 0.02) << what;
  const at::Tensor stand = rows_stand_for({ours.values, ours.scales}), wanted = rows_stand_for({values, scales});
  EXPECT_LE((stand - wanted).norm().item<double>(), 0.01 * wanted.norm().item<double>()) << what;
}

inline void check_norm_rows(int64_t rows, int64_t width, at::ScalarType dtype, at::Device device) {
  const at::Tensor x = normal({rows, width}, 1, dtype, device) * 3;
  if (rows > 2) x[2].zero_();
  const at::Tensor weight = normal({width}, 2, at::kFloat, device) + 1;
  const auto [y, rstd] = weighted_rms_norm_forward(x, weight, 1e-5);
  // Wider rows are summed by a block, in an order of their own.
  const bool same = device.is_cpu() || width * x.element_size() <= 4096 || width % 8 != 0;
  for (const bool wide : {true, false}) {
    const std::string what = cat("norm ", dtype, " ", rows, " x ", width, wide ? ", wide" : "");
    const NormedRows ours = weighted_rms_norm_rows(x, weight, 1e-5, wide);
    expect_rows(ours.y, y, std::nullopt, wide, what, same);
    EXPECT_TRUE(at::allclose(ours.rstd, rstd, same ? 0 : 1e-6, 0)) << what;
  }
}

inline void check_swiglu_rows(int64_t rows, int64_t width, at::ScalarType dtype, at::Device device) {
  const at::Tensor gate_up = normal({rows, 2 * width}, 1, dtype, device) * 2;
  const at::Tensor grad = normal({rows, width}, 2, dtype, device) / 100;
  const at::Tensor factors = normal({2 * width}, 3, at::kFloat, device) / 1000;
  for (const bool wide : {true, false}) {
    const std::string what = cat("swiglu ", dtype, " ", rows, " x ", width, wide ? ", wide" : "");
    expect_rows(swiglu_rows(gate_up, wide), swiglu(gate_up), std::nullopt, wide, what);
    expect_rows(swiglu_backward_rows(grad, gate_up, factors, wide), swiglu_backward(grad, gate_up), factors, wide,
                what + ", gradient");
  }
}

struct HeadsOf {
  bool rotated, normed, strided;  // strided: gradients as attention gives them, (B, H, T, hd) transposed
};
inline void check_qkv_gradient_rows(int64_t batch, int64_t length, const QkvSizes& sizes, at::ScalarType dtype,
                                    const HeadsOf& of, at::Device device) {
  const std::string what = cat("qkv ", dtype, " ", batch, " x ", length, " x ", sizes.heads, "+", sizes.kv_heads, " x ",
                               sizes.head_dim, of.rotated ? " rotated" : "", of.normed ? " normed" : "");
  const auto heads = [&](int64_t count, uint64_t seed) {
    const at::Tensor t =
        normal({batch, of.strided ? count : length, of.strided ? length : count, sizes.head_dim}, seed, dtype, device) /
        100;
    return of.strided ? t.transpose(1, 2) : t;
  };
  const at::Tensor q = heads(sizes.heads, 1), k = heads(sizes.kv_heads, 2), v = heads(sizes.kv_heads, 3);
  const int64_t columns = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim;
  QkvHeadOptions options;
  at::Tensor qkv;
  if (of.rotated) {
    const at::Tensor angle = normal({length, sizes.head_dim / 2}, 4, at::kFloat, device) * 3;
    options.cos = angle.cos();
    options.sin = angle.sin();
  }
  if (of.normed) {
    qkv = normal({batch, length, columns}, 5, dtype, device);
    options.q_weight = normal({sizes.head_dim}, 6, at::kFloat, device) + 1;
    options.k_weight = normal({sizes.head_dim}, 7, at::kFloat, device) + 1;
  }
  const at::Tensor factors = normal({columns}, 8, at::kFloat, device) / 1000;
  const at::Tensor want = std::get<0>(qkv_heads_backward(q, k, v, qkv, options, false)).flatten(0, 1);
  for (const bool wide : {true, false}) {
    expect_rows(qkv_heads_backward_rows(q, k, v, qkv, options, factors, wide), want, factors, wide, what);
  }
}

}  // namespace hrm::ops::testing
