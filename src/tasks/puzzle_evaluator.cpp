#include "hrm/tasks/puzzle_evaluator.h"

#include "hrm/base/error.h"
#include "hrm/runtime/nvtx.h"

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
  const int64_t B = options.batch_size, L = dims.puzzle_emb_len + dims.seq_len;
  const auto compute = at::device(model.H_init().device()).dtype(model.parameter_set().compute_dtype());
  const auto ints = compute.dtype(at::kInt);
  const auto floats = compute.dtype(at::kFloat);
  carry_ = {at::zeros({B, L, model.config().hidden_size}, compute),
            at::zeros({B, L, model.config().hidden_size}, compute)};
  inputs_ = at::zeros({B, dims.seq_len}, ints);
  identifiers_ = at::zeros({B}, ints);
  logits_ = at::zeros({B, dims.seq_len, dims.vocab_size}, compute);
  q_halt_ = at::zeros({B}, floats);
  q_continue_ = at::zeros({B}, floats);
  steps_ = at::zeros({B}, ints);
  if (!options.early_halt) return;
  running_ = at::zeros({B}, ints.dtype(at::kBool));
  left_ = at::zeros({}, ints.dtype(at::kLong));
  row_ = at::zeros({B}, ints.dtype(at::kLong));
  done_logits_ = at::zeros_like(logits_);
  done_q_halt_ = at::zeros_like(q_halt_);
  done_q_continue_ = at::zeros_like(q_continue_);
  done_steps_ = at::zeros_like(steps_);
}

PuzzleEvaluator::Answers PuzzleEvaluator::run(const data::PuzzleBatch& batch) {
  const at::NoGradGuard no_grad;
  const ProfilerRange range(RangeKind::eval, "eval.batch");
  require(batch.valid_rows > 0 && batch.valid_rows <= options_.batch_size, ExitCode::unexpected, "an evaluation of ",
          batch.valid_rows, " rows, but room for ", options_.batch_size);
  require(!fp8_active() || model_.fp8()->evaluating(), ExitCode::unexpected,
          "an evaluation in fp8 of weights that were not quantised for it");
  load(batch);
  return options_.early_halt ? run_early_halt(batch.valid_rows) : run_all(batch.valid_rows);
}

// Rows beyond the valid ones keep what an earlier batch left there, or zeros: valid tokens, whose answers nobody reads.
void PuzzleEvaluator::load(const data::PuzzleBatch& batch) {
  const auto put = [&](at::Tensor& to, const at::Tensor& from) {
    to.narrow(0, 0, batch.valid_rows).copy_(from.narrow(0, 0, batch.valid_rows), /*non_blocking=*/true);
  };
  put(inputs_, batch.inputs);
  put(identifiers_, batch.puzzle_identifiers);
  carry_.z_H.copy_(model_.H_init().expand_as(carry_.z_H));
  carry_.z_L.copy_(model_.L_init().expand_as(carry_.z_L));
  steps_.zero_();
}

// One segment of the first `rows` rows: new carry, answers, step counts.
void PuzzleEvaluator::segment(int64_t rows) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  at::Tensor puzzle_rows;
  if (model_.dims().puzzle_emb_ndim > 0) {
    puzzle_rows = model_.puzzle_embedding().index_select(0, part(identifiers_));
  }
  const models::SegmentOutput out = model_.segment({part(carry_.z_H), part(carry_.z_L)}, part(inputs_), puzzle_rows);
  part(carry_.z_H).copy_(out.carry.z_H);
  part(carry_.z_L).copy_(out.carry.z_L);
  if (!options_.early_halt) {
    part(logits_).copy_(out.logits);
    part(q_halt_).copy_(out.q_halt);
    part(q_continue_).copy_(out.q_continue);
    part(steps_).add_(1);
    return;
  }
  // A row that has halted keeps its answers until the batch shrinks and it falls out.
  at::Tensor running = part(running_);
  const auto take = [&](const at::Tensor& to, const at::Tensor& from, const at::Tensor& mask) {
    to.copy_(at::where(mask, from, to));
  };
  take(part(logits_), out.logits, running.view({rows, 1, 1}));
  take(part(q_halt_), out.q_halt, running);
  take(part(q_continue_), out.q_continue, running);
  part(steps_).add_(running);
  const at::Tensor goes_on = model_.config().no_ACT_continue ? out.q_halt.le(0) : out.q_halt.le(out.q_continue);
  running.logical_and_(goes_on);
  left_.copy_(running.sum());
}

bool PuzzleEvaluator::fp8_active() const {
  return model_.fp8() && model_.fp8()->active();
}

void PuzzleEvaluator::run_segment(int64_t rows) {
  std::vector<at::Tensor> inputs{inputs_, identifiers_, carry_.z_H, carry_.z_L};
  // A training may enter fp8 between two evaluations.
  captured_.run({rows, fp8_active()}, inputs, [this, rows] { segment(rows); });
}

PuzzleEvaluator::Answers PuzzleEvaluator::run_all(int64_t valid) {
  // A few rows less are no reason for another shape and its capture.
  const int64_t rows = valid > options_.batch_size / 4 * 3 ? options_.batch_size : valid;
  for (int64_t i = 0; i < options_.segments; ++i) run_segment(rows);
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, valid); };
  return {part(logits_), part(q_halt_), part(q_continue_), part(steps_)};
}

PuzzleEvaluator::Answers PuzzleEvaluator::run_early_halt(int64_t valid) {
  at::arange_out(row_, options_.batch_size);
  running_.zero_();
  running_.narrow(0, 0, valid).fill_(true);
  int64_t rows = std::min(options_.batch_size, evaluation_bucket(valid));
  for (int64_t i = 0; i < options_.segments; ++i) {
    run_segment(rows);
    reader_.push(i, left_.reshape({1}));
    // The count of the segment before is there while this one runs, so the device does not wait for the host.
    if (reader_.pending() < 2) continue;
    const auto left = static_cast<int64_t>(reader_.pop(/*wait=*/true)->values[0]);
    if (left == 0) break;
    const int64_t smaller = evaluation_bucket(left);
    if (smaller < rows) {
      shrink(rows, smaller);
      rows = smaller;
    }
  }
  while (reader_.pending() > 0) reader_.pop(/*wait=*/true);
  store(rows);
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, valid); };
  return {part(done_logits_), part(done_q_halt_), part(done_q_continue_), part(done_steps_)};
}

// The answers of the running batch go where the call's rows are.
void PuzzleEvaluator::store(int64_t rows) {
  const at::Tensor to = row_.narrow(0, 0, rows);
  done_logits_.index_copy_(0, to, logits_.narrow(0, 0, rows));
  done_q_halt_.index_copy_(0, to, q_halt_.narrow(0, 0, rows));
  done_q_continue_.index_copy_(0, to, q_continue_.narrow(0, 0, rows));
  done_steps_.index_copy_(0, to, steps_.narrow(0, 0, rows));
}

// Makes the batch of `rows` rows one of `smaller`: all that run, in their order, and the first that do not as padding.
void PuzzleEvaluator::shrink(int64_t rows, int64_t smaller) {
  store(rows);
  const at::Tensor halted = running_.narrow(0, 0, rows).logical_not().to(at::kInt);
  const at::Tensor kept =
      std::get<1>(at::sort(halted, /*stable=*/std::optional<bool>(true), /*dim=*/0)).narrow(0, 0, smaller);
  for (at::Tensor* t : {&carry_.z_H, &carry_.z_L, &inputs_, &identifiers_, &logits_, &q_halt_, &q_continue_, &steps_,
                        &running_, &row_}) {
    t->narrow(0, 0, smaller).copy_(t->index_select(0, kept));
  }
}

}  // namespace hrm::tasks
