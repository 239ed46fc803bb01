#pragma once
// Answers of a model for batches of puzzles, segment after segment, without the host in between. The segments are
// captured in a CUDA graph, and nothing is read before the last one.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/runtime/captured_step.h"

namespace hrm::tasks {

struct PuzzleEvaluatorOptions {
  int64_t batch_size = 1;  // rows that run at a time, and that one call takes at most
  int64_t segments = 1;
  // true: a row stops at the first segment after which the model's own rule halts it (q_halt > q_continue; with
  // model.no_ACT_continue q_halt > 0), and the call's next row enters its slot. At the end, running rows move into
  // smaller batches. false: all rows run all segments, as published numbers do.
  bool early_halt = false;
  bool cuda_graphs = true;
  int64_t call_rows = 0;  // with early_halt: rows that one call takes at most, if more than batch_size
  uint64_t seed = 0;      // of random states, where the model has them
};

class HaltingSlots;

class PuzzleEvaluator {
 public:
  // What a row's last segment gave. Views of tensors that the next call overwrites. N = rows of the call.
  struct Answers {
    at::Tensor logits;      // (N, S, V) compute dtype
    at::Tensor q_halt;      // (N) float32
    at::Tensor q_continue;  // (N) float32
    at::Tensor steps;       // (N) int32, segments that the row ran
  };

  // `model` must live as long as the evaluator, which may be kept while the model continues training: its graphs read
  // the weights where they stand.
  PuzzleEvaluator(models::PuzzleModel& model, const PuzzleEvaluatorOptions& options);
  ~PuzzleEvaluator();
  PuzzleEvaluator(const PuzzleEvaluator&) = delete;
  PuzzleEvaluator& operator=(const PuzzleEvaluator&) = delete;

  // Runs the first `valid_rows` rows of `batch` (on the host or the device) from fresh carries, by the weights as they
  // are now. A model with active fp8 recursions needs an nn::Fp8Evaluation that lives meanwhile; Error(unexpected).
  // Queues device work; with early_halt the host also reads, one segment late, how many rows continue. `examples`: a
  // number for each row, below 2^32, that random states depend on; empty: its place in the batch.
  Answers run(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples = {});

 private:
  void load(const data::PuzzleBatch& batch, const std::vector<int64_t>& examples);
  models::SegmentOutput advance(int64_t rows, const at::Tensor& inputs, const at::Tensor& identifiers,
                                const at::Tensor& keys, const at::Tensor& done);
  void segment(int64_t rows);
  void segment_early_halt(int64_t rows);
  bool fp8_active() const;
  void run_segment(int64_t rows);
  Answers run_all(int64_t valid);
  Answers run_early_halt(int64_t valid);

  models::PuzzleModel& model_;
  PuzzleEvaluatorOptions options_;
  CapturedStep captured_;

  // Static: B rows run at a time, of N in the call (N = B without early_halt). Smaller batches use the first of them.
  models::Carry carry_;
  at::Tensor inputs_, identifiers_;  // (N, S), (N) int32
  at::Tensor keys_;                  // (N) int64; undefined if the model draws nothing
  at::Tensor steps_;                 // (B) int32
  // As in Answers, N rows; with early_halt one more, where places without a row leave theirs.
  at::Tensor logits_, q_halt_, q_continue_, answered_steps_;
  std::unique_ptr<HaltingSlots> slots_;  // with early_halt
};

// The smallest batch for `left` running rows: powers of two and three quarters of them, so that few shapes occur.
int64_t evaluation_bucket(int64_t left);

}  // namespace hrm::tasks
