#pragma once
// What the cases of `bench ops` are made with, and those of language models.

#include <ATen/ATen.h>

#include <cmath>

#include "commands/bench/ops_cases.h"
#include "hrm/nn/rotary.h"

namespace hrm::commands {

// Random tensors of one recipe.
struct Random {
  at::Device device;
  at::ScalarType dtype;

  at::Tensor activations(at::IntArrayRef sizes) const { return at::randn(sizes, at::device(device)).to(dtype); }
  at::Tensor floats(at::IntArrayRef sizes) const { return at::randn(sizes, at::device(device)); }
  at::Tensor scalar(double value) const { return at::full({}, value, at::device(device).dtype(at::kFloat)); }
  at::Tensor weight(int64_t out, int64_t in) const {
    return (at::randn({out, in}, at::device(device)) / std::sqrt(static_cast<double>(in))).to(dtype);
  }
};

inline double product_flops(int64_t rows, int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}

// Of an op that has no place in a recipe.
inline BenchCall nothing() {
  return {};
}

struct AttentionInputs {
  at::Tensor qkv, cos, sin;
};
inline AttentionInputs attention_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const nn::RotaryTable table = nn::make_rotary_table(s.length(), s.width / s.heads, 10000, device);
  return {Random{device, dtype}.activations({s.batch, s.length(), 3 * s.width}), table.cos, table.sin};
}

// Of the ops that language models have beside those of puzzles. As BenchOp::make.
namespace language_cases {
BenchCall weighted_rms_norm(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall weighted_rms_norm_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall decode_attention(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall lora_add(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall lora_gradients(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall lora_merge(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall qkv_heads_product(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall qkv_heads_rotate(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall qkv_heads_norm(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall qkv_heads_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall softmax_loss(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_router(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_gate(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_gate_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_jitter(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_plan(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_gather(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_up(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_up_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_linear(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_accumulate(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_combine(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_combine_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_experts(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall ssd_scan(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall ssd_scan_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall embed_tokens_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall sum_rows(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall sample_tokens(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall next_tokens(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_load_loss(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall moe_loads(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall bridge_gate(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall bridge_gate_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall halt_probabilities(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall halt_probabilities_backward(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall halting_loss(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall semantic_diversity(const BenchShape& s, at::Device device, at::ScalarType dtype);
BenchCall memory_blocks(const BenchShape& s, at::Device device, at::ScalarType dtype);
}  // namespace language_cases

}  // namespace hrm::commands
