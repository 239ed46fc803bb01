#pragma once
// What an evaluation must give, on every device.

#include <map>

#include "hrm/base/error.h"
#include "hrm/data/test_reader.h"
#include "hrm/objectives/act.h"
#include "hrm/tasks/puzzle_evaluator.h"
#include "train/small_run.h"

namespace hrm::testing {

inline constexpr int64_t kEvalSegments = 7;

inline data::PuzzleBatch some_puzzles(SmallRun& run, int64_t rows) {
  const auto dataset = data::open_dataset(run.loaded.config.data.test, "test", run.loaded.config.data);
  data::TestReaderOptions options;
  options.global_batch_size = rows;
  options.max_samples = rows;
  return data::TestReader(dataset, options).batch(0).batch;
}

// How far each row is beyond the threshold of halting.
inline at::Tensor halting_margin(const models::PuzzleModel& model, const models::SegmentOutput& out) {
  return model.config().no_ACT_continue ? out.q_halt : out.q_halt - out.q_continue;
}

// Makes the Q values differ from puzzle to puzzle and from segment to segment, so that rows halt at different times: a
// fresh model halts nobody. The threshold lies where 40 % of all (puzzle, segment) halt. Returns how far they lie
// apart.
inline double make_q_values_differ(SmallRun& run) {
  const at::NoGradGuard no_grad;
  models::PuzzleModel& model = run.task.model();
  const at::Device device = model.H_init().device();
  at::Tensor weight = model.named_parameters()["q_head.weight"];
  at::Tensor bias = model.named_parameters()["q_head.bias"];
  bias.zero_();
  const data::PuzzleBatch batch = some_puzzles(run, 40);
  // (segments, puzzles): how far a puzzle is beyond the threshold of halting.
  const auto margins_with = [&](double scale) {
    weight.copy_(at::arange(weight.numel(), at::kFloat).mul(1.7).sin().view_as(weight) * scale);
    model.parameter_set().refresh_compute();
    std::vector<at::Tensor> margins;
    objectives::act_evaluate(
        model,
        {batch.inputs.to(device), batch.labels.to(device), batch.puzzle_identifiers.to(device), batch.valid_rows},
        kEvalSegments,
        [&](int64_t, const models::SegmentOutput& out) { margins.push_back(halting_margin(model, out).clone()); });
    return at::stack(margins);
  };
  at::Tensor margins = margins_with(30);
  // Growing from segment to segment, or all halt at the first.
  if (margins[0].mean().item<double>() > margins[-1].mean().item<double>()) margins = margins_with(-30);
  bias[0] -= at::quantile(margins.reshape({-1}), 0.6);
  model.parameter_set().refresh_compute();
  return (margins.max() - margins.min()).item<double>();
}

// The same by act_evaluate, row by row: the segment at which the rule halts a row, and what it gave there.
struct Expected {
  at::Tensor logits, q_halt, q_continue, steps;
  at::Tensor closest;  // the smallest distance to the threshold of halting that decided about the row
};
inline Expected expected_answers(models::PuzzleModel& model, const data::PuzzleBatch& batch, bool early_halt) {
  const at::Device device = model.H_init().device();
  const data::PuzzleBatch on_device{batch.inputs.to(device), batch.labels.to(device),
                                    batch.puzzle_identifiers.to(device), batch.valid_rows};
  Expected want;
  at::Tensor running;
  objectives::act_evaluate(model, on_device, kEvalSegments, [&](int64_t, const models::SegmentOutput& out) {
    if (!running.defined()) {
      running = at::ones_like(out.q_halt, at::kBool);
      want = {at::zeros_like(out.logits).contiguous(), at::zeros_like(out.q_halt), at::zeros_like(out.q_continue),
              at::zeros_like(out.q_halt, at::kInt), at::full_like(out.q_halt, 1e30)};
    }
    want.logits = at::where(running.view({-1, 1, 1}), out.logits, want.logits);
    want.q_halt = at::where(running, out.q_halt, want.q_halt);
    want.q_continue = at::where(running, out.q_continue, want.q_continue);
    want.steps.add_(running);
    if (!early_halt) return;
    const at::Tensor margin = halting_margin(model, out);
    want.closest = at::where(running, at::minimum(want.closest, margin.abs()), want.closest);
    running = running.logical_and(margin.le(0));
  });
  return want;
}

// The rows of `mask`, to within a share of the largest value: single values may be zero by cancellation.
inline void expect_rows_near(const std::string& what, const at::Tensor& got, const at::Tensor& want,
                             const at::Tensor& mask, double share) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor error = (got - want).abs().flatten(1).amax(1).mul(mask);
  const double largest = want.abs().max().item<double>();
  EXPECT_LE(error.max().item<double>(), share * largest)
      << what << ": row " << error.argmax().item<int64_t>() << " is farthest off, "
      << error.gt(share * largest).sum().item<int64_t>() << " of " << mask.sum().item<int64_t>()
      << " rows are wrong, the largest value is " << largest;
}

// Rows beside each other do not mix, but matrix products of other shapes round otherwise: a row near the threshold may
// halt at another segment. In float32 such rows are few; they are not compared.
inline void check_answers(at::Device device, bool early_halt, const std::vector<std::string>& more) {
  constexpr double kRounding = 1e-3;  // share of the largest value
  std::vector<std::string> overrides = {"runtime.device=" + std::string(device.is_cuda() ? "cuda" : "cpu"),
                                        "precision.compute=fp32", "model.halt_max_steps=16", "ops.gemm_tuning=off"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  SmallRun run(fresh_folder("runs"), overrides);
  const double spread = make_q_values_differ(run);
  std::map<int64_t, Expected> known;  // by how many rows: the model stays the same
  for (const bool graphs : {true, false}) {
    tasks::PuzzleEvaluator evaluator(run.task.model(), {60, kEvalSegments, early_halt, graphs, /*call_rows=*/200});
    // Several batches, the last ones smaller: what an earlier one left must not show. With early halting a call takes
    // more rows than run at a time.
    const int64_t many = early_halt ? 200 : 60;
    for (const int64_t rows : std::vector<int64_t>{60, many, 60, 57, 40, 60, 1, 33, early_halt ? 61 : 60}) {
      SCOPED_TRACE(
          cat(rows, " rows, graphs ", graphs, ", early halt ", early_halt, more.empty() ? "" : ", " + more[0]));
      const data::PuzzleBatch batch = some_puzzles(run, rows);
      if (!known.contains(rows)) known[rows] = expected_answers(run.task.model(), batch, early_halt);
      const Expected& want = known.at(rows);
      const tasks::PuzzleEvaluator::Answers got = evaluator.run(batch);
      ASSERT_EQ(got.steps.size(0), rows);
      if (device.is_cpu()) {  // rows round alike in batches of all sizes: no row is left out
        EXPECT_TRUE(at::equal(got.steps, want.steps));
        EXPECT_TRUE(at::allclose(got.q_halt, want.q_halt, 1e-4, 1e-4));
        EXPECT_TRUE(at::allclose(got.q_continue, want.q_continue, 1e-4, 1e-4));
        EXPECT_TRUE(at::allclose(got.logits, want.logits, 1e-4, 1e-4));
      }
      const at::Tensor decided = want.closest > kRounding * spread;
      EXPECT_LE(rows - decided.sum().item<int64_t>(), 1 + rows / 10) << "the test needs rows that are decided";
      const at::Tensor other = got.steps.ne(want.steps).logical_and(decided);
      EXPECT_FALSE(other.any().item<bool>())
          << other.sum().item<int64_t>() << " rows took another number of segments, the first is row "
          << other.to(at::kInt).argmax().item<int64_t>() << "\n"
          << at::stack({got.steps, want.steps}, 1).to(at::kCPU);
      expect_rows_near("q_halt", got.q_halt.unsqueeze(1), want.q_halt.unsqueeze(1), decided, kRounding);
      expect_rows_near("q_continue", got.q_continue.unsqueeze(1), want.q_continue.unsqueeze(1), decided, kRounding);
      expect_rows_near("logits", got.logits, want.logits, decided, kRounding);
      if (early_halt && rows == 60) {
        const double mean = want.steps.to(at::kDouble).mean().item<double>();
        EXPECT_GT(mean, 1.1) << "the test needs rows that go on";
        EXPECT_LT(mean, kEvalSegments - 1) << "the test needs rows that halt";
      }
    }
  }
}

// An evaluator that is kept while the training goes on measures what a new one does, and the training is what it is
// without.
inline void check_kept_evaluation(const std::vector<std::string>& overrides) {
  const auto dir = fresh_folder("runs");
  SmallRun run(dir / "evaluated", overrides), other(dir / "other", overrides);
  run.trainer.start_fresh();
  other.trainer.start_fresh();
  const config::Config& config = run.loaded.config;
  const auto test = data::open_dataset(config.data.test, "test", config.data);
  const auto ignore = [](const tasks::EvalProgress&) {};
  std::vector<double> losses;
  for (int part = 0; part < 3; ++part) {
    SCOPED_TRACE(part);
    run.trainer.run_steps(4);
    other.trainer.run_steps(4);
    const tasks::NamedValues kept = run.task.evaluate(ignore);
    const auto options = tasks::puzzle_eval_options(config, run.task.model(), run.runtime, /*training_batch=*/0);
    tasks::PuzzleEvaluation fresh(run.task.model(), test, config.objective, options, run.runtime.device);
    EXPECT_EQ(kept, fresh.run(ignore));
    losses.push_back(tasks::value_of(kept, "lm_loss"));
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[1], losses[2]);
  const auto got = run.tensors(), want = other.tensors();
  for (const auto& [name, tensor] : want) {
    if (name == "loop.open_window.sums") continue;  // the last steps' metrics may still be on their way to the host
    EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  }
}

}  // namespace hrm::testing
