#pragma once
// The state of adaptive computation time (ACT) between segments: which slots restart and which halt. Plain ATen needs
// about thirty launches on tensors of one number per slot, and masked copies of the whole carry.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::ops {

// B slots; S tokens, L positions, D hidden. All tensors are contiguous and on one device.
struct ActSlots {
  at::Tensor z_H, z_L;            // (B, L, D) any floating-point dtype
  at::Tensor steps;               // (B) int32
  at::Tensor halted;              // (B) bool
  at::Tensor inputs, labels;      // (B, S) int32
  at::Tensor puzzle_identifiers;  // (B) int32
};

// R rows for the slots that restart.
struct ActRows {
  at::Tensor inputs, labels;      // (R, S) int32
  at::Tensor puzzle_identifiers;  // (R) int32
};

// Restarts the halted slots, in place. z_H = H_init and z_L = L_init (each (D), float32, rounded to the carry's dtype),
// steps = 0, and the slot gets a row of tokens, labels and identifier. Nothing else changes, `halted` included.
//
// Without a cursor, slot i gets row i, and R = B. With a cursor (0-dim int64), R >= B: the halted slots get the rows
// cursor, cursor + 1, ... modulo R, in slot order. The cursor advances by the number of halted slots.
//
// Does not synchronise with the host. Deterministic. Runs on the current stream; can be captured. Not differentiable;
// increments the version counters of what it writes. Throws c10::Error that names the shapes.
void act_begin_(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                const std::optional<at::Tensor>& cursor);

// How slots halt.
struct ActHalting {
  int64_t max_steps = 1;
  double exploration = 0;    // slots with uniform < exploration may not halt before min_steps
  bool training = false;     // also halt by the Q values, not only by max_steps
  bool no_continue = false;  // halt where q_halt > 0 instead of q_halt > q_continue
};

// In place: z_H, z_L = the new carry; steps += 1; halted = steps >= max_steps. In training with max_steps > 1, slots
// also halt by their Q values, unless an exploring slot has had fewer than min_steps. q: (B, 2) = [q_halt, q_continue]
// float32 (float64 for tests), any strides. uniform: (B) float32. min_steps: (B) int32. The other members of `slots`
// are not read. Otherwise like act_begin_.
void act_end_(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
              const at::Tensor& uniform, const at::Tensor& min_steps, const ActHalting& halting);

}  // namespace hrm::ops
