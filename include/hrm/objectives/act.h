#pragma once
// Training by adaptive computation time (ACT) with deep supervision: every slot of the batch works on its sample for
// one segment per optimizer step, until it halts and receives a new sample (HRM, arXiv 2506.21734, section 2.5).
// Shapes: B slots, S tokens, L = P + S positions, D hidden. All functions run on the current stream, never wait for the
// device, and keep the addresses of the state, so they can be captured in a CUDA graph. They also work on narrow()
// views of a larger state.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hrm/data/batch.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/objectives/cross_entropy.h"

namespace hrm::objectives {

// What lives from step to step. Every tensor belongs to a resume.
struct ActState {
  models::Carry carry;            // z_H, z_L (B, L, D) compute dtype
  at::Tensor steps;               // (B) int32, segments that the sample has had
  at::Tensor halted;              // (B) bool: the slot takes a new sample at the next step
  at::Tensor inputs;              // (B, S) int32
  at::Tensor labels;              // (B, S) int32
  at::Tensor puzzle_identifiers;  // (B) int32

  int64_t size() const { return halted.size(0); }
  // Slots first .. first+count-1, sharing memory with this state.
  ActState narrow(int64_t first, int64_t count) const;
};

// A state in which every slot has halted, on the model's device and in its compute dtype.
ActState make_act_state(models::PuzzleModel& model, int64_t slots);

// Halted slots start afresh: carry = H_init, L_init, steps 0, and the row of `batch` with the slot's number. The
// other slots keep what they have, and their batch rows are discarded (the official loader's behaviour).
void act_begin(ActState& state, const data::PuzzleBatch& batch, const at::Tensor& H_init, const at::Tensor& L_init);

// The same without losing a row: halted slots, in slot order, receive the rows cursor, cursor+1, ... of `pool` (modulo
// its rows), and `cursor` (0-dim int64, on the state's device) advances by their number. Call it for several views of a
// state in slot order. `pool` must have at least as many rows as the state has slots.
void act_begin_from_pool(ActState& state, const data::PuzzleBatch& pool, at::Tensor& cursor, const at::Tensor& H_init,
                         const at::Tensor& L_init);

// Random numbers of one step's exploration.
struct HaltDraws {
  at::Tensor uniform;    // (B) float32 in [0, 1): the slot explores where this is below halt_exploration_prob
  at::Tensor min_steps;  // (B) int32 in 2..halt_max_steps: an exploring slot may not halt before this many segments
};

// Stores the new carry, counts the segment, and decides which slots halt: always after halt_max_steps; in training also
// if q_halt > q_continue (no_ACT_continue: q_halt > 0), unless the slot explores.
void act_end(ActState& state, const models::SegmentOutput& output, const HaltDraws& draws, bool training,
             const config::ModelConfig& config);

// Target of q_continue, (B) float32: the value of one more segment from the new carry, sigmoid(q_halt) if the sample is
// at its last segment, otherwise sigmoid(max(q_halt, q_continue)). Call after act_end.
at::Tensor target_q_continue(models::PuzzleModel& model, const ActState& state, const at::Tensor& puzzle_rows);

struct ActLoss {
  at::Tensor loss;     // 0-dim float64 (float32 when the token loss is), sum over the batch, differentiable
  at::Tensor metrics;  // (number of names) float64 sums, in the order of act_metric_names()
};

// count, accuracy, exact_accuracy, q_halt_accuracy, steps: sums over slots that have halted and have labels;
// lm_loss, q_halt_loss, q_continue_loss: sums over all slots.
const std::vector<std::string>& act_metric_names();

// loss = sum over slots of (mean token cross-entropy + (BCE(q_halt, all tokens right) + BCE(q_continue, target)) / 2);
// the last term only where there is a target. Call after act_end.
ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, LossKind kind, LossPrecision precision);
ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, const config::ObjectiveConfig& objective);

struct TrainSegment {
  models::SegmentOutput output;
  std::optional<at::Tensor> target_q_continue;
  ActLoss loss;
};

// One training segment of a state that has begun. Gathers the puzzle embeddings into `puzzle_rows`, runs and ends the
// segment, and computes the Q target (if configured) and the loss. The caller runs backward. `puzzle_rows`:
// (B, puzzle_emb_ndim) float32 leaf with requires_grad, overwritten in place. Its gradient is that of the embeddings of
// state.puzzle_identifiers. Undefined if the model has no puzzle embedding.
TrainSegment act_train_segment(models::PuzzleModel& model, ActState& state, at::Tensor& puzzle_rows,
                               const HaltDraws& draws, const config::ObjectiveConfig& objective);

// A leaf for act_train_segment; undefined when the model has no puzzle embedding.
at::Tensor make_puzzle_rows(models::PuzzleModel& model, int64_t slots);

struct Evaluation {
  models::SegmentOutput output;  // of the last segment
  ActState state;                // after it, all slots halted; for act_loss
};

// Called after each segment, counted from 1.
using SegmentCallback = std::function<void(int64_t segment, const models::SegmentOutput& output)>;

// `segments` segments of `batch` (on the model's device) from a fresh carry, nobody halts early, nothing is recorded.
Evaluation act_evaluate(models::PuzzleModel& model, const data::PuzzleBatch& batch, int64_t segments,
                        const SegmentCallback& on_segment = {});

}  // namespace hrm::objectives
