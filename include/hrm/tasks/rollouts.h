#pragma once
// Thinking wider: several rollouts of each puzzle, which noise sends different ways, and one answer chosen among theirs
// (PTRM, arXiv 2605.19943; the selection by convergence is that of EqR, arXiv 2605.21488). The weights stay as they
// are.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/runtime/captured_step.h"

namespace hrm::tasks {

struct RolloutOptions {
  int64_t rows = 1;      // that run at a time: rollouts of one or several puzzles
  int64_t rollouts = 2;  // K, of each puzzle. The first has none of `noise`: it is what a run without rollouts gives
  int64_t segments = 1;
  double noise = 0.1;  // standard deviation of what is added to the state before each segment
  config::NoisyState noisy_state = config::NoisyState::z_L;
  int64_t residual_window = 3;  // last segments that the residual is the mean of
  uint64_t seed = 0;
  bool cuda_graphs = true;
};

class RolloutEvaluator {
 public:
  // After the last segment. N puzzles, K rollouts, S cells; on the model's device.
  struct Answers {
    at::Tensor tokens;    // (N, K, S) int32: largest logit of each cell
    at::Tensor q_halt;    // (N, K) float32
    at::Tensor residual;  // (N, K) float32: mean over cells and the last segments of |logits - logits before|; 0 after
                          // a single segment
    at::Tensor settled;   // (N, K) int32: segments since the answer changed for the last time
  };

  // `model` must live as long.
  RolloutEvaluator(models::PuzzleModel& model, const RolloutOptions& options);

  // Runs all rollouts of the first `valid_rows` puzzles of `batch` (on the host or the device), all segments each.
  // `examples`: a number for each puzzle, below 2^32, that its noise depends on; the batch it stands in does not
  // matter. Queues device work and reads nothing. A model with active fp8 recursions needs an nn::Fp8Evaluation
  // meanwhile.
  Answers run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples);

 private:
  void segment(int64_t rows);

  models::PuzzleModel& model_;
  RolloutOptions options_;
  CapturedStep captured_;
  // Static: R rows that run at a time.
  models::Carry carry_;
  at::Tensor inputs_, identifiers_;      // (R, S), (R) int32
  at::Tensor keys_, noise_keys_;         // (R) int64: of the model's own draws; of the noise, -1 = none
  at::Tensor segment_;                   // 0-dim int64
  at::Tensor logits_, tokens_, q_halt_;  // of the segment before: (R, S, V), (R, S) int32, (R) float32
  at::Tensor settled_, changes_;         // (R) int32; (window, R) float32
};

// (N) int64: which rollout of each puzzle is chosen. q: the largest Q value. residual: the smallest residual. settled:
// the answer that has not changed for longest. majority: the most frequent answer. first: the one without noise. The
// larger Q value decides between equal ones of settled and majority, then the first rollout. NaN is never chosen before
// a number.
at::Tensor choose_rollouts(const RolloutEvaluator::Answers& answers, config::RolloutSelector selector);

}  // namespace hrm::tasks
