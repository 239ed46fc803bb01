#pragma once
// A training step of task polychromic, as hrm/tasks/plan.h asks for it.

#include <memory>
#include <vector>

#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/polychromic_plan.h"
#include "tasks/plan/step.h"

namespace hrm::tasks {

inline double number(int64_t value) {
  return static_cast<double>(value);
}

// A linear layer of a block.
struct PlannedLinear {
  double in = 0, out = 0;
  double targets = 0, adapted = 0;  // projections with an adapter, and their outputs
  bool trained = false;             // the weight itself
  bool fp8 = false;                 // by products in 8 bits
  bool keeps_input() const { return trained || targets > 0; }
};
// With experts, gate_up and down are those of one of them.
struct PlannedLayer {
  PlannedLinear qkv, o, gate_up, down;
  PlannedLinear router;
  bool has_experts() const { return router.out > 0; }
  bool in_8_bits() const { return qkv.fp8 || o.fp8 || gate_up.fp8 || down.fp8; }
  bool trains() const {
    return qkv.keeps_input() || o.keeps_input() || gate_up.keeps_input() || down.keeps_input() || router.keeps_input();
  }
};

// Tokens of the prompts that are answered; both 0 where nothing is sampled.
struct PromptTokens {
  int64_t mean = 0, longest = 0;
};

// A sentence encoder; all 0: none is needed.
struct PlannedEncoder {
  double parameters = 0, of_tokens = 0;  // of them, those of the embedding tables
};

// The model gone through once with a micro-batch.
struct CausalPass {
  enum class Loss { responses, answers, both };
  Loss loss = Loss::responses;
  double tokens = 0;                              // of everything but attention
  double rows = 0, length = 0;                    // that attention sees
  double answer_rows = 0, answer_length = 0;      // that it sees besides, or instead where rows is 0
  bool shared = false;                            // tokens are spread to these rows
  double response_labels = 0, answer_labels = 0;  // hidden states that the losses read
  bool recorded = true;
  bool logits_twice = false;  // in the backward pass again, as token_log_probs does
  double places() const { return rows * length + answer_rows * answer_length; }
};
// The passes of a micro-batch of `micro` samples in a step of this kind, in order.
std::vector<CausalPass> causal_passes(const PlanInput& in, PolychromicKind kind, int64_t micro, int64_t prompt);

// How many of the steps of a run are of each kind, as shares of all steps.
struct StepShares {
  double responses = 0, diversity = 0, rewards = 0;
  double samples_rewards = 0;  // those of kind rewards with new answers
};
StepShares step_shares(const config::Config& config, const PolychromicPlan& plan);

class CausalPlan : public ModelPlan {
 public:
  // Reads config.json of hf.model and of the sentence encoder. Throws as outline_causal_lm(), and Error(usage) for a
  // model with layers that the estimate does not know.
  CausalPlan(const config::Config& config, const PromptTokens& prompts);

  const HfModelConfig& facts() const { return facts_; }
  const std::vector<PlannedLayer>& layers() const { return layers_; }
  const PromptTokens& prompts() const { return prompts_; }
  const PlannedEncoder& encoder() const { return encoder_; }
  bool trains_head() const { return trains_head_; }
  // Or norms, so that the backward pass goes through to the first block.
  bool trains_embedding() const { return trains_embedding_; }
  int64_t cache_positions() const { return cache_positions_; }
  // Values of the weights that merging an adapter copies; 0 where it is not merged.
  double merged_values() const { return merged_values_; }
  // Values of the largest weight that is frozen and has another dtype when it is read; 0: there is none.
  double largest_frozen() const { return largest_frozen_; }
  // Values of frozen experts, which have their dtype from the start.
  double frozen_experts() const { return frozen_experts_; }
  // Values of the largest quantised layer, and of all of them, which take this many bytes.
  double largest_quantized() const { return largest_quantized_; }
  double quantized_values() const { return quantized_values_; }
  double quantized_bytes() const { return quantized_bytes_; }
  // A few rows read the stored form, without a dequantised copy (ops::linear_weight8).
  bool decodes_quantized(double rows) const;
  // Values of the matrices that a token is multiplied with, without the head.
  double block_values() const;
  // Values of those that a number of tokens read together: of experts, the ones that some token goes to.
  double read_values(double tokens) const;
  // Rows of the experts' products for a number of tokens, padding included.
  double expert_rows(double tokens) const;

  // Of parallel.tensor: with the heads, inner columns and vocabulary of one part, and the width of the whole.
  int64_t parts() const { return parts_; }
  std::shared_ptr<const CausalPlan> part(int64_t parts) const;

  std::string name() const override { return name_; }
  int64_t positions() const override { return positions_; }
  ModelOutline outline(const config::Config& config) const override;
  ModelOutline outline_part(const config::Config& config,
                            const std::shared_ptr<const nn::TensorAcross>& across) const override;
  void rehearse_pass(const PlanInput& in, const ModelOutline& outline, int64_t micro_batches_left,
                     StepRehearsal& step) const override;
  void add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const override;
  void add_times(const PlanInput& in, Plan& plan) const override;
  std::string shares() const override;
  double backward_done(const PlanInput& in, int64_t groups, int64_t count) const override;
  void rehearse_begin(const PlanInput& in, StepRehearsal& step) const override;
  void rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t own, StepRehearsal& step) const override;

 private:
  void read_layers(const CausalLm& lm, const config::PrecisionConfig& precision);
  int64_t unmarked_groups() const;
  double share_of_blocks(const PlanInput& in, const CausalPass& pass) const;

  HfModelConfig facts_;
  std::string name_;
  PromptTokens prompts_;
  PlannedEncoder encoder_;
  std::vector<PlannedLayer> layers_;
  int64_t positions_ = 0, cache_positions_ = 0;
  bool trains_head_ = false, trains_embedding_ = false;
  double merged_values_ = 0, largest_frozen_ = 0, frozen_experts_ = 0, largest_quantized_ = 0, quantized_values_ = 0,
         quantized_bytes_ = 0;
  bool reads_stored_ = false;
  double matrix_elements_ = 0;
  int64_t parts_ = 1;
};
const CausalPlan& causal_plan(const PlanInput& in);
// Whether many rows are multiplied by the frozen weights in 8 bits there (hf.fp8_products).
bool multiplies_frozen_in_8_bits(const PlanInput& in);

}  // namespace hrm::tasks
