#pragma once
// The polychromic task: a causal language model is fine-tuned on prompts and responses, and on its own completions. The
// goal is the diversity of the completions of a prompt (objectives/diversity.h), or rewards by policy optimisation
// (objectives/policy_gradient.h), or first one and then the other.
//
// A step samples its completions before the captured work. prepare_step() samples, measures and writes rows, labels and
// weights to where the graph reads them, unless the step learns once more from the previous rewards
// (grpo.num_iterations). Then forward_backward() is a pass over prompts and responses and one over completions, or one
// over both (tasks/prefix_sharing.h). Samples depend on seed, step and place in the global batch, not on ranks,
// micro-batches or other rows.
//
// The parts: polychromic_plan.h (what a step does), polychromic_data.h, polychromic_sampling.h with
// polychromic_rewards.h and polychromic_advantages.h, polychromic_responses.h and polychromic_answers.h (the rows of a
// step), polychromic_loss.h, polychromic_metrics.h, polychromic_times.h.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/parallel/comm.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/fp8_blocks.h"
#include "hrm/tasks/language_eval.h"
#include "hrm/tasks/polychromic_answers.h"
#include "hrm/tasks/polychromic_data.h"
#include "hrm/tasks/polychromic_loss.h"
#include "hrm/tasks/polychromic_metrics.h"
#include "hrm/tasks/polychromic_plan.h"
#include "hrm/tasks/polychromic_responses.h"
#include "hrm/tasks/polychromic_sampling.h"
#include "hrm/tasks/polychromic_times.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

class PolychromicTask : public Task {
 public:
  // Opens model, tokenizer, data, and the sentence encoder where the metric needs one. Throws as what opens them.
  // `tensor`: as of LanguageTask.
  PolychromicTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr,
                  std::shared_ptr<parallel::Comm> tensor = nullptr);
  PolychromicTask(const PolychromicTask&) = delete;  // parts refer to each other
  PolychromicTask& operator=(const PolychromicTask&) = delete;

  nn::ParameterSet& parameters() override { return lm_.model->parameter_set(); }
  optim::GroupDefaults group_defaults() const override;
  const std::vector<std::string>& metric_names() const override { return metrics_.names(); }
  bool has_switched_metrics() const override { return fp8_ != nullptr; }
  // Means over the steps that have a value: diversity and rewards over those that sampled.
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override {
    NamedValues means = metrics_.summarize(sums, steps);
    return fp8_ ? fp8_->only_used(std::move(means)) : means;
  }
  // Milliseconds of a step. By the device's clock: forward_ms, backward_ms, optimizer_ms. By the host's clock, if it
  // samples: merge_ms (of the adapter), prefill_ms, decode_ms, encode_ms, diversity_ms, and train_ms (the rest of
  // step_ms). Also tokens per second of each phase with tokens.
  NamedValues take_performance(int64_t steps, double step_ms, const NamedValues& phases) override {
    return times_.take(steps, step_ms, phases);
  }
  at::Tensor step_loss(const at::Tensor& sums) const override { return sums.select(0, 0).clone(); }
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override { return data_.samples_per_epoch(); }
  // Mean over the steps since the last take_performance(), or before it if there were none, since rows have several
  // widths. Counts what is learned from, not the sampling.
  double flops_per_step() const override { return times_.flops_per_step(); }
  double load_batch(int64_t step, double lr_factor) override;
  void prepare_step(int64_t step) override;
  bool waits_for_device(int64_t step) const override;
  std::vector<at::Tensor> step_inputs() const override;
  int64_t graph_key() const override;
  // Widths come back, the modes of fp8 blocks do not.
  bool forms_return() const override { return !fp8_ || !fp8_->changed_mode(); }
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  void finish_step() override;
  void skip_batches(int64_t count) override;
  bool can_evaluate() const override { return data_.validation() != nullptr; }
  // Cross-entropy of the responses alone, on prompts that are not trained on.
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override { return language_eval_text(result); }
  double score(const NamedValues& result) const override { return -value_of(result, "loss"); }
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override { return data_.next_digest(plan_.kind(step)); }
  void write_files(const std::filesystem::path& run_dir) const override { write_hf_files(config_.hf, run_dir / "hf"); }
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;
  std::map<std::string, nn::ParameterCut> cut_weights() const override { return cut_weights_of(*lm_.model); }
  std::vector<std::string> optional_state() const override {
    return {AnswerBatch::kStatePrefix, nn::Fp8Linears::kStatePrefix};
  }

  CausalLm& lm() { return lm_; }
  const PolychromicPlan& plan() const { return plan_; }
  const nn::Fp8Linears* fp8() const { return fp8_ ? &fp8_->linears() : nullptr; }  // null without precision.blocks=fp8

 private:
  AnswerBatch::Options answer_options() const;
  AnswerLayout answer_layout() const;
  bool joins_responses() const;
  void count_flops();

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  PolychromicPlan plan_;
  CausalLm lm_;
  std::unique_ptr<Fp8Blocks> fp8_;  // null without precision.blocks=fp8
  data::ChatEncoder chat_;
  PolychromicData data_;
  PolychromicSampling sampling_;
  PolychromicMetrics metrics_;
  PolychromicTimes times_;
  ResponseBatch responses_;
  AnswerBatch answers_;
  PolychromicLoss loss_;
  at::Tensor host_metrics_;  // (metrics) float64, at the same address: what load_batch knows
  double matrix_elements_;
  PolychromicKind kind_ = PolychromicKind::responses;  // of the step that was loaded
  data::ChatBatch batch_;                              // of that step, or the last that had one
  bool samples_now_ = false;                           // whether that step samples
  mutable std::string base_digest_;
  std::unique_ptr<LanguageEvaluation> evaluation_;
};

}  // namespace hrm::tasks
