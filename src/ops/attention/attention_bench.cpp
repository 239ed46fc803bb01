// Cases of `bench ops`, and the groups under which profiles count the kernels.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/ops/masked_attention.h"
#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

BenchCall attention(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin}, attention_flops(s)};
}

// Includes the projection to queries, keys and values.
BenchCall attention_projected(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const RotaryInputs table = rotary_inputs(s, device);
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(3 * s.width, s.width), s.heads, table.cos,
           table.sin},
          attention_flops(s) + product_flops(s.rows(), s.width, 3 * s.width)};
}

// A training step uses these two ops only for short sequences; SDPA has its own backward pass for longer ones.
constexpr int64_t kLongestOwnBackward = 128;
BenchCall attention_forward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return s.length() > kLongestOwnBackward ? nothing() : attention(s, device, dtype);
}

BenchCall attention_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp || s.length() > kLongestOwnBackward) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const auto forward = call_op("hrm::attention_forward", {in.qkv, s.heads, in.cos, in.sin});
  const at::Tensor grad = Random{device, dtype}.activations({s.batch, s.length(), s.width});
  // Five products of the size of the forward pass's two: scores again, and the four gradients.
  return {{grad, in.qkv, forward[0], forward[1], s.heads, in.cos, in.sin}, 2.5 * attention_flops(s)};
}

BenchCall rotate_qkv(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin}};
}

BenchCall rotate_qkv_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const std::vector<int64_t> sizes{s.batch, s.heads, s.length(), s.width / s.heads};
  return {{random.activations(sizes), random.activations(sizes), random.activations(sizes), in.cos, in.sin}};
}

// From a projection to the heads of a language model.
BenchCall qkv_heads_product(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(3 * s.width, s.width), s.heads, s.heads,
           s.width / s.heads, in.cos, in.sin},
          product_flops(s.rows(), s.width, 3 * s.width)};
}

BenchCall qkv_heads_rotate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, s.heads, s.width / s.heads, in.cos, in.sin}};
}

BenchCall qkv_heads_norm(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const at::Tensor weight = Random{device, dtype}.floats({s.width / s.heads});
  return {{in.qkv, s.heads, s.heads, s.width / s.heads, in.cos, in.sin, weight, weight, kBenchEps}};
}

BenchCall qkv_heads_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const std::vector<int64_t> sizes{s.batch, s.length(), s.heads, s.width / s.heads};
  const Random random{device, dtype};
  return {{random.activations(sizes), random.activations(sizes), random.activations(sizes), IValue(), in.cos, in.sin,
           IValue(), IValue(), kBenchEps}};
}

struct MaskedInputs {
  at::Tensor q, k, v;
  AttentionSpans spans;
  double flops = 0;  // of what positions see
};

MaskedInputs masked_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor qkv = Random{device, dtype}.activations({s.batch, s.length(), 3 * s.heads, s.width / s.heads});
  MaskedInputs in{qkv.narrow(2, 0, s.heads), qkv.narrow(2, s.heads, s.heads), qkv.narrow(2, 2 * s.heads, s.heads), {}};
  at::Tensor documents;
  if (s.document > 0) {
    const at::Tensor index = at::arange(s.length(), at::device(device).dtype(at::kInt));
    documents = index.floor_divide(s.document).expand({s.batch, -1});
  }
  in.spans = attention_spans(documents, s.document > 0 ? s.length() / s.document : 0, s.window);
  const double keys = s.document > 0 ? static_cast<double>(s.document) / 2 : static_cast<double>(s.window);
  in.flops = 4 * static_cast<double>(s.rows()) * keys * static_cast<double>(s.width);
  return in;
}

std::vector<IValue> masked_arguments(const MaskedInputs& in) {
  return {in.q, in.k, in.v, optional_tensor(in.spans.starts), optional_tensor(in.spans.offsets), in.spans.window};
}

BenchCall masked_attention(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.window == 0 && s.document == 0) return nothing();
  const MaskedInputs in = masked_inputs(s, device, dtype);
  return {masked_arguments(in), in.flops};
}

BenchCall masked_attention_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.window == 0 && s.document == 0) return nothing();
  const MaskedInputs in = masked_inputs(s, device, dtype);
  const auto forward = call_op("hrm::masked_attention_forward", masked_arguments(in));
  const at::Tensor grad = Random{device, dtype}.activations(in.q.sizes());
  return {{grad, in.q, in.k, in.v, forward[0], forward[1], forward[2], optional_tensor(in.spans.starts),
           optional_tensor(in.spans.offsets), in.spans.window},
          2.5 * in.flops};
}

const KernelGroups kAttentionGroups{
    {"AttentionProjected", "attention with its product"},
    {"attention_projected", "attention with its product"},
    {"LinearRotated", "matrix products with rotation"},
    {"qkv_heads_product", "matrix products with rotation"},
    {"QkvHeads", "rotary positions"},
    {"qkv_heads", "rotary positions"},
    {"RotateQkv", "rotary positions"},
    {"rotate_qkv", "rotary positions"},
};

}  // namespace

std::vector<BenchOp> attention_cases() {
  return {
      {"hrm::attention", attention},
      {"hrm::attention_projected", attention_projected},
      {"hrm::attention_forward", attention_forward},
      {"hrm::attention_backward", attention_backward},
      {"hrm::rotate_qkv", rotate_qkv},
      {"hrm::rotate_qkv_", rotate_qkv},
      {"hrm::rotate_qkv_backward", rotate_qkv_backward},
      {"hrm::qkv_heads_product", qkv_heads_product},
      {"hrm::qkv_heads_rotate_", qkv_heads_rotate},
      {"hrm::qkv_heads_norm", qkv_heads_norm},
      {"hrm::qkv_heads_backward", qkv_heads_backward},
      {"hrm::masked_attention", masked_attention},
      {"hrm::masked_attention_forward", masked_attention},
      {"hrm::masked_attention_backward", masked_attention_backward},
  };
}

}  // namespace hrm::ops::bench
