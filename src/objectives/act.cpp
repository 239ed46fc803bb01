#include "hrm/objectives/act.h"

#include "hrm/base/error.h"
#include "hrm/ops/act_loss.h"
#include "hrm/ops/act_update.h"

namespace hrm::objectives {
namespace {

ops::ActSlots slots_of(const ActState& state) {
  return {.z_H = state.carry.z_H,
          .z_L = state.carry.z_L,
          .steps = state.steps,
          .halted = state.halted,
          .inputs = state.inputs,
          .labels = state.labels,
          .puzzle_identifiers = state.puzzle_identifiers};
}

ops::ActRows rows_of(const data::PuzzleBatch& batch) {
  return {.inputs = batch.inputs, .labels = batch.labels, .puzzle_identifiers = batch.puzzle_identifiers};
}

// (B, 2) = [q_halt, q_continue] float32.
at::Tensor q_of(const models::SegmentOutput& output) {
  return output.q.defined() ? output.q : at::stack({output.q_halt, output.q_continue}, 1);
}

void check_rows(const ActState& state, const data::PuzzleBatch& batch, bool at_least) {
  const int64_t rows = batch.inputs.size(0);
  if ((at_least ? rows < state.size() : rows != state.size()) || batch.inputs.size(1) != state.inputs.size(1)) {
    fail(ExitCode::unexpected, "a batch of ", batch.inputs.sizes(), " tokens does not fit an ACT state of ",
         state.inputs.sizes());
  }
}

}  // namespace

ActState ActState::narrow(int64_t first, int64_t count) const {
  return {.carry = {carry.z_H.narrow(0, first, count), carry.z_L.narrow(0, first, count)},
          .steps = steps.narrow(0, first, count),
          .halted = halted.narrow(0, first, count),
          .inputs = inputs.narrow(0, first, count),
          .labels = labels.narrow(0, first, count),
          .puzzle_identifiers = puzzle_identifiers.narrow(0, first, count)};
}

ActState make_act_state(models::PuzzleModel& model, int64_t slots) {
  const at::Device device = model.H_init().device();
  const models::PuzzleModelDims& dims = model.dims();
  const auto carry = at::device(device).dtype(model.parameter_set().compute_dtype());
  const auto ints = at::device(device).dtype(at::kInt);
  const std::vector<int64_t> z_shape{slots, dims.puzzle_emb_len + dims.seq_len, model.config().hidden_size};
  return {.carry = {at::zeros(z_shape, carry), at::zeros(z_shape, carry)},
          .steps = at::zeros({slots}, ints),
          .halted = at::ones({slots}, ints.dtype(at::kBool)),
          .inputs = at::zeros({slots, dims.seq_len}, ints),
          .labels = at::full({slots, dims.seq_len}, data::kIgnoreLabel, ints),
          .puzzle_identifiers = at::zeros({slots}, ints)};
}

void act_begin(ActState& state, const data::PuzzleBatch& batch, const at::Tensor& H_init, const at::Tensor& L_init) {
  check_rows(state, batch, /*at_least=*/false);
  ops::act_begin_(slots_of(state), H_init, L_init, rows_of(batch), /*cursor=*/{});
}

void act_begin_from_pool(ActState& state, const data::PuzzleBatch& pool, at::Tensor& cursor, const at::Tensor& H_init,
                         const at::Tensor& L_init) {
  check_rows(state, pool, /*at_least=*/true);
  ops::act_begin_(slots_of(state), H_init, L_init, rows_of(pool), cursor);
}

void act_end(ActState& state, const models::SegmentOutput& output, const HaltDraws& draws, bool training,
             const config::ModelConfig& config) {
  const at::NoGradGuard no_grad;
  ops::act_end_(slots_of(state), output.carry.z_H, output.carry.z_L, q_of(output), draws.uniform, draws.min_steps,
                {.max_steps = config.halt_max_steps,
                 .exploration = config.halt_exploration_prob,
                 .training = training,
                 .no_continue = config.no_ACT_continue});
}

at::Tensor target_q_continue(models::PuzzleModel& model, const ActState& state, const at::Tensor& puzzle_rows,
                             const models::SegmentDraws& draws) {
  const at::NoGradGuard no_grad;
  return ops::act_q_target(model.q_values(state.carry, state.inputs, puzzle_rows, draws), state.steps,
                           model.config().halt_max_steps);
}

const std::vector<std::string>& act_metric_names() {
  static const std::vector<std::string> names{"count", "accuracy", "exact_accuracy", "q_halt_accuracy",
                                              "steps", "lm_loss",  "q_halt_loss",    "q_continue_loss"};
  return names;
}

ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, LossKind kind, LossPrecision precision) {
  const auto sums_of = [&](const at::Tensor& logits, const at::Tensor& q) {
    const int64_t prefix = logits.size(1) - state.labels.size(1);
    const ops::TokenLoss tokens = ops::token_loss(logits, state.labels, prefix, kind, precision);
    return ops::act_loss(tokens, q, target_q_continue, state.steps, state.halted);
  };
  const ops::ActLossSums last =
      sums_of(output.position_logits.defined() ? output.position_logits : output.logits, q_of(output));
  if (output.earlier.empty()) return {.loss = last.loss, .metrics = last.metrics};
  const auto losses_of = [](const ops::ActLossSums& sums) {
    return sums.metrics.narrow(0, ops::kActMetrics - ops::kActLosses, ops::kActLosses);
  };
  at::Tensor loss = last.loss;
  for (const models::ReadOut& read : output.earlier) {
    const ops::ActLossSums sums = sums_of(read.position_logits, read.q);
    loss = loss + sums.loss;
    const at::NoGradGuard no_grad;
    losses_of(last).add_(losses_of(sums));
  }
  const double share = 1 / static_cast<double>(output.earlier.size() + 1);
  {
    const at::NoGradGuard no_grad;
    losses_of(last).mul_(share);
  }
  return {.loss = loss * share, .metrics = last.metrics};
}

ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, const config::ObjectiveConfig& objective) {
  return act_loss(
      output, state, target_q_continue,
      objective.loss == config::TokenLoss::softmax ? LossKind::softmax : LossKind::stablemax,
      objective.loss_precision == config::TokenLossPrecision::f32 ? LossPrecision::f32 : LossPrecision::f64);
}

at::Tensor make_puzzle_rows(models::PuzzleModel& model, int64_t slots) {
  const int64_t width = model.dims().puzzle_emb_ndim;
  if (width == 0) return {};
  return at::zeros({slots, width}, model.puzzle_embedding().options()).requires_grad_();
}

TrainSegment act_train_segment(models::PuzzleModel& model, ActState& state, at::Tensor& puzzle_rows,
                               const HaltDraws& draws, const config::ObjectiveConfig& objective,
                               const StateKeys& keys) {
  const auto draws_of = [&](int64_t number) -> models::SegmentDraws {
    if (!model.config().draws()) return {};
    const auto longs = at::device(state.steps.device()).dtype(at::kLong);
    return model.draws_of_segment(keys.keys, at::full({}, number, longs), keys.seed);
  };
  if (model.config().start_std > 0) model.start_rows(state.carry, state.steps.eq(0), keys.keys, keys.seed);
  if (puzzle_rows.defined()) {
    const at::NoGradGuard no_grad;
    at::index_select_out(puzzle_rows, model.puzzle_embedding(), 0, state.puzzle_identifiers);
  }
  TrainSegment segment;
  segment.output = model.segment(state.carry, state.inputs, puzzle_rows, draws_of(0));
  act_end(state, segment.output, draws, /*training=*/true, model.config());
  {
    // Give up a sample whose state is not finite; otherwise it spoils the gradients of all its remaining segments.
    const at::NoGradGuard no_grad;
    state.halted.logical_or_(at::isfinite(segment.output.q_halt).logical_not());
  }
  // With one segment there is nothing to continue, so the official code computes no target.
  if (!model.config().no_ACT_continue && model.config().halt_max_steps > 1) {
    segment.target_q_continue = target_q_continue(model, state, puzzle_rows, draws_of(1));
  }
  segment.loss = act_loss(segment.output, state, segment.target_q_continue, objective);
  return segment;
}

Evaluation act_evaluate(models::PuzzleModel& model, const data::PuzzleBatch& batch, int64_t segments,
                        const SegmentCallback& on_segment, uint64_t seed, int64_t first_example) {
  const at::NoGradGuard no_grad;
  const nn::Fp8Evaluation fp8(model.fp8());
  Evaluation result{.output = {}, .state = make_act_state(model, batch.inputs.size(0))};
  ActState& state = result.state;
  act_begin(state, batch, model.H_init(), model.L_init());
  at::Tensor rows, keys;
  if (model.needs_keys()) {
    keys = (at::arange(state.size(), state.steps.options().dtype(at::kLong)) + first_example) * kKeysPerExample;
  }
  if (model.config().start_std > 0) model.start_rows(state.carry, state.halted, keys, seed);
  if (model.dims().puzzle_emb_ndim > 0) rows = model.puzzle_embedding().index_select(0, state.puzzle_identifiers);
  for (int64_t segment = 1; segment <= segments; ++segment) {
    models::SegmentDraws draws;
    if (model.config().draws()) {
      draws = model.draws_of_segment(keys, at::full({}, segment - 1, keys.options()), seed);
    }
    result.output = model.segment(state.carry, state.inputs, rows, draws);
    state.carry = result.output.carry;
    if (on_segment) on_segment(segment, result.output);
  }
  state.steps.fill_(segments);
  state.halted.fill_(true);
  return result;
}

}  // namespace hrm::objectives
