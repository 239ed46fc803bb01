#pragma once
// What the blocks of language models keep of a recorded pass, and what they need beside it.

#include "tasks/language/plan.h"

namespace hrm::tasks {

// Bytes of one block over all positions of its stack.
struct BlockMemory {
  double mixing = 0;                                      // kept by attention, or by all of a Mamba2 block
  double feed_forward = 0;                                // kept by the rest
  double output = 0;                                      // kept by what follows
  double backward_mixing = 0, backward_feed_forward = 0;  // gradients beside those of input and output
  double plain = 0;                                       // temporaries of a pass that is not recorded
  double total() const { return mixing + feed_forward + output; }
};
BlockMemory block_memory(const PlanInput& in, const BlockStack& stack, int64_t layer);

// Whether all steps of a memory's blocks are one op (nn/memory_blocks.cpp), and on this GPU one kernel.
bool is_one_op(const PlanInput& in, const BlockStack& stack);
bool is_one_kernel(const PlanInput& in, const BlockStack& stack);
// Bytes of all blocks and `steps` steps of it, with the norm behind them.
BlockMemory memory_blocks_memory(const PlanInput& in, const BlockStack& stack, double steps);

// Of the norm behind a stack: its input where it is not the last block's output, and its statistics.
double last_norm_bytes(const PlanInput& in, const BlockStack& stack);
// The vectors that a stack begins with, as far as something keeps them.
double first_input_bytes(const PlanInput& in, const BlockStack& stack);

}  // namespace hrm::tasks
