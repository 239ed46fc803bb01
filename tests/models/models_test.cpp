#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/models/puzzle_network.h"
#include "hrm/ops/damped_update.h"

namespace hrm::models {
namespace {

config::ModelConfig small_config(const std::string& arch) {
  config::ModelConfig c;
  c.arch = config::value_of_name<config::PuzzleArch>(arch);
  c.hidden_size = 16;
  c.num_heads = 2;
  c.L_layers = 1;
  c.H_layers = arch == "hrm" ? 1 : 0;
  if (arch == "transformer") c.H_cycles = c.L_cycles = 1;
  return c;
}

data::PuzzleMeta meta(int64_t seq_len = 9) {
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = seq_len;
  return meta;
}

std::shared_ptr<PuzzleModel> build(const config::ModelConfig& c, uint64_t seed = 0, at::ScalarType type = at::kFloat) {
  return make_puzzle_model(c, resolve_dims(c, meta()), seed, at::kCPU, type);
}

template <class Child>
std::shared_ptr<Child> child(const torch::nn::Module& module, const std::string& name) {
  return std::dynamic_pointer_cast<Child>(module.named_modules()[name]);
}

struct Inputs {
  Carry carry;
  at::Tensor tokens, rows;
};

Inputs inputs_for(PuzzleModel& model, int64_t B = 3) {
  const at::ScalarType type = model.parameter_set().compute_dtype();
  const int64_t L = model.dims().puzzle_emb_len + model.dims().seq_len, D = model.config().hidden_size;
  Inputs in{{at::randn({B, L, D}).to(type), at::randn({B, L, D}).to(type)},
            at::randint(0, 11, {B, model.dims().seq_len}, at::kInt),
            {}};
  if (model.dims().puzzle_emb_ndim > 0) in.rows = at::randn({B, model.dims().puzzle_emb_ndim}).requires_grad_();
  return in;
}

// Q values that depend on the input: at the start the head's weight is zero.
void open_q_head(PuzzleModel& model) {
  const at::NoGradGuard no_grad;
  at::Tensor weight = model.named_parameters()["q_head.weight"];
  weight.copy_(at::randn(weight.sizes()));
}

TEST(Models, QValuesAreThoseOfASegment) {
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    const auto model = build(small_config(arch));
    open_q_head(*model);
    const Inputs in = inputs_for(*model);
    const at::Tensor q = model->q_values(in.carry, in.tokens, in.rows);
    const at::Tensor of_segment = model->segment(in.carry, in.tokens, in.rows).q;
    EXPECT_FALSE(q.requires_grad()) << arch;
    EXPECT_GT((q[0] - q[1]).abs().max().item<double>(), 1e-3) << arch << ": all the same";
    EXPECT_TRUE(at::allclose(q, of_segment, 1e-5, 1e-5)) << arch << q << of_segment;
  }
}

// Damped updates with noise, put together from the modules; TRM differentiates the last cycle, so that the gradient is
// that of the written-out sum.
TEST(Models, SettlingUpdates) {
  for (const char* arch : {"trm", "hrm"}) {
    config::ModelConfig c = small_config(arch);
    c.H_cycles = 2;
    c.L_cycles = 2;
    c.damping = 0.25;
    c.path_noise = 0.5;
    const auto model = build(c);
    const Inputs in = inputs_for(*model);
    const at::Tensor keys = at::tensor({5, 6, 1 << 20}, at::kLong);
    const SegmentDraws draws = model->draws_of_segment(keys, at::full({}, 3, at::kLong), /*seed=*/9);
    const SegmentOutput got = model->segment(in.carry, in.tokens, in.rows, draws);

    const auto low = child<nn::ReasoningModule>(*model, "L_level");
    const auto high = arch == std::string("hrm") ? child<nn::ReasoningModule>(*model, "H_level") : low;
    const at::Tensor x = dynamic_cast<PuzzleNetwork&>(*model).embed_inputs(in.tokens, in.rows);
    at::Tensor z_H = in.carry.z_H, z_L = in.carry.z_L;
    int64_t number = 3 * 2 * 3;  // three segments of two cycles of three updates
    const auto move = [&](const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection) {
      const at::Tensor noise =
          ops::damped_update(at::zeros_like(z), at::zeros_like(z), keys * (1 << 16), number++, 0, 0.5, 9);
      return module.forward(z, injection) * 0.75 + z * 0.25 + noise;
    };
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t l = 0; l < 2; ++l) z_L = move(*low, z_L, z_H + x);
      z_H = move(*high, z_H, z_L);
    }
    EXPECT_TRUE(at::allclose(got.carry.z_H, z_H, 1e-4, 1e-5)) << arch;
    EXPECT_TRUE(at::allclose(got.carry.z_L, z_L, 1e-4, 1e-5)) << arch;
    EXPECT_FALSE(at::allclose(
        model->segment(in.carry, in.tokens, in.rows, model->draws_of_segment(keys, at::full({}, 4, at::kLong), 9))
            .carry.z_H,
        z_H, 1e-2, 1e-2))
        << arch << ": another segment";
  }
}

TEST(Models, RandomStarts) {
  config::ModelConfig c = small_config("trm");
  c.start_std = 2;
  const auto model = build(c);
  const Inputs in = inputs_for(*model, 4);
  const Carry carry{in.carry.z_H.clone(), in.carry.z_L.clone()};
  const at::Tensor keys = at::tensor({7, 8, 9, 7}, at::kLong), fresh = at::tensor({1, 0, 1, 1}, at::kInt).to(at::kBool);
  model->start_rows(carry, fresh, keys, /*seed=*/1);
  for (const auto& [now, before] : {std::pair{carry.z_H, in.carry.z_H}, std::pair{carry.z_L, in.carry.z_L}}) {
    EXPECT_TRUE(now[1].equal(before[1])) << "a row that goes on";
    EXPECT_TRUE(now[0].equal(now[3])) << "one key";
    EXPECT_GT((now[0] - now[2]).abs().max().item<double>(), 0.1) << "other keys";
    EXPECT_NEAR(now[2].std().item<double>(), 2, 0.4);
  }
  EXPECT_GT((carry.z_H[0] - carry.z_L[0]).abs().max().item<double>(), 0.1);
  EXPECT_THROW(model->start_rows(carry, fresh, {}, 1), Error);
}

TEST(Models, InputsAreScaled) {
  config::ModelConfig c = small_config("trm");
  const Inputs in = inputs_for(*build(c));
  const auto plain = build(c);
  const at::Tensor want = dynamic_cast<PuzzleNetwork&>(*plain).embed_inputs(in.tokens, in.rows) * 3;
  c.embed_scale = 3;
  const auto scaled = build(c);
  EXPECT_TRUE(at::allclose(dynamic_cast<PuzzleNetwork&>(*scaled).embed_inputs(in.tokens, in.rows), want));
}

// With one cycle nothing of a segment is a recursion, but the pass for the Q target is not differentiated as a whole.
TEST(Models, QTargetInEightBits) {
  config::ModelConfig c = small_config("hrm");
  c.H_cycles = c.L_cycles = 1;
  c.H_layers = c.L_layers = 2;
  const auto model = build(c);
  open_q_head(*model);
  const Inputs in = inputs_for(*model, 32);
  const at::Tensor plain = model->q_values(in.carry, in.tokens, in.rows);
  const at::Tensor of_segment = model->segment(in.carry, in.tokens, in.rows).q;
  model->enable_fp8(/*history=*/4, /*margin=*/0);
  EXPECT_TRUE(at::equal(model->q_values(in.carry, in.tokens, in.rows), plain)) << "not yet active";
  model->fp8()->calibrate_weights();
  model->fp8()->quantize_weights();
  model->fp8()->set_active(true);
  EXPECT_TRUE(at::equal(model->segment(in.carry, in.tokens, in.rows).q, of_segment)) << "of the differentiated pass";
  const at::Tensor q = model->q_values(in.carry, in.tokens, in.rows);
  EXPECT_FALSE(at::equal(q, plain));
  EXPECT_LT((q - plain).norm().item<double>(), 0.2 * plain.norm().item<double>()) << q << plain;
}

// Parameter counts of the published models, and floating-point operations of their training steps.
TEST(Models, PublishedSizes) {
  struct Size {
    const char* arch;
    bool mlp_t;
    int64_t parameters;
    double tflop_per_step;  // batch 768, products with weights alone; attention scores add 2 to 3 %
  };
  for (const Size& size :
       {Size{"hrm", false, 27275266, 27.5}, Size{"trm", false, 6828034, 35.5}, Size{"trm", true, 5028866, 0}}) {
    config::ModelConfig c;
    c.arch = config::value_of_name<config::PuzzleArch>(size.arch);
    if (c.arch == config::PuzzleArch::trm) {
      c.H_layers = 0;
      c.L_layers = 2;
      c.H_cycles = 3;
      c.L_cycles = 6;
      c.puzzle_emb_len = 16;
      c.no_ACT_continue = true;
      c.mlp_t = size.mlp_t;
      if (size.mlp_t) c.pos_encodings = config::PositionEncoding::none;
    }
    const auto model = make_puzzle_model(c, resolve_dims(c, meta(81)), 0, at::kCPU, at::kFloat);
    EXPECT_EQ(model->parameter_set().count(), size.parameters) << size.arch;
    if (size.tflop_per_step > 0) {
      const double ratio = model->flops_per_sample_step() * 768 / 1e12 / size.tflop_per_step;
      EXPECT_GT(ratio, 1.02) << size.arch;
      EXPECT_LT(ratio, 1.035) << size.arch;
    }
    EXPECT_LT(model->flops_per_sample_segment(), model->flops_per_sample_step());
  }
}

// The second forward pass counts where the training step makes one: for the Q target, which a single segment has not.
TEST(Models, FlopsOfTheQTarget) {
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    config::ModelConfig c = small_config(arch);
    const auto step_flops = [&](bool no_ACT_continue, int64_t halt_max_steps) {
      c.no_ACT_continue = no_ACT_continue;
      c.halt_max_steps = halt_max_steps;
      return build(c)->flops_per_sample_step();
    };
    const double segment = build(c)->flops_per_sample_segment(), without = step_flops(true, 16);
    EXPECT_GT(without, segment) << arch;
    EXPECT_DOUBLE_EQ(step_flops(false, 16), without + segment) << arch;
    EXPECT_DOUBLE_EQ(step_flops(false, 2), without + segment) << arch;
    EXPECT_DOUBLE_EQ(step_flops(false, 1), without) << arch;
    EXPECT_DOUBLE_EQ(step_flops(true, 1), without) << arch;
  }
}

TEST(Models, OfficialNames) {
  config::ModelConfig c = small_config("hrm");
  c.pos_encodings = config::PositionEncoding::learned;
  std::vector<std::string> names;
  const auto model = build(c);
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  for (const auto& item : model->named_buffers()) names.push_back(item.key());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "H_init", "H_level.layers.0.mlp.down_proj.weight", "H_level.layers.0.mlp.gate_up_proj.weight",
                       "H_level.layers.0.self_attn.o_proj.weight", "H_level.layers.0.self_attn.qkv_proj.weight",
                       "L_init", "L_level.layers.0.mlp.down_proj.weight", "L_level.layers.0.mlp.gate_up_proj.weight",
                       "L_level.layers.0.self_attn.o_proj.weight", "L_level.layers.0.self_attn.qkv_proj.weight",
                       "embed_pos.embedding_weight", "embed_tokens.embedding_weight", "lm_head.weight",
                       "puzzle_emb.weights", "q_head.bias", "q_head.weight"}));
}

TEST(Models, OutlineHasTheNamesAndShapes) {
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    for (const auto pos_encodings :
         {config::PositionEncoding::rope, config::PositionEncoding::learned, config::PositionEncoding::none}) {
      config::ModelConfig c = small_config(arch);
      c.pos_encodings = pos_encodings;
      c.mlp_t = pos_encodings == config::PositionEncoding::none && !c.facts().convolution;
      const auto model = build(c), outline = make_puzzle_model_outline(c, resolve_dims(c, meta()));
      const auto same = [&](const auto& real, const auto& empty) {
        ASSERT_EQ(real.keys(), empty.keys());
        for (const auto& item : real) {
          EXPECT_EQ(item.value().sizes(), empty[item.key()].sizes()) << item.key();
          EXPECT_TRUE(empty[item.key()].is_meta()) << item.key();
        }
      };
      same(model->named_parameters(), outline->named_parameters());
      same(model->named_buffers(), outline->named_buffers());
    }
  }
}

TEST(Models, InitialValues) {
  const auto model = build(small_config("hrm"), 5), same = build(small_config("hrm"), 5),
             other = build(small_config("hrm"), 6);
  const auto a = model->named_parameters(), b = same->named_parameters(), c = other->named_parameters();
  for (const auto& item : a) EXPECT_TRUE(at::equal(item.value(), b[item.key()])) << item.key();
  EXPECT_FALSE(at::equal(a["lm_head.weight"], c["lm_head.weight"]));
  EXPECT_EQ(a["q_head.weight"].abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(a["q_head.bias"], at::full({2}, -5)));
  EXPECT_EQ(model->puzzle_embedding().abs().max().item<double>(), 0);
  EXPECT_FALSE(at::equal(model->H_init(), model->L_init()));
  // Weights belong to their names: a model of another kind starts its L module alike.
  EXPECT_TRUE(at::equal(a["L_level.layers.0.mlp.down_proj.weight"],
                        build(small_config("trm"), 5)->named_parameters()["L_level.layers.0.mlp.down_proj.weight"]));
}

TEST(Models, ShapesAndTypes) {
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    for (const bool mlp_t : {false, true}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        config::ModelConfig c = small_config(arch);
        c.mlp_t = mlp_t && !c.facts().convolution;
        c.pos_encodings = mlp_t ? config::PositionEncoding::none : config::PositionEncoding::rope;
        const auto model = build(c, 0, type);
        const Inputs in = inputs_for(*model);
        const at::Tensor z_H = in.carry.z_H.clone(), z_L = in.carry.z_L.clone();
        const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows);
        EXPECT_EQ(out.logits.sizes(), at::IntArrayRef({3, 9, 11}));
        EXPECT_EQ(out.logits.scalar_type(), type);
        EXPECT_EQ(out.q_halt.sizes(), at::IntArrayRef({3}));
        EXPECT_EQ(out.q_halt.scalar_type(), at::kFloat);
        EXPECT_EQ(out.carry.z_H.sizes(), z_H.sizes());
        EXPECT_FALSE(out.carry.z_H.requires_grad() || out.carry.z_L.requires_grad());
        // The carry that came in is still there: the next step may need it.
        EXPECT_TRUE(at::equal(in.carry.z_H, z_H) && at::equal(in.carry.z_L, z_L));
      }
    }
  }
}

TEST(Models, NoPuzzleEmbedding) {
  config::ModelConfig c = small_config("hrm");
  c.puzzle_emb_ndim = 0;
  const auto model = build(c);
  EXPECT_FALSE(model->puzzle_embedding().defined());
  const Inputs in = inputs_for(*model);
  EXPECT_EQ(model->segment(in.carry, in.tokens, {}).logits.sizes(), at::IntArrayRef({3, 9, 11}));
}

// Every parameter gets a gradient, and so do the puzzle rows.
TEST(Models, GradientsReachEverything) {
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    const auto model = build(small_config(arch));
    const Inputs in = inputs_for(*model);
    const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows);
    (out.logits.square().sum() + out.q_halt.sum() + out.q_continue.sum()).backward();
    for (const nn::Parameter& parameter : model->parameter_set().all()) {
      EXPECT_GT(parameter.master.grad().abs().max().item<double>(), 0) << arch << " " << parameter.name;
    }
    EXPECT_GT(in.rows.grad().abs().max().item<double>(), 0) << arch;
  }
}

TEST(Models, RecordsNothingWithoutGrad) {
  const at::NoGradGuard no_grad;
  for (const char* arch : {"hrm", "trm", "transformer", "urm"}) {
    const auto model = build(small_config(arch));
    const Inputs in = inputs_for(*model);
    EXPECT_FALSE(model->segment(in.carry, in.tokens, in.rows).logits.requires_grad());
  }
}

// HRM's rule: the gradient is that of the last L and the last H call, with their inputs taken as constants. Counted in
// autograd nodes: more cycles do not make the graph longer. TRM records one whole cycle, so it does with L_cycles.
int64_t graph_size(const at::Tensor& root) {
  std::vector<torch::autograd::Node*> open{root.grad_fn().get()};
  std::unordered_map<torch::autograd::Node*, bool> seen;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || seen[node]) continue;
    seen[node] = true;
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return static_cast<int64_t>(seen.size());
}

int64_t graph_of(config::ModelConfig c, int64_t H_cycles, int64_t L_cycles) {
  c.H_cycles = H_cycles;
  c.L_cycles = L_cycles;
  const auto model = build(c);
  const Inputs in = inputs_for(*model);
  return graph_size(model->segment(in.carry, in.tokens, in.rows).logits);
}

TEST(Models, RecordedPart) {
  EXPECT_EQ(graph_of(small_config("hrm"), 1, 1), graph_of(small_config("hrm"), 3, 4));
  EXPECT_EQ(graph_of(small_config("trm"), 1, 2), graph_of(small_config("trm"), 3, 2));
  EXPECT_GT(graph_of(small_config("trm"), 1, 3), graph_of(small_config("trm"), 1, 2));
}

TEST(Models, TransformerIsOnePass) {
  const auto model = build(small_config("transformer"));
  const Inputs in = inputs_for(*model);
  const auto* network = dynamic_cast<PuzzleNetwork*>(model.get());
  ASSERT_NE(network, nullptr);
  const auto modules = model->named_modules();
  const auto level = std::dynamic_pointer_cast<nn::ReasoningModule>(modules["L_level"]);
  ASSERT_NE(level, nullptr);
  const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows);
  EXPECT_TRUE(at::equal(out.carry.z_H, level->forward(in.carry.z_H, network->embed_inputs(in.tokens, in.rows))));
  EXPECT_TRUE(at::equal(out.carry.z_L, in.carry.z_L));
}

// Slots beyond the embedding are zero, whatever the embedding is.
TEST(Models, PuzzleSlotsArePadded) {
  config::ModelConfig c = small_config("trm");
  c.puzzle_emb_ndim = 24;
  c.puzzle_emb_len = 4;
  const auto model = build(c);
  const Inputs in = inputs_for(*model);
  const at::Tensor x = dynamic_cast<PuzzleNetwork&>(*model).embed_inputs(in.tokens, in.rows);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({3, 13, 16}));
  const at::Tensor slots = x.narrow(1, 0, 4).reshape({3, 64});
  EXPECT_TRUE(at::allclose(slots.narrow(1, 0, 24), in.rows * 4));  // sqrt(16)
  EXPECT_EQ(slots.narrow(1, 24, 40).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace hrm::models
