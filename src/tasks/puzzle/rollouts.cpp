#include "hrm/tasks/rollouts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/objectives/act.h"
#include "hrm/ops/state_noise.h"
#include "hrm/runtime/nvtx.h"

namespace hrm::tasks {
namespace {

// More rollouts keep the first ones.
constexpr int64_t kMostRollouts = objectives::kKeysPerExample, kMostExamples = int64_t{1} << 32, kWithoutNoise = -1;

CapturedStepOptions rollout_capture_options(models::PuzzleModel& model, const RolloutOptions& options) {
  return {.name = "rollout segment",
          .device = model.H_init().device(),
          .enabled = options.cuda_graphs && options.segments > 1,
          .warmup = 1};
}

}  // namespace

RolloutEvaluator::RolloutEvaluator(models::PuzzleModel& model, const RolloutOptions& options)
    : model_(model), options_(options), captured_(rollout_capture_options(model, options)) {
  require(options.rows > 0 && options.rollouts > 0 && options.rollouts <= kMostRollouts && options.segments > 0 &&
              options.residual_window > 0,
          ExitCode::unexpected, "rollouts with ", options.rows, " rows, ", options.rollouts, " rollouts, ",
          options.segments, " segments and a window of ", options.residual_window);
  const models::PuzzleModelDims& dims = model.dims();
  const int64_t R = options.rows, L = dims.puzzle_emb_len + dims.seq_len;
  const auto compute = at::device(model.H_init().device()).dtype(model.parameter_set().compute_dtype());
  const auto ints = compute.dtype(at::kInt), longs = compute.dtype(at::kLong), floats = compute.dtype(at::kFloat);
  carry_ = {at::zeros({R, L, model.config().hidden_size}, compute),
            at::zeros({R, L, model.config().hidden_size}, compute)};
  inputs_ = at::zeros({R, dims.seq_len}, ints);
  identifiers_ = at::zeros({R}, ints);
  keys_ = at::zeros({R}, longs);
  noise_keys_ = at::zeros({R}, longs);
  segment_ = at::zeros({}, longs);
  logits_ = at::zeros({R, dims.seq_len, dims.vocab_size}, compute);
  tokens_ = at::zeros({R, dims.seq_len}, ints);
  q_halt_ = at::zeros({R}, floats);
  settled_ = at::zeros({R}, ints);
  changes_ = at::zeros({options.residual_window, R}, floats);
}

// One segment of the first `rows` places. The first one has nothing to be compared with.
void RolloutEvaluator::segment(int64_t rows) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  const at::Tensor z_H = part(carry_.z_H), z_L = part(carry_.z_L);
  if (options_.noise > 0) {
    ops::add_state_noise_(options_.noisy_state == config::NoisyState::z_H ? z_H : z_L, part(noise_keys_), segment_,
                          options_.noise, static_cast<int64_t>(options_.seed));
  }
  at::Tensor puzzle_rows;
  if (model_.dims().puzzle_emb_ndim > 0) {
    puzzle_rows = model_.puzzle_embedding().index_select(0, part(identifiers_));
  }
  const models::SegmentOutput out = model_.segment({z_H, z_L}, part(inputs_), puzzle_rows,
                                                   model_.draws_of_segment(part(keys_), segment_, options_.seed));
  z_H.copy_(out.carry.z_H);
  z_L.copy_(out.carry.z_L);

  const at::Tensor later = segment_.gt(0);
  const at::Tensor tokens = out.logits.argmax(-1).to(at::kInt);
  const at::Tensor same = tokens.eq(part(tokens_)).all(-1).logical_and(later);
  part(settled_).copy_((part(settled_) + 1) * same);
  const at::Tensor change =
      at::linalg_vector_norm(out.logits.to(at::kFloat) - part(logits_).to(at::kFloat), 2, at::IntArrayRef{-1}).mean(-1);
  // Not a product: what stood there may be NaN.
  changes_.narrow(1, 0, rows)
      .index_copy_(0, segment_.remainder(options_.residual_window).view({1}),
                   at::where(later, change, at::zeros_like(change)).unsqueeze(0));
  part(logits_).copy_(out.logits);
  part(tokens_).copy_(tokens);
  part(q_halt_).copy_(out.q_halt);
  segment_.add_(1);
}

RolloutEvaluator::Answers RolloutEvaluator::run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples) {
  const at::NoGradGuard no_grad;
  const ProfilerRange range(RangeKind::eval, "eval.rollouts");
  const int64_t N = batch.valid_rows, K = options_.rollouts;
  require(N > 0 && N <= static_cast<int64_t>(examples.size()), ExitCode::unexpected, "rollouts of ", N,
          " puzzles with numbers for ", examples.size());
  const bool fp8 = model_.fp8() != nullptr && model_.fp8()->active();
  require(!fp8 || model_.fp8()->evaluating(), ExitCode::unexpected,
          "rollouts in fp8 of weights that were not quantised for it");
  const at::Device device = model_.H_init().device();
  std::vector<int64_t> keys;
  keys.reserve(static_cast<size_t>(N * K));
  for (int64_t n = 0; n < N; ++n) {
    const int64_t example = examples[static_cast<size_t>(n)];
    require(example >= 0 && example < kMostExamples, ExitCode::unexpected, "the puzzle number ", example);
    for (int64_t k = 0; k < K; ++k) keys.push_back(example * kMostRollouts + k);
  }
  const auto on_device = [&](const at::Tensor& t) { return t.to(device, t.scalar_type(), /*non_blocking=*/true); };
  const at::Tensor host_keys = at::tensor(keys, at::kLong);
  const at::Tensor all_keys = on_device(device.is_cuda() ? host_keys.pin_memory() : host_keys);
  const at::Tensor inputs = on_device(batch.inputs.narrow(0, 0, N)),
                   identifiers = on_device(batch.puzzle_identifiers.narrow(0, 0, N));
  const at::Tensor puzzle = at::arange(N * K, all_keys.options()).floor_divide(K);
  const auto ints = inputs.options().dtype(at::kInt);
  Answers answers{.tokens = at::empty({N * K, inputs_.size(1)}, ints),
                  .q_halt = at::empty({N * K}, q_halt_.options()),
                  .residual = at::empty({N * K}, q_halt_.options()),
                  .settled = at::empty({N * K}, ints)};
  const int64_t counted = std::clamp<int64_t>(options_.segments - 1, 1, options_.residual_window);
  // In equal parts, so that few shapes are captured and none is nearly empty.
  const int64_t parts = (N * K + options_.rows - 1) / options_.rows, most = (N * K + parts - 1) / parts;
  for (int64_t first = 0; first < N * K; first += most) {
    const int64_t rows = std::min(most, N * K - first);
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
    const at::Tensor which = puzzle.narrow(0, first, rows);
    part(inputs_).copy_(inputs.index_select(0, which));
    part(identifiers_).copy_(identifiers.index_select(0, which));
    part(keys_).copy_(all_keys.narrow(0, first, rows));
    // The first rollout of each puzzle is the answer without noise.
    part(noise_keys_).copy_(part(keys_).masked_fill(part(keys_).remainder(kMostRollouts).eq(0), kWithoutNoise));
    model_.start_rows({part(carry_.z_H), part(carry_.z_L)}, at::ones({rows}, keys_.options().dtype(at::kBool)),
                      part(keys_), options_.seed);
    segment_.zero_();
    settled_.zero_();
    changes_.zero_();
    const std::vector<at::Tensor> fixed{inputs_, identifiers_, keys_, noise_keys_, segment_, carry_.z_H, carry_.z_L};
    for (int64_t i = 0; i < options_.segments; ++i) {
      captured_.run({rows, fp8}, fixed, [this, rows] { segment(rows); });
    }
    answers.tokens.narrow(0, first, rows).copy_(part(tokens_));
    answers.q_halt.narrow(0, first, rows).copy_(part(q_halt_));
    answers.residual.narrow(0, first, rows).copy_(changes_.narrow(1, 0, rows).sum(0) / static_cast<double>(counted));
    answers.settled.narrow(0, first, rows).copy_(part(settled_));
  }
  return {answers.tokens.view({N, K, -1}), answers.q_halt.view({N, K}), answers.residual.view({N, K}),
          answers.settled.view({N, K})};
}

namespace {

// How many of a puzzle's rollouts have the same answer, (N, K). Answers are compared by a hash of 64 bits, for all
// pairs of all cells are many. Equal hashes stand together when sorted.
at::Tensor agreement(const at::Tensor& tokens) {
  at::Tensor hash = at::zeros(tokens.sizes().slice(0, 2), tokens.options().dtype(at::kLong));
  for (const at::Tensor& column : tokens.unbind(-1)) {
    hash = (hash + column + 1) * int64_t{0x2545F4914F6CDD1D};  // wraps around; odd, so nothing is lost
    hash = hash.bitwise_xor(hash.bitwise_right_shift(29));
  }
  const auto [sorted, order] = hash.sort(1);
  const at::Tensor first = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/false),
                   behind = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/true);
  return at::empty_like(hash).scatter_(1, order, behind - first);
}

}  // namespace

at::Tensor choose_rollouts(const RolloutEvaluator::Answers& answers, config::RolloutSelector selector) {
  const at::NoGradGuard no_grad;
  constexpr double kWorst = -std::numeric_limits<double>::infinity();
  const at::Tensor q = answers.q_halt.to(at::kDouble);
  // A rollout whose Q value is no number has none in its logits: it would agree with others of its kind.
  const auto best = [&](const at::Tensor& score) {
    return score.masked_fill(score.isnan().logical_or(q.isnan()), kWorst).argmax(1);
  };
  const at::Tensor share = q.sigmoid().nan_to_num(0) * 0.999;  // below 1: decides between whole numbers that are equal
  switch (selector) {
    case config::RolloutSelector::residual:
      return best(-answers.residual.to(at::kDouble));
    case config::RolloutSelector::settled:
      return best(answers.settled.to(at::kDouble) + share);
    case config::RolloutSelector::majority:
      return best(agreement(answers.tokens).to(at::kDouble) + share);
    case config::RolloutSelector::first:
      return at::zeros({q.size(0)}, q.options().dtype(at::kLong));
    default:
      return best(q);
  }
}

}  // namespace hrm::tasks
