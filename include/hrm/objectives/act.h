#pragma once
// Training with adaptive computation time (ACT) and deep supervision (HRM, arXiv 2506.21734, section 2.5). Every slot
// of the batch runs one segment of its sample per optimizer step, until the sample halts and the slot receives a new
// one. Shapes: B slots, S tokens, L = P + S positions, D hidden.
//
// All functions run on the current stream and never wait for the device. They keep the addresses of the state, so they
// can be captured in a CUDA graph. They also accept narrow() views of a larger state.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hrm/data/batch.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/objectives/cross_entropy.h"

namespace hrm::objectives {

// The state between steps. A resume restores every tensor of it.
struct ActState {
  models::Carry carry;            // z_H, z_L (B, L, D) compute dtype
  at::Tensor steps;               // (B) int32, segments that the sample has had
  at::Tensor halted;              // (B) bool: the slot receives a new sample at the next step
  at::Tensor inputs;              // (B, S) int32
  at::Tensor labels;              // (B, S) int32
  at::Tensor puzzle_identifiers;  // (B) int32

  int64_t size() const { return halted.size(0); }
  // Slots first .. first+count-1, sharing memory with this state.
  ActState narrow(int64_t first, int64_t count) const;
};

// A state in which every slot has halted, on the model's device and in its compute dtype.
ActState make_act_state(models::PuzzleModel& model, int64_t slots);

// Restarts the halted slots: carry = H_init, L_init, steps 0, inputs from the row of `batch` with the slot's index. The
// other slots keep their samples, and their rows of `batch` are discarded, as in the official loader.
void act_begin(ActState& state, const data::PuzzleBatch& batch, const at::Tensor& H_init, const at::Tensor& L_init);

// As act_begin(), but uses every row: halted slots, in slot order, receive the rows cursor, cursor+1, ... of `pool`,
// modulo its rows. `cursor` (0-dim int64, on the state's device) advances by their number. If the state is split into
// views, call this view by view in slot order. `pool` needs at least as many rows as the state has slots.
void act_begin_from_pool(ActState& state, const data::PuzzleBatch& pool, at::Tensor& cursor, const at::Tensor& H_init,
                         const at::Tensor& L_init);

// Random numbers for the exploration of one step.
struct HaltDraws {
  at::Tensor uniform;    // (B) float32 in [0, 1): the slot explores if this is below halt_exploration_prob
  at::Tensor min_steps;  // (B) int32 in 2..halt_max_steps: minimum number of segments before an exploring slot may halt
};

// Stores the new carry, counts the segment, and decides which slots halt. A slot always halts after halt_max_steps. In
// training it also halts if q_halt > q_continue (no_ACT_continue: q_halt > 0), unless it explores.
void act_end(ActState& state, const models::SegmentOutput& output, const HaltDraws& draws, bool training,
             const config::ModelConfig& config);

// Target of q_continue, (B) float32: the value of one more segment from the new carry. This is sigmoid(q_halt) if the
// sample is at its last segment, otherwise sigmoid(max(q_halt, q_continue)). Call after act_end.
at::Tensor target_q_continue(models::PuzzleModel& model, const ActState& state, const at::Tensor& puzzle_rows,
                             const models::SegmentDraws& draws = {});

struct ActLoss {
  at::Tensor loss;     // 0-dim float64 (float32 if the token loss is), sum over the batch, differentiable
  at::Tensor metrics;  // (number of names) float64 sums, in the order of act_metric_names()
};

// count, accuracy, exact_accuracy, q_halt_accuracy, steps: sums over halted slots that have labels. lm_loss,
// q_halt_loss, q_continue_loss: sums over all slots.
const std::vector<std::string>& act_metric_names();

// loss = sum over slots of (mean token cross-entropy + (BCE(q_halt, all tokens right) + BCE(q_continue, target)) / 2).
// The q_continue term exists only if there is a target. With output.earlier the loss, and the losses among the metrics,
// are means over all read-outs; each Q value is about the tokens of its own. Call after act_end.
ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, LossKind kind, LossPrecision precision);
ActLoss act_loss(const models::SegmentOutput& output, const ActState& state,
                 const std::optional<at::Tensor>& target_q_continue, const config::ObjectiveConfig& objective);

// What the random states and noise of a step depend on (PuzzleModel::needs_keys).
struct StateKeys {
  at::Tensor keys;  // (B) int64, one for each slot and step, from 0 to 2^47 - 1
  uint64_t seed = 0;
};

struct TrainSegment {
  models::SegmentOutput output;
  std::optional<at::Tensor> target_q_continue;
  ActLoss loss;
};

// One training segment after act_begin: gives slots with steps 0 a random start where the model has one, gathers the
// puzzle embeddings into `puzzle_rows`, runs the segment and calls act_end. Computes the loss and, if configured, the Q
// target. The caller runs backward.
//
// `puzzle_rows`: (B, puzzle_emb_ndim) float32 leaf with requires_grad, overwritten in place. Its gradient is that of
// the embeddings of state.puzzle_identifiers. Undefined if the model has no puzzle embedding.
TrainSegment act_train_segment(models::PuzzleModel& model, ActState& state, at::Tensor& puzzle_rows,
                               const HaltDraws& draws, const config::ObjectiveConfig& objective,
                               const StateKeys& keys = {});

// Creates the `puzzle_rows` of act_train_segment; undefined if the model has no puzzle embedding.
at::Tensor make_puzzle_rows(models::PuzzleModel& model, int64_t slots);

// In evaluations, rollout k of example i has the key i * kKeysPerExample + k.
inline constexpr int64_t kKeysPerExample = 1 << 15;

struct Evaluation {
  models::SegmentOutput output;  // of the last segment
  ActState state;                // after the last segment, all slots halted; for act_loss
};

// Called after each segment, counted from 1.
using SegmentCallback = std::function<void(int64_t segment, const models::SegmentOutput& output)>;

// Runs `segments` segments of `batch` (on the model's device) from a fresh carry, without early halting or autograd.
// Row i draws with the key (first_example + i) * kKeysPerExample.
Evaluation act_evaluate(models::PuzzleModel& model, const data::PuzzleBatch& batch, int64_t segments,
                        const SegmentCallback& on_segment = {}, uint64_t seed = 0, int64_t first_example = 0);

}  // namespace hrm::objectives
