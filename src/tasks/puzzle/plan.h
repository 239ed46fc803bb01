#pragma once
// A training step of a puzzle model, as hrm/tasks/plan.h asks for it.

#include <string>

#include "hrm/models/puzzle_model.h"
#include "hrm/tasks/plan.h"
#include "tasks/plan/step.h"

namespace hrm::tasks {

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
PuzzleSizes puzzle_sizes(const PlanInput& in, const models::PuzzleModelDims& dims, int64_t micro);

struct BlockPasses {
  double plain = 0, recorded = 0;  // blocks of one step, forward
  double recursions = 0;           // of the plain ones, those that fp8 is for
  double again = 0;                // forward in the backward pass
};
BlockPasses block_passes(const config::ModelConfig& model, bool second_forward);
// Of a step of the run on average: with model.depth_curriculum those of all stages.
BlockPasses mean_block_passes(const config::ModelConfig& model, bool second_forward);
// How often the heads are read for a loss.
double losses_per_step(const config::ModelConfig& model);
bool has_second_forward(const config::ModelConfig& model);

// Gradients and identifiers of the puzzle embedding's rows, of the slots of all ranks.
double gathered_bytes(const PlanInput& in, const models::PuzzleModelDims& dims);

class PuzzlePlan : public ModelPlan {
 public:
  PuzzlePlan(config::PuzzleArch arch, models::PuzzleModelDims dims) : arch_(arch), dims_(dims) {}

  const models::PuzzleModelDims& dims() const { return dims_; }

  std::string name() const override { return name_of(arch_); }
  int64_t positions() const override { return dims_.puzzle_emb_len + dims_.seq_len; }
  ModelOutline outline(const config::Config& config) const override;
  void add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const override;
  void add_times(const PlanInput& in, Plan& plan) const override;
  std::string shares() const override;
  double backward_done(const PlanInput& in, int64_t groups, int64_t count) const override;
  void rehearse_begin(const PlanInput& in, StepRehearsal& step) const override;
  void rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t own, StepRehearsal& step) const override;

 private:
  config::PuzzleArch arch_;
  models::PuzzleModelDims dims_;
};

}  // namespace hrm::tasks
