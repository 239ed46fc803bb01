// Cases of `bench ops`.
#include <ATen/ATen.h>

#include <vector>

#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

// One token of each row. In place of the recipes with long rows two narrow products of a language model of width 1,024,
// 28 layers, for 12 rows: behind attention, which is 2,048 wide, and behind its SwiGLU of 3,072.
BenchCall decode_linear(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  if (s.length() > 512) {
    constexpr int64_t kRows = 12, kWidth = 1024;
    const int64_t inner = s.layers > 2 ? 2048 : 3072;
    return {{random.activations({kRows, inner}), random.weight(kWidth, inner), IValue(), kBenchEps,
             random.activations({kRows, kWidth}), /*gated=*/false, IValue(), IValue(), IValue(), IValue(), IValue(),
             IValue(), IValue(), std::vector<int64_t>{}, 1.0},
            product_flops(kRows, inner, kWidth)};
  }
  return {{random.activations({s.batch, s.width}), random.weight(3 * s.width, s.width), random.floats({s.width}),
           kBenchEps, IValue(), /*gated=*/false, IValue(), IValue(), IValue(), IValue(), IValue(), IValue(), IValue(),
           std::vector<int64_t>{}, 1.0},
          product_flops(s.batch, s.width, 3 * s.width)};
}

// Of the same model, for 48 rows, the product behind its SwiGLU.
BenchCall decode_linear_ahead(const BenchShape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  constexpr int64_t kRows = 48, kInner = 3072, kWidth = 1024;
  return {{random.activations({kRows, kInner}), random.weight(kWidth, kInner), random.activations({kRows, kWidth}),
           random.floats({kWidth}), IValue(), IValue(), IValue(), IValue(), IValue(), std::vector<int64_t>{}, 1.0},
          product_flops(kRows, kInner, kWidth)};
}

// A step that adds a token to each row of a batch, whose rows are half as long as the cache.
BenchCall decode_attention(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const int64_t head_dim = s.width / s.heads;
  const RotaryInputs table = rotary_inputs(s, device);
  const std::vector<int64_t> cache{s.batch, s.heads, s.length(), head_dim};
  const at::Tensor lengths = at::full({s.batch}, s.length() / 2, at::device(device).dtype(at::kLong));
  return {{random.activations({s.batch, 3 * s.width}), random.activations(cache), random.activations(cache), lengths,
           table.cos, table.sin, IValue(), IValue(), kBenchEps, int64_t{0}},
          2 * product_flops(s.batch, s.length() / 2, s.width)};
}

// The next tokens of as many rows, from the logits of a vocabulary.
BenchCall sample_tokens(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor draws = at::full({s.batch}, 0.5, at::device(device).dtype(at::kDouble));
  return {{Random{device, dtype}.activations({s.batch, 32000}), draws, /*temperature=*/0.8, /*top_k=*/int64_t{50},
           /*top_p=*/0.95, /*min_p=*/0.0}};
}

BenchCall next_tokens(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const auto longs = [&](int64_t value) { return at::full({s.batch}, value, at::device(device).dtype(at::kLong)); };
  const at::Tensor stop_ids = at::full({16}, -2, at::device(device).dtype(at::kLong));
  return {{Random{device, dtype}.activations({s.batch, 32000}),
           at::full({s.batch, 1}, 0.5, at::device(device).dtype(at::kDouble)), longs(int64_t{1} << 40), stop_ids,
           longs(0), longs(0), longs(1).to(at::kBool), longs(0), /*log_p=*/IValue(), /*temperature=*/0.0,
           /*top_k=*/int64_t{0}, /*top_p=*/1.0, /*min_p=*/0.0}};
}

}  // namespace

std::vector<BenchOp> decode_cases() {
  return {
      {"hrm::decode_attention_", decode_attention},
      {"hrm::sample_tokens", sample_tokens},
      {"hrm::next_tokens_", next_tokens},
      {"hrm::decode_linear", decode_linear},
      {"hrm::decode_linear_ahead", decode_linear_ahead},
  };
}

}  // namespace hrm::ops::bench
