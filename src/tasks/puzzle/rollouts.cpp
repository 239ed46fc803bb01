#include "hrm/tasks/rollouts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/objectives/act.h"
#include "hrm/ops/state_noise.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/puzzle_evaluator.h"
#include "tasks/puzzle/halting_slots.h"

namespace hrm::tasks {
namespace {

// More rollouts keep the first ones.
constexpr int64_t kMostRollouts = objectives::kKeysPerExample, kMostExamples = int64_t{1} << 32, kWithoutNoise = -1;

CapturedStepOptions rollout_capture_options(models::PuzzleModel& model, const RolloutOptions& options) {
  return {.name = "rollout segment",
          .device = model.H_init().device(),
          .enabled = options.cuda_graphs && options.segments > 1,
          // Early halting goes through many shapes, most of them for two or three segments.
          .warmup = options.early_halt ? 3 : 1};
}

// Each of `values` (N) `times` times in a row. Unlike repeat_interleave, it may be captured.
at::Tensor repeated(const at::Tensor& values, int64_t times) {
  return values.unsqueeze(1).expand({-1, times}).reshape(-1);
}

// How many of a puzzle's rollouts have the same answer, (N, K); `counted` (N, K) bool, if defined, leaves out the
// others, which get no more than 1. Answers are compared by a hash of 64 bits, for all pairs of all cells are many.
// Equal hashes stand together when sorted.
at::Tensor agreement(const at::Tensor& tokens, const at::Tensor& counted = {}) {
  // A sum of the cells with mixed 64-bit weights, which wraps around.
  at::Tensor weights = at::arange(1, tokens.size(-1) + 1, tokens.options().dtype(at::kLong));
  for (const int64_t factor : {int64_t{0x2545F4914F6CDD1D}, int64_t{0x369DEA0F31A53F85}}) {
    weights = weights * factor;
    weights = weights.bitwise_xor(weights.bitwise_right_shift(31));
  }
  at::Tensor hash = (tokens.to(at::kLong) * weights).sum(-1);
  if (counted.defined()) hash = at::where(counted, hash, at::arange(hash.size(1), hash.options()));
  const auto [sorted, order] = hash.sort(1);
  const at::Tensor first = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/false),
                   behind = at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/true);
  return at::empty_like(hash).scatter_(1, order, behind - first);
}

}  // namespace

// The puzzles of a call, on the device.
struct RolloutEvaluator::Call {
  at::Tensor inputs, identifiers;  // (N, S), (N) int32
  at::Tensor keys;                 // (N) int64, of the first rollout; the others follow
  int64_t puzzles = 0;
};

RolloutEvaluator::RolloutEvaluator(models::PuzzleModel& model, const RolloutOptions& options)
    : model_(model), options_(options), captured_(rollout_capture_options(model, options)) {
  require(options.rows > 0 && options.rollouts > 0 && options.rollouts <= kMostRollouts && options.segments > 0 &&
              options.residual_window > 0 && (!options.early_halt || options.rows >= options.rollouts),
          ExitCode::unexpected, "rollouts with ", options.rows, " rows, ", options.rollouts, " rollouts, ",
          options.segments, " segments and a window of ", options.residual_window);
  const models::PuzzleModelDims& dims = model.dims();
  const int64_t K = options.rollouts, places = options.rows / K;
  if (options.early_halt) options_.rows = places * K;
  options_.agreeing = std::min(K, options.agreeing > 0 ? options.agreeing : std::max<int64_t>(K / 2, 2));
  const int64_t R = options_.rows, L = dims.puzzle_emb_len + dims.seq_len;
  const auto compute = at::device(model.H_init().device()).dtype(model.parameter_set().compute_dtype());
  const auto ints = compute.dtype(at::kInt), longs = compute.dtype(at::kLong), floats = compute.dtype(at::kFloat),
             bools = compute.dtype(at::kBool);
  carry_ = {at::zeros({R, L, model.config().hidden_size}, compute),
            at::zeros({R, L, model.config().hidden_size}, compute)};
  inputs_ = at::zeros({R, dims.seq_len}, ints);
  identifiers_ = at::zeros({R}, ints);
  keys_ = at::zeros({R}, longs);
  noise_keys_ = at::zeros({R}, longs);
  segments_ = at::zeros({R}, longs);
  logits_ = at::zeros({R, dims.seq_len, dims.vocab_size}, compute);
  tokens_ = at::zeros({R, dims.seq_len}, ints);
  q_halt_ = at::zeros({R}, floats);
  halts_ = at::zeros({R}, bools);
  settled_ = at::zeros({R}, ints);
  changes_ = at::zeros({options.residual_window, R}, floats);
  if (!options.early_halt) return;
  options_.call_puzzles = std::max(options.call_puzzles, places);
  const int64_t N = options_.call_puzzles;
  all_inputs_ = at::zeros({N, dims.seq_len}, ints);
  all_identifiers_ = at::zeros({N}, ints);
  all_keys_ = at::zeros({N}, longs);
  found_ = {.tokens = at::zeros({N + 1, K, dims.seq_len}, ints),
            .q_halt = at::zeros({N + 1, K}, floats),
            .residual = at::zeros({N + 1, K}, floats),
            .settled = at::zeros({N + 1, K}, ints),
            .segments = at::zeros({N + 1}, ints),
            .decided = at::zeros({N + 1, K}, bools)};
  slots_ = std::make_unique<HaltingSlots>(places, inputs_.device());
}

RolloutEvaluator::~RolloutEvaluator() = default;

// Gives the first `rows` rows a rollout of a puzzle of the call: `puzzles`, `rollouts` (rows) int64.
void RolloutEvaluator::load(int64_t rows, const Call& call, const at::Tensor& puzzles, const at::Tensor& rollouts) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  part(inputs_).copy_(call.inputs.index_select(0, puzzles));
  part(identifiers_).copy_(call.identifiers.index_select(0, puzzles));
  part(keys_).copy_(call.keys.index_select(0, puzzles) + rollouts);
  // The first rollout of each puzzle is the answer without noise.
  part(noise_keys_).copy_(part(keys_).masked_fill(rollouts.eq(0), kWithoutNoise));
}

// The rows where `fresh` (rows) bool is true have run no segment.
void RolloutEvaluator::start(int64_t rows, const at::Tensor& fresh) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  model_.start_rows({part(carry_.z_H), part(carry_.z_L)}, fresh, part(keys_), options_.seed);
  part(segments_).masked_fill_(fresh, 0);
  part(settled_).masked_fill_(fresh, 0);
  changes_.narrow(1, 0, rows).masked_fill_(fresh, 0);
}

// One segment of the first `rows` rows. The first one has nothing to be compared with.
void RolloutEvaluator::segment(int64_t rows) {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
  const at::Tensor z_H = part(carry_.z_H), z_L = part(carry_.z_L), segments = part(segments_);
  if (options_.noise > 0) {
    ops::add_state_noise_(options_.noisy_state == config::NoisyState::z_H ? z_H : z_L, part(noise_keys_), segments,
                          options_.noise, static_cast<int64_t>(options_.seed));
  }
  at::Tensor puzzle_rows;
  if (model_.dims().puzzle_emb_ndim > 0) {
    puzzle_rows = model_.puzzle_embedding().index_select(0, part(identifiers_));
  }
  const models::SegmentOutput out = model_.segment({z_H, z_L}, part(inputs_), puzzle_rows,
                                                   model_.draws_of_segment(part(keys_), segments, options_.seed));
  z_H.copy_(out.carry.z_H);
  z_L.copy_(out.carry.z_L);

  const at::Tensor later = segments.gt(0);
  const at::Tensor tokens = out.logits.argmax(-1).to(at::kInt);
  const at::Tensor same = tokens.eq(part(tokens_)).all(-1).logical_and(later);
  part(settled_).copy_((part(settled_) + 1) * same);
  const at::Tensor change =
      at::linalg_vector_norm(out.logits.to(at::kFloat) - part(logits_).to(at::kFloat), 2, at::IntArrayRef{-1}).mean(-1);
  // Not a product: what stood there may be NaN.
  changes_.narrow(1, 0, rows)
      .scatter_(0, segments.remainder(options_.residual_window).unsqueeze(0),
                at::where(later, change, at::zeros_like(change)).unsqueeze(0));
  part(logits_).copy_(out.logits);
  part(tokens_).copy_(tokens);
  part(q_halt_).copy_(out.q_halt);
  part(halts_).copy_(model_.config().no_ACT_continue ? out.q_halt.gt(0) : out.q_halt.gt(out.q_continue));
  segments.add_(1);
}

// (rows) float32: mean of the changes that the window holds.
at::Tensor RolloutEvaluator::residuals(int64_t rows) const {
  const at::Tensor changes = (segments_.narrow(0, 0, rows) - 1).clamp(1, options_.residual_window);
  return changes_.narrow(1, 0, rows).sum(0) / changes.to(at::kFloat);
}

RolloutEvaluator::Call RolloutEvaluator::begin_call(const data::PuzzleBatch& batch,
                                                    const std::vector<int64_t>& examples) const {
  const int64_t N = batch.valid_rows;
  require(N > 0 && N <= static_cast<int64_t>(examples.size()), ExitCode::unexpected, "rollouts of ", N,
          " puzzles with numbers for ", examples.size());
  const at::Device device = model_.H_init().device();
  std::vector<int64_t> keys;
  keys.reserve(static_cast<size_t>(N));
  for (int64_t n = 0; n < N; ++n) {
    const int64_t example = examples[static_cast<size_t>(n)];
    require(example >= 0 && example < kMostExamples, ExitCode::unexpected, "the puzzle number ", example);
    keys.push_back(example * kMostRollouts);
  }
  const auto on_device = [&](const at::Tensor& t) { return t.to(device, t.scalar_type(), /*non_blocking=*/true); };
  const at::Tensor host_keys = at::tensor(keys, at::kLong);
  return {.inputs = on_device(batch.inputs.narrow(0, 0, N)),
          .identifiers = on_device(batch.puzzle_identifiers.narrow(0, 0, N)),
          .keys = on_device(device.is_cuda() ? host_keys.pin_memory() : host_keys),
          .puzzles = N};
}

RolloutEvaluator::Answers RolloutEvaluator::run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples) {
  const at::NoGradGuard no_grad;
  const ProfilerRange range(RangeKind::eval, "eval.rollouts");
  const bool fp8 = model_.fp8() != nullptr && model_.fp8()->active();
  require(!fp8 || model_.fp8()->evaluating(), ExitCode::unexpected,
          "rollouts in fp8 of weights that were not quantised for it");
  const Call call = begin_call(batch, examples);
  return options_.early_halt ? run_early_halt(call, fp8) : run_all(call, fp8);
}

RolloutEvaluator::Answers RolloutEvaluator::run_all(const Call& call, bool fp8) {
  const int64_t N = call.puzzles, K = options_.rollouts;
  const at::Tensor row = at::arange(N * K, call.keys.options());
  const at::Tensor puzzle = row.floor_divide(K), rollout = row.remainder(K);
  const auto ints = call.keys.options().dtype(at::kInt);
  Answers answers{.tokens = at::empty({N * K, inputs_.size(1)}, ints),
                  .q_halt = at::empty({N * K}, q_halt_.options()),
                  .residual = at::empty({N * K}, q_halt_.options()),
                  .settled = at::empty({N * K}, ints),
                  .segments = at::full({N}, options_.segments, ints)};
  // In equal parts, so that few shapes are captured and none is nearly empty.
  const int64_t parts = (N * K + options_.rows - 1) / options_.rows, most = (N * K + parts - 1) / parts;
  for (int64_t first = 0; first < N * K; first += most) {
    const int64_t rows = std::min(most, N * K - first);
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, rows); };
    load(rows, call, puzzle.narrow(0, first, rows), rollout.narrow(0, first, rows));
    start(rows, at::ones({rows}, halts_.options()));
    const std::vector<at::Tensor> fixed{inputs_, identifiers_, keys_, noise_keys_, segments_, carry_.z_H, carry_.z_L};
    for (int64_t i = 0; i < options_.segments; ++i) {
      captured_.run({rows, fp8}, fixed, [this, rows] { segment(rows); });
    }
    answers.tokens.narrow(0, first, rows).copy_(part(tokens_));
    answers.q_halt.narrow(0, first, rows).copy_(part(q_halt_));
    answers.residual.narrow(0, first, rows).copy_(residuals(rows));
    answers.settled.narrow(0, first, rows).copy_(part(settled_));
  }
  return {answers.tokens.view({N, K, -1}), answers.q_halt.view({N, K}), answers.residual.view({N, K}),
          answers.settled.view({N, K}), answers.segments};
}

// The next puzzles of the call take the places whose puzzle has stopped.
void RolloutEvaluator::refill(int64_t places) {
  const int64_t K = options_.rollouts, rows = places * K;
  const at::Tensor taken = slots_->refill(places), puzzle = slots_->row(places);
  load(rows, {all_inputs_, all_identifiers_, all_keys_}, repeated(puzzle, K),
       at::arange(rows, puzzle.options()).remainder(K));
  start(rows, repeated(taken, K));
}

// Keeps what the rollouts of each place have now, and stops those that are decided.
void RolloutEvaluator::finish(int64_t places) {
  const int64_t K = options_.rollouts, rows = places * K;
  const auto by_place = [&](const at::Tensor& t) { return t.narrow(0, 0, rows).unflatten(0, {places, K}); };
  // A place without a puzzle computes, too, and leaves its answers behind the last.
  const at::Tensor to = slots_->row_or(places, options_.call_puzzles);
  const at::Tensor segments = by_place(segments_).select(1, 0);
  found_.tokens.index_copy_(0, to, by_place(tokens_));
  found_.q_halt.index_copy_(0, to, by_place(q_halt_));
  found_.residual.index_copy_(0, to, residuals(rows).view({places, K}));
  found_.settled.index_copy_(0, to, by_place(settled_));
  found_.segments.index_copy_(0, to, segments.to(at::kInt));
  const at::Tensor halts = by_place(halts_);
  const at::Tensor agree = agreement(by_place(tokens_), halts).ge(options_.agreeing).logical_and(halts);  // (places, K)
  const at::Tensor stops = agree.any(1);
  found_.decided.index_copy_(0, to, agree.logical_or(stops.logical_not().unsqueeze(1)));
  slots_->finish(places, stops.logical_not().logical_and(segments.lt(options_.segments)));
}

RolloutEvaluator::Answers RolloutEvaluator::run_early_halt(const Call& call, bool fp8) {
  const int64_t N = call.puzzles, K = options_.rollouts, all = options_.rows / K;
  require(N <= options_.call_puzzles, ExitCode::unexpected, "rollouts of ", N, " puzzles, but room for ",
          options_.call_puzzles);
  all_inputs_.narrow(0, 0, N).copy_(call.inputs);
  all_identifiers_.narrow(0, 0, N).copy_(call.identifiers);
  all_keys_.narrow(0, 0, N).copy_(call.keys);
  const std::vector<at::Tensor> fixed{all_inputs_, all_identifiers_, all_keys_, carry_.z_H, carry_.z_L};
  slots_->run(
      N, [&](int64_t puzzles) { return std::min(all, std::max<int64_t>(evaluation_bucket(puzzles * K) / K, 1)); },
      [&](int64_t places) {
        captured_.run({places, fp8}, fixed, [this, places] {
          refill(places);
          segment(places * options_.rollouts);
          finish(places);
        });
      },
      [&](const at::Tensor& kept) {
        const at::Tensor rows = (kept.unsqueeze(1) * K + at::arange(K, kept.options())).reshape(-1);
        move_to_front(rows, {carry_.z_H, carry_.z_L, segments_, logits_, tokens_, settled_});
        move_to_front(rows, {changes_}, /*dim=*/1);
      });
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, N); };
  return {part(found_.tokens),  part(found_.q_halt),   part(found_.residual),
          part(found_.settled), part(found_.segments), part(found_.decided)};
}

at::Tensor choose_valid(const RolloutEvaluator::Answers& answers, const at::Tensor& valid) {
  const at::NoGradGuard no_grad;
  const at::Tensor share = answers.q_halt.to(at::kDouble).sigmoid().nan_to_num(0) * 0.999;
  at::Tensor score = valid.to(at::kDouble) * 2 + share;
  if (answers.decided.defined()) score = score + answers.decided.to(at::kDouble);
  return score.argmax(1);
}

at::Tensor choose_rollouts(const RolloutEvaluator::Answers& answers, config::RolloutSelector selector) {
  const at::NoGradGuard no_grad;
  constexpr double kWorst = -std::numeric_limits<double>::infinity();
  const at::Tensor q = answers.q_halt.to(at::kDouble);
  // A rollout whose Q value is no number has none in its logits: it would agree with others of its kind.
  const auto best = [&](const at::Tensor& score) {
    at::Tensor out = score.isnan().logical_or(q.isnan());
    if (answers.decided.defined()) out = out.logical_or(answers.decided.logical_not());
    return score.masked_fill(out, kWorst).argmax(1);
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
