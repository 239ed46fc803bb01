// The estimate of `plan`: what it must count, and how it follows the shapes.
#include <gtest/gtest.h>

#include <algorithm>

#include "commands/plan/plan.h"
#include "commands/plan_cases.h"
#include "hrm/base/error.h"
#include "support/expect_error.h"

namespace hrm::commands {
namespace {

using testing::gpu;
using testing::item;

PlanInput sudoku(int64_t batch) {
  PlanInput in;
  in.config.model.arch = config::PuzzleArch::hrm;
  in.config.train.global_batch_size = batch;
  in.model = std::make_shared<tasks::PuzzlePlan>(
      config::PuzzleArch::hrm,
      models::PuzzleModelDims{.seq_len = 81, .vocab_size = 11, .puzzle_emb_ndim = 512, .puzzle_emb_len = 1});
  in.parameters = 27'275'266;
  in.copied_parameters = 27'269'634;
  in.gpu = gpu("H200");
  return in;
}

TEST(Plan, PartsAddUp) {
  const Plan plan = make_plan(sudoku(384));
  double bytes = 0, ms = 0;
  for (const PlanItem& i : plan.memory) bytes += i.value;
  for (const PlanItem& i : plan.time) ms += i.value;
  EXPECT_DOUBLE_EQ(bytes, plan.tensors_peak);
  EXPECT_DOUBLE_EQ(ms, plan.step_ms);
  EXPECT_GT(plan.reserved, plan.tensors_peak);
  EXPECT_GT(plan.device_used, plan.reserved);
  EXPECT_FALSE(plan.assumptions.empty());
}

// A step on average over the stages of the curriculum, which have a third, two thirds and all of the cycles.
TEST(Plan, DepthCurriculum) {
  config::Config config;
  config.model.arch = config::PuzzleArch::trm;
  config.model.H_layers = 0;
  config.model.H_cycles = 3;
  config.model.L_cycles = 6;
  config.model.no_ACT_continue = true;
  config.train.global_batch_size = 384;
  const auto plan_of = [&](int64_t H_cycles, int64_t L_cycles, bool curriculum) {
    config::Config depth = config;
    depth.model.H_cycles = H_cycles;
    depth.model.L_cycles = L_cycles;
    depth.model.gradient_cycles = H_cycles > 1 ? 2 : 1;
    depth.model.depth_curriculum = curriculum;
    const PlanInput in = testing::make_plan_input(depth, testing::dims_of(sudoku(384)), gpu("H200"));
    return std::pair{make_plan(in), in.flops_per_sample};
  };
  const auto [mean, mean_flops] = plan_of(3, 6, true);
  const auto [first, first_flops] = plan_of(1, 2, false);
  const auto [second, second_flops] = plan_of(2, 4, false);
  const auto [third, third_flops] = plan_of(3, 6, false);
  EXPECT_NEAR(mean.step_ms, 0.3 * first.step_ms + 0.3 * second.step_ms + 0.4 * third.step_ms, 1e-9 * mean.step_ms);
  EXPECT_NEAR(mean_flops, 0.3 * first_flops + 0.3 * second_flops + 0.4 * third_flops, 1e-9 * mean_flops);
  EXPECT_LT(mean.step_ms, 0.8 * third.step_ms);
  EXPECT_DOUBLE_EQ(mean.tensors_peak, third.tensors_peak);
  EXPECT_NE(mean.time.front().note.find("on average"), std::string::npos) << mean.time.front().note;
}

TEST(Plan, Fp8Recursions) {
  config::Config config;
  config.precision.recursions = config::RecursionPrecision::fp8;
  const PlanInput in = testing::make_plan_input(config, testing::dims_of(sudoku(384)), gpu("H200"));
  // Two modules of four blocks: 4 * 512^2 of attention, 3 * 512 * 1536 of the MLP.
  EXPECT_EQ(in.fp8_parameters, 8 * (4 * 512 * 512 + 3 * 512 * 1536));
  PlanInput plain = in;
  plain.config.precision.recursions = config::RecursionPrecision::same;
  const Plan with = make_plan(in), without = make_plan(plain);
  EXPECT_EQ(item(with.memory, "e4m3 copies"), static_cast<double>(in.fp8_parameters));
  EXPECT_EQ(item(without.memory, "e4m3 copies"), 0);
  EXPECT_LT(with.step_ms, without.step_ms);
  // The recursions need less; the peak of the step is that of the backward pass.
  EXPECT_NEAR(with.tensors_peak, without.tensors_peak + static_cast<double>(in.fp8_parameters),
              0.02 * without.tensors_peak);
  for (const char* arch : {"hrm", "trm"}) {
    for (const bool mlp : {false, true}) {
      PlanInput other = in;
      other.config.model.arch = config::value_of_name<config::PuzzleArch>(arch);
      other.config.model.mlp_t = mlp;
      const double fp8 = make_plan(other).tensors_peak;
      other.config.precision.recursions = config::RecursionPrecision::same;
      EXPECT_NEAR(fp8, make_plan(other).tensors_peak, 0.1 * fp8) << arch << mlp;
    }
  }
}

// Elsewhere than on Hopper products in 8 bits are followed by a norm, a gate and a quantisation of their own.
TEST(Plan, Fp8WithoutOurKernels) {
  PlanInput in = sudoku(384);
  in.gpu = gpu("L40S");
  const Plan plain = make_plan(in);
  in.config.precision.recursions = config::RecursionPrecision::fp8;
  const Plan fp8 = make_plan(in);
  EXPECT_LT(item(fp8.time, "matrix products"), item(plain.time, "matrix products"));
  EXPECT_GT(item(fp8.time, "norms, gates"), item(plain.time, "norms, gates"));
  in.gpu.capability = 90;
  const Plan fused = make_plan(in);
  EXPECT_LT(item(fused.time, "norms, gates"), 0.5 * item(plain.time, "norms, gates"));
  in.config.precision.recursions = config::RecursionPrecision::same;
  EXPECT_EQ(item(make_plan(in).time, "norms, gates"), item(fused.time, "norms, gates"));
}

// The pass for the Q target is where the recursions matter: gate_up, the activation in 16 bits and that in 8 beside
// everything that the backward pass needs.
TEST(Plan, Fp8WithoutOurKernelsAtThePeak) {
  PlanInput in = sudoku(384);
  in.gpu = gpu("L4");
  const Plan plain = make_plan(in);
  in.config.precision.recursions = config::RecursionPrecision::fp8;
  const Plan fp8 = make_plan(in);
  EXPECT_EQ(fp8.peak_moment, "forward pass for the Q target");
  const double unit = 384.0 * 82 * 512 * 2;
  // Embedding, two states, injection, input and first half, the latter two in e4m3, too; gate_up 6, act 3 + 1.5.
  EXPECT_NEAR(item(fp8.memory, "temporaries") / unit, 1 + 2 + 1 + 1.5 + 1.5 + 6 + 3 + 1.5, 0.1);
  EXPECT_GT(fp8.tensors_peak, plain.tensors_peak);
  PlanInput hopper = in;
  hopper.gpu = gpu("H200");
  EXPECT_LT(make_plan(hopper).tensors_peak, fp8.tensors_peak);
}

TEST(Plan, Fp8OfALongSequence) {
  PlanInput in = sudoku(64);
  in.config.precision.recursions = config::RecursionPrecision::fp8;
  in.config.ops.attention = config::AttentionChoice::sdpa;
  const double sdpa = make_plan(in).tensors_peak;
  in.config.ops.attention = config::AttentionChoice::automatic;
  EXPECT_GT(sdpa, make_plan(in).tensors_peak);
}

TEST(Plan, Fp8OnAGpuThatHasNone) {
  PlanInput in = sudoku(384);
  in.config.precision.recursions = config::RecursionPrecision::fp8;
  for (const char* name : {"A100", "A10G"}) {
    in.gpu = gpu(name);
    test::expect_error(ExitCode::usage, {"precision.recursions is 'fp8'", name, "compute capability 8.", "'same'"},
                       [&] { make_plan(in); });
  }
}

// Widths that our norm in a product does not take: the product is held beside the result.
TEST(Plan, OtherWidths) {
  PlanInput in = sudoku(384);
  in.config.model.hidden_size = 384;
  in.config.model.num_heads = 6;
  const double unit = 384.0 * 82 * 384 * 2;
  PlanInput plain = in;
  in.config.precision.recursions = config::RecursionPrecision::fp8;
  EXPECT_GT(make_plan(plain).tensors_peak, 98 * unit);
  EXPECT_NEAR(make_plan(in).tensors_peak, make_plan(plain).tensors_peak, 4 * unit);
}

TEST(Plan, StateOfTheWeights) {
  PlanInput in = sudoku(384);
  const auto n = static_cast<double>(in.parameters);
  Plan plan = make_plan(in);
  EXPECT_EQ(item(plan.memory, "weights"), 4 * n);
  EXPECT_EQ(item(plan.memory, "gradients"), 4 * n);
  EXPECT_EQ(item(plan.memory, "optimizer"), 8 * n);
  EXPECT_EQ(item(plan.memory, "compute copies"), 2.0 * static_cast<double>(in.copied_parameters));
  EXPECT_EQ(item(plan.memory, "moving average"), 0);
  in.config.optim.ema = 0.999;
  in.config.precision.compute = config::ComputePrecision::fp32;
  plan = make_plan(in);
  EXPECT_EQ(item(plan.memory, "moving average"), 4 * n);
  EXPECT_EQ(item(plan.memory, "compute copies"), 0);
}

TEST(Plan, StateOfOtherOptimizers) {
  PlanInput in = sudoku(384);
  const auto n = static_cast<double>(in.parameters);
  in.config.optim.name = config::OptimizerKind::lion;
  EXPECT_EQ(item(make_plan(in).memory, "optimizer"), 4 * n);
  EXPECT_EQ(item(make_plan(in).memory, "optimizer's buffers"), 0);

  in.config.optim.name = config::OptimizerKind::muon;
  const PlanInput muon = testing::make_plan_input(in.config, testing::dims_of(in), in.gpu);
  ASSERT_EQ(muon.muon_matrices.size(), 8u * 4) << "the products of eight blocks; heads and embeddings are AdamW's";
  double matrices = 0;
  for (const auto& [rows, columns] : muon.muon_matrices) matrices += static_cast<double>(rows * columns);
  const Plan plan = make_plan(muon);
  EXPECT_EQ(item(plan.memory, "optimizer"), 4 * matrices + 8 * (n - matrices));
  // The largest stack holds all gate_up weights; bf16: one buffer in fp32, two in bf16, and two of squares.
  EXPECT_EQ(item(plan.memory, "optimizer's buffers"), 8.0 * 8 * 3072 * 512 + 4.0 * 8 * 512 * 512);
  EXPECT_GT(item(plan.time, "Muon's products"), 0);
  PlanInput exact = muon;
  exact.config.optim.muon_precision = config::MuonPrecision::fp32;
  EXPECT_GT(item(make_plan(exact).time, "Muon's products"), 8 * item(plan.time, "Muon's products"));

  in.config.optim.groups = "*mlp*=0:1:adamw";
  EXPECT_EQ(testing::make_plan_input(in.config, testing::dims_of(in), in.gpu).muon_matrices.size(), 8u * 2);
}

// Eight recorded blocks keep 15 times (B, L, D) each: qkv 3, mixed 1, first half's output 1, gate_up 6, activation 3,
// output 1; and the two modules their input sums.
TEST(Plan, ActivationsKeptOfHrm) {
  const Plan plan = make_plan(sudoku(384));
  const double unit = 384.0 * 82 * 512 * 2, rows = 384.0 * 82;
  const double small = 8 * (2 * rows * 4 + rows * 8 * 4);  // norms and softmax sums, fp32
  EXPECT_NEAR(item(plan.memory, "activations kept"), (8 * 15 + 2) * unit + small, 1);
}

TEST(Plan, MoreSamplesMoreActivations) {
  const Plan one = make_plan(sudoku(384)), two = make_plan(sudoku(768));
  EXPECT_DOUBLE_EQ(item(two.memory, "activations kept"), 2 * item(one.memory, "activations kept"));
  EXPECT_EQ(item(two.memory, "weights"), item(one.memory, "weights"));
  EXPECT_GT(two.step_ms, 1.8 * one.step_ms);
  EXPECT_LT(two.step_ms, 2 * one.step_ms);
}

// Parts of a batch share the state of the weights and keep the carry of all slots.
TEST(Plan, MicroBatches) {
  PlanInput in = sudoku(384);
  const Plan whole = make_plan(in);
  in.config.train.micro_batch_size = 96;
  const Plan parts = make_plan(in);
  EXPECT_DOUBLE_EQ(item(parts.memory, "activations kept"), item(whole.memory, "activations kept") / 4);
  EXPECT_EQ(item(parts.memory, "carry"), item(whole.memory, "carry"));
}

TEST(Plan, WithoutTheSecondForwardPass) {
  PlanInput in = sudoku(384);
  const Plan with = make_plan(in);
  in.config.model.no_ACT_continue = true;
  const Plan without = make_plan(in);
  EXPECT_LT(item(without.time, "matrix products"), 0.75 * item(with.time, "matrix products"));
  EXPECT_LE(without.tensors_peak, with.tensors_peak);
}

// TRM records a whole cycle of seven passes through its two blocks.
TEST(Plan, Trm) {
  PlanInput in = sudoku(768);
  in.config.model.arch = config::PuzzleArch::trm;
  in.config.model.H_layers = 0;
  in.config.model.L_layers = 2;
  in.config.model.H_cycles = 3;
  in.config.model.L_cycles = 6;
  in.config.model.no_ACT_continue = true;
  models::PuzzleModelDims dims = testing::dims_of(in);
  dims.puzzle_emb_len = 16;
  in.model = std::make_shared<tasks::PuzzlePlan>(config::PuzzleArch::trm, dims);
  const double unit = 768.0 * 97 * 512 * 2;
  const double kept = item(make_plan(in).memory, "activations kept");
  EXPECT_NEAR(kept / unit, 7 * (1 + 2 * 15), 2);
  in.config.model.mlp_t = true;
  EXPECT_NEAR(item(make_plan(in).memory, "activations kept") / unit, 7 * (1 + 2 * 11), 2);
}

// URM records a cycle of six passes through its four blocks, and makes six more before it. Its gate is no part of a
// product, so that gate_up is written in both.
TEST(Plan, Urm) {
  PlanInput in = sudoku(384);
  in.config.model.arch = config::PuzzleArch::urm;
  in.config.model.H_layers = 0;
  in.config.model.H_cycles = 2;
  in.config.model.L_cycles = 6;
  in.config.model.no_ACT_continue = true;
  in.model = std::make_shared<tasks::PuzzlePlan>(config::PuzzleArch::urm, testing::dims_of(in));
  const Plan plan = make_plan(in);
  const double unit = 384.0 * 82 * 512 * 2;
  EXPECT_NEAR(item(plan.memory, "activations kept") / unit, 6 * (1 + 4 * 15), 2);
  EXPECT_EQ(plan.peak_moment, "backward pass");
  const tasks::BlockPasses passes = tasks::block_passes(in.config.model, /*second_forward=*/false);
  EXPECT_EQ(passes.plain, 24);
  EXPECT_EQ(passes.recorded, 24);

  // One H cycle differentiates all of the same passes.
  PlanInput whole = in;
  whole.config.model.H_cycles = 1;
  whole.config.model.L_cycles = 12;
  EXPECT_NEAR(item(make_plan(whole).memory, "activations kept") / unit, 12 * (1 + 4 * 15), 2);
  EXPECT_EQ(tasks::block_passes(whole.config.model, false).plain, 0);

  // The target of Q learning is one more segment.
  PlanInput target = in;
  target.config.model.no_ACT_continue = false;
  EXPECT_EQ(tasks::block_passes(target.config.model, true).plain, 24 + 48);
  EXPECT_GT(make_plan(target).step_ms, plan.step_ms);
  EXPECT_GE(make_plan(target).tensors_peak, plan.tensors_peak);

  const auto outline = in.model->outline(in.config);
  EXPECT_TRUE(outline.model->named_parameters().contains("layers.3.mlp.dwconv.weight"));
}

// The updates of a segment of TRM, L_cycles + 1 in each H cycle, and of URM, L_cycles.
TEST(Plan, GradientCycles) {
  const auto planned = [](config::PuzzleArch arch, int64_t gradient_cycles, bool every, bool recompute) {
    PlanInput in = sudoku(384);
    config::ModelConfig& m = in.config.model;
    m.arch = arch;
    m.H_layers = 0;
    m.L_layers = 2;
    m.H_cycles = 3;
    m.L_cycles = 6;
    m.no_ACT_continue = true;
    m.gradient_cycles = gradient_cycles;
    m.loss_every_cycle = every;
    m.recompute = recompute;
    in.model = std::make_shared<tasks::PuzzlePlan>(arch, testing::dims_of(in));
    return std::pair{make_plan(in), tasks::block_passes(m, /*second_forward=*/false)};
  };
  const double unit = 384.0 * 82 * 512 * 2, logits = 384.0 * 82 * 11 * 2;
  for (const config::PuzzleArch arch : {config::PuzzleArch::trm, config::PuzzleArch::urm}) {
    const double updates = arch == config::PuzzleArch::trm ? 7 : 6;  // of a cycle
    const double one_update = 1 + 2 * 15;                            // what it keeps
    for (const int64_t cycles : {1, 2, 3}) {
      const auto [plan, passes] = planned(arch, cycles, false, false);
      const auto recorded = static_cast<double>(cycles) * updates;
      EXPECT_EQ(passes.recorded, 2 * recorded);
      EXPECT_EQ(passes.plain, 2 * (3 * updates - recorded));
      EXPECT_EQ(passes.again, 0);
      EXPECT_NEAR(item(plan.memory, "activations kept") / unit, recorded * one_update, 3);

      const auto [again, passes_again] = planned(arch, cycles, false, true);
      EXPECT_EQ(passes_again.again, 2 * recorded);
      EXPECT_EQ(passes_again.recorded, passes.recorded);
      // The states, the injections, and one update in its backward pass.
      const double kept = recorded + static_cast<double>(cycles) + one_update;
      EXPECT_NEAR(item(again.memory, "activations kept") / unit, kept, 4);
      EXPECT_LT(again.tensors_peak, plan.tensors_peak);
      EXPECT_GT(again.step_ms, plan.step_ms);
      EXPECT_GT(again.backward_ms, plan.backward_ms);

      if (cycles == 1) continue;
      const Plan every = planned(arch, cycles, true, true).first;
      EXPECT_NEAR(every.tensors_peak - again.tensors_peak, 2 * static_cast<double>(cycles - 1) * logits, 0.1 * logits);
    }
  }
}

// The last update of each state.
TEST(Plan, RecomputeOfTheOneStepGradient) {
  PlanInput in = sudoku(384);
  const Plan kept = make_plan(in);
  in.config.model.recompute = true;
  const Plan again = make_plan(in);
  EXPECT_LT(again.tensors_peak, 0.8 * kept.tensors_peak);
  EXPECT_GT(again.step_ms, kept.step_ms);
  EXPECT_EQ(tasks::block_passes(in.config.model, false).again, tasks::block_passes(in.config.model, false).recorded);
}

TEST(Plan, WhatFits) {
  PlanInput in = sudoku(768);
  in.gpu = gpu("L4");
  const Plan fits = make_plan(in);
  EXPECT_EQ(fits.fitting_micro_batch, 768);
  in.config.train.global_batch_size = 16 * 768;
  const Plan large = make_plan(in);
  EXPECT_GT(large.device_used, in.gpu.memory_bytes);
  EXPECT_GT(large.fitting_micro_batch, 0);
  EXPECT_LT(large.fitting_micro_batch, 16 * 768);
  EXPECT_EQ(16 * 768 % large.fitting_micro_batch, 0);
  in.config.train.micro_batch_size = large.fitting_micro_batch;
  EXPECT_LE(make_plan(in).device_used, in.gpu.memory_bytes);
}

// Kernels in the epilogues of products need a Hopper GPU; elsewhere more is written.
TEST(Plan, OtherGpus) {
  PlanInput in = sudoku(384);
  const Plan hopper = make_plan(in);
  in.gpu = gpu("A100");
  const Plan other = make_plan(in);
  EXPECT_GE(other.tensors_peak, hopper.tensors_peak);
  EXPECT_GT(other.step_ms, 2 * hopper.step_ms);
}

}  // namespace
}  // namespace hrm::commands
