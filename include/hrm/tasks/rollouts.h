#pragma once
// Thinking wider: several rollouts of each puzzle, which noise sends different ways, and one answer chosen among theirs
// (PTRM, arXiv 2605.19943; the selection by convergence is that of EqR, arXiv 2605.21488). The weights stay as they
// are.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/runtime/captured_step.h"

namespace hrm::tasks {

struct RolloutOptions {
  int64_t rows = 1;      // that run at a time: rollouts of one or several puzzles; with early_halt at least K
  int64_t rollouts = 2;  // K, of each puzzle. The first has none of `noise`: it is what a run without rollouts gives
  int64_t segments = 1;
  double noise = 0.1;  // standard deviation of what is added to the state before each segment
  config::NoisyState noisy_state = config::NoisyState::z_L;
  int64_t residual_window = 3;  // last segments that the residual is the mean of
  uint64_t seed = 0;
  bool cuda_graphs = true;
  // true: all rollouts of a puzzle stop at the first segment after which the model's own rule would halt at least
  // `agreeing` of them with the same answer, which is then the puzzle's. The call's next puzzle enters their places,
  // and at the end the batch shrinks. false: all run all segments.
  bool early_halt = false;
  int64_t agreeing = 0;      // 0: half of the rollouts, but at least 2 if there are as many
  int64_t call_puzzles = 0;  // with early_halt: puzzles that one call takes at most, if more than rows / K
};

class HaltingSlots;

class RolloutEvaluator {
 public:
  // After the last segment. N puzzles, K rollouts, S cells; on the model's device. With early_halt the next call
  // overwrites them.
  struct Answers {
    at::Tensor tokens;    // (N, K, S) int32: largest logit of each cell
    at::Tensor q_halt;    // (N, K) float32
    at::Tensor residual;  // (N, K) float32: mean over cells and the last segments of |logits - logits before|; 0 after
                          // a single segment
    at::Tensor settled;   // (N, K) int32: segments since the answer changed for the last time
    at::Tensor segments = {};  // (N) int32: that the rollouts of the puzzle ran
    at::Tensor decided = {};   // (N, K) bool: the answers that the puzzle stopped for; all where it did not stop early
  };

  // `model` must live as long.
  RolloutEvaluator(models::PuzzleModel& model, const RolloutOptions& options);
  ~RolloutEvaluator();
  RolloutEvaluator(const RolloutEvaluator&) = delete;
  RolloutEvaluator& operator=(const RolloutEvaluator&) = delete;

  // Runs all rollouts of the first `valid_rows` puzzles of `batch` (on the host or the device). `examples`: a number
  // for each puzzle, below 2^32, that its noise depends on; the batch it stands in does not matter. Queues device work
  // and reads nothing; with early_halt the host reads, one segment late, how many puzzles continue. A model with active
  // fp8 recursions needs an nn::Fp8Evaluation meanwhile.
  Answers run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples);

 private:
  struct Call;

  Call begin_call(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples) const;
  void load(int64_t rows, const Call& call, const at::Tensor& puzzles, const at::Tensor& rollouts);
  void start(int64_t rows, const at::Tensor& fresh);
  void segment(int64_t rows);
  at::Tensor residuals(int64_t rows) const;
  Answers run_all(const Call& call, bool fp8);
  Answers run_early_halt(const Call& call, bool fp8);
  void refill(int64_t places);
  void finish(int64_t places);

  models::PuzzleModel& model_;
  RolloutOptions options_;
  CapturedStep captured_;
  // Static: R rows that run at a time.
  models::Carry carry_;
  at::Tensor inputs_, identifiers_;      // (R, S), (R) int32
  at::Tensor keys_, noise_keys_;         // (R) int64: of the model's own draws; of the noise, -1 = none
  at::Tensor segments_;                  // (R) int64: that the row has run
  at::Tensor logits_, tokens_, q_halt_;  // of the segment before: (R, S, V), (R, S) int32, (R) float32
  at::Tensor halts_;                     // (R) bool: the model's own rule would halt after the segment before
  at::Tensor settled_, changes_;         // (R) int32; (window, R) float32
  // Static, with early_halt: R / K places, each for the rollouts of one puzzle of the call.
  at::Tensor all_inputs_, all_identifiers_, all_keys_;  // (N, S), (N) int32, (N) int64
  Answers found_;                                       // N + 1 puzzles; the last is for places without a puzzle
  std::unique_ptr<HaltingSlots> slots_;
};

// (N) int64: which rollout of each puzzle is chosen. q: the largest Q value. residual: the smallest residual. settled:
// the answer that has not changed for longest. majority: the most frequent answer. first: the one without noise. The
// larger Q value decides between equal ones of settled and majority, then the first rollout. NaN is never chosen before
// a number. Where a puzzle stopped early, all but first choose among the answers that it stopped for.
at::Tensor choose_rollouts(const RolloutEvaluator::Answers& answers, config::RolloutSelector selector);

// (N) int64: a rollout whose answer obeys the rules, `valid` (N, K) bool, or any if none does. Among these, answers
// that the puzzle stopped for come first, then the largest Q value.
at::Tensor choose_valid(const RolloutEvaluator::Answers& answers, const at::Tensor& valid);

}  // namespace hrm::tasks
