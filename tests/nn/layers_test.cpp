// Layers against the plain formula, values and gradients.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/nn/block.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/init.h"
#include "hrm/ops/embed.h"
#include "support/expect_error.h"

namespace hrm::nn {
namespace {

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, at::kDouble).to(type).requires_grad_();
}

double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

// Position-wise rotation of pairs (i, i + half), as a formula over whole tensors: x cos + [-x2, x1] sin.
at::Tensor rotated(const at::Tensor& x, const RotaryTable& table) {
  const auto halves = x.chunk(2, -1);
  const at::Tensor cos = at::cat({table.cos, table.cos}, -1).unsqueeze(1);
  const at::Tensor sin = at::cat({table.sin, table.sin}, -1).unsqueeze(1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

TEST(Rotary, TableIsTheFormula) {
  const RotaryTable table = make_rotary_table(5, 8, 10000, at::kCPU);
  EXPECT_EQ(table.cos.sizes(), at::IntArrayRef({5, 4}));
  for (int64_t position = 0; position < 5; ++position) {
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
      EXPECT_NEAR(table.cos[position][i].item<double>(), std::cos(angle), 1e-6);
      EXPECT_NEAR(table.sin[position][i].item<double>(), std::sin(angle), 1e-6);
    }
  }
}

TEST(Rotary, ValueAndGradient) {
  const int64_t B = 2, L = 5, heads = 3, hd = 4;
  const RotaryTable table = make_rotary_table(L, hd, 10000, at::kCPU);
  for (const bool rotate : {true, false}) {
    const at::Tensor x = leaf({B, L, 3 * heads * hd}, at::kFloat);
    const auto parts = x.view({B, L, 3, heads, hd}).unbind(2);
    const at::Tensor q = rotate ? rotated(parts[0], table) : parts[0];
    const at::Tensor k = rotate ? rotated(parts[1], table) : parts[1];
    const at::Tensor a = at::randn({B, heads, L, hd}), b = at::randn({B, heads, L, hd}),
                     c = at::randn({B, heads, L, hd});
    const auto weigh = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return (q * a).sum() + (k * b).sum() + (v * c).sum();
    };
    weigh(q.transpose(1, 2), k.transpose(1, 2), parts[2].transpose(1, 2)).backward();
    const at::Tensor want = x.grad().clone();
    x.mutable_grad() = at::Tensor();

    const auto [gq, gk, gv] = split_and_rotate_(x * 1, heads, rotate ? table : RotaryTable{});
    EXPECT_LT(largest(gq, q.transpose(1, 2)), 1e-6);
    EXPECT_LT(largest(gk, k.transpose(1, 2)), 1e-6);
    EXPECT_EQ(largest(gv, parts[2].transpose(1, 2)), 0);
    weigh(gq, gk, gv).backward();
    EXPECT_LT(largest(x.grad(), want), 1e-6);
  }
}

// The rotation happens in float32: the only error of a bfloat16 result is its own rounding.
TEST(Rotary, RotatesInFloat32) {
  const RotaryTable table = make_rotary_table(6, 8, 10000, at::kCPU);
  const at::Tensor x = at::randn({1, 6, 24}).to(at::kBFloat16);
  const at::Tensor want = rotated(x.to(at::kFloat).view({1, 6, 3, 1, 8}).select(2, 0), table).transpose(1, 2);
  const auto [q, k, v] = split_and_rotate_(x.clone(), 1, table);
  EXPECT_EQ(q.scalar_type(), at::kBFloat16);
  EXPECT_LE(((q.to(at::kFloat) - want).abs() / want.abs()).max().item<double>(), 0x1p-8);
}

TEST(Rotary, RefusesOddHeads) {
  try {
    make_rotary_table(4, 3, 10000, at::kCPU);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("even head width"), std::string::npos);
  }
}

TEST(SwiGLU, Width) {
  EXPECT_EQ(swiglu_width(512, 4), 1536);
  EXPECT_EQ(swiglu_width(97, 4), 512);
  EXPECT_EQ(swiglu_width(916, 4), 2560);
  EXPECT_EQ(swiglu_width(96, 4), 256);  // exactly 256: not rounded up further
}

TEST(SwiGLU, ValueAndGradient) {
  const at::Tensor x = leaf({3, 5, 14}), weight = at::randn({3, 5, 7}, at::kDouble);
  const auto halves = x.chunk(2, -1);
  const at::Tensor want = halves[0] * at::sigmoid(halves[0]) * halves[1];
  (want * weight).sum().backward();
  const at::Tensor want_grad = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  const at::Tensor got = silu_gate(x);
  EXPECT_LT(largest(got, want), 1e-14);
  (got * weight).sum().backward();
  EXPECT_LT(largest(x.grad(), want_grad), 1e-14);
}

TEST(Embedding, RoundsOnce) {
  Embedding embedding(11, 8, at::kCPU);
  init_parameters(embedding, 0);
  const at::Tensor ids = at::randint(0, 11, {4, 6}, at::kInt);
  const at::Tensor want = embedding.weight().index_select(0, ids.flatten()).view({4, 6, 8});
  EXPECT_EQ(largest(embedding.forward(ids, at::kFloat), want), 0);
  EXPECT_TRUE(at::equal(embedding.forward(ids.to(at::kLong), at::kBFloat16), want.to(at::kBFloat16)));
}

// 4096 gradients of 1 + 2^-7 for one row: a bfloat16 sum would stop growing long before.
TEST(Embedding, SumsInFloat32) {
  for (const int64_t entries : {int64_t{3}, ops::kOneHotEntries + 1}) {  // both ways of summing
    Embedding embedding(entries, 4, at::kCPU);
    init_parameters(embedding, 0);
    const at::Tensor out = embedding.forward(at::full({64, 64}, 2, at::kInt), at::kBFloat16);
    out.backward(at::full_like(out, 1 + 0x1p-7));
    EXPECT_EQ(embedding.weight().grad().scalar_type(), at::kFloat);
    EXPECT_EQ(largest(embedding.weight().grad()[2], at::full({4}, 4096 * (1 + 0x1p-7))), 0);
    EXPECT_EQ(embedding.weight().grad().narrow(0, 0, 2).abs().sum().item<double>(), 0);
  }
}

TEST(Embedding, ReadsACopyInOneDtype) {
  const auto can = [](int64_t entries, const Cut& cut) {
    Embedding embedding(entries, 4, at::kCPU, "weight", cut);
    EXPECT_FALSE(embedding.can_read_copy()) << "the model may read it in float32";
    embedding.set_rounded();
    return embedding.can_read_copy();
  };
  EXPECT_FALSE(can(ops::kOneHotEntries, {}));
  EXPECT_TRUE(can(ops::kOneHotEntries + 1, {}));
  // All parts agree, also the last one, which may have fewer rows.
  for (const int64_t part : {0, 1}) {
    EXPECT_FALSE(can(2 * ops::kOneHotEntries + 1, {.part = part, .parts = 2}));
    EXPECT_TRUE(can(2 * ops::kOneHotEntries + 2, {.part = part, .parts = 2}));
  }

  Embedding embedding(300, 8, at::kCPU);
  init_parameters(embedding, 0);
  const at::Tensor ids = at::randint(0, 300, {4, 6}, at::kInt), want = embedding.forward(ids, at::kBFloat16);
  embedding.read_copy(embedding.weight().detach().to(at::kBFloat16));
  EXPECT_TRUE(at::equal(embedding.forward(ids, at::kBFloat16), want));
  test::expect_error(ExitCode::unexpected, {"BFloat16", "is read in Float"},
                     [&] { embedding.forward(ids, at::kFloat); });
}

at::Tensor plain_norm(const at::Tensor& h, double eps) {
  return h * at::rsqrt(h.square().mean(-1, /*keepdim=*/true) + eps);
}

at::Tensor parameter(const torch::nn::Module& module, const std::string& name) {
  const auto named = module.named_parameters();
  return *named.find(name);
}

at::Tensor plain_swiglu(const torch::nn::Module& module, const std::string& name, const at::Tensor& x) {
  const auto halves = at::matmul(x, parameter(module, name + ".gate_up_proj.weight").t()).chunk(2, -1);
  return at::matmul(at::silu(halves[0]) * halves[1], parameter(module, name + ".down_proj.weight").t());
}

at::Tensor plain_attention(const torch::nn::Module& module, const at::Tensor& h, int64_t heads,
                           const RotaryTable& table) {
  const int64_t B = h.size(0), L = h.size(1), D = h.size(2);
  const auto parts =
      at::matmul(h, parameter(module, "self_attn.qkv_proj.weight").t()).view({B, L, 3, heads, D / heads}).unbind(2);
  const at::Tensor q = rotated(parts[0], table).transpose(1, 2), k = rotated(parts[1], table).transpose(1, 2);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(D / heads));
  const at::Tensor mixed = at::matmul(scores.softmax(-1), parts[2].transpose(1, 2)).transpose(1, 2).reshape({B, L, D});
  return at::matmul(mixed, parameter(module, "self_attn.o_proj.weight").t());
}

// Post-norm, both variants: values, the gradient of the input and the gradients of all weights.
TEST(Block, ValueAndGradient) {
  const double eps = 1e-5;
  for (const bool mlp_t : {false, true}) {
    const BlockSizes sizes{
        .width = 12, .positions = 5, .heads = 3, .expansion = 4, .rms_norm_eps = eps, .mlp_t = mlp_t};
    const RotaryTable table = make_rotary_table(5, 4, 10000, at::kCPU);
    Block block(sizes, table, at::kCPU);
    init_parameters(block, 0);
    const at::Tensor x = leaf({2, 5, 12}, at::kFloat), weight = at::randn({2, 5, 12});

    at::Tensor h = x;
    if (mlp_t) {
      const at::Tensor turned = h.transpose(1, 2);
      h = plain_norm(turned + plain_swiglu(block, "mlp_t", turned), eps).transpose(1, 2);
    } else {
      h = plain_norm(h + plain_attention(block, h, 3, table), eps);
    }
    const at::Tensor want = plain_norm(h + plain_swiglu(block, "mlp", h), eps);
    (want * weight).sum().backward();
    std::vector<at::Tensor> want_grads{x.grad().clone()};
    x.mutable_grad() = at::Tensor();
    for (const auto& item : block.named_parameters()) {
      at::Tensor weights = item.value();
      want_grads.push_back(weights.grad().clone());
      weights.mutable_grad() = at::Tensor();
    }

    const at::Tensor got = block.forward(x);
    EXPECT_LT(largest(got, want), 1e-5);
    (got * weight).sum().backward();
    EXPECT_LT(largest(x.grad(), want_grads[0]), 1e-5);
    size_t i = 1;
    for (const auto& item : block.named_parameters()) {
      EXPECT_LT(largest(item.value().grad(), want_grads[i++]), 2e-5) << item.key();
    }
  }
}

TEST(ReasoningModule, InjectsOnceAndNamesItsLayers) {
  const BlockSizes sizes{.width = 12, .positions = 5, .heads = 3};
  ReasoningModule module(2, sizes, {}, at::kCPU);
  init_parameters(module, 0);
  const at::Tensor h = at::randn({2, 5, 12}), injection = at::randn({2, 5, 12}), zero = at::zeros({2, 5, 12});
  EXPECT_EQ(largest(module.forward(h, injection), module.forward(h + injection, zero)), 0);
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"layers.0.self_attn.qkv_proj.weight", "layers.0.self_attn.o_proj.weight",
                                             "layers.0.mlp.gate_up_proj.weight", "layers.0.mlp.down_proj.weight",
                                             "layers.1.self_attn.qkv_proj.weight", "layers.1.self_attn.o_proj.weight",
                                             "layers.1.mlp.gate_up_proj.weight", "layers.1.mlp.down_proj.weight"}));
}

TEST(ReasoningModule, RecursAsOftenAsAsked) {
  const at::NoGradGuard no_grad;
  for (const bool mlp_t : {false, true}) {
    ReasoningModule module(2, {.width = 12, .positions = 5, .heads = 3, .mlp_t = mlp_t}, {}, at::kCPU);
    init_parameters(module, 0);
    const at::Tensor h = at::randn({2, 5, 12}), injection = at::randn({2, 5, 12});
    at::Tensor want = h;
    EXPECT_TRUE(at::equal(module.recur(h, injection, 0), want)) << "mlp_t " << mlp_t;
    for (int64_t times = 1; times <= 3; ++times) {
      want = module.forward(want, injection);
      EXPECT_TRUE(at::equal(module.recur(h, injection, times), want)) << "mlp_t " << mlp_t << ", times " << times;
    }
  }
}

TEST(ReasoningModule, RecordsNothingWithoutGrad) {
  const at::NoGradGuard no_grad;
  ReasoningModule module(1, {.width = 12, .positions = 5, .heads = 3}, {}, at::kCPU);
  init_parameters(module, 0);
  const at::Tensor h = at::randn({2, 5, 12});
  EXPECT_FALSE(module.forward(h, h).requires_grad());
}

}  // namespace
}  // namespace hrm::nn
