#include "hrm/objectives/act.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/base/error.h"

namespace hrm::objectives {
namespace {

constexpr int64_t kSeq = 5;

std::shared_ptr<models::PuzzleModel> small_puzzle_model(const std::string& arch = "hrm", bool no_continue = false) {
  config::ModelConfig c;
  c.arch = config::value_of_name<config::PuzzleArch>(arch);
  c.hidden_size = 16;
  c.num_heads = 2;
  c.L_layers = 1;
  c.H_layers = arch == "hrm" ? 1 : 0;
  c.halt_max_steps = 4;
  c.no_ACT_continue = no_continue;
  data::PuzzleMeta meta;
  meta.vocab_size = 7;
  meta.seq_len = kSeq;
  meta.num_puzzle_identifiers = 50;
  return models::make_puzzle_model(c, models::resolve_dims(c, meta), 0, at::kCPU, at::kFloat);
}

// Row i holds the token i mod 7 and belongs to puzzle i.
data::PuzzleBatch rows(int64_t count, int64_t first = 0) {
  const at::Tensor ids = at::arange(first, first + count, at::kInt);
  const at::Tensor tokens = ids.remainder(7).unsqueeze(1).expand({count, kSeq}).contiguous();
  return {.inputs = tokens, .labels = tokens.clone(), .puzzle_identifiers = ids, .valid_rows = count};
}

at::Tensor flags(std::vector<int> values) {
  return at::tensor(std::vector<int64_t>(values.begin(), values.end())).to(at::kBool);
}

std::vector<int64_t> list(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kLong).contiguous();
  return {wide.data_ptr<int64_t>(), wide.data_ptr<int64_t>() + wide.numel()};
}

TEST(ActBegin, ResetsHaltedSlotsInPlace) {
  const auto model = small_puzzle_model();
  ActState state = make_act_state(*model, 4);
  act_begin(state, rows(4), model->H_init(), model->L_init());
  EXPECT_EQ(list(state.puzzle_identifiers), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(at::equal(state.carry.z_H[2][3], model->H_init()));
  EXPECT_TRUE(at::equal(state.carry.z_L[1][0], model->L_init()));

  state.carry.z_H.fill_(7);
  state.steps.fill_(3);
  state.halted.copy_(flags({0, 1, 0, 1}));
  const void* const addresses[] = {state.carry.z_H.data_ptr(), state.inputs.data_ptr(), state.steps.data_ptr()};
  act_begin(state, rows(4, 10), model->H_init(), model->L_init());
  EXPECT_EQ(list(state.puzzle_identifiers), (std::vector<int64_t>{0, 11, 2, 13}));
  EXPECT_EQ(list(state.steps), (std::vector<int64_t>{3, 0, 3, 0}));
  EXPECT_EQ(list(state.inputs.select(1, 2)), (std::vector<int64_t>{0, 11 % 7, 2, 13 % 7}));
  EXPECT_TRUE(at::equal(state.inputs, state.labels));
  EXPECT_EQ(state.carry.z_H[0].eq(7).all().item<bool>(), true);
  EXPECT_TRUE(at::equal(state.carry.z_H[1][0], model->H_init()));
  EXPECT_EQ(addresses[0], state.carry.z_H.data_ptr());
  EXPECT_EQ(addresses[1], state.inputs.data_ptr());
  EXPECT_EQ(addresses[2], state.steps.data_ptr());
}

TEST(ActBegin, RefusesAnotherShape) {
  const auto model = small_puzzle_model();
  ActState state = make_act_state(*model, 4);
  try {
    act_begin(state, rows(3), model->H_init(), model->L_init());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unexpected);
    EXPECT_NE(std::string(error.what()).find("[3, 5]"), std::string::npos) << error.what();
  }
  at::Tensor cursor = at::zeros({}, at::kLong);
  EXPECT_THROW(act_begin_from_pool(state, rows(3), cursor, model->H_init(), model->L_init()), Error);
}

TEST(ActBegin, PoolLosesNoRow) {
  const auto model = small_puzzle_model();
  ActState state = make_act_state(*model, 4);
  const data::PuzzleBatch pool = rows(6);
  at::Tensor cursor = at::zeros({}, at::kLong);
  const auto begin = [&](std::vector<int> halted) {
    state.halted.copy_(flags(std::move(halted)));
    act_begin_from_pool(state, pool, cursor, model->H_init(), model->L_init());
    return list(state.puzzle_identifiers);
  };
  EXPECT_EQ(begin({1, 1, 1, 1}), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(begin({0, 1, 0, 0}), (std::vector<int64_t>{0, 4, 2, 3}));
  EXPECT_EQ(begin({0, 0, 0, 0}), (std::vector<int64_t>{0, 4, 2, 3}));
  EXPECT_EQ(begin({1, 0, 0, 1}), (std::vector<int64_t>{5, 4, 2, 0}));  // around the end of the pool
  EXPECT_EQ(cursor.item<int64_t>(), 7);
}

// View by view in slot order is the same as all at once.
TEST(ActBegin, PoolInMicroBatches) {
  const auto model = small_puzzle_model();
  const data::PuzzleBatch pool = rows(20);
  ActState whole = make_act_state(*model, 6), split = make_act_state(*model, 6);
  at::Tensor cursor_a = at::full({}, 17, at::kLong), cursor_b = cursor_a.clone();
  for (ActState* state : {&whole, &split}) state->halted.copy_(flags({1, 0, 1, 1, 0, 1}));
  act_begin_from_pool(whole, pool, cursor_a, model->H_init(), model->L_init());
  for (int64_t first = 0; first < 6; first += 2) {
    ActState view = split.narrow(first, 2);
    act_begin_from_pool(view, pool, cursor_b, model->H_init(), model->L_init());
  }
  EXPECT_EQ(list(whole.puzzle_identifiers), (std::vector<int64_t>{17, 0, 18, 19, 0, 0}));
  EXPECT_EQ(list(split.puzzle_identifiers), list(whole.puzzle_identifiers));
  EXPECT_TRUE(at::equal(split.carry.z_L, whole.carry.z_L));
  EXPECT_EQ(cursor_a.item<int64_t>(), cursor_b.item<int64_t>());
}

struct Halting {
  double q_halt, q_continue;
  int64_t steps_before;
  double uniform;
  int64_t min_steps;
  bool halts, halts_no_continue, halts_in_evaluation;
};

// halt_max_steps 4, exploration probability 0.1.
TEST(ActEnd, HaltingTable) {
  const std::vector<Halting> table{
      {1, 0, 0, 0.5, 3, true, true, false},                                            // q_halt wins
      {-1, -2, 0, 0.5, 3, true, false, false},                                         // the two rules differ
      {1, 2, 0, 0.5, 3, false, true, false},   {1, 1, 0, 0.5, 3, false, true, false},  // a tie goes on
      {0, -1, 0, 0.5, 3, true, false, false},  // q_halt = 0 goes on without the continue head
      {-1, 1, 0, 0.5, 3, false, false, false}, {-1, 1, 3, 0.5, 3, true, true, true},  // the last segment always halts
      {1, 0, 0, 0.05, 3, false, false, false},                                        // exploring: not before segment 3
      {1, 0, 2, 0.05, 3, true, true, false},                                          // exploring, segment 3 reached
      {1, 0, 1, 0.1, 3, true, true, false},                                           // 0.1 is not below 0.1
      {-1, 1, 3, 0.05, 4, true, true, true},
  };
  const auto count = static_cast<int64_t>(table.size());
  for (const bool no_continue : {false, true}) {
    for (const bool training : {true, false}) {
      const auto model = small_puzzle_model("hrm", no_continue);
      ActState state = make_act_state(*model, count);
      models::SegmentOutput output{.carry = {at::ones_like(state.carry.z_H), at::ones_like(state.carry.z_L)},
                                   .logits = {},
                                   .q_halt = at::zeros({count}),
                                   .q_continue = at::zeros({count})};
      HaltDraws draws{at::zeros({count}), at::zeros({count}, at::kInt)};
      for (int64_t i = 0; i < count; ++i) {
        const Halting& row = table[static_cast<size_t>(i)];
        output.q_halt[i] = row.q_halt;
        output.q_continue[i] = row.q_continue;
        draws.uniform[i] = row.uniform;
        draws.min_steps[i] = row.min_steps;
        state.steps[i] = row.steps_before;
      }
      const void* address = state.carry.z_H.data_ptr();
      act_end(state, output, draws, training, model->config());
      for (int64_t i = 0; i < count; ++i) {
        const Halting& row = table[static_cast<size_t>(i)];
        const bool want = !training ? row.halts_in_evaluation : no_continue ? row.halts_no_continue : row.halts;
        EXPECT_EQ(state.halted[i].item<bool>(), want)
            << "row " << i << (no_continue ? ", no continue" : "") << (training ? "" : ", evaluation");
        EXPECT_EQ(state.steps[i].item<int64_t>(), row.steps_before + 1);
      }
      EXPECT_EQ(state.carry.z_H.data_ptr(), address);
      EXPECT_TRUE(state.carry.z_H.eq(1).all().item<bool>());
    }
  }
}

// With one segment there is nothing to decide and nothing to explore.
TEST(ActEnd, OneSegment) {
  const auto model = small_puzzle_model();
  config::ModelConfig c = model->config();
  c.halt_max_steps = 1;
  ActState state = make_act_state(*model, 2);
  const models::SegmentOutput output{
      .carry = state.carry, .logits = {}, .q_halt = at::full({2}, -9.0), .q_continue = at::zeros({2})};
  act_end(state, output, {at::zeros({2}), at::full({2}, 2, at::kInt)}, true, c);
  EXPECT_TRUE(state.halted.all().item<bool>());
}

TEST(TargetQ, ValueOfTheNextSegment) {
  const auto model = small_puzzle_model();
  {
    const at::NoGradGuard no_grad;
    at::Tensor weight = model->named_parameters()["q_head.weight"];
    weight.copy_(at::randn(weight.sizes()));
  }
  ActState state = make_act_state(*model, 6);
  act_begin(state, rows(6), model->H_init(), model->L_init());
  state.carry.z_H.copy_(at::randn(state.carry.z_H.sizes()));
  state.steps.copy_(at::tensor({1, 4, 2, 4, 3, 4}).to(at::kInt));
  const at::Tensor embedding = at::zeros({6, 16}).requires_grad_();
  const models::SegmentOutput next = model->segment(state.carry, state.inputs, embedding);
  const at::Tensor target = target_q_continue(*model, state, embedding);
  EXPECT_FALSE(target.requires_grad());
  for (int64_t i = 0; i < 6; ++i) {
    const double halt = next.q_halt[i].item<double>(), go_on = next.q_continue[i].item<double>();
    const double logit = i % 2 == 1 ? halt : std::max(halt, go_on);
    EXPECT_NEAR(target[i].item<double>(), 1 / (1 + std::exp(-logit)), 1e-6) << i;
  }
}

// Two slots by hand: V = 2, so stablemax of (0, 1) is (1/3, 2/3).
TEST(ActLoss, ByHand) {
  ActState state;
  state.labels = at::tensor({1, 0, 1, -100}).to(at::kInt).view({2, 2});
  state.halted = flags({1, 1});
  state.steps = at::tensor({2, 3}).to(at::kInt);
  const at::Tensor logits = at::tensor({0.0, 1.0}).repeat({2, 2, 1});
  const models::SegmentOutput output{
      .carry = {}, .logits = logits, .q_halt = at::tensor({0.0, 2.0}), .q_continue = at::tensor({1.0, 0.0})};
  const at::Tensor target = at::tensor({0.25, 0.5});
  const ActLoss got = act_loss(output, state, target, LossKind::stablemax, LossPrecision::f64);
  const double lm = (std::log(1.5) + std::log(3.0)) / 2 + std::log(1.5);
  const double q_halt = std::log(2.0) + std::log1p(std::exp(-2.0));            // wrong, right
  const double q_continue = std::log1p(std::exp(1.0)) - 0.25 + std::log(2.0);  // softplus(x) - t x
  EXPECT_NEAR(got.loss.item<double>(), lm + 0.5 * (q_halt + q_continue), 1e-6);
  const std::vector<double> want{2, 1.5, 1, 1, 5, lm, q_halt, q_continue};
  ASSERT_EQ(act_metric_names().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got.metrics[static_cast<int64_t>(i)].item<double>(), want[i], 1e-6) << act_metric_names()[i];
  }
  // Without a target the term is not there; without halted slots nothing is counted, but the losses are.
  state.halted.fill_(false);
  const ActLoss without = act_loss(output, state, {}, LossKind::stablemax, LossPrecision::f64);
  EXPECT_NEAR(without.loss.item<double>(), lm + 0.5 * q_halt, 1e-6);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(without.metrics[i].item<double>(), 0);
  EXPECT_NEAR(without.metrics[5].item<double>(), lm, 1e-6);
}

// A slot without labels counts for nothing but its Q value, and divides by one.
TEST(ActLoss, PaddingRow) {
  ActState state;
  state.labels = at::full({1, 3}, data::kIgnoreLabel, at::kInt);
  state.halted = flags({1});
  state.steps = at::ones({1}, at::kInt);
  const models::SegmentOutput output{
      .carry = {}, .logits = at::randn({1, 3, 4}), .q_halt = at::zeros({1}), .q_continue = at::zeros({1})};
  const ActLoss got = act_loss(output, state, {}, LossKind::softmax, LossPrecision::f64);
  EXPECT_NEAR(got.loss.item<double>(), 0.5 * std::log(2.0), 1e-6);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(got.metrics[i].item<double>(), 0);
}

TEST(ActLoss, ConfiguredKindAndPrecision) {
  ActState state;
  state.labels = at::randint(0, 4, {2, 3}, at::kInt);
  state.halted = flags({1, 0});
  state.steps = at::ones({2}, at::kInt);
  const models::SegmentOutput output{
      .carry = {}, .logits = at::randn({2, 3, 4}), .q_halt = at::zeros({2}), .q_continue = at::zeros({2})};
  config::ObjectiveConfig objective;
  EXPECT_EQ(act_loss(output, state, {}, objective).loss.scalar_type(), at::kDouble);
  objective.loss_precision = config::TokenLossPrecision::f32;
  EXPECT_EQ(act_loss(output, state, {}, objective).loss.scalar_type(), at::kFloat);
  objective.loss = config::TokenLoss::softmax;
  EXPECT_EQ(act_loss(output, state, {}, objective).loss.item<float>(),
            act_loss(output, state, {}, LossKind::softmax, LossPrecision::f32).loss.item<float>());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(act_loss(output, state, {}, objective).loss.requires_grad());
}

// The loss and its parts are means over the read-outs, each of which has its own Q value; all else is of the last one.
TEST(ActLoss, MeanOfTheReadOuts) {
  const int64_t B = 4, P = 2, S = 3, V = 5;
  ActState state;
  state.labels = at::randint(0, V, {B, S}, at::kInt);
  state.halted = flags({1, 0, 1, 1});
  state.steps = at::tensor({2, 3, 1, 4}).to(at::kInt);
  const auto read = [&] {
    return models::ReadOut{at::randn({B, P + S, V}).requires_grad_(), at::randn({B, 2}).requires_grad_()};
  };
  const auto output_of = [](const models::ReadOut& of) {
    models::SegmentOutput output;
    output.position_logits = of.position_logits;
    output.q = of.q;
    return output;
  };
  const models::ReadOut reads[] = {read(), read(), read()};
  for (const bool with_target : {false, true}) {
    const std::optional<at::Tensor> target = with_target ? std::optional(at::rand({B})) : std::nullopt;
    const auto loss = [&](const models::SegmentOutput& output) {
      return act_loss(output, state, target, LossKind::stablemax, LossPrecision::f64);
    };
    at::Tensor want_loss = at::zeros({}, at::kDouble), want_metrics = at::zeros({8}, at::kDouble);
    std::vector<at::Tensor> want_gradients;
    for (const models::ReadOut& one : reads) {
      const ActLoss alone = loss(output_of(one));
      want_loss = want_loss + alone.loss.detach() / 3;
      want_metrics.narrow(0, 5, 3).add_(alone.metrics.narrow(0, 5, 3) / 3);
      want_metrics.narrow(0, 0, 5).copy_(alone.metrics.narrow(0, 0, 5));
      (alone.loss / 3).backward();
      for (const at::Tensor& leaf : {one.position_logits, one.q}) {
        want_gradients.push_back(leaf.grad().clone());
        leaf.mutable_grad() = at::Tensor();
      }
    }
    models::SegmentOutput output = output_of(reads[2]);
    output.earlier = {reads[0], reads[1]};
    const ActLoss got = loss(output);
    EXPECT_TRUE(at::allclose(got.loss, want_loss, 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(got.metrics, want_metrics, 1e-12, 1e-12)) << got.metrics << want_metrics;
    got.loss.backward();
    for (size_t i = 0; i < std::size(reads); ++i) {
      for (const auto& [leaf, want] : {std::pair{reads[i].position_logits, want_gradients[2 * i]},
                                       std::pair{reads[i].q, want_gradients[2 * i + 1]}}) {
        EXPECT_TRUE(at::allclose(leaf.grad(), want, 1e-6, 1e-9)) << i;
        leaf.mutable_grad() = at::Tensor();
      }
    }
  }
}

HaltDraws no_exploration(int64_t slots) {
  return {at::ones({slots}), at::zeros({slots}, at::kInt)};
}

// The split of a batch changes neither losses nor gradients, over several steps with halting in between.
TEST(ActTrainSegment, MicroBatches) {
  for (const bool no_continue : {false, true}) {
    const auto model = small_puzzle_model("hrm", no_continue);
    {
      const at::NoGradGuard no_grad;
      model->named_parameters()["q_head.bias"].fill_(0);
      at::Tensor weight = model->named_parameters()["q_head.weight"];
      weight.copy_(at::randn(weight.sizes()));
    }
    const config::ObjectiveConfig objective;
    ActState whole = make_act_state(*model, 6), split = make_act_state(*model, 6);
    for (int64_t step = 0; step < 4; ++step) {
      const data::PuzzleBatch batch = rows(6, 6 * step);
      const auto run = [&](ActState& state, int64_t size) {
        model->parameter_set().zero_grad();
        at::Tensor metrics = at::zeros({8}, at::kDouble), embedding_grad = at::zeros({6, 16});
        for (int64_t first = 0; first < 6; first += size) {
          ActState view = state.narrow(first, size);
          const data::PuzzleBatch part{.inputs = batch.inputs.narrow(0, first, size),
                                       .labels = batch.labels.narrow(0, first, size),
                                       .puzzle_identifiers = batch.puzzle_identifiers.narrow(0, first, size),
                                       .valid_rows = size};
          at::Tensor leaf = make_puzzle_rows(*model, size);
          act_begin(view, part, model->H_init(), model->L_init());
          const TrainSegment segment = act_train_segment(*model, view, leaf, no_exploration(size), objective);
          EXPECT_EQ(segment.target_q_continue.has_value(), !no_continue);
          (segment.loss.loss / 6.0).backward();
          metrics += segment.loss.metrics;
          embedding_grad.narrow(0, first, size).copy_(leaf.grad());
        }
        return std::vector<at::Tensor>{metrics, embedding_grad, model->parameter_set().flat_grad().clone()};
      };
      const auto a = run(whole, 6), b = run(split, 2);
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-6)) << step << " " << i;
      EXPECT_TRUE(at::equal(whole.halted, split.halted));
      EXPECT_TRUE(at::equal(whole.puzzle_identifiers, split.puzzle_identifiers));
    }
    EXPECT_GT(whole.puzzle_identifiers.max().item<int64_t>(), 5) << "nothing halted";
  }
}

// With a loss after each cycle and with recomputation, over a carry that act_end overwrites before the backward pass.
TEST(ActTrainSegment, EveryCycleInMicroBatches) {
  for (const char* arch : {"trm", "urm"}) {
    config::ModelConfig c = small_puzzle_model(arch)->config();
    c.gradient_cycles = c.H_cycles = 2;
    c.loss_every_cycle = true;
    const models::PuzzleModelDims dims = small_puzzle_model(arch)->dims();
    std::vector<at::Tensor> want;
    for (const auto& [recompute, size] :
         {std::pair{false, int64_t{6}}, {true, int64_t{6}}, {false, int64_t{2}}, {true, int64_t{2}}}) {
      c.recompute = recompute;
      const auto model = models::make_puzzle_model(c, dims, 0, at::kCPU, at::kFloat);
      ActState state = make_act_state(*model, 6);
      at::Tensor metrics = at::zeros({8}, at::kDouble);
      for (int64_t step = 0; step < 3; ++step) {
        const data::PuzzleBatch batch = rows(6, 6 * step);
        for (int64_t first = 0; first < 6; first += size) {
          ActState view = state.narrow(first, size);
          at::Tensor leaf = make_puzzle_rows(*model, size);
          act_begin(view,
                    {.inputs = batch.inputs.narrow(0, first, size),
                     .labels = batch.labels.narrow(0, first, size),
                     .puzzle_identifiers = batch.puzzle_identifiers.narrow(0, first, size),
                     .valid_rows = size},
                    model->H_init(), model->L_init());
          const TrainSegment segment = act_train_segment(*model, view, leaf, no_exploration(size), {});
          EXPECT_EQ(segment.output.earlier.size(), 1U);
          EXPECT_TRUE(segment.target_q_continue.has_value());
          segment.loss.loss.backward();
          metrics += segment.loss.metrics;
        }
      }
      const std::vector<at::Tensor> got{metrics, model->parameter_set().flat_grad(), state.carry.z_H, state.carry.z_L};
      if (want.empty()) want = got;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(size == 6 ? at::equal(got[i], want[i]) : at::allclose(got[i], want[i], 1e-4, 1e-5))
            << arch << (recompute ? ", recompute, " : ", ") << i;
      }
    }
  }
}

// The leaf gets the rows of the samples that the slots work on, not of those that the batch offers.
TEST(ActTrainSegment, GathersEmbeddingsOfTheState) {
  const auto model = small_puzzle_model();
  model->puzzle_embedding().copy_(at::randn(model->puzzle_embedding().sizes()));
  ActState state = make_act_state(*model, 3);
  at::Tensor leaf = make_puzzle_rows(*model, 3);
  act_begin(state, rows(3), model->H_init(), model->L_init());
  state.halted.fill_(false);
  act_begin(state, rows(3, 20), model->H_init(), model->L_init());
  const void* address = leaf.data_ptr();
  act_train_segment(*model, state, leaf, no_exploration(3), {});
  EXPECT_TRUE(at::equal(leaf.detach(), model->puzzle_embedding().narrow(0, 0, 3)));
  EXPECT_EQ(leaf.data_ptr(), address);
}

// As the official code: with one segment per sample there is no second forward pass and no loss of q_continue.
TEST(ActTrainSegment, OneSegmentHasNoQTarget) {
  const auto many = small_puzzle_model();
  config::ModelConfig c = many->config();
  c.halt_max_steps = 1;
  const auto model = models::make_puzzle_model(c, many->dims(), 0, at::kCPU, at::kFloat);
  ActState state = make_act_state(*model, 3);
  at::Tensor leaf = make_puzzle_rows(*model, 3);
  act_begin(state, rows(3), model->H_init(), model->L_init());
  const TrainSegment segment = act_train_segment(*model, state, leaf, no_exploration(3), {});
  EXPECT_FALSE(segment.target_q_continue.has_value());
  EXPECT_EQ(segment.loss.metrics[7].item<double>(), 0);
}

TEST(ActEvaluate, RunsAllSegments) {
  const auto model = small_puzzle_model("trm", /*no_continue=*/true);
  const data::PuzzleBatch batch = rows(3);
  std::vector<at::Tensor> logits;
  const Evaluation result = act_evaluate(*model, batch, 5, [&](int64_t segment, const models::SegmentOutput& output) {
    EXPECT_EQ(segment, static_cast<int64_t>(logits.size()) + 1);
    logits.push_back(output.logits);
  });
  ASSERT_EQ(logits.size(), 5U);
  EXPECT_FALSE(at::equal(logits[0], logits[4]));
  EXPECT_FALSE(result.output.logits.requires_grad());
  EXPECT_EQ(list(result.state.steps), (std::vector<int64_t>{5, 5, 5}));
  EXPECT_TRUE(result.state.halted.all().item<bool>());
  EXPECT_EQ(list(result.state.labels[2]), list(batch.labels[2]));
  // Segment by segment it is the model itself.
  models::Carry carry{model->H_init().expand({3, kSeq + 1, 16}), model->L_init().expand({3, kSeq + 1, 16})};
  const at::NoGradGuard no_grad;
  const at::Tensor embedding = at::zeros({3, 16});
  for (const at::Tensor& want : logits) {
    const models::SegmentOutput out = model->segment(carry, batch.inputs, embedding);
    EXPECT_TRUE(at::allclose(out.logits, want));
    carry = out.carry;
  }
}

}  // namespace
}  // namespace hrm::objectives
