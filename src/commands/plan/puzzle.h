#pragma once
// A training step of a puzzle model, for plan.h.

#include <string>

#include "commands/plan/plan.h"
#include "commands/plan/step.h"

namespace hrm::commands {

inline constexpr int64_t kShortSequence = 128;  // longest that our attention kernel takes

// Sizes of one micro-batch.
struct PuzzleSizes {
  double unit = 0;     // bytes of (B, L, D) in the compute dtype
  double rows = 0;     // B * L
  double gate_up = 0;  // bytes of (B, L, 2 F)
  double logits = 0;
  double rstd = 0;         // bytes of a float32 per row
  double lse = 0;          // bytes of a float32 per head and row
  double column_rstd = 0;  // bytes of a float32 per sample and channel
  bool mixes_by_mlp = false;
  bool short_attention = false;  // our attention kernel, with rotation inside
  bool fused_gate = false;       // the gate in the product's epilogue: gate_up is written only where it is needed
  bool fused_norm = false;       // residual and norm in the product's epilogue
  bool fp8 = false;              // recursions multiply in 8 bits; a tensor in e4m3 has half the bytes
  bool fused_gate8 = false;      // as fused_gate, for the products in 8 bits
};
PuzzleSizes puzzle_sizes(const PlanInput& in, int64_t micro);

struct BlockPasses {
  double plain = 0, recorded = 0;  // blocks of one step, forward
  double recursions = 0;           // of the plain ones, those that fp8 is for
};
BlockPasses block_passes(const config::ModelConfig& model, bool second_forward);
bool has_second_forward(const config::ModelConfig& model);

// Gradients and identifiers of the puzzle embedding's rows, of the slots of all ranks.
double gathered_bytes(const PlanInput& in);

// What the device holds beside the dense parameters and what the optimizer has of them; without workspaces.
void add_puzzle_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory);
// All but the optimizer.
void add_puzzle_times(const PlanInput& in, Plan& plan);
std::string puzzle_shares();  // of the data sheet that the times assume
// As backward_done().
double puzzle_backward_done(const config::ModelConfig& model, int64_t groups, int64_t count);

}  // namespace hrm::commands
