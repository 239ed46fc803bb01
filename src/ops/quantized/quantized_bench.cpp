// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_linear.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/nf4.h"
#include "hrm/ops/weight8.h"
#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

// NF4; of the gate_up projection's weight, the largest of a block.
BenchCall nf4_quantize(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.weight(2 * s.inner, s.width), true}};
}

BenchCall nf4_dequantize(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor weight = Random{device, dtype}.weight(2 * s.inner, s.width);
  const ops::Nf4Tensor nf4 = ops::nf4_quantize(weight);
  return {{at::zeros_like(weight), nf4.codes, nf4.absmax, nf4.scales, nf4.offset}};
}

BenchCall linear_nf4(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(2 * s.inner, s.width);
  const ops::Nf4Tensor nf4 = ops::nf4_quantize(weight);
  const int64_t rows = std::min(s.rows(), kNf4Rows);
  return {{random.activations({rows, s.width}), nf4.codes, nf4.absmax, nf4.scales, nf4.offset, at::empty_like(weight),
           c10::IValue()},
          product_flops(rows, s.width, 2 * s.inner)};
}

// Weights in 8 bits by rows: the same weight, and a step of decoding with it, or the many rows of a shape for that.
BenchCall quantize_weight8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.weight(2 * s.inner, s.width), at::kFloat8_e4m3fn}};
}

BenchCall dequantize_weight8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor weight = Random{device, dtype}.weight(2 * s.inner, s.width);
  const ops::Weight8 quantized = ops::quantize_weight8(weight, at::kFloat8_e4m3fn);
  return {{at::zeros_like(weight), quantized.values, quantized.scales}};
}

BenchCall linear_weight8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(2 * s.inner, s.width);
  const ops::Weight8 quantized = ops::quantize_weight8(weight, at::kFloat8_e4m3fn);
  const bool many = !s.named.empty();
  const int64_t rows = many ? s.rows() : std::min(s.rows(), kWeight8Rows);
  return {{random.activations({rows, s.width}), quantized.values, quantized.scales, c10::IValue(),
           at::empty_like(weight), many},
          product_flops(rows, s.width, 2 * s.inner)};
}

BenchCall linear_weight8_grad_x(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(2 * s.inner, s.width);
  const ops::Weight8 quantized = ops::quantize_weight8(weight, at::kFloat8_e4m3fn);
  return {{random.activations({s.rows(), 2 * s.inner}), quantized.values, quantized.scales, c10::IValue(),
           c10::IValue(), at::empty_like(weight), true},
          product_flops(s.rows(), 2 * s.inner, s.width)};
}

// The parts of both.
BenchCall quantize_fp8_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.activations({s.rows(), s.width}), c10::IValue()}};
}

BenchCall transpose_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const ops::Weight8 weight =
      ops::quantize_weight8(Random{device, dtype}.weight(2 * s.inner, s.width), at::kFloat8_e4m3fn);
  return {{at::empty({s.width, 2 * s.inner}, weight.values.options()), at::empty({s.width}, weight.scales.options()),
           weight.values}};
}

BenchCall fp8_rows_product(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const auto [values, scales] = ops::quantize_fp8_rows(random.activations({s.rows(), s.width}));
  const ops::Weight8 weight = ops::quantize_weight8(random.weight(2 * s.inner, s.width), at::kFloat8_e4m3fn);
  return {{values, weight.values, scales, weight.scales, dtype, c10::IValue()},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// What the recursions without gradient run in 8 bits.
at::Tensor fp8_slot(at::Device device) {
  return ops::make_fp8_slots(1, device).select(0, 0);
}

at::Tensor in_fp8(const at::Tensor& values) {
  return ops::quantize_fp8(values, fp8_slot(values.device()));
}

BenchCall quantize_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), fp8_slot(device)}};
}

BenchCall add_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  if (s.mixes_by_mlp) return nothing();
  return {{random.activations(sizes), random.activations(sizes), fp8_slot(device)}};
}

// The qkv projection.
BenchCall linear_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  return {{in_fp8(random.activations({s.batch, s.length(), s.width})), in_fp8(random.weight(3 * s.width, s.width)),
           fp8_slot(device), fp8_slot(device), dtype},
          product_flops(s.rows(), s.width, 3 * s.width)};
}

BenchCall linear_swiglu_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{in_fp8(random.activations({s.batch, s.length(), s.width})), in_fp8(random.weight(2 * s.inner, s.width)),
           fp8_slot(device), fp8_slot(device), fp8_slot(device), dtype},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

BenchCall linear_rms_norm_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{in_fp8(random.activations({s.batch, s.length(), s.inner})), in_fp8(random.weight(s.width, s.inner)),
           fp8_slot(device), fp8_slot(device), random.activations({s.batch, s.length(), s.width}), kBenchEps,
           fp8_slot(device)},
          product_flops(s.rows(), s.inner, s.width)};
}

BenchCall attention_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin, fp8_slot(device)}, attention_flops(s)};
}

BenchCall quantize_weights_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> from, to;
  for (const auto& sizes : weight_sizes(s)) {
    from.push_back(random.weight(sizes[0], sizes[1]));
    to.push_back(at::empty(sizes, at::device(device).dtype(at::kFloat8_e4m3fn)));
  }
  return {{from, to, ops::make_fp8_slots(static_cast<int64_t>(from.size()), device)}};
}

BenchCall fp8_update_scales(const BenchShape& s, at::Device device, at::ScalarType) {
  const int64_t slots = (s.mixes_by_mlp ? 4 : 8) * s.layers;
  return {{ops::make_fp8_slots(slots, device), at::zeros({slots, 16}, at::device(device).dtype(at::kFloat)), 0.0}};
}

// The gate_up projection of a training step.
struct Fp8Training {
  at::Tensor x, x8, x_t, weight, grad8, grad_t, slot, grad_slot;

  Fp8Training(const BenchShape& s, at::Device device, at::ScalarType dtype) {
    const Random random{device, dtype};
    slot = ops::make_fp8_wide_slots(1, false, device).select(0, 0);
    grad_slot = ops::make_fp8_wide_slots(1, true, device).select(0, 0);
    x = random.activations({s.rows() / 16 * 16, s.width});
    std::tie(x8, x_t) = ops::quantize_fp8_pair(x, slot, false);
    weight = std::get<0>(ops::quantize_fp8_pair(random.weight(2 * s.inner, s.width), slot, false));
    std::tie(grad8, grad_t) = ops::quantize_fp8_pair(random.activations({x.size(0), 2 * s.inner}), grad_slot, true);
  }
};

BenchCall quantize_fp8_pair(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x, in.x8, in.x_t, in.slot}};
}

BenchCall fp8_product(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x8, in.weight, in.slot, in.slot, dtype}, product_flops(in.x.size(0), s.width, 2 * s.inner)};
}

BenchCall fp8_accumulate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  const at::Tensor grad = at::zeros({2 * s.inner, s.width}, at::device(device).dtype(at::kFloat));
  return {{grad, in.grad_t, in.x_t, in.grad_slot, in.slot}, product_flops(in.x.size(0), s.width, 2 * s.inner)};
}

BenchCall fp8_linear(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x, in.weight, in.slot, in.slot, in.grad_slot, true, in.weight, c10::IValue(), c10::IValue()},
          product_flops(in.x.size(0), s.width, 2 * s.inner)};
}

// All layers of a model.
BenchCall quantize_fp8_weights(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> masters, values, transposed;
  for (int64_t layer = 0; layer < std::max<int64_t>(s.layers, 1); ++layer) {
    for (const auto& [out, in] : {std::pair{3 * s.width, s.width}, std::pair{s.width, s.width},
                                  std::pair{2 * s.inner, s.width}, std::pair{s.width, s.inner}}) {
      masters.push_back(random.weight(out, in).to(at::kFloat));
      values.push_back(at::empty({out, in}, masters.back().options().dtype(at::kFloat8_e4m3fn)));
      transposed.push_back(at::empty({0}, values.back().options()));
    }
  }
  return {{masters, values, transposed, ops::make_fp8_wide_slots(static_cast<int64_t>(masters.size()), false, device),
           dtype}};
}

BenchCall quantize_fp8_weight_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> weights, values, transposed, scales, transposed_scales;
  for (int64_t layer = 0; layer < std::max<int64_t>(s.layers, 1); ++layer) {
    for (const auto& [out, in] : {std::pair{3 * s.width, s.width}, std::pair{s.width, s.width},
                                  std::pair{2 * s.inner, s.width}, std::pair{s.width, s.inner}}) {
      weights.push_back(random.weight(out, in).to(at::kFloat));  // masters
      values.push_back(at::empty({out, in}, weights.back().options().dtype(at::kFloat8_e4m3fn)));
      transposed.push_back(at::empty({in, out}, values.back().options()));
      scales.push_back(at::empty({out}, weights.back().options().dtype(at::kFloat)));
      transposed_scales.push_back(at::empty({in}, scales.back().options()));
    }
  }
  return {{weights, values, transposed, scales, transposed_scales,
           ops::make_fp8_wide_slots(static_cast<int64_t>(weights.size()), false, device), dtype}};
}

BenchCall weighted_rms_norm_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x, at::ones({s.width}, at::device(device)), 1e-5, in.slot, true}};
}

BenchCall weighted_rms_norm_transposed_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  const auto wide = at::device(device).dtype(at::kFloat);
  return {{in.x, at::ones({s.width}, wide), at::ones({in.x.size(0)}, wide), in.slot}};
}

// gate_up of the rows, as a training step has them.
at::Tensor gates_of(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return Random{device, dtype}.activations({s.rows() / 16 * 16, 2 * s.inner});
}

BenchCall swiglu_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{gates_of(s, device, dtype), in.slot}};
}

BenchCall fp8_linear_swiglu(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x8, in.weight, in.slot, in.slot, in.slot, dtype}, product_flops(in.x.size(0), s.width, 2 * s.inner)};
}

BenchCall swiglu_backward_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  const at::Tensor gates = gates_of(s, device, dtype);
  return {{gates.narrow(1, 0, s.inner).contiguous(), gates, in.grad_slot, true, in.slot, true, true}};
}

BenchCall swiglu_backward_fp8_scale_now(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  const at::Tensor gates = gates_of(s, device, dtype);
  return {{gates.narrow(1, 0, s.inner).contiguous(), gates, in.grad_slot, 0.0}};
}

BenchCall qkv_heads_backward_fp8(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  const int64_t head_dim = s.width / s.heads, rows = in.x.size(0);
  const at::Tensor q = in.x.view({1, rows, s.heads, head_dim});
  const at::Tensor angle = at::zeros({rows, head_dim / 2}, at::device(device).dtype(at::kFloat));
  return {{q, q, q, angle, angle, in.grad_slot, true, true}};
}

// Parts that write rows in 8 bits beside those of the compute dtype.
BenchCall weighted_rms_norm_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {
      {Random{device, dtype}.activations({s.rows(), s.width}), at::ones({s.width}, at::device(device)), 1e-5, true}};
}

BenchCall swiglu_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{gates_of(s, device, dtype), true}};
}

BenchCall swiglu_backward_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor gates = gates_of(s, device, dtype);
  return {{gates.narrow(1, 0, s.inner).contiguous(), gates, at::ones({2 * s.inner}, at::device(device)), true}};
}

BenchCall qkv_heads_backward_rows(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const int64_t head_dim = s.width / s.heads, rows = s.rows();
  const Random random{device, dtype};
  const at::Tensor q = random.activations({rows, s.width}).view({1, rows, s.heads, head_dim});
  const at::Tensor qkv = random.activations({1, rows, 3 * s.width});
  const auto floats = at::device(device).dtype(at::kFloat);
  const at::Tensor angle = at::zeros({rows, head_dim / 2}, floats), norm = at::ones({head_dim}, floats);
  return {{q, q, q, qkv, angle, angle, norm, norm, 1e-6, at::ones({3 * s.width}, floats), true}};
}

BenchCall fp8_raise_amax(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x, in.slot}};
}

BenchCall fp8_scale_now(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Fp8Training in(s, device, dtype);
  return {{in.x, in.slot, 0.0}};
}

const KernelGroups kQuantizedGroups{
    {"Nf4Linear", "matrix products"}, {"Weight8Linear", "matrix products"},
    {"Nf4", "quantisation"},          {"nf4_", "quantisation"},
    {"Fp8", "quantisation"},          {"_fp8", "quantisation"},
    {"pair_kernel", "quantisation"},  {"quantize_rows", "quantisation"},
    {"weight_rows", "quantisation"},  {"row_maxima", "quantisation"},
};

}  // namespace

std::vector<BenchOp> quantized_cases() {
  return {
      {"hrm::nf4_quantize", nf4_quantize},
      {"hrm::nf4_dequantize_", nf4_dequantize},
      {"hrm::linear_nf4", linear_nf4},
      {"hrm::quantize_weight8", quantize_weight8},
      {"hrm::dequantize_weight8_", dequantize_weight8},
      {"hrm::linear_weight8", linear_weight8},
      {"hrm::linear_weight8_grad_x", linear_weight8_grad_x},
      {"hrm::quantize_fp8_rows", quantize_fp8_rows},
      {"hrm::transpose_fp8_", transpose_fp8},
      {"hrm::fp8_rows_product", fp8_rows_product},
      {"hrm::quantize_fp8", quantize_fp8},
      {"hrm::quantize_fp8_", quantize_weights_fp8},
      {"hrm::add_fp8", add_fp8},
      {"hrm::linear_fp8", linear_fp8},
      {"hrm::linear_swiglu_fp8", linear_swiglu_fp8},
      {"hrm::linear_rms_norm_fp8", linear_rms_norm_fp8},
      {"hrm::attention_fp8", attention_fp8},
      {"hrm::fp8_update_scales_", fp8_update_scales},
      {"hrm::quantize_fp8_pair_", quantize_fp8_pair},
      {"hrm::fp8_product", fp8_product},
      {"hrm::fp8_accumulate_", fp8_accumulate},
      {"hrm::fp8_linear", fp8_linear},
      {"hrm::quantize_fp8_weights_", quantize_fp8_weights},
      {"hrm::quantize_fp8_weight_rows_", quantize_fp8_weight_rows},
      {"hrm::weighted_rms_norm_fp8", weighted_rms_norm_fp8},
      {"hrm::weighted_rms_norm_transposed_fp8", weighted_rms_norm_transposed_fp8},
      {"hrm::fp8_linear_swiglu", fp8_linear_swiglu},
      {"hrm::swiglu_fp8", swiglu_fp8},
      {"hrm::swiglu_backward_fp8", swiglu_backward_fp8},
      {"hrm::swiglu_backward_fp8_scale_now", swiglu_backward_fp8_scale_now},
      {"hrm::qkv_heads_backward_fp8", qkv_heads_backward_fp8},
      {"hrm::weighted_rms_norm_rows", weighted_rms_norm_rows},
      {"hrm::swiglu_rows", swiglu_rows},
      {"hrm::swiglu_backward_rows", swiglu_backward_rows},
      {"hrm::qkv_heads_backward_rows", qkv_heads_backward_rows},
      {"hrm::fp8_raise_amax_", fp8_raise_amax},
      {"hrm::fp8_scale_now", fp8_scale_now},
  };
}

}  // namespace hrm::ops::bench
