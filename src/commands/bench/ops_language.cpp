// Cases of `bench ops`: what language models have beside the ops of puzzles.
#include <algorithm>
#include <vector>

#include "commands/bench/ops_inputs.h"
#include "hrm/nn/rotary.h"
#include "hrm/ops/moe.h"

namespace hrm::commands::language_cases {
namespace {

using c10::IValue;
using Shape = BenchShape;
constexpr double kLanguageEps = 1e-5;
constexpr int64_t kRank = 16;

// A mixture of four experts of which each token takes two, in place of the recipe's feed-forward layer. `bench moe` has
// the shapes of large ones.
struct MoeInputs {
  static constexpr int64_t kExperts = 4, kPicks = 2;
  at::Tensor x, logits, up, down, xp, act, y;
  ops::MoeGate gate;
  ops::MoePlan plan;
};
MoeInputs moe_inputs(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  MoeInputs in;
  in.x = random.activations({s.rows(), s.width});
  in.logits = random.floats({s.rows(), MoeInputs::kExperts});
  in.up = random.weight(MoeInputs::kExperts * s.inner, s.width).view({MoeInputs::kExperts, s.inner, s.width});
  in.down = random.weight(MoeInputs::kExperts * s.width, s.inner).view({MoeInputs::kExperts, s.width, s.inner});
  in.gate = ops::moe_gate(in.logits, MoeInputs::kPicks, ops::MoeScore::softmax, /*normalize=*/false);
  in.plan = ops::moe_plan(in.gate.ids, MoeInputs::kExperts);
  const int64_t rows = in.plan.picks.size(0);
  in.xp = random.activations({rows, s.width});
  in.act = random.activations({rows, s.inner});
  in.y = random.activations({rows, s.width});
  return in;
}
double moe_flops(const Shape& s) {
  return product_flops(MoeInputs::kPicks * s.rows(), s.width, s.inner);
}

// The recurrence of Mamba2, as wide as the recipe's recursion: heads of 64 channels, a state of 64 in one group.
struct ScanInputs {
  at::Tensor x, dt, A, B, C, D;
};
ScanInputs scan_inputs(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t heads = std::max<int64_t>(s.width / 64, 1);
  const std::vector<int64_t> state{s.batch, s.length(), 1, 64};
  return {random.activations({s.batch, s.length(), heads, 64}),
          random.floats({s.batch, s.length(), heads}).abs() * 0.1,
          -random.floats({heads}).abs(),
          random.activations(state),
          random.activations(state),
          random.floats({heads})};
}

// The gate of a bridge of 8 vectors, and halting after each of 4 cycles, for the recipe's batch.
struct GateInputs {
  static constexpr int64_t kVectors = 8, kCycles = 4;
  at::Tensor z, weight, bias, bridge, p;
  std::vector<at::Tensor> states;
};
GateInputs gate_inputs(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> vectors{s.batch, GateInputs::kVectors, s.width};
  GateInputs in{random.activations({s.batch, s.width}),
                random.weight(1, s.width).to(at::kFloat),
                random.floats({1}),
                random.activations(vectors),
                random.floats({GateInputs::kCycles, s.batch}).sigmoid(),
                {}};
  for (int64_t cycle = 0; cycle < GateInputs::kCycles; ++cycle) in.states.push_back(random.activations(vectors));
  return in;
}

}  // namespace

BenchCall weighted_rms_norm(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.floats({s.width}), kLanguageEps}};
}

// With the gradient of a residual stream.
BenchCall weighted_rms_norm_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), random.floats({s.batch, s.length()}).abs(),
           random.floats({s.width}), random.activations(sizes), true}};
}

// Adapters of rank 16 beside gate and up.
BenchCall lora_add(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.rows(), 2 * s.inner}), random.activations({s.rows(), 2 * kRank}),
           random.weight(2 * s.inner, kRank), std::vector<int64_t>{0, 0, s.inner, s.inner, s.inner, s.inner}},
          product_flops(s.rows(), kRank, 2 * s.inner)};
}

BenchCall lora_gradients(const Shape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = lora_add(s, device, dtype);
  call.arguments.insert(call.arguments.begin() + 3, Random{device, dtype}.floats({2 * s.inner, kRank}));
  call.arguments.emplace_back(2.0);
  call.flops *= 2;
  return call;
}

// The same and one beside the projection down, in every block.
BenchCall lora_merge(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> merged, weight, A, B;
  std::vector<int64_t> slices;
  double flops = 0;
  const auto add = [&](int64_t out, int64_t in, int64_t count) {
    weight.push_back(random.weight(out, in));
    merged.push_back(at::empty_like(weight.back()));
    A.push_back(random.weight(count * kRank, in));
    B.push_back(random.weight(out, kRank));
    for (int64_t i = 0; i < count; ++i)
      slices.insert(slices.end(), {i * (out / count), i * (out / count), out / count});
    flops += product_flops(out, kRank, in);
  };
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    add(2 * s.inner, s.width, 2);
    add(s.width, s.inner, 1);
  }
  return {{merged, weight, A, B, slices, 2.0}, flops};
}

// A step that adds a token to each row of a batch, whose rows are half as long as the cache.
BenchCall decode_attention(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const int64_t head_dim = s.width / s.heads;
  const nn::RotaryTable table = nn::make_rotary_table(s.length(), head_dim, 10000, device);
  const std::vector<int64_t> cache{s.batch, s.heads, s.length(), head_dim};
  const at::Tensor lengths = at::full({s.batch}, s.length() / 2, at::device(device).dtype(at::kLong));
  return {{random.activations({s.batch, 3 * s.width}), random.activations(cache), random.activations(cache), lengths,
           table.cos, table.sin, IValue(), IValue(), kLanguageEps, int64_t{0}},
          2 * product_flops(s.batch, s.length() / 2, s.width)};
}

// The way from a projection to the heads of a language model.
BenchCall qkv_heads_product(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(3 * s.width, s.width), s.heads, s.heads,
           s.width / s.heads, in.cos, in.sin},
          product_flops(s.rows(), s.width, 3 * s.width)};
}

BenchCall qkv_heads_rotate(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, s.heads, s.width / s.heads, in.cos, in.sin}};
}

BenchCall qkv_heads_norm(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const at::Tensor weight = Random{device, dtype}.floats({s.width / s.heads});
  return {{in.qkv, s.heads, s.heads, s.width / s.heads, in.cos, in.sin, weight, weight, kLanguageEps}};
}

BenchCall qkv_heads_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const std::vector<int64_t> sizes{s.batch, s.length(), s.heads, s.width / s.heads};
  const Random random{device, dtype};
  return {{random.activations(sizes), random.activations(sizes), random.activations(sizes), IValue(), in.cos, in.sin,
           IValue(), IValue(), kLanguageEps}};
}

// A chunk of a language model's tokens: the vocabulary is no recipe's.
BenchCall softmax_loss(const Shape& s, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kVocabulary = 32000;
  const Random random{device, dtype};
  const int64_t rows = std::min<int64_t>(s.rows(), 4096);
  return {{random.activations({rows, kVocabulary}),
           at::randint(0, kVocabulary, {rows}, at::device(device).dtype(at::kInt)), random.floats({rows}).abs()}};
}

BenchCall moe_router(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(MoeInputs::kExperts, s.width);
  return {{random.activations({s.rows(), s.width}), weight, weight.to(at::kFloat), IValue()},
          product_flops(s.rows(), s.width, MoeInputs::kExperts)};
}

BenchCall moe_gate(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).logits, MoeInputs::kPicks, false, false, IValue()}};
}

BenchCall moe_gate_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{at::randn_like(in.gate.weights), IValue(), in.gate.ids, in.gate.scores, false, false}};
}

BenchCall moe_jitter(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).x, at::zeros({}, at::device(device).dtype(at::kLong)), 0.01, 7}};
}

BenchCall moe_plan(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{moe_inputs(s, device, dtype).gate.ids, MoeInputs::kExperts}};
}

BenchCall moe_gather(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.x, in.plan.picks, in.plan.starts, MoeInputs::kPicks}};
}

BenchCall moe_up(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.xp, in.up, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_up_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.y, in.down, in.act, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_linear(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.act, in.down, in.plan.tile_experts, in.plan.starts, false}, moe_flops(s)};
}

BenchCall moe_accumulate(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  const at::Tensor grad = at::zeros({MoeInputs::kExperts, s.inner, s.width}, at::device(device));
  return {{grad, in.act, in.xp, in.plan.tile_experts, in.plan.starts}, moe_flops(s)};
}

BenchCall moe_combine(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.y, in.plan.rows, in.gate.weights}};
}

BenchCall moe_combine_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.x, in.y, in.plan.picks, in.plan.starts, in.gate.weights}};
}

BenchCall moe_experts(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.x, in.gate.weights, in.plan.rows, in.plan.picks, in.plan.tile_experts, in.plan.starts, in.up, in.up,
           in.down, in.down, IValue(), IValue()},
          2 * moe_flops(s)};
}

BenchCall ssd_scan(const Shape& s, at::Device device, at::ScalarType dtype) {
  const ScanInputs in = scan_inputs(s, device, dtype);
  return {{in.x, in.dt, in.A, in.B, in.C, in.D, int64_t{64}, IValue()}};
}

BenchCall ssd_scan_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const ScanInputs in = scan_inputs(s, device, dtype);
  return {{at::randn_like(in.x), IValue(), in.x, in.dt, in.A, in.B, in.C, in.D, int64_t{64}, IValue()}};
}

// A language model's table.
BenchCall embed_tokens_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kVocabulary = 32000;
  const Random random{device, dtype};
  return {{random.floats({kVocabulary, s.width}), random.activations({s.batch, s.length(), s.width}),
           at::randint(0, kVocabulary, {s.batch, s.length()}, at::device(device).dtype(at::kInt))}};
}

// Queries, keys and values of each token at another place.
BenchCall sum_rows(const Shape& s, at::Device device, at::ScalarType dtype) {
  const int64_t tokens = s.batch * s.length();
  const at::Tensor places = at::randperm(tokens, at::device(device).dtype(at::kLong));
  const auto table = [](const at::Tensor& t) { return t.to(at::kInt).unsqueeze(1); };
  return {{Random{device, dtype}.activations({tokens, 3 * s.width}), table(places), table(places.argsort()), IValue(),
           IValue(), IValue()}};
}

// The next tokens of as many rows, from the logits of a vocabulary.
BenchCall sample_tokens(const Shape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor draws = at::full({s.batch}, 0.5, at::device(device).dtype(at::kDouble));
  return {{Random{device, dtype}.activations({s.batch, 32000}), draws, /*temperature=*/0.8, /*top_k=*/int64_t{50},
           /*top_p=*/0.95, /*min_p=*/0.0}};
}

BenchCall next_tokens(const Shape& s, at::Device device, at::ScalarType dtype) {
  const auto longs = [&](int64_t value) { return at::full({s.batch}, value, at::device(device).dtype(at::kLong)); };
  const at::Tensor stop_ids = at::full({16}, -2, at::device(device).dtype(at::kLong));
  return {{Random{device, dtype}.activations({s.batch, 32000}),
           at::full({s.batch, 1}, 0.5, at::device(device).dtype(at::kDouble)), longs(int64_t{1} << 40), stop_ids,
           longs(0), longs(0), longs(1).to(at::kBool), longs(0), /*log_p=*/IValue(), /*temperature=*/0.0,
           /*top_k=*/int64_t{0}, /*top_p=*/1.0, /*min_p=*/0.0}};
}

BenchCall moe_load_loss(const Shape& s, at::Device device, at::ScalarType dtype) {
  const MoeInputs in = moe_inputs(s, device, dtype);
  return {{in.gate.scores, in.plan.counts, IValue(),
           at::zeros({in.plan.counts.size(0) + 1}, at::device(device).dtype(at::kDouble))}};
}

// Loads of as many mixtures as the recipe has layers.
BenchCall moe_loads(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> counts;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    counts.push_back(random.floats({MoeInputs::kExperts + 1}).abs().to(at::kDouble));
  }
  return {{at::zeros({s.layers, 3}, at::device(device).dtype(at::kDouble)), counts}};
}

BenchCall bridge_gate(const Shape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.z, in.weight, in.bias, in.bridge, 1.0, 0.0, Random{device, dtype}.scalar(1)}};
}

BenchCall bridge_gate_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{IValue(), at::randn_like(in.bridge), in.z, in.weight, in.bridge, in.p[0].unsqueeze(1), 1.0, 0.0,
           Random{device, dtype}.scalar(1), at::zeros_like(in.weight), at::zeros_like(in.bias)}};
}

BenchCall halt_probabilities(const Shape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.states, in.weight, in.bias}};
}

BenchCall halt_probabilities_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{at::randn_like(in.p), in.p, in.states, in.weight, at::zeros_like(in.weight), at::zeros_like(in.bias)}};
}

BenchCall halting_loss(const Shape& s, at::Device device, at::ScalarType dtype) {
  const GateInputs in = gate_inputs(s, device, dtype);
  return {{in.p, in.p[0].clone(), 1.0}};
}

// Embeddings of three answers to each of a quarter as many questions as there are samples; where these are long, one
// group of 4,096. As wide as a sentence encoder (all-MiniLM-L6-v2) makes them, and float32 as it does.
BenchCall semantic_diversity(const Shape& s, at::Device device, at::ScalarType dtype) {
  const std::vector<int64_t> sizes = s.length() > 512 ? std::vector<int64_t>{1, 4096, 384}
                                                      : std::vector<int64_t>{std::max<int64_t>(s.batch / 4, 1), 3, 384};
  return {{Random{device, dtype}.floats(sizes), IValue()}};
}

// A language model's core: as many memories as samples, of 64 vectors, two blocks, two steps.
BenchCall memory_blocks(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t D = s.width;
  std::vector<at::Tensor> weights;
  for (int block = 0; block < 2; ++block) {
    weights.insert(weights.end(), {random.floats({D}), random.floats({D}), random.weight(3 * D, D), random.weight(D, D),
                                   random.weight(2 * s.inner, D), random.weight(D, s.inner)});
  }
  return {{random.activations({s.batch, 64, D}), random.activations({s.batch, D}), random.activations({64, D}), weights,
           random.floats({D}), false, s.heads, int64_t{2}, 1e-6},
          4.0 * 2 * 64 * static_cast<double>(s.batch * D * (4 * D + 3 * s.inner + 2 * 64))};
}

}  // namespace hrm::commands::language_cases
