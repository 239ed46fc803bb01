#include "hrm/tasks/puzzle_evaluator.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/objectives/act.h"
#include "hrm/runtime/phase_clock.h"
#include "tasks/puzzle/halting_slots.h"

namespace hrm::tasks {
namespace {

constexpr int64_t kSmallestBucket = 32;

CapturedStepOptions capture_options(models::PuzzleModel& model, const PuzzleEvaluatorOptions& options) {
  CapturedStepOptions captured;
  captured.name = "evaluation segment";
  captured.device = model.H_init().device();
  // A single segment is not worth a capture.
  captured.enabled = options.cuda_graphs && options.segments > 1;
  // Early halting goes through many shapes, most of them for two or three segments: only what comes again pays.
  captured.warmup = options.early_halt ? 3 : 1;
  return captured;
}

}  // namespace

int64_t evaluation_bucket(int64_t left) {
  int64_t power = kSmallestBucket;
  while (power < left) power *= 2;
  const int64_t three_quarters = power / 4 * 3;
  return left <= three_quarters && power > kSmallestBucket ? three_quarters : power;
}

PuzzleEvaluator::PuzzleEvaluator(models::PuzzleModel& model, const PuzzleEvaluatorOptions& options)
    : model_(model), options_(options), captured_(capture_options(model, options)) {
  require(options.batch_size > 0 && options.segments > 0, ExitCode::unexpected, "an evaluation of ", options.batch_size,
          " rows and ", options.segments, " segments");
  const models::PuzzleModelDims& dims = model.dims();
  options_.call_rows = options.early_halt ? std::max(options.call_rows, options.batch_size) : options.batch_size;
  const int64_t B = options.batch_size, N = options_.call_rows, L = dims.puzzle_emb_len + dims.seq_len;
  const int64_t answers = options.early_halt ? N + 1 : N;
  const auto compute = at::device(model.H_init().device()).dtype(model.parameter_set().compute_dtype());
  const auto ints = compute.dtype(at::kInt);
  const auto floats = compute.dtype(at::kFloat);
  carry_ = {at::zeros({B, L, model.config().hidden_size}, compute),
            at::zeros({B, L, model.config().hidden_size}, compute)};
  inputs_ = at::zeros({N, dims.seq_len}, ints);
  identifiers_ = at::zeros({N}, ints);
  if (model.needs_keys()) keys_ = at::zeros({N}, ints.dtype(at::kLong));
  steps_ = at::zeros({B}, ints);
  logits_ = at::zeros({answers, dims.seq_len, dims.vocab_size}, compute);
  q_halt_ = at::zeros({answers}, floats);
  q_continue_ = at::zeros({answers}, floats);
  answered_steps_ = at::zeros({answers}, ints);
  if (!options.early_halt) return;
  slots_ = std::make_unique<HaltingSlots>(B, inputs_.device());
}

PuzzleEvaluator::~PuzzleEvaluator() = default;

PuzzleEvaluator::Answers PuzzleEvaluator::run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples) {
  const at::NoGradGuard no_grad;
  const PhaseRange range(Phase::eval_batch, RangeKind::eval);
  require(batch.valid_rows > 0 && batch.valid_rows <= options_.call_rows, ExitCode::unexpected, "an evaluation of ",
          batch.valid_rows, " rows, but room for ", options_.call_rows);
  require(!fp8_active() || model_.fp8()->evaluating(), ExitCode::unexpected,
          "an evaluation in fp8 of weights that were not quantised for it");
  load(batch, examples);
  return options_.early_halt ? run_early_halt(batch.valid_rows) : run_all(batch.valid_rows);
}

// Rows beyond the valid ones keep what an earlier batch left there, or zeros: valid tokens, whose answers nobody reads.
void PuzzleEvaluator::load(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples) {
  const auto put = [&](at::Tensor& to, const at::Tensor& from) {
    to.narrow(0, 0, batch.valid_rows).copy_(from.narrow(0, 0, batch.valid_rows), /*non_blocking=*/true);
  };
  put(inputs_, batch.inputs);
  put(identifiers_, batch.puzzle_identifiers);
  if (!keys_.defined()) return;
  require(examples.empty() || static_cast<int64_t>(examples.size()) >= batch.valid_rows, ExitCode::unexpected,
          "an evaluation of ", batch.valid_rows, " puzzles with numbers for ", examples.size());
  const at::Tensor keys = at::arange(batch.valid_rows, at::kLong);
  if (!examples.empty()) keys.copy_(at::tensor(examples, at::kLong).narrow(0, 0, batch.valid_rows));
  keys_.narrow(0, 0, batch.valid_rows).copy_(keys * objectives::kKeysPerExample);
}

// One segment of the first `rows` places, each of which has `done` some: new carry, and the output.
models::SegmentOutput PuzzleEvaluator::advance(int64_t rows, const at::Tensor& inputs, const at::Tensor& identifiers,
                                               const at::Tensor& keys, const at::Tensor& done) {
  const at::Tensor z_H = carry_.z_H.narrow(0, 0, rows), z_L = carry_.z_L.narrow(0, 0, rows);
  at::Tensor puzzle_rows;
  if (model_.dims().puzzle_emb_ndim > 0) puzzle_rows = model_.puzzle_embedding().index_select(0, identifiers);
  models::SegmentOutput out =
      model_.segment({z_H, z_L}, inputs, puzzle_rows, model_.draws_of_segment(keys, done, options_.seed));
  z_H.copy_(out.carry.z_H);
  z_L.copy_(out.carry.z_L);
  return out;
}

// All rows run all segments.
void PuzzleEvaluator::segment(int64_t rows) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  const models::SegmentOutput out =
      advance(rows, part(inputs_), part(identifiers_), keys_.defined() ? part(keys_) : keys_, part(answered_steps_));
  part(logits_).copy_(out.logits);
  part(q_halt_).copy_(out.q_halt);
  part(q_continue_).copy_(out.q_continue);
  part(answered_steps_).add_(1);
}

// A place without a row computes, too, and leaves its answers in the row behind the last.
void PuzzleEvaluator::segment_early_halt(int64_t rows) {
  const at::Tensor taken = slots_->refill(rows), row = slots_->row(rows), steps = steps_.narrow(0, 0, rows);
  const at::Tensor keys = keys_.defined() ? keys_.index_select(0, row) : keys_;
  model_.start_rows({carry_.z_H.narrow(0, 0, rows), carry_.z_L.narrow(0, 0, rows)}, taken, keys, options_.seed);
  steps.masked_fill_(taken, 0);
  const models::SegmentOutput out =
      advance(rows, inputs_.index_select(0, row), identifiers_.index_select(0, row), keys, steps);
  steps.add_(slots_->running(rows));
  // Of each row the last segment's answers stay.
  const at::Tensor to = slots_->row_or(rows, options_.call_rows);
  logits_.index_copy_(0, to, out.logits);
  q_halt_.index_copy_(0, to, out.q_halt);
  q_continue_.index_copy_(0, to, out.q_continue);
  answered_steps_.index_copy_(0, to, steps);
  const at::Tensor goes_on = model_.config().no_ACT_continue ? out.q_halt.le(0) : out.q_halt.le(out.q_continue);
  slots_->finish(rows, goes_on.logical_and(steps.lt(options_.segments)));
}

bool PuzzleEvaluator::fp8_active() const {
  return model_.fp8() && model_.fp8()->active();
}

void PuzzleEvaluator::run_segment(int64_t rows) {
  std::vector<at::Tensor> inputs{inputs_, identifiers_, carry_.z_H, carry_.z_L};
  if (keys_.defined()) inputs.push_back(keys_);
  // A training may enter fp8 between two evaluations.
  captured_.run({rows, fp8_active()}, inputs, [this, rows] {
    if (options_.early_halt) {
      segment_early_halt(rows);
    } else {
      segment(rows);
    }
  });
}

PuzzleEvaluator::Answers PuzzleEvaluator::run_all(int64_t valid) {
  model_.start_rows(carry_, at::ones({options_.batch_size}, steps_.options().dtype(at::kBool)),
                    keys_.defined() ? keys_.narrow(0, 0, options_.batch_size) : keys_, options_.seed);
  answered_steps_.zero_();
  // A few rows less are no reason for another shape and its capture.
  const int64_t rows = valid > options_.batch_size / 4 * 3 ? options_.batch_size : valid;
  for (int64_t i = 0; i < options_.segments; ++i) run_segment(rows);
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, valid); };
  return {part(logits_), part(q_halt_), part(q_continue_), part(answered_steps_)};
}

PuzzleEvaluator::Answers PuzzleEvaluator::run_early_halt(int64_t valid) {
  slots_->run(
      valid, [&](int64_t rows) { return std::min(options_.batch_size, evaluation_bucket(rows)); },
      [&](int64_t rows) { run_segment(rows); },
      [&](const at::Tensor& kept) {
        move_to_front(kept, {carry_.z_H, carry_.z_L, steps_});
      });
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, valid); };
  return {part(logits_), part(q_halt_), part(q_continue_), part(answered_steps_)};
}

}  // namespace hrm::tasks
