// model.gradient_cycles, model.loss_every_cycle and model.recompute: what is differentiated, and what is kept for it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/models/puzzle_network.h"
#include "hrm/ops/damped_update.h"
#include "support/expect_error.h"

namespace hrm::models {
namespace {

using config::PuzzleArch;

config::ModelConfig small_cycles(PuzzleArch arch) {
  config::ModelConfig c{.arch = arch, .hidden_size = 16, .num_heads = 2};
  c.L_layers = 2;
  c.H_layers = c.facts().h_module ? 2 : 0;
  c.H_cycles = 3;
  c.L_cycles = 2;
  c.no_ACT_continue = true;
  return c;
}

config::ModelConfig settling_cycles(PuzzleArch arch) {
  config::ModelConfig c = small_cycles(arch);
  c.damping = 0.25;
  c.path_noise = 0.5;
  return c;
}

std::shared_ptr<PuzzleModel> build_cycles(const config::ModelConfig& c, at::ScalarType type = at::kFloat) {
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = 9;
  const auto model = make_puzzle_model(c, resolve_dims(c, meta), 0, at::kCPU, type);
  // At the start Q values do not depend on the state.
  const at::NoGradGuard no_grad;
  at::Tensor weight = model->named_parameters()["q_head.weight"];
  weight.copy_(at::linspace(-1, 1, weight.numel()).view(weight.sizes()));
  model->parameter_set().refresh_compute();
  return model;
}

struct CycleInputs {
  Carry carry;
  at::Tensor tokens, rows;
  SegmentDraws draws;
};

// The same for all models of these sizes.
CycleInputs cycle_inputs(PuzzleModel& model) {
  at::manual_seed(3);
  const int64_t B = 3, S = model.dims().seq_len, L = model.dims().puzzle_emb_len + S;
  const at::ScalarType type = model.parameter_set().compute_dtype();
  const auto state = [&] { return at::randn({B, L, model.config().hidden_size}).to(type); };
  CycleInputs in;
  in.carry = {state(), state()};
  in.tokens = at::randint(0, 11, {B, S}, at::kInt);
  in.rows = at::randn({B, model.dims().puzzle_emb_ndim}).requires_grad_();
  in.draws = model.draws_of_segment(at::tensor({5, 6, 1 << 20}, at::kLong), at::full({}, 3, at::kLong), /*seed=*/9);
  return in;
}

at::Tensor cycle_loss(const at::Tensor& position_logits, const at::Tensor& q) {
  return position_logits.to(at::kFloat).narrow(1, 1, 9).square().sum() + q.square().sum();
}

struct CycleResult {
  at::Tensor logits, q, z_H, z_L, gradient, rows_gradient;
};

void expect_equal_cycles(const CycleResult& a, const CycleResult& b, const std::string& what) {
  for (const auto member : {&CycleResult::logits, &CycleResult::q, &CycleResult::z_H, &CycleResult::z_L,
                            &CycleResult::gradient, &CycleResult::rows_gradient}) {
    EXPECT_TRUE(at::equal(a.*member, b.*member)) << what;
  }
}

// A segment and its backward pass, between which the carry is overwritten, as act_end does.
CycleResult run_cycles(PuzzleModel& model) {
  const CycleInputs in = cycle_inputs(model);
  const SegmentOutput out = model.segment(in.carry, in.tokens, in.rows, in.draws);
  const Carry next{out.carry.z_H.clone(), out.carry.z_L.clone()};
  at::Tensor loss = cycle_loss(out.position_logits, out.q);
  for (const ReadOut& read : out.earlier) loss = loss + cycle_loss(read.position_logits, read.q);
  in.carry.z_H.fill_(7);
  in.carry.z_L.fill_(7);
  (loss / static_cast<double>(out.earlier.size() + 1)).backward();
  return {out.logits.detach(), out.q.detach(), next.z_H, next.z_L, model.parameter_set().flat_grad().clone(),
          in.rows.grad()};
}

// The same put together from the modules, with autograd through all but the first cycles.
CycleResult cycles_by_hand(PuzzleModel& model, int64_t gradient_cycles, bool every) {
  const config::ModelConfig& c = model.config();
  const CycleInputs in = cycle_inputs(model);
  const auto level = std::dynamic_pointer_cast<nn::ReasoningModule>(
      model.named_modules()[c.arch == PuzzleArch::urm ? "layers" : "L_level"]);
  auto parameters = model.named_parameters();
  at::Tensor z_H = in.carry.z_H, z_L = in.carry.z_L, loss, logits, q;
  const at::Tensor x = dynamic_cast<PuzzleNetwork&>(model).embed_inputs(in.tokens, in.rows);
  int64_t number = 0;
  const auto move = [&](const at::Tensor& z, const at::Tensor& injection) {
    at::Tensor next = z + injection;
    for (const auto& block : level->layers()) next = block->forward(next);
    if (c.damping == 0) return next;
    const at::Tensor zero = at::zeros_like(z).detach();
    return next * (1 - c.damping) + z * c.damping +
           ops::damped_update(zero, zero, in.draws.first, number++, 0, c.path_noise, 9);
  };
  for (int64_t h = 0; h < c.H_cycles; ++h) {
    const bool recorded = h >= c.H_cycles - gradient_cycles;
    const at::AutoGradMode mode(recorded);
    if (c.arch == PuzzleArch::urm) {
      for (int64_t l = 0; l < c.L_cycles; ++l) z_H = move(z_H, x);
    } else {
      const at::Tensor injection = z_H + x;
      for (int64_t l = 0; l < c.L_cycles; ++l) z_L = move(z_L, injection);
      z_H = move(z_H, z_L);
    }
    if (!recorded || (!every && h + 1 < c.H_cycles)) continue;
    logits = at::linear(z_H, parameters["lm_head.weight"]);
    q = at::linear(z_H.select(1, 0), parameters["q_head.weight"], parameters["q_head.bias"]);
    const at::Tensor own = cycle_loss(logits, q);
    loss = loss.defined() ? loss + own : own;
  }
  (loss / static_cast<double>(every ? gradient_cycles : 1)).backward();
  return {logits.detach().narrow(1, 1, 9),           q.detach(),    z_H.detach(), z_L.detach(),
          model.parameter_set().flat_grad().clone(), in.rows.grad()};
}

TEST(GradientCycles, AreThoseOfAWrittenOutSegment) {
  for (const PuzzleArch arch : {PuzzleArch::trm, PuzzleArch::urm}) {
    for (const bool settles : {false, true}) {
      config::ModelConfig c = settles ? settling_cycles(arch) : small_cycles(arch);
      at::Tensor fewer;
      for (c.gradient_cycles = 1; c.gradient_cycles <= c.H_cycles; ++c.gradient_cycles) {
        for (const bool every : {false, true}) {
          const std::string what = cat(config::name_of(arch), settles ? ", settling, " : ", ", c.gradient_cycles,
                                       every ? " cycles, a loss for each" : " cycles");
          c.loss_every_cycle = every;
          const CycleResult got = run_cycles(*build_cycles(c)),
                            want = cycles_by_hand(*build_cycles(c), c.gradient_cycles, every);
          for (const auto member : {&CycleResult::logits, &CycleResult::q, &CycleResult::z_H, &CycleResult::z_L,
                                    &CycleResult::gradient, &CycleResult::rows_gradient}) {
            const double scale = (want.*member).abs().max().item<double>();
            EXPECT_LT((got.*member - want.*member).abs().max().item<double>(), 2e-4 * scale) << what;
          }
          if (every) continue;
          EXPECT_FALSE(fewer.defined() && at::allclose(got.gradient, fewer, 1e-2, 1e-4)) << what;
          fewer = got.gradient;
        }
      }
    }
  }
}

// Up to rounding: a recorded block saves what a plain one need not compute.
TEST(GradientCycles, TheForwardPassIsTheSame) {
  for (const PuzzleArch arch : {PuzzleArch::trm, PuzzleArch::urm}) {
    config::ModelConfig c = settling_cycles(arch);
    const CycleResult one = run_cycles(*build_cycles(c));
    const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
      EXPECT_TRUE(at::allclose(a, b, 1e-4, 1e-5)) << config::name_of(arch);
    };
    for (const int64_t cycles : {2, 3}) {
      c.gradient_cycles = cycles;
      c.loss_every_cycle = cycles == 3;
      const auto model = build_cycles(c);
      const CycleResult more = run_cycles(*model);
      for (const auto member : {&CycleResult::logits, &CycleResult::q, &CycleResult::z_H, &CycleResult::z_L}) {
        same(more.*member, one.*member);
      }
      const at::NoGradGuard no_grad;
      const CycleInputs in = cycle_inputs(*model);
      const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows, in.draws);
      same(out.logits, one.logits);
      EXPECT_TRUE(out.earlier.empty()) << "read in training alone";
    }
  }
}

// What a read-out after a cycle reads is what a segment of so many cycles ends with.
TEST(GradientCycles, EarlierReadOuts) {
  for (const PuzzleArch arch : {PuzzleArch::trm, PuzzleArch::urm}) {
    config::ModelConfig c = small_cycles(arch);
    c.gradient_cycles = 2;
    c.loss_every_cycle = true;
    const auto model = build_cycles(c);
    const CycleInputs in = cycle_inputs(*model);
    const SegmentOutput out = model->segment(in.carry, in.tokens, in.rows);
    ASSERT_EQ(out.earlier.size(), 1U);
    model->set_cycles(2, c.L_cycles);
    const SegmentOutput shorter = model->segment(in.carry, in.tokens, in.rows);
    EXPECT_TRUE(at::allclose(out.earlier[0].position_logits, shorter.position_logits, 1e-4, 1e-5));
    EXPECT_TRUE(at::allclose(out.earlier[0].q, shorter.q, 1e-4, 1e-5));
    EXPECT_FALSE(at::allclose(out.position_logits, shorter.position_logits, 1e-2, 1e-3));
  }
}

// As in the first stages of model.depth_curriculum.
TEST(GradientCycles, AreAtMostTheCyclesThatThereAre) {
  for (const PuzzleArch arch : {PuzzleArch::trm, PuzzleArch::urm}) {
    config::ModelConfig c = small_cycles(arch);
    c.gradient_cycles = 3;
    c.loss_every_cycle = true;
    const auto cut = build_cycles(c);
    EXPECT_EQ(cut->gradient_cycles(), 3);
    for (const int64_t cycles : {1, 2}) {
      cut->set_cycles(cycles, 1);
      EXPECT_EQ(cut->gradient_cycles(), cycles);
      c.H_cycles = c.gradient_cycles = cycles;
      c.L_cycles = 1;
      const auto whole = build_cycles(c);
      cut->parameter_set().zero_grad();
      expect_equal_cycles(run_cycles(*cut), run_cycles(*whole), config::name_of(arch));
      EXPECT_DOUBLE_EQ(cut->flops_per_sample_step(), whole->flops_per_sample_step());
    }
  }
}

// Bit for bit, and after other numbers stand in the carry.
TEST(Recompute, ChangesNothing) {
  for (const PuzzleArch arch : {PuzzleArch::hrm, PuzzleArch::trm, PuzzleArch::urm}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const config::ModelConfig& start : {small_cycles(arch), settling_cycles(arch)}) {
        for (const int64_t cycles : {1, 2, 3}) {
          if (cycles > 1 && start.facts().one_step_gradient) continue;
          for (const int64_t H_cycles : {cycles, int64_t{3}}) {
            config::ModelConfig c = start;
            c.H_cycles = H_cycles;
            if (H_cycles == 1) c.L_cycles = 1;
            c.gradient_cycles = cycles;
            c.loss_every_cycle = cycles == 2;
            const CycleResult kept = run_cycles(*build_cycles(c, type));
            c.recompute = true;
            expect_equal_cycles(
                kept, run_cycles(*build_cycles(c, type)),
                cat(config::name_of(arch), " ", type, ", damping ", c.damping, ", ", cycles, " of ", H_cycles));
          }
        }
      }
    }
  }
}

TEST(GradientCycles, Flops) {
  for (const PuzzleArch arch : {PuzzleArch::trm, PuzzleArch::urm}) {
    config::ModelConfig c = small_cycles(arch);
    const auto step = [](const config::ModelConfig& of) { return build_cycles(of)->flops_per_sample_step(); };
    const double segment = build_cycles(c)->flops_per_sample_segment(), one = step(c);
    c.gradient_cycles = 2;
    const double two = step(c);
    c.gradient_cycles = 3;
    const double all = step(c);
    EXPECT_DOUBLE_EQ(all, 3 * segment);
    EXPECT_DOUBLE_EQ(two - one, all - two);
    c.recompute = true;
    EXPECT_DOUBLE_EQ(step(c), all) << "what is computed again is not counted, as in language models";
    c.loss_every_cycle = true;
    const double heads = 2.0 * 16 * (10 * 11 + 2);
    EXPECT_DOUBLE_EQ(step(c), all + 2 * 3 * heads);
  }
}

TEST(GradientCycles, Refusals) {
  const auto refused = [](const config::ModelConfig& c, const std::string& sentence) {
    test::expect_error(ExitCode::usage, {sentence}, [&] { build_cycles(c); });
  };
  config::ModelConfig c = small_cycles(PuzzleArch::trm);
  c.gradient_cycles = 4;
  refused(c, "model.gradient_cycles is 4 but must be at least 1 and at most model.H_cycles (3)");
  c = small_cycles(PuzzleArch::hrm);
  c.gradient_cycles = 2;
  refused(c, "model.arch=hrm does not differentiate whole H cycles");
  c = small_cycles(PuzzleArch::transformer);
  c.H_cycles = c.L_cycles = 1;
  c.loss_every_cycle = true;
  refused(c, "model.arch=transformer does not differentiate whole H cycles");
  c.loss_every_cycle = false;
  c.recompute = true;
  refused(c, "model.recompute could not spare");
}

}  // namespace
}  // namespace hrm::models
