// Kernels may begin before the ones queued earlier are done (ops/cuda/early.cuh). Chains of ops that depend on each
// other and take over each other's memory give the bits that they give when the device is waited for after each op.
#include <algorithm>
#include <functional>
#include <optional>

#include "hrm/ops/add_rms_norm.h"
#include "hrm/ops/attention.h"
#include "hrm/ops/conv_swiglu.h"
#include "hrm/ops/decode_attention.h"
#include "hrm/ops/decode_linear.h"
#include "hrm/ops/diversity.h"
#include "hrm/ops/embed_tokens.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_block.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/fp8_rows_block.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_rms_norm.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/mlp_mix.h"
#include "hrm/ops/moe.h"
#include "hrm/ops/next_tokens.h"
#include "hrm/ops/nf4.h"
#include "hrm/ops/qkv_heads.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/ops/softmax_loss.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weight8.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/gpu_testing.h"
#include "ops/memory/gates_impl.h"
#include "ops/mixing/mlp_mix_ways.h"
#include "ops/moe/moe_impl.h"
#include "ops/with_tiles.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

constexpr double kEps = 1e-5;
constexpr int64_t kHeads = 8, kWidth = 512, kInner = 1536, kLength = 82;

using Tensors = std::vector<at::Tensor>;
using Between = std::function<void()>;
using Chain = std::function<Tensors(const at::Tensor&, const Between&)>;

struct Block {
  at::Tensor qkv, out, gate_up, down;
};

at::Tensor weight_of(int64_t out, int64_t in, uint64_t seed, at::ScalarType dtype) {
  return (normal({out, in}, seed, at::kFloat) / std::sqrt(static_cast<double>(in))).to(at::kCUDA, dtype);
}

Block make_block(at::ScalarType dtype, int64_t width = kWidth, int64_t inner = kInner) {
  return {weight_of(3 * width, width, 1, dtype), weight_of(width, width, 2, dtype),
          weight_of(2 * inner, width, 3, dtype), weight_of(width, inner, 4, dtype)};
}

// The inputs follow each other without a wait, so that memory which is read too early holds another input's numbers.
void expect_order(const Chain& chain, at::IntArrayRef sizes, at::ScalarType dtype, const std::string& what,
                  int rounds) {
  const at::NoGradGuard no_grad;
  constexpr uint64_t kInputs = 4;
  Tensors inputs;
  std::vector<Tensors> wanted;
  for (uint64_t i = 0; i < kInputs; ++i) {
    inputs.push_back(normal(sizes, 10 + i, dtype, at::kCUDA));
    wanted.push_back(chain(inputs.back(), [] { at::cuda::device_synchronize(); }));
    for (const at::Tensor& result : wanted.back()) {
      ASSERT_TRUE(at::isfinite(result).all().item<bool>()) << what;
    }
  }
  const at::Tensor wrong =
      at::zeros({static_cast<int64_t>(wanted[0].size()) + 1}, at::device(at::kCUDA).dtype(at::kLong));
  const auto count = [&](const Tensors& results, uint64_t input) {
    for (size_t k = 0; k < results.size(); ++k) {
      wrong[static_cast<int64_t>(k)] += results[k].ne(wanted[input][k]).sum();
    }
  };
  const auto expect_none = [&](const std::string& how) {
    const at::Tensor counts = wrong.to(at::kCPU);
    for (size_t k = 0; k < wanted[0].size(); ++k) {
      EXPECT_EQ(counts[static_cast<int64_t>(k)].item<int64_t>(), 0)
          << what << how << ": elements of result " << k << ", " << wanted[0][k].sizes() << ", that are wrong";
    }
    wrong.zero_();
  };
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t i = 0; i < kInputs; ++i) count(chain(inputs[i], [] {}), i);
  }
  expect_none(", eager");
  const at::Tensor x = inputs[0].clone();
  Tensors results;
  Captured captured([&] { results = chain(x, [] {}); });
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kInputs; ++i) {
      x.copy_(inputs[i]);
      captured.replay();
      count(results, i);
    }
  }
  expect_none(", captured");
}

// Two blocks as the recursions run them. At once: qkv and attention, where one kernel does that.
Chain inference(const Block& block, bool at_once) {
  return [block, at_once](const at::Tensor& x, const Between& between) -> Tensors {
    at::Tensor h = x;
    for (int i = 0; i < 2; ++i) {
      at::Tensor mixed;
      if (at_once) {
        mixed = attention_projected(h, block.qkv, kHeads, {}, {});
      } else {
        const at::Tensor qkv = linear(h, block.qkv, block.qkv);
        between();
        mixed = attention_(qkv, kHeads, {}, {});
      }
      between();
      h = linear_rms_norm(mixed, block.out, h, kEps);
      between();
      const at::Tensor act = linear_swiglu(h, block.gate_up);
      between();
      h = linear_rms_norm_add(act, block.down, h, kEps, x);
      between();
    }
    return {h};
  };
}

// One block forward and backward, with products of the library among our kernels.
Chain training(const Block& block) {
  return [block](const at::Tensor& x, const Between& between) -> Tensors {
    const at::Tensor qkv = linear(x, block.qkv, block.qkv);
    between();
    const auto [mixed, lse] = attention_forward(qkv, kHeads, at::Tensor(), at::Tensor());
    between();
    const auto [half, half_rstd] = linear_rms_norm_forward(mixed, block.out, x, kEps);
    between();
    const auto [act, gate_up] = linear_swiglu_forward(half, block.gate_up);
    between();
    const auto [y, y_rstd] = linear_rms_norm_forward(act, block.down, half, kEps);
    between();
    const at::Tensor grad_sum = rms_norm_backward(x, y, y_rstd);
    between();
    const at::Tensor grad_gates = linear_swiglu_backward(grad_sum, block.down, gate_up);
    between();
    const at::Tensor grad_half = linear_grad_x(grad_gates, block.gate_up);
    between();
    const at::Tensor grad_mixed = linear_grad_x(rms_norm_backward(grad_half, half, half_rstd, grad_sum), block.out);
    between();
    const at::Tensor grad_qkv = attention_backward(grad_mixed, qkv, mixed, lse, kHeads, at::Tensor(), at::Tensor());
    between();
    return {y, y_rstd, act, grad_gates, grad_half, grad_qkv};
  };
}

// The block of inference() with 8-bit operands.
Chain inference_fp8(const Block& block, at::ScalarType dtype) {
  const Tensors weights = {block.qkv, block.out, block.gate_up, block.down};
  Tensors weights8;
  for (const at::Tensor& weight : weights) weights8.push_back(at::empty_like(weight, at::kFloat8_e4m3fn));
  const at::Tensor slots = make_fp8_slots(9, at::kCUDA);
  slots.select(1, 0).fill_(64);
  slots.select(1, 1).fill_(1.0 / 64);
  return [=](const at::Tensor& x, const Between& between) -> Tensors {
    const auto slot = [&](int64_t i) { return slots.select(0, i); };
    slots.select(1, 2).zero_();
    quantize_fp8_(weights, weights8, slots.narrow(0, 0, 4));
    between();
    const auto [sum, sum8] = add_fp8(x, x, slot(4));
    between();
    const at::Tensor qkv = linear_fp8(sum8, weights8[0], slot(4), slot(0), dtype);
    between();
    const at::Tensor mixed = attention_fp8(qkv, kHeads, {}, {}, slot(5));
    between();
    const auto [half, half8] = linear_rms_norm_fp8(mixed, weights8[1], slot(5), slot(1), sum, kEps, slot(6));
    between();
    const at::Tensor act = linear_swiglu_fp8(half8, weights8[2], slot(6), slot(2), slot(7), dtype);
    between();
    const auto [y, y8] = linear_rms_norm_fp8(act, weights8[3], slot(7), slot(3), half, kEps, slot(8));
    between();
    return {y, y8.view(at::kByte), slots.clone()};
  };
}

// The halves of a pre-norm block with 8-bit operands in all products, forward and backward.
Chain training_fp8(const Block& block, at::ScalarType dtype) {
  struct Weight {
    at::Tensor values, transposed, slot;
  };
  std::vector<Weight> weights;
  for (const at::Tensor& weight : {block.qkv, block.gate_up, block.down}) {
    const at::Tensor slot = wide_slot(64, false, at::kCUDA);
    const auto [values, transposed] = quantize_fp8_pair(weight, slot, false);
    weights.push_back({values, transposed, slot});
  }
  const at::Tensor slots =
      at::stack({wide_slot(32, false, at::kCUDA), wide_slot(32, false, at::kCUDA), wide_slot(32, false, at::kCUDA),
                 wide_slot(256, true, at::kCUDA), wide_slot(256, true, at::kCUDA), wide_slot(256, true, at::kCUDA)});
  const at::Tensor ones = at::ones({kWidth}, at::device(at::kCUDA));
  return [=](const at::Tensor& input, const Between& between) -> Tensors {
    const auto slot = [&](int64_t i) { return slots.select(0, i); };
    const int64_t rows = input.size(0) * input.size(1) / 16 * 16;
    const at::Tensor x = input.view({-1, kWidth}).narrow(0, 0, rows);
    slots.select(1, 2).zero_();
    slots.narrow(1, 5, 3).zero_();  // what they have counted
    const Fp8Normed first = weighted_rms_norm_fp8(x, ones, kEps, slot(0), true);
    between();
    const at::Tensor again = weighted_rms_norm_transposed_fp8(x, ones, first.rstd, slot(0));
    between();
    const at::Tensor qkv = fp8_product(first.y.values, weights[0].values, slot(0), weights[0].slot, dtype);
    between();
    const std::vector<at::Tensor> heads = qkv.view({1, rows, 3, kHeads, kWidth / kHeads}).unbind(2);
    const Fp8Pair grad_qkv = qkv_heads_backward_fp8(heads[0], heads[1], heads[2], {}, {}, slot(3), true, true);
    between();
    const at::Tensor h = fp8_product(grad_qkv.values, weights[0].transposed, slot(3), weights[0].slot, dtype, x);
    between();
    const Fp8Normed second = weighted_rms_norm_fp8(h, ones, kEps, slot(1), true);
    between();
    const Fp8Weight gate_up_weight{weights[1].values, weights[1].slot};
    const Fp8Swiglu whole = fp8_linear_swiglu(second.y, gate_up_weight, slot(2), dtype);
    between();
    const at::Tensor gate_up = fp8_product(second.y.values, weights[1].values, slot(1), weights[1].slot, dtype);
    between();
    const Fp8Pair act = swiglu_fp8(gate_up, slot(2));
    between();
    const at::Tensor y = fp8_product(act.values, weights[2].values, slot(2), weights[2].slot, dtype, h);
    between();
    const Fp8Pair grad = fp8_pair(y, slot(4), true, true);
    between();
    const at::Tensor grad_act = fp8_product(grad.values, weights[2].transposed, slot(4), weights[2].slot, dtype);
    between();
    const Fp8SwigluGradient gates = swiglu_backward_fp8(grad_act, gate_up, slot(5), true, slot(2), true, true);
    between();
    const Fp8SwigluGradient current =
        swiglu_backward_fp8(grad_act, gate_up, slot(5), true, slot(2), true, false, 0);  // two kernels more
    between();
    const at::Tensor sums = at::zeros({2 * kInner, kWidth}, ones.options());
    fp8_accumulate_(sums, gates.gate_up.transposed, second.y.transposed, slot(5), slot(1));
    between();
    const auto bytes = [](const at::Tensor& t) { return t.view(at::kByte); };
    return {h,
            y,
            bytes(first.y.transposed),
            bytes(again),
            bytes(grad_qkv.transposed),
            bytes(gates.act_transposed),
            bytes(current.gate_up.transposed),
            sums,
            bytes(slots.clone())};
  };
}

void expect_orders(int64_t batch, int rounds) {
  const WithTiles with_tiles;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Block block = make_block(dtype);
    for (const bool at_once : {false, true}) {
      expect_order(inference(block, at_once), {batch, kLength, kWidth}, dtype, cat(dtype, " inference"), rounds);
    }
    expect_order(training(block), {batch, kLength, kWidth}, dtype, cat(dtype, " training"), rounds);
    expect_order(inference_fp8(block, dtype), {batch, kLength, kWidth}, dtype, cat(dtype, " fp8"), rounds);
    expect_order(training_fp8(block, dtype), {batch, kLength, kWidth}, dtype, cat(dtype, " fp8 training"), rounds);
  }
}

TEST(ProgrammaticLaunchGpu, Chains) {
  HRM_NEEDS_GPU();
  expect_orders(3, 2);
}

// Many times; and with more rows than the norms' kernel for few rows takes, more tiles than blocks, and samples enough
// for a kernel that projects and attends.
TEST(ProgrammaticLaunchGpu, ChainsLarge) {
  HRM_NEEDS_GPU();
  expect_orders(3, 20);
  expect_orders(96, 10);
}

TEST(ProgrammaticLaunchGpu, NormsAndGates) {
  HRM_NEEDS_GPU();
  const Chain chain = [](const at::Tensor& x, const Between& between) -> Tensors {
    const at::Tensor act = swiglu(x);
    between();
    const auto [y, rstd] = rms_norm_residual_forward(act, act, kEps);
    between();
    const at::Tensor grad_act = rms_norm_backward(y, y, rstd, act);
    between();
    const at::Tensor grad = swiglu_backward(grad_act, x);
    between();
    const auto [last, last_rstd] = rms_norm_residual_forward(grad, x, kEps);
    between();
    return {y, grad, last, last_rstd};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {512, 97, 5001}) {  // registers, elements, a block for each row
      expect_order(chain, {300, 2 * width}, dtype, cat(dtype, " width ", width), 3);
    }
  }
}

TEST(ProgrammaticLaunchGpu, ConvolvedGates) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {256, 97}) {  // packs, elements
      // Small, or float16 overflows at the end.
      const at::Tensor taps = normal({width, 2}, 1, at::kFloat, at::kCUDA) / 10,
                       bias = normal({width}, 2, at::kFloat, at::kCUDA) / 10;
      const Chain chain = [&](const at::Tensor& x, const Between& between) -> Tensors {
        const at::Tensor act = conv_swiglu(x, taps, bias);
        between();
        const auto [grad, grad_taps, grad_bias] = conv_swiglu_backward(act, x, taps, bias);
        between();
        const at::Tensor last = conv_swiglu(grad, at::tanh(grad_taps), at::tanh(grad_bias));
        between();
        return {act, grad, grad_taps, grad_bias, last};
      };
      expect_order(chain, {40, 50, 2 * width}, dtype, cat(dtype, " width ", width), 3);
    }
  }
}

// The ops of a language model one after the other, whatever that computes: each reads what the one before wrote.
TEST(ProgrammaticLaunchGpu, LanguageModel) {
  HRM_NEEDS_GPU();
  const WithTiles with_tiles;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : {32, 64}) {
      const QkvSizes sizes{4, 2, head_dim};
      const int64_t width = 8 * head_dim;
      const at::Tensor weight = normal({width}, 1, at::kFloat, at::kCUDA),
                       labels = at::arange(300, at::kInt).remainder(width).to(at::kCUDA);
      const at::Tensor projection = weight_of(width, 6 * head_dim, 3, dtype);
      const at::Tensor angles = normal({100, head_dim / 2}, 2, at::kFloat, at::kCUDA), ids = labels.remainder(37);
      QkvHeadOptions options{angles.cos(), angles.sin(), weight.narrow(0, 0, head_dim), weight.narrow(0, 64, head_dim),
                             kEps};
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        const auto [y, rstd] = weighted_rms_norm_forward(x, weight, kEps);
        between();
        const at::Tensor rows = y.view({3, 100, width});
        qkv_heads_rotate_(rows, sizes, options.cos, options.sin);
        between();
        const at::Tensor heads = qkv_heads_norm(rows, sizes, options);
        between();
        const at::Tensor projected = qkv_heads_product(heads.flatten(2), projection, sizes, options.cos, options.sin);
        between();
        const at::Tensor q = heads.narrow(2, 0, 4), k = heads.narrow(2, 4, 2);
        const auto [grad, grad_q, grad_k] = qkv_heads_backward(q, k, k, rows, options);
        between();
        const at::Tensor facts = softmax_loss_facts(grad.view({300, width}), labels, 0).unsqueeze(0);
        between();
        const at::Tensor part = projected.flatten(0, 1).clone();
        const at::Tensor of_part = softmax_loss_part_(part.narrow(1, 0, width), labels, 0, facts, rstd);
        between();
        const at::Tensor loss = softmax_loss_(grad.view({300, width}), labels, rstd);
        between();
        const auto [grad_x, grad_weight] = weighted_rms_norm_backward(grad.view({300, width}), x, rstd, weight, x);
        between();
        const at::Tensor sum = add_pieces(grad_x, {y.view({1, 300, width})});
        between();
        const at::Tensor table = at::zeros({37, width}, at::device(at::kCUDA));
        embed_tokens_backward_(table, sum, ids);
        between();
        return {y, projected, grad, grad_q, grad_k, facts, of_part, part, loss, grad_x, grad_weight, sum, table};
      };
      expect_order(chain, {300, width}, dtype, cat(dtype, " head ", head_dim), 4);
    }
  }
}

// A layer of a decoding step, its weights as they are stored, and an adapter on each if it has a rank.
struct DecodingBlock {
  DecodeWeight qkv, out, gate_up, down;
  int64_t rank = 0;

  DecodingBlock(const Block& block, std::optional<at::ScalarType> format, int64_t of_rank)
      : qkv(stored(block.qkv, format)),
        out(stored(block.out, format)),
        gate_up(stored(block.gate_up, format)),
        down(stored(block.down, format)),
        rank(of_rank) {}

  static DecodeWeight stored(const at::Tensor& weight, std::optional<at::ScalarType> format) {
    return format ? DecodeWeight(quantize_weight8(weight, *format)) : DecodeWeight(weight);
  }
  // Of a product of x with this weight; A and B are made beforehand.
  std::optional<DecodeAdapter> adapter(const at::Tensor& x, const at::Tensor& A, const DecodeWeight& weight,
                                       const at::Tensor& B, const DecodeLinearOptions& around = {}) const {
    if (rank == 0) return std::nullopt;
    const int64_t rows = weight.values.size(0);
    return DecodeAdapter{.u = decode_linear(x, A, around), .B = B.narrow(0, 0, rows), .slices = {{0, 0, rows}}};
  }
};

// Decoding steps of one layer, each row of the cache one longer after each.
void expect_order_of_decoding(int64_t wide, std::initializer_list<int64_t> each_rows,
                              std::optional<at::ScalarType> format = std::nullopt, int64_t rank = 0) {
  constexpr int64_t kCached = 40, kVocabulary = 3000;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const DecodingBlock block(make_block(dtype, wide, 3 * wide), format, rank);
    const at::Tensor A = weight_of(std::max<int64_t>(rank, 1), wide, 8, dtype),
                     A_down = weight_of(std::max<int64_t>(rank, 1), 3 * wide, 9, dtype),
                     B = weight_of(6 * wide, std::max<int64_t>(rank, 1), 10, dtype);
    at::cuda::device_synchronize();  // a weight is read early
    const at::Tensor norm = normal({wide}, 5, at::kFloat, at::kCUDA), head = weight_of(kVocabulary, wide, 6, dtype);
    const at::Tensor angles = normal({kCached, 32}, 7, at::kFloat, at::kCUDA);
    const DecodeAttentionOptions options{.cos = angles.cos(), .sin = angles.sin(), .steady = true};
    for (const int64_t rows : each_rows) {
      const auto longs = at::device(at::kCUDA).dtype(at::kLong);
      const at::Tensor keys = at::zeros({rows, wide / 64, kCached, 64}, head.options()), values = at::zeros_like(keys);
      const at::Tensor lengths = at::zeros({rows}, longs);
      const WrittenRows written{.ids = at::zeros({rows}, longs),
                                .count = at::zeros({rows}, longs),
                                .limits = at::full({rows}, 5, longs),
                                .active = at::ones({rows}, longs.dtype(at::kBool)),
                                .draws = at::full({rows, 1}, 0.4, longs.dtype(at::kDouble)),
                                .chosen = at::zeros({rows}, longs),
                                .stop_ids = at::full({1}, -2, longs)};
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        const at::NoGradGuard no_grad;
        lengths.zero_();
        written.count.zero_();
        written.active.fill_(true);
        at::Tensor h = x;
        AheadOfNorm ahead;
        Tensors results;
        for (int step = 0; step < 4; ++step) {
          DecodeLinearOptions around{.norm = norm, .eps = kEps, .ahead = ahead};
          around.adapter = block.adapter(h, A, block.qkv, B, around);
          between();
          const at::Tensor qkv = decode_linear(h, block.qkv, around);
          between();
          const PairedRows mixed = decode_attention_paired_(qkv, keys, values, lengths, options);
          between();
          const auto added = block.adapter(mixed.rows, A, block.out, B);
          between();
          const DecodedAhead half = decode_linear_ahead(mixed, block.out, x, norm, added);
          between();
          around = {.norm = norm, .eps = kEps, .ahead = half.ahead};
          around.adapter = block.adapter(half.y, A, block.gate_up, B, around);
          around.gated = true;
          between();
          const PairedRows act = decode_linear_paired(half.y, block.gate_up, around);
          between();
          const auto added_down = block.adapter(act.rows, A_down, block.down, B);
          between();
          const DecodedAhead last = decode_linear_ahead(act, block.down, half.y, norm, added_down);
          h = last.y;
          ahead = last.ahead;
          between();
          const at::Tensor logits = linear(h, head, head);
          between();
          next_tokens_(logits, {.top_k = 20, .top_p = 0.9}, written);
          between();
          lengths.add_(1);
          results.insert(results.end(), {h, logits, written.chosen.clone(), written.active.clone()});
        }
        return results;
      };
      expect_order(chain, {rows, wide}, dtype, cat(dtype, " ", rows, " rows"), 5);
    }
  }
}

TEST(ProgrammaticLaunchGpu, Decoding) {
  HRM_NEEDS_GPU();
  expect_order_of_decoding(512, {1, 8, 20, 64});
}

// The same by tiles of products (skinny_gemm_tiles.h).
TEST(ProgrammaticLaunchGpu, DecodingByTiles) {
  HRM_NEEDS_GPU();
  expect_order_of_decoding(1536, {1, 20, 128});
}

// Weights in 8 bits, with adapters and without.
TEST(ProgrammaticLaunchGpu, DecodingByTiles8) {
  HRM_NEEDS_GPU();
  expect_order_of_decoding(1536, {1, 12, 20, 40, 128}, at::kFloat8_e4m3fn);
  expect_order_of_decoding(1536, {12, 40}, at::kFloat8_e4m3fn, 16);
  expect_order_of_decoding(1536, {12, 40}, at::kChar, 16);
}

// 8-bit weights between norms and gates, as a layer of a decoding step.
TEST(ProgrammaticLaunchGpu, Weights8) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType format : {at::kFloat8_e4m3fn, at::kChar}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const Block block = make_block(dtype);
      const Weight8 gate_up = quantize_weight8(block.gate_up, format), down = quantize_weight8(block.down, format);
      const at::Tensor norm = at::ones({kWidth}, at::device(at::kCUDA).dtype(at::kFloat));
      at::cuda::device_synchronize();
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        at::Tensor h = x;
        for (int i = 0; i < 2; ++i) {
          const at::Tensor normed = weighted_rms_norm(h, norm, kEps);
          between();
          const at::Tensor gates = linear_weight8(normed, gate_up);
          between();
          const at::Tensor act = swiglu(gates);
          between();
          h = linear_weight8(act, down, h);
          between();
        }
        return {h};
      };
      for (const int64_t rows : {1, 12, 32}) {
        expect_order(chain, {rows, kWidth}, dtype, cat(format, " ", dtype, " rows ", rows), 10);
      }
    }
  }
}

// The same with NF4 weights.
TEST(ProgrammaticLaunchGpu, WeightsNf4) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Block block = make_block(dtype);
    const Nf4Tensor gate_up = nf4_quantize(block.gate_up), down = nf4_quantize(block.down);
    const at::Tensor wide = at::empty_like(block.gate_up), narrow = at::empty_like(block.down);
    const at::Tensor norm = at::ones({kWidth}, at::device(at::kCUDA).dtype(at::kFloat));
    at::cuda::device_synchronize();
    const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
      at::Tensor h = x;
      for (int i = 0; i < 2; ++i) {
        const at::Tensor normed = weighted_rms_norm(h, norm, kEps);
        between();
        const at::Tensor gates = linear_nf4(normed, gate_up, wide);
        between();
        const at::Tensor act = swiglu(gates);
        between();
        h = linear_nf4(act, down, narrow, h);
        between();
      }
      return {h};
    };
    for (const int64_t rows : {1, 12, 32}) expect_order(chain, {rows, kWidth}, dtype, cat(dtype, " rows ", rows), 10);
  }
}

// Products of many rows with 8-bit weights, forward and backward, with one workspace for all transposed weights.
TEST(ProgrammaticLaunchGpu, Weights8ByRows) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Block block = make_block(dtype);
    const Weight8 gate_up = quantize_weight8(block.gate_up, at::kFloat8_e4m3fn),
                  down = quantize_weight8(block.down, at::kFloat8_e4m3fn);
    const at::Tensor workspace = at::empty({2 * kInner * kWidth}, at::device(at::kCUDA).dtype(dtype));
    const auto room = [=](const Weight8& weight) {
      return workspace.narrow(0, 0, weight.values.numel()).view(weight.values.sizes());
    };
    at::cuda::device_synchronize();
    const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
      const int64_t rows = x.size(0);
      const at::Tensor gates = linear_weight8(x, gate_up, {}, room(gate_up), true);
      between();
      const at::Tensor act = swiglu(gates);
      between();
      const at::Tensor y = linear_weight8(act, down, x, room(down), true);
      between();
      const at::Tensor grad_act = linear_weight8_grad_x(y, down, room(down), true);
      between();
      const at::Tensor grad = linear_weight8_grad_x(gates, gate_up, room(gate_up), true);
      between();
      const auto [values, scales] = quantize_fp8_rows(grad, at::ones({kWidth}, gate_up.scales.options()));
      between();
      const at::Tensor transposed = at::empty({kWidth, rows}, values.options()),
                       ones = at::empty({kWidth}, scales.options());
      transpose_fp8_(transposed, ones, values);
      between();
      return {y, grad_act, grad, values.view(at::kByte), scales, transposed.view(at::kByte), ones};
    };
    for (const int64_t rows : {48, 1040}) {
      expect_order(chain, {rows, kWidth}, dtype, cat(dtype, " rows ", rows), 10);
    }
  }
}

// The halves of a block with frozen e4m3 weights: each part reads what the one before it wrote, twice in a row where a
// part writes two things.
TEST(ProgrammaticLaunchGpu, PartsWithRowsIn8Bits) {
  HRM_NEEDS_GPU();
  if (!has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  constexpr int64_t kWidth = 256;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto weight = [&](int64_t out, int64_t in, uint64_t seed) {
      return quantize_weight8(normal({out, in}, seed, at::kFloat, at::kCUDA) / 16, at::kFloat8_e4m3fn);
    };
    const Weight8 qkv_proj = weight(2 * kWidth, kWidth, 1), gate_up_proj = weight(4 * kWidth, kWidth, 2),
                  down_proj = weight(kWidth, 2 * kWidth, 3);
    const at::Tensor ones = at::ones({kWidth}, at::device(at::kCUDA)), head = at::ones({32}, at::device(at::kCUDA));
    const auto product = [=](const Fp8RowsBeside& rows, const Weight8& w, const std::optional<at::Tensor>& added) {
      return fp8_rows_product(rows.values, w.values, rows.scales, w.scales, dtype, added);
    };
    const auto gradient = [=](const Fp8RowsBeside& rows, const Weight8& w) {
      return linear_weight8_grad_rows(rows.values, rows.scales, w, {}, dtype);
    };
    at::cuda::device_synchronize();
    const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
      const int64_t rows = x.size(0);
      const NormedRows first = weighted_rms_norm_rows(x, ones, 1e-5, true);
      between();
      const at::Tensor qkv = product(first.y, qkv_proj, {}).view({1, rows, 2 * kWidth});
      between();
      const at::Tensor q = first.y.wide.view({1, rows, 8, 32}), k = q.narrow(2, 0, 4);
      const Fp8RowsBeside grad_qkv =
          qkv_heads_backward_rows(q, k, k, qkv, {.q_weight = head, .k_weight = head}, qkv_proj.scales, true);
      between();
      const at::Tensor h = gradient(grad_qkv, qkv_proj);
      between();
      const NormedRows second = weighted_rms_norm_rows(h, ones, 1e-5, false);
      between();
      const at::Tensor gate_up = product(second.y, gate_up_proj, {});
      between();
      const Fp8RowsBeside act = swiglu_rows(gate_up, true);
      between();
      const at::Tensor y = product(act, down_proj, h);
      between();
      const Fp8RowsBeside grad = swiglu_backward_rows(act.wide, gate_up, gate_up_proj.scales, true);
      between();
      return {y, gradient(grad, gate_up_proj), grad_qkv.wide, grad.wide, act.scales};
    };
    for (const int64_t rows : {40, 1040}) {
      expect_order(chain, {rows, kWidth}, dtype, cat(dtype, " rows ", rows), 10);
    }
  }
}

// The gate, the probabilities of halting and their loss, one out of what the other wrote.
TEST(ProgrammaticLaunchGpu, Gates) {
  HRM_NEEDS_GPU();
  constexpr int64_t kRows = 40, kVectors = 7;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {97, 512}) {
      const at::Tensor weight = normal({1, width}, 1, at::kFloat, at::kCUDA) / std::sqrt(static_cast<double>(width)),
                       bias = normal({1}, 2, at::kFloat, at::kCUDA);
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        const GateRange range{1.5, -0.25, {}};
        const at::Tensor z = x.narrow(0, 0, kRows),
                         bridge = x.narrow(0, kRows, kRows * kVectors).view({kRows, kVectors, width});
        const at::Tensor grad_weight = at::zeros_like(weight), grad_bias = at::zeros_like(bias);
        const auto [gate, memory, open] = bridge_gate_forward(z, weight, bias, bridge, range);
        between();
        const at::Tensor p = halt_probabilities_forward({bridge, memory}, weight, bias);
        between();
        const auto [loss, slope] = halting_loss_forward(p, gate, 1);
        between();
        const at::Tensor grad_states =
            halt_probabilities_backward_(slope.expand({2, kRows}), p, {bridge, memory}, weight, grad_weight, grad_bias);
        between();
        const auto [grad_z, grad_bridge] =
            bridge_gate_backward_(gate, grad_states[1], z, weight, bridge, open, range, grad_weight, grad_bias);
        between();
        return {gate, memory, p, loss, grad_states, grad_z, grad_bridge, grad_weight, grad_bias};
      };
      expect_order(chain, {kRows * (kVectors + 1), width}, dtype, cat(dtype, " width ", width), 4);
    }
  }
}

// Experts with the kernels of every GPU, and with those that the GPU has: forward and backward, whatever that computes.
// Rows behind all experts hold anything, so only what is made of the others counts.
TEST(ProgrammaticLaunchGpu, Experts) {
  HRM_NEEDS_GPU();
  constexpr int64_t kExperts = 5, kTopK = 2;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {97, 256}) {
      const auto weight = [=](uint64_t seed) {
        const double scale = std::sqrt(static_cast<double>(width));
        return (normal({kExperts, width, width}, seed, at::kFloat) / scale).to(at::kCUDA, dtype);
      };
      const at::Tensor up = weight(1), down = weight(2);
      for (const bool portable : {true, false}) {
        const auto product = portable ? &moe_linear_portable : &moe_linear;
        const auto accumulate = portable ? &moe_accumulate_portable_ : &moe_accumulate_;
        const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
          const MoeGate gate = moe_gate(x.narrow(1, 0, kExperts).to(at::kFloat), kTopK, MoeScore::softmax, true);
          between();
          const MoePlan plan = moe_plan(gate.ids, kExperts);
          between();
          const at::Tensor rows = moe_gather(x, plan.picks, plan.starts, kTopK);
          between();
          const at::Tensor hidden = product(rows, up, plan.tile_experts, plan.starts, false);
          between();
          const at::Tensor y = product(hidden, down, plan.tile_experts, plan.starts, true);
          between();
          const at::Tensor out = moe_combine(y, plan.rows, gate.weights);
          between();
          const auto [grad_y, grad_weights] = moe_combine_backward(out, y, plan.picks, plan.starts, gate.weights);
          between();
          const at::Tensor grad = at::ones(up.sizes(), up.options().dtype(at::kFloat));
          accumulate(grad, hidden, grad_y, plan.tile_experts, plan.starts, false);
          between();
          const at::Tensor back = product(grad_y, down, plan.tile_experts, plan.starts, false);
          between();
          return {out, grad_weights, grad, moe_combine(back, plan.rows, {})};
        };
        expect_order(chain, {300, width}, dtype, cat(dtype, " width ", width, portable ? " portable" : ""), 3);
      }
    }
  }
}

// Of groups that are small, which may begin early, and of large ones, between kernels that do.
TEST(ProgrammaticLaunchGpu, Diversity) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {97, 512}) {
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        const at::Tensor act = swiglu(x);
        between();
        const Diversity small = semantic_diversity(act.view({60, 5, width}));
        between();
        const Diversity large = semantic_diversity(act.view({3, 100, width}));
        between();
        const Diversity scores = semantic_diversity(at::stack({small.rows.view({3, 100}), large.rows}));
        between();
        return {small.totals, small.loo, large.totals, large.loo, scores.rows, swiglu(x)};
      };
      expect_order(chain, {300, 2 * width}, dtype, cat(dtype, " width ", width), 4);
    }
  }
}

// Two layers forward and backward. Each way of the backward pass, and each after the other: the second pass takes over
// the first one's scratch memory, in which flags and slots stand.
void expect_mix_orders(at::IntArrayRef sizes, int rounds) {
  const at::Tensor gate_up = weight_of(512, sizes[1], 1, at::kBFloat16),
                   down = weight_of(sizes[1], 256, 2, at::kBFloat16);
  for (const bool first_turns : {false, true}) {
    for (const bool second_turns : {false, true}) {
      const Chain chain = [=](const at::Tensor& x, const Between& between) -> Tensors {
        const auto [first, first_rstd] = mlp_mix_forward(x, gate_up, down, kEps);
        between();
        const auto [y, rstd] = mlp_mix_forward(first, gate_up, down, kEps);
        between();
        const at::Tensor grad_gate_up = at::zeros(gate_up.sizes(), gate_up.options().dtype(at::kFloat));
        const at::Tensor grad_down = at::zeros(down.sizes(), grad_gate_up.options());
        const auto backward = [&](bool takes_turns, const at::Tensor& grad, const at::Tensor& h, const at::Tensor& out,
                                  const at::Tensor& out_rstd) {
          const MixTurns turns(takes_turns);
          return mlp_mix_backward(grad, h, out, out_rstd, gate_up, down, grad_gate_up, grad_down);
        };
        const at::Tensor grad = backward(first_turns, x, first, y, rstd);
        between();
        const at::Tensor grad_x = backward(second_turns, grad, x, first, first_rstd);
        between();
        return {y, grad_x, grad_gate_up, grad_down};
      };
      expect_order(chain, sizes, at::kBFloat16, cat("mlp_mix", way_name(first_turns), ", then", way_name(second_turns)),
                   rounds);
    }
  }
}

TEST(ProgrammaticLaunchGpu, MlpMix) {
  HRM_NEEDS_GPU();
  expect_mix_orders({5, 97, 128}, 5);
}

// With more units than the kernels have room for at one time, and in turns two parts.
TEST(ProgrammaticLaunchGpu, MlpMixLarge) {
  HRM_NEEDS_GPU();
  expect_mix_orders({1601, 17, 64}, 10);
}

}  // namespace
}  // namespace hrm::ops
