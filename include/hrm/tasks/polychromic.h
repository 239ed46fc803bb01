#pragma once
// The polychromic task: a causal language model is fine-tuned on prompts and responses, and on what it answers itself:
// for the diversity of its answers to one prompt (objectives/diversity.h), or by policy optimisation with rewards
// (objectives/policy_gradient.h), or first the one and then the other.
//
// A step samples its answers before the work that is captured: load_batch() generates, measures and writes rows, labels
// and weights to where the graph reads them, unless the step learns once more from the rewards of the step before
// (grpo.num_iterations). Then forward_backward() is a pass over prompts and responses and one over sampled answers, or
// one over both (tasks/shared_answers.h). Steps of GRPO go through the prompts of the data, other steps through its
// examples. What is sampled depends on seed, step and place in the global batch, not on ranks, micro-batches or the
// rows beside.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hrm/data/chat_batches.h"
#include "hrm/objectives/diversity.h"
#include "hrm/objectives/policy_gradient.h"
#include "hrm/objectives/rewards.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/answer_diversity.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/language_eval.h"
#include "hrm/tasks/shared_answers.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// What a step trains on.
enum class PolychromicKind {
  responses,  // cross-entropy of the data's responses
  diversity,  // that, and the diversity of sampled answers
  rewards,    // GRPO
};

// The settings of a configuration with performance_mode applied.
struct PolychromicPlan {
  explicit PolychromicPlan(const config::Config& config, int64_t ranks);

  PolychromicKind kind(int64_t step) const;  // steps count from 1

  int64_t rows = 0, micro_rows = 0, micro_batches = 0;  // of this rank: of the global batch, of a micro-batch
  int64_t every = 1;
  int64_t diverse_prompts = 0, diverse_samples = 0, diverse_tokens = 0;  // of a micro-batch; of a prompt; of an answer
  int64_t reward_samples = 0, reward_tokens = 0;
  int64_t reward_updates = 1;  // steps that learn from one batch of answers, one after the other
  int64_t grpo_from = 0;       // 0: never
  bool samples_for_diversity = false;
  int64_t most_samples() const;  // rows of sampled answers that a step can have on this rank
  int64_t most_tokens() const;   // of an answer
};

class PolychromicTask : public Task {
 public:
  // Opens model, tokenizer, data, and the sentence encoder where the metric needs one. Throws as what opens them.
  PolychromicTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return lm_.model->parameter_set(); }
  optim::GroupDefaults group_defaults() const override;
  const std::vector<std::string>& metric_names() const override { return metric_names_; }
  // Means over the steps that have a value: diversity and rewards over those that sampled.
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  // Milliseconds of a step: forward_ms, backward_ms, optimizer_ms by the device's clock; where it samples answers also
  // merge_ms (of the adapter), prefill_ms, decode_ms, encode_ms and diversity_ms by the host's, train_ms (what is left
  // of step_ms). Tokens per second of each part that has tokens.
  NamedValues take_performance(int64_t steps, double step_ms) override;
  at::Tensor step_loss(const at::Tensor& sums) const override;
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override;
  // Mean over the steps since the last take_performance(), or before it where there was none since: rows have several
  // widths. Of what is learned from, without what it takes to sample it.
  double flops_per_step() const override;
  double load_batch(int64_t step, double lr_factor) override;
  bool waits_for_device(int64_t step) const override;
  std::vector<at::Tensor> step_inputs() const override;
  int64_t step_form() const override;
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  void finish_step() override { phases_.step(); }
  void skip_batches(int64_t count) override;
  bool can_evaluate() const override { return test_ != nullptr; }
  // Cross-entropy of the responses alone, on prompts that are not trained on.
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override { return language_eval_text(result); }
  double score(const NamedValues& result) const override { return -value_of(result, "loss"); }
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;
  void write_files(const std::filesystem::path& run_dir) const override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;
  std::string optional_state() const override;

  CausalLm& lm() { return lm_; }
  const PolychromicPlan& plan() const { return plan_; }

 private:
  data::ChatBatchOptions batch_options() const;
  void open_data();
  void open_prompts(const data::ChatSide& training);
  void open_test_data(const data::ChatSide& training);
  void check_validation() const;
  void check_responses();
  void make_buffers();
  void visit_answers(StateVisitor& visitor);
  bool learns_again(PolychromicKind kind) const;
  void sample_answers(int64_t step, const data::ChatBatch& batch);
  void write_answers(const std::vector<std::vector<int32_t>>& prompts, const Answers& answers);
  void share_answers(const at::Tensor& ids, const at::Tensor& labels);
  bool learns_from_answers() const;
  bool joins_responses() const;
  void weigh_diversity(const Answers& answers, int64_t groups);
  void weigh_rewards(const Answers& answers, const std::vector<int64_t>& examples);
  objectives::GroupDiversity measure(const Answers& answers);
  void fact(const std::string& name, double value);
  void count_tokens();
  void count_flops();
  double matrix_elements() const;
  at::Tensor response_rows(const at::Tensor& all, int64_t micro_batch) const;
  at::Tensor response_loss(int64_t micro_batch, at::Tensor& metrics);
  at::Tensor diversity_loss(int64_t micro_batch);
  at::Tensor joint_loss(int64_t micro_batch, at::Tensor& metrics);
  at::Tensor loss_of_responses(const models::LanguageOutput& output, int64_t micro_batch, at::Tensor& metrics);
  at::Tensor reward_loss(int64_t micro_batch, at::Tensor& metrics);
  void add_metric(at::Tensor& metrics, const std::string& name, const at::Tensor& value) const;
  int64_t metric(const std::string& name) const;
  int64_t answers_of_micro_batch() const;
  int64_t samples_of_prompt() const;
  // Rows of sampled answers of a micro-batch, as far as they are wide, and the tokens in them that are shared.
  struct AnswerRows {
    at::Tensor ids, labels, weights;
    int64_t first = 0, count = 0;
    std::optional<SharedAnswerTokens> shared = {};
  };
  AnswerRows answer_rows(int64_t micro_batch) const;
  at::Tensor loss_of_answers(const at::Tensor& hidden, const AnswerRows& rows);
  at::Tensor answer_log_probs(const AnswerRows& rows, double temperature);
  at::Tensor sampled_log_p(const AnswerRows& rows, const at::Tensor& logp) const;

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  PolychromicPlan plan_;
  CausalLm lm_;
  std::unique_ptr<data::ChatEncoder> chat_;
  std::shared_ptr<const data::ChatSource> train_, test_;
  std::unique_ptr<data::ChatBatches> batches_;
  // What GRPO asks, one example of each prompt; null without it. Those of train_ where no prompt has another.
  std::shared_ptr<const data::ChatSource> prompts_;
  std::unique_ptr<data::ChatBatches> prompt_batches_;
  std::unordered_map<int64_t, std::vector<int64_t>> examples_of_prompt_;  // by that one
  std::unique_ptr<AnswerSampler> sampler_;
  std::unique_ptr<AnswerDiversity> diversity_;  // null where nothing measures it
  std::vector<std::unique_ptr<objectives::Reward>> rewards_;
  std::vector<double> reward_weights_;
  std::vector<std::string> metric_names_;
  std::map<std::string, int64_t> metric_index_;
  int64_t positions_ = 0, row_len_ = 0;  // of rows with sampled answers; of rows of responses
  mutable std::string train_digest_, base_digest_;

  int64_t position_ = 0;                  // registered: samples used so far, examples or prompts
  int64_t updates_ = 0;                   // registered: steps that learned from the present answers, by rewards
  objectives::RunningDiversity running_;  // registered
  PolychromicKind kind_ = PolychromicKind::responses;
  int64_t width_ = 0, answer_width_ = 0;  // of this step's rows
  int64_t answer_tokens_kept_ = 0;        // of a micro-batch, of answers that share their prompts; 0: they do not
  std::vector<double> facts_of_step_;
  // Since the last take_performance().
  struct Times {
    double merge = 0, prefill = 0, decode = 0, encode = 0, measure = 0;  // milliseconds
    int64_t answer_tokens = 0, prompt_tokens = 0, encoded_tokens = 0;
  };
  Times times_;
  struct Work {
    double flops = 0, tokens = 0;  // of the steps below; tokens of this rank, as wide as rows are padded to
    double flops_before = 0;       // a step's, until the last take_performance()
    int64_t steps = 0;
  };
  Work work_;
  double matrix_elements_ = 0;
  PhaseClock phases_;
  double last_generated_per_s_ = 0;
  NamedValues last_parts_;   // shares of a step, the longest first
  int64_t level_steps_ = 0;  // of this process, in which no reward told two answers apart
  // Static: refilled before each step, at the same addresses.
  at::Tensor ids_, labels_;                        // (rows, row_len_) int64
  at::Tensor documents_;                           // (rows, row_len_) int32; undefined where rows are not packed
  at::Tensor answer_ids_, answer_labels_;          // (sampled rows, positions_) int64
  at::Tensor answer_weights_;                      // (sampled rows, positions_) float32
  at::Tensor advantages_;                          // (sampled rows) float32
  std::unique_ptr<SharedAnswers> shared_answers_;  // null without polychromic.share_prompts
  bool shared_is_of_answers_ = false;              // whether it was made from these answer_ids_
  at::Tensor response_ids_;                        // (rows, width_) int64 on the CPU, of this step
  // Of the policy that sampled; undefined where each batch of answers is used once.
  at::Tensor answer_log_p_;            // (sampled rows, positions_) float32
  at::Tensor facts_;                   // (metrics) float64: what load_batch knows
  at::Tensor tokens_, answer_tokens_;  // 0-dim float32: of the global batch

  std::unique_ptr<LanguageEvaluation> evaluation_;
};

}  // namespace hrm::tasks
