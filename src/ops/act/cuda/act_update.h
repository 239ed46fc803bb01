#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Everything contiguous; slot b has `positions` rows of `width` in each carry, and `tokens` tokens.
struct ActBegin {
  void* z_H;
  void* z_L;
  int32_t* steps;
  int32_t* inputs;
  int32_t* labels;
  int32_t* puzzle_identifiers;
  const bool* halted;
  const float* H_init;
  const float* L_init;
  const int32_t* new_inputs;
  const int32_t* new_labels;
  const int32_t* new_identifiers;
  int64_t* cursor;  // or null: slot b takes row b
  int64_t* row;     // (slots) scratch, written and read where there is a cursor
  int64_t slots, rows, positions, width, tokens;
  Element element;  // of the carry
};

struct ActEnd {
  void* z_H;
  void* z_L;
  const void* new_z_H;
  const void* new_z_L;
  int64_t carry_bytes;  // of each carry
  int32_t* steps;
  bool* halted;
  const float* q;  // q_halt of slot b at b * q_slot, q_continue q_head further
  int64_t q_slot, q_head;
  const float* uniform;
  const int32_t* min_steps;
  int64_t slots, max_steps;
  double exploration;
  bool training, no_continue;
};

// Start the kernels on the stream and return the error of the launch: with a cursor one block first assigns the rows,
// then, as without, one pass writes the halted slots. The end of a segment is one pass, mostly a copy.
cudaError_t launch(const ActBegin& params, cudaStream_t stream);
cudaError_t launch(const ActEnd& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
