// A training segment inside a captured graph does what it does eagerly.

#include "hrm/objectives/act.h"
#include "ops/gpu_testing.h"

namespace hrm::objectives {
namespace {

using ops::testing::expect_same_bits;

constexpr int64_t kSlots = 6, kGpuSeq = 9;

// One model, its slots and its data. `step` is what a task captures: begin, segment, backward.
struct Side {
  explicit Side(const std::string& arch, at::ScalarType compute_dtype = at::kBFloat16) {
    config::ModelConfig c;
    c.arch = config::value_of_name<config::PuzzleArch>(arch);
    c.hidden_size = 32;
    c.num_heads = 2;
    c.L_layers = 1;
    c.H_layers = arch == "hrm" ? 1 : 0;
    c.halt_max_steps = 3;
    data::PuzzleMeta meta;
    meta.vocab_size = 7;
    meta.seq_len = kGpuSeq;
    meta.num_puzzle_identifiers = 40;
    model = models::make_puzzle_model(c, models::resolve_dims(c, meta), 0, at::kCUDA, compute_dtype);
    state = make_act_state(*model, kSlots);
    leaf = make_puzzle_rows(*model, kSlots);
    leaf.mutable_grad() = at::zeros_like(leaf);
    const at::Tensor ids = at::arange(40, at::kInt);
    const at::Tensor tokens = (ids.unsqueeze(1) + at::arange(kGpuSeq, at::kInt)).remainder(7).to(at::kCUDA);
    pool = {.inputs = tokens, .labels = tokens.clone(), .puzzle_identifiers = ids.to(at::kCUDA), .valid_rows = 40};
    cursor = at::zeros({}, at::device(at::kCUDA).dtype(at::kLong));
    draws = {at::linspace(0, 0.9, kSlots).to(at::kCUDA), at::full({kSlots}, 2, at::device(at::kCUDA).dtype(at::kInt))};
    metrics = at::zeros({static_cast<int64_t>(act_metric_names().size())}, at::device(at::kCUDA).dtype(at::kDouble));
  }

  void step() {
    model->parameter_set().zero_grad();
    leaf.mutable_grad().zero_();
    act_begin_from_pool(state, pool, cursor, model->H_init(), model->L_init());
    const TrainSegment segment = act_train_segment(*model, state, leaf, draws, {});
    (segment.loss.loss / static_cast<double>(kSlots)).backward();
    metrics.copy_(segment.loss.metrics);
  }

  std::shared_ptr<models::PuzzleModel> model;
  ActState state;
  at::Tensor leaf, cursor, metrics;
  data::PuzzleBatch pool;
  HaltDraws draws;
};

TEST(ActGpu, CapturedSegment) {
  HRM_NEEDS_GPU();
  for (const char* arch : {"hrm", "trm"}) {
    Side eager(arch), captured(arch);
    for (int i = 0; i < 7; ++i) eager.step();
    ops::testing::Captured graph([&] { captured.step(); });  // runs three steps
    for (int i = 0; i < 4; ++i) graph.replay();
    EXPECT_GT(eager.cursor.item<int64_t>(), kSlots) << "nothing halted";
    EXPECT_EQ(eager.cursor.item<int64_t>(), captured.cursor.item<int64_t>()) << arch;
    expect_same_bits(captured.state.halted, eager.state.halted, cat(arch, " halted"));
    expect_same_bits(captured.state.inputs, eager.state.inputs, cat(arch, " inputs"));
    expect_same_bits(captured.state.steps, eager.state.steps, cat(arch, " steps"));
    expect_same_bits(captured.state.carry.z_H, eager.state.carry.z_H, cat(arch, " z_H"));
    EXPECT_TRUE(at::allclose(eager.metrics, captured.metrics, 1e-6)) << arch << "\n"
                                                                     << eager.metrics << captured.metrics;
    // The attention's backward pass may sum in another order from run to run.
    const at::Tensor want = eager.model->parameter_set().flat_grad(), got = captured.model->parameter_set().flat_grad();
    EXPECT_LE((got - want).norm().item<double>(), 2e-2 * want.norm().item<double>()) << arch;
    EXPECT_GT(want.norm().item<double>(), 0);
  }
}

// The kernels beside plain ATen, in float32, where no rounding decides who halts: the same slots take the same rows.
TEST(ActGpu, FusedEqualsReference) {
  HRM_NEEDS_GPU();
  const ops::testing::WithoutTf32 full_products;
  for (const char* arch : {"hrm", "trm"}) {
    Side fused(arch, at::kFloat), reference(arch, at::kFloat);
    // Q values around 0 that differ between puzzles, so that slots halt at different times.
    for (Side* side : {&fused, &reference}) {
      const at::NoGradGuard no_grad;
      side->model->puzzle_embedding().copy_(
          ops::testing::normal(side->model->puzzle_embedding().sizes(), 8, at::kFloat));
      side->model->named_parameters()["q_head.bias"].zero_();
      at::Tensor weight = side->model->named_parameters()["q_head.weight"];
      weight.copy_(ops::testing::normal(weight.sizes(), 9, at::kFloat));
    }
    bool some_halted = false, some_went_on = false;
    for (int step = 0; step < 8; ++step) {
      fused.step();
      {
        const ops::testing::WithReference with_reference;
        reference.step();
      }
      const auto what = std::string(arch) + " step " + std::to_string(step);
      expect_same_bits(fused.state.halted, reference.state.halted, what + " halted");
      expect_same_bits(fused.state.steps, reference.state.steps, what + " steps");
      expect_same_bits(fused.state.inputs, reference.state.inputs, what + " inputs");
      expect_same_bits(fused.state.labels, reference.state.labels, what + " labels");
      expect_same_bits(fused.state.puzzle_identifiers, reference.state.puzzle_identifiers,
                       what + " puzzle_identifiers");
      EXPECT_EQ(fused.cursor.item<int64_t>(), reference.cursor.item<int64_t>()) << what;
      EXPECT_TRUE(at::allclose(fused.state.carry.z_H, reference.state.carry.z_H, 1e-4, 1e-4))
          << what << ", z_H: " << ops::testing::describe_differences(fused.state.carry.z_H, reference.state.carry.z_H);
      EXPECT_TRUE(at::allclose(fused.metrics, reference.metrics, 1e-4, 1e-5))
          << what << ", metrics: " << ops::testing::describe_differences(fused.metrics, reference.metrics);
      const at::Tensor want = reference.model->parameter_set().flat_grad(),
                       got = fused.model->parameter_set().flat_grad();
      EXPECT_LE((got - want).norm().item<double>(), 1e-4 * want.norm().item<double>()) << what;
      EXPECT_LE((fused.leaf.grad() - reference.leaf.grad()).norm().item<double>(),
                1e-4 * reference.leaf.grad().norm().item<double>())
          << what;
      const int64_t halted = fused.state.halted.sum().item<int64_t>();
      some_halted |= halted > 0 && step < 2;  // earlier than halt_max_steps
      some_went_on |= halted < kSlots;
    }
    EXPECT_TRUE(some_halted && some_went_on) << arch;
  }
}

}  // namespace
}  // namespace hrm::objectives
