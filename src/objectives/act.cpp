#include "hrm/objectives/act.h"

#include "hrm/base/error.h"

namespace hrm::objectives {
namespace {

// to = where(mask, from, to) along dimension 0, in place.
void take_where(const at::Tensor& mask, const at::Tensor& from, at::Tensor& to) {
  std::vector<int64_t> shape(static_cast<size_t>(to.dim()), 1);
  shape[0] = to.size(0);
  at::where_out(to, mask.view(shape), from.to(to.scalar_type()), to);
}

void reset_halted(ActState& state, const at::Tensor& H_init, const at::Tensor& L_init) {
  take_where(state.halted, H_init, state.carry.z_H);
  take_where(state.halted, L_init, state.carry.z_L);
  state.steps.masked_fill_(state.halted, 0);
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
  const at::NoGradGuard no_grad;
  check_rows(state, batch, /*at_least=*/false);
  reset_halted(state, H_init, L_init);
  take_where(state.halted, batch.inputs, state.inputs);
  take_where(state.halted, batch.labels, state.labels);
  take_where(state.halted, batch.puzzle_identifiers, state.puzzle_identifiers);
}

void act_begin_from_pool(ActState& state, const data::PuzzleBatch& pool, at::Tensor& cursor, const at::Tensor& H_init,
                         const at::Tensor& L_init) {
  const at::NoGradGuard no_grad;
  check_rows(state, pool, /*at_least=*/true);
  const at::Tensor taken = state.halted.to(at::kLong).cumsum(0);
  // A slot that goes on gets some valid row too, which take_where drops.
  const at::Tensor row = at::remainder(cursor + taken - 1, pool.inputs.size(0));
  reset_halted(state, H_init, L_init);
  take_where(state.halted, pool.inputs.index_select(0, row), state.inputs);
  take_where(state.halted, pool.labels.index_select(0, row), state.labels);
  take_where(state.halted, pool.puzzle_identifiers.index_select(0, row), state.puzzle_identifiers);
  cursor.add_(taken.select(0, state.size() - 1));
}

void act_end(ActState& state, const models::SegmentOutput& output, const HaltDraws& draws, bool training,
             const config::ModelConfig& config) {
  const at::NoGradGuard no_grad;
  state.carry.z_H.copy_(output.carry.z_H);
  state.carry.z_L.copy_(output.carry.z_L);
  state.steps.add_(1);
  at::ge_out(state.halted, state.steps, config.halt_max_steps);
  if (!training || config.halt_max_steps == 1) return;
  state.halted.logical_or_(config.no_ACT_continue ? output.q_halt.gt(0) : output.q_halt.gt(output.q_continue));
  const at::Tensor min_steps = draws.min_steps.masked_fill(draws.uniform.ge(config.halt_exploration_prob), 0);
  state.halted.logical_and_(state.steps.ge(min_steps));
}

at::Tensor target_q_continue(models::PuzzleModel& model, const ActState& state, const at::Tensor& puzzle_rows) {
  const at::NoGradGuard no_grad;
  const models::SegmentOutput next = model.segment(state.carry, state.inputs, puzzle_rows);
  const at::Tensor last = state.steps.ge(model.config().halt_max_steps);
  return at::sigmoid(at::where(last, next.q_halt, at::maximum(next.q_halt, next.q_continue)));
}

const std::vector<std::string>& act_metric_names() {
  static const std::vector<std::string> names{"count", "accuracy", "exact_accuracy", "q_halt_accuracy",
                                              "steps", "lm_loss",  "q_halt_loss",    "q_continue_loss"};
  return names;
}

ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, LossKind kind, LossPrecision precision) {
  const at::Tensor labelled = state.labels.ne(data::kIgnoreLabel);  // (B, S)
  const at::Tensor tokens = labelled.sum(1);                        // (B)
  const at::Tensor divisor = tokens.clamp_min(1);

  const at::Tensor right = output.logits.detach().argmax(-1).eq(state.labels).logical_and_(labelled).sum(1);  // (B)
  const at::Tensor all_right = right.eq(tokens);
  const at::Tensor counted = state.halted.logical_and(tokens.gt(0));

  const at::Tensor token_loss = cross_entropy(output.logits, state.labels, kind, precision);
  const at::Tensor lm_loss = (token_loss / divisor.unsqueeze(1)).sum();
  const auto bce = [](const at::Tensor& logit, const at::Tensor& target) {
    return at::binary_cross_entropy_with_logits(logit, target, /*weight=*/{}, /*pos_weight=*/{}, at::Reduction::Sum);
  };
  const at::Tensor q_halt_loss = bce(output.q_halt, all_right.to(at::kFloat));
  at::Tensor q_loss = q_halt_loss, q_continue_loss = at::zeros_like(q_halt_loss);
  if (target_q_continue) {
    q_continue_loss = bce(output.q_continue, *target_q_continue);
    q_loss = q_halt_loss + q_continue_loss;
  }
  ActLoss result{.loss = lm_loss + 0.5 * q_loss, .metrics = {}};

  const at::NoGradGuard no_grad;
  const at::Tensor q_right = output.q_halt.ge(0).eq(all_right);
  const auto over_counted = [&](const at::Tensor& value) { return value.to(at::kDouble).mul(counted).sum(); };
  result.metrics = at::stack({counted.sum().to(at::kDouble), over_counted(right.to(at::kDouble) / divisor),
                              over_counted(all_right), over_counted(q_right), over_counted(state.steps),
                              lm_loss.to(at::kDouble), q_halt_loss.to(at::kDouble), q_continue_loss.to(at::kDouble)});
  return result;
}

ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, const config::ObjectiveConfig& objective) {
  return act_loss(output, state, target_q_continue,
                  objective.loss == "softmax" ? LossKind::softmax : LossKind::stablemax,
                  objective.loss_precision == "f32" ? LossPrecision::f32 : LossPrecision::f64);
}

at::Tensor make_puzzle_rows(models::PuzzleModel& model, int64_t slots) {
  const int64_t width = model.dims().puzzle_emb_ndim;
  if (width == 0) return {};
  return at::zeros({slots, width}, model.puzzle_embedding().options()).requires_grad_();
}

TrainSegment act_train_segment(models::PuzzleModel& model, ActState& state, at::Tensor& puzzle_rows,
                               const HaltDraws& draws, const config::ObjectiveConfig& objective) {
  if (puzzle_rows.defined()) {
    const at::NoGradGuard no_grad;
    at::index_select_out(puzzle_rows, model.puzzle_embedding(), 0, state.puzzle_identifiers);
  }
  TrainSegment segment;
  segment.output = model.segment(state.carry, state.inputs, puzzle_rows);
  act_end(state, segment.output, draws, /*training=*/true, model.config());
  // With one segment there is nothing to continue: the official code computes no target then.
  if (!model.config().no_ACT_continue && model.config().halt_max_steps > 1) {
    segment.target_q_continue = target_q_continue(model, state, puzzle_rows);
  }
  segment.loss = act_loss(segment.output, state, segment.target_q_continue, objective);
  return segment;
}

Evaluation act_evaluate(models::PuzzleModel& model, const data::PuzzleBatch& batch, int64_t segments,
                        const SegmentCallback& on_segment) {
  const at::NoGradGuard no_grad;
  Evaluation result{.output = {}, .state = make_act_state(model, batch.inputs.size(0))};
  ActState& state = result.state;
  act_begin(state, batch, model.H_init(), model.L_init());
  at::Tensor rows;
  if (model.dims().puzzle_emb_ndim > 0) rows = model.puzzle_embedding().index_select(0, state.puzzle_identifiers);
  for (int64_t segment = 1; segment <= segments; ++segment) {
    result.output = model.segment(state.carry, state.inputs, rows);
    state.carry = result.output.carry;
    if (on_segment) on_segment(segment, result.output);
  }
  state.steps.fill_(segments);
  state.halted.fill_(true);
  return result;
}

}  // namespace hrm::objectives
