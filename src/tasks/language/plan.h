#pragma once
// A training step of a language model, as hrm/tasks/plan.h asks for it.

#include "hrm/models/make_language_model.h"
#include "tasks/plan/step.h"

namespace hrm::tasks {

// Numbers of values.
struct LanguageWidths {
  double model = 0;                // D
  double queries = 0, values = 0;  // heads * head width: of queries, and of keys or values
  double heads = 0;                // of queries
  double inner = 0;                // of the feed-forward part without experts
  double vocabulary = 0;
};
// Of the whole model.
LanguageWidths language_widths(const PlanInput& in);
// Of the planned model.
const models::LanguageSizes& sizes_of(const PlanInput& in);
bool prototype(const PlanInput& in);  // of the HRM language model, instead of the modern style
bool in_fp8(const PlanInput& in);     // precision.blocks

// Weights of a model's linear layers in token blocks that precision.blocks=fp8 reads in 8 bits, and their share of all
// that it could.
struct Fp8Parameters {
  int64_t count = 0;
  double share = 0;
  int64_t transposed = 0;  // of `count`: of narrow layers, which are kept transposed, too
  int64_t largest = 0;     // of one layer
};
Fp8Parameters fp8_parameters(models::LanguageModel& model, const config::PrecisionConfig& precision);
// Milliseconds that fp8 blocks save of a micro-batch of `micro` rows, less than 0 where they cost more than they save.
double fp8_gain_ms(const PlanInput& in, int64_t micro);
// A sentence for a user; empty: they save time.
std::string why_fp8_does_not_pay(const PlanInput& in, int64_t micro);

// A run of blocks over this many rows of this many positions.
struct BlockStack {
  int64_t layers = 0;
  double rows = 0, length = 0;
  double keys = 0;   // that a position attends to, on average
  double mask = 0;   // values of a mask, which each attention turns into the compute dtype; 0: none
  double spans = 0;  // bytes of the documents' limits, which all attentions share
  bool cross = false;
  double memory = 0;    // vectors that blocks with cross attend to
  bool mamba2 = false;  // instead of attention and feed-forward part
  enum class Reads { prompt, answer, memory } reads = Reads::answer;
  double positions() const { return rows * length; }
};

// Whether each part of the model has only a part of these blocks (parallel.tensor). The core and Mamba2 blocks are
// whole on every part.
bool is_cut(const PlanInput& in, const BlockStack& stack);
// Of the blocks that a rank has, and of its part of the vocabulary.
LanguageWidths part_widths(const PlanInput& in, const BlockStack& stack);
// The share of the residual stream between these blocks that a rank has.
double stream_share(const PlanInput& in, const BlockStack& stack);

// How the passes of a step go over the blocks.
struct LanguagePasses {
  BlockStack encoder, fast, slow, decoder;  // layers 0: the model has none
  double prefix = 0;                        // vectors in front of the answer's tokens
  double cycles = 0, recorded = 0;          // of the core
  double steps = 0;                         // of the fast memory in a cycle
  double answers = 1;                       // passes of the decoder: of deep supervision one for each cycle
};
LanguagePasses language_passes(const PlanInput& in, double rows);

// Whether a block has experts instead of its feed-forward part.
bool has_experts(const PlanInput& in, const BlockStack& stack, int64_t layer);

class LanguagePlan : public ModelPlan {
 public:
  explicit LanguagePlan(const config::LmConfig& lm, models::LanguageSizes sizes)
      : name_(name_of_model(lm)), sizes_(sizes) {}

  const models::LanguageSizes& sizes() const { return sizes_; }

  std::string name() const override { return name_; }
  int64_t positions() const override { return sizes_.encoder_len + sizes_.decoder_len; }
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
  static std::string name_of_model(const config::LmConfig& lm);

  std::string name_;
  models::LanguageSizes sizes_;
};

}  // namespace hrm::tasks
