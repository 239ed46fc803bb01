#include "hrm/models/urm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/ops/damped_update.h"

namespace hrm::models {
namespace {

config::ModelConfig small_urm() {
  config::ModelConfig c{.arch = config::PuzzleArch::urm, .hidden_size = 16, .num_heads = 2};
  c.H_cycles = 2;
  c.L_cycles = 3;
  c.H_layers = 0;
  c.L_layers = 2;
  c.no_ACT_continue = true;
  return c;
}

std::shared_ptr<PuzzleModel> build_urm(const config::ModelConfig& c, int64_t seq_len = 9) {
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = seq_len;
  return make_puzzle_model(c, resolve_dims(c, meta), 0, at::kCPU, at::kFloat);
}

template <class Child>
std::shared_ptr<Child> part_of(const torch::nn::Module& module, const std::string& name) {
  return std::dynamic_pointer_cast<Child>(module.named_modules()[name]);
}

at::Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::kFloat);
}

struct UrmInputs {
  Carry carry;
  at::Tensor tokens, rows;
};

UrmInputs urm_inputs(const PuzzleModel& model) {
  const int64_t S = model.dims().seq_len, L = model.dims().puzzle_emb_len + S;
  return {{normal({3, L, 16}, 1), normal({3, L, 16}, 2)},
          at::arange(3 * S, at::kInt).mul(7).remainder(11).to(at::kInt).view({3, S}),
          normal({3, 16}, 3)};
}

TEST(Urm, NamesAndInitialValues) {
  const auto model = build_urm(small_urm());
  const auto buffers = model->named_buffers();
  EXPECT_EQ(buffers.size(), 2U);
  EXPECT_TRUE(buffers.contains("init_hidden") && buffers.contains("puzzle_emb.weights"));
  EXPECT_TRUE(model->H_init().is_same(buffers["init_hidden"]) && model->L_init().is_same(buffers["init_hidden"]));
  for (const char* name : {"layers.0.self_attn.qkv_proj.weight", "layers.1.mlp.gate_up_proj.weight",
                           "layers.1.mlp.down_proj.weight", "layers.0.mlp.dwconv.bias"}) {
    EXPECT_TRUE(model->named_parameters().contains(name)) << name;
  }
  const at::Tensor weight = model->named_parameters()["layers.0.mlp.dwconv.weight"];
  ASSERT_EQ(weight.sizes(), (at::IntArrayRef{256, 1, 2}));
  for (const at::Tensor& values : {weight, model->named_parameters()["layers.1.mlp.dwconv.bias"]}) {
    // Uniform in +-1/sqrt(2), whose standard deviation is 1/sqrt(6).
    EXPECT_LT(values.abs().max().item<double>(), std::sqrt(0.5));
    EXPECT_GT(values.abs().max().item<double>(), 0.69);
    EXPECT_NEAR(values.std().item<double>(), std::sqrt(1.0 / 6), 0.03);
    EXPECT_NEAR(values.mean().item<double>(), 0, 0.06);
  }
  EXPECT_FALSE(weight.equal(model->named_parameters()["layers.1.mlp.dwconv.weight"]));
  EXPECT_TRUE(weight.equal(build_urm(small_urm())->named_parameters()["layers.0.mlp.dwconv.weight"]));
}

// A segment with damped, noisy updates, put together from the blocks.
TEST(Urm, SegmentIsRepeatedUpdatesOfOneState) {
  config::ModelConfig c = small_urm();
  for (const bool settles : {false, true}) {
    c.damping = settles ? 0.25 : 0;
    c.path_noise = settles ? 0.5 : 0;
    const auto model = build_urm(c);
    const UrmInputs in = urm_inputs(*model);
    const at::Tensor keys = at::tensor({5, 6, 1 << 20}, at::kLong);
    const SegmentOutput got = model->segment(in.carry, in.tokens, in.rows,
                                             model->draws_of_segment(keys, at::full({}, 3, at::kLong), /*seed=*/9));
    const at::Tensor x = dynamic_cast<PuzzleNetwork&>(*model).embed_inputs(in.tokens, in.rows);
    at::Tensor h = in.carry.z_H;
    for (int64_t i = 0; i < 6; ++i) {
      at::Tensor next = h + x;
      for (const char* name : {"layers.0", "layers.1"}) next = part_of<nn::Block>(*model, name)->forward(next);
      if (settles) {
        // Three segments have gone before; each has draws for two cycles of four updates.
        const at::Tensor noise =
            ops::damped_update(at::zeros_like(h), at::zeros_like(h), keys * (1 << 16), 3 * 2 * 4 + i, 0, 0.5, 9);
        next = next * 0.75 + h * 0.25 + noise;
      }
      h = next;
    }
    EXPECT_TRUE(at::allclose(got.carry.z_H, h, 1e-4, 1e-5)) << settles;
    EXPECT_TRUE(got.carry.z_L.equal(in.carry.z_L)) << "not a state of this model";
    const at::Tensor head = model->named_parameters()["lm_head.weight"];
    EXPECT_TRUE(at::allclose(got.logits, at::linear(h, head).narrow(1, 1, 9), 1e-4, 1e-5)) << settles;
  }
}

TEST(Urm, TheLastCycleIsDifferentiated) {
  const auto gradient = [](int64_t H_cycles, int64_t L_cycles) {
    config::ModelConfig c = small_urm();
    c.H_cycles = H_cycles;
    c.L_cycles = L_cycles;
    const auto model = build_urm(c);
    const UrmInputs in = urm_inputs(*model);
    const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows);
    out.logits.square().sum().backward();
    return std::pair{out.logits.detach(), model->parameter_set().flat_grad().clone()};
  };
  const auto [logits, grads] = gradient(2, 3);
  const auto [same_logits, whole] = gradient(1, 6);
  const auto [same_again, last] = gradient(6, 1);
  EXPECT_TRUE(at::allclose(logits, same_logits, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(logits, same_again, 1e-4, 1e-5));
  EXPECT_GT(grads.norm().item<double>(), 0);
  EXPECT_FALSE(at::allclose(grads, whole, 1e-2, 1e-4));
  EXPECT_FALSE(at::allclose(grads, last, 1e-2, 1e-4));
}

// The convolution runs over the positions of one puzzle, the prefix among them.
TEST(Urm, PuzzlesDoNotMeet) {
  const auto model = build_urm(small_urm());
  const at::NoGradGuard no_grad;
  const UrmInputs in = urm_inputs(*model);
  const at::Tensor before = model->segment(in.carry, in.tokens, in.rows).logits;
  UrmInputs changed = urm_inputs(*model);
  changed.tokens[1][8] = (changed.tokens[1][8] + 1).remainder(11);
  changed.rows[1] += 1;
  const at::Tensor after = model->segment(in.carry, changed.tokens, changed.rows).logits;
  EXPECT_TRUE(after[0].equal(before[0]) && after[2].equal(before[2]));
  EXPECT_FALSE(after[1].equal(before[1]));
}

TEST(Urm, TheConvolutionLooksBackOnePosition) {
  const auto model = build_urm(small_urm());
  const at::NoGradGuard no_grad;
  const auto mlp = part_of<nn::SwiGLU>(*model, "layers.0.mlp");
  const at::Tensor x = normal({2, 10, 16}, 4);
  for (const int64_t position : {0, 1, 5, 9}) {
    at::Tensor moved = x.clone();
    moved[1][position] += 1;
    const at::Tensor differs = mlp->forward(moved).sub(mlp->forward(x)).abs().amax(-1).gt(1e-6);
    at::Tensor want = at::zeros({2, 10}, at::kBool);
    want[1].narrow(0, position, std::min<int64_t>(2, 10 - position)).fill_(true);
    EXPECT_TRUE(at::equal(differs, want)) << position << differs;
  }
}

// The published model: four blocks of width 512.
TEST(Urm, PublishedSize) {
  config::ModelConfig c{.arch = config::PuzzleArch::urm};
  c.H_cycles = 2;
  c.L_cycles = 6;
  c.H_layers = 0;
  c.no_ACT_continue = true;
  const auto model = build_urm(c, 81);
  constexpr int64_t kBlock = 4 * 512 * 512 + 3 * 512 * 1536 + 3 * 1536;
  EXPECT_EQ(model->parameter_set().count(), 4 * kBlock + 2 * 11 * 512 + 2 * 512 + 2);
  const double block = 82 * 2.0 * (4 * 512 * 512 + 3 * 512 * 1536) + 4.0 * 82 * 82 * 512;
  const double heads = 2.0 * 512 * (82 * 11 + 2);
  EXPECT_DOUBLE_EQ(model->flops_per_sample_segment(), 48 * block + heads);
  EXPECT_DOUBLE_EQ(model->flops_per_sample_step(), 48 * block + heads + 2 * (24 * block + heads));
}

// The configuration refuses it earlier, by its key.
TEST(Urm, RefusesFp8Recursions) {
  const auto model = build_urm(small_urm());
  try {
    model->enable_fp8(/*history=*/4, /*margin=*/0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unexpected);
    EXPECT_NE(std::string(error.what()).find("convolution"), std::string::npos) << error.what();
  }
}

TEST(Urm, RefusesAnMlpOverPositions) {
  config::ModelConfig c = small_urm();
  c.mlp_t = true;
  c.pos_encodings = config::PositionEncoding::none;
  try {
    build_urm(c);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("leave model.mlp_t false"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hrm::models
