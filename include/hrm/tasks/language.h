#pragma once
// The language task: HRM language models and plain decoders on triples and on packed text.
//
// A global batch is this many rows of the mixture that data.train names, cut into micro-batches and over ranks in their
// order. The loss is a mean over all labelled tokens of the global batch, however it is cut.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/text_encoder.h"
#include "hrm/models/make_language_model.h"
#include "hrm/objectives/language.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/fp8_blocks.h"
#include "hrm/tasks/language_eval.h"
#include "hrm/tasks/language_rows.h"
#include "hrm/tasks/plan.h"
#include "hrm/tasks/staged_batches.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// The mixtures of experts of a model and their names (models::mixtures_of).
using Mixtures = std::vector<std::pair<std::string, nn::MoeFeedForward*>>;

// For precision.blocks=fp8: throws Error(usage) with the way out if the rows x positions of a micro-batch of `rows`
// rows are not multiples of 16.
void check_fp8_rows(const config::Config& config, int64_t rows);

// LanguageTask::metric_names and LanguageTask::group_defaults of a configuration's model.
std::vector<std::string> language_metric_names(const config::Config& config, models::LanguageModel& model);
optim::GroupDefaults language_group_defaults(const Mixtures& mixtures);
objectives::LanguageLossOptions language_loss_options(const config::Config& config);

class LanguageTask : public Task {
 public:
  // Opens the data, builds the model. Error(data) or Error(usage) where they do not fit. `comm`: as of PuzzleTask.
  // `tensor`: the ranks that hold one part of the model each and read the same rows; null: this rank has the whole.
  LanguageTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr,
               std::shared_ptr<parallel::Comm> tensor = nullptr);

  nn::ParameterSet& parameters() override { return model_->parameter_set(); }
  optim::GroupDefaults group_defaults() const override { return language_group_defaults(mixtures_); }
  // Values of the step: loss, cross_entropy, tokens. With a reasoning core: gate, and deep_supervision and halting if
  // they have a weight. With experts: auxiliary, and for each mixture load_entropy, load_max and dropped (nn::MoeLoad),
  // one step late. With precision.blocks=fp8: fp8_metric_names(), of which nn::Fp8Linears::values() are one step late.
  const std::vector<std::string>& metric_names() const override { return metric_names_; }
  bool has_switched_metrics() const override { return fp8_ != nullptr; }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  at::Tensor step_loss(const at::Tensor& sums) const override;
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override;
  double flops_per_step() const override;
  double load_batch(int64_t step, double lr_factor) override;
  std::vector<at::Tensor> step_inputs() const override;
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  int64_t graph_key() const override { return fp8_ ? fp8_->graph_key() : 0; }
  bool forms_return() const override { return false; }  // the warm-up of fp8 blocks
  void finish_step() override;
  std::vector<std::string> optional_state() const override { return {nn::Fp8Linears::kStatePrefix}; }
  void skip_batches(int64_t count) override;
  bool can_evaluate() const override { return !slices_.empty(); }
  std::string nothing_to_evaluate() const override {
    return "there is no validation slice to evaluate: set data.test to folders of language data, or leave it empty "
           "where those of data.train have a split val";
  }
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override { return language_eval_text(result); }
  double score(const NamedValues& result) const override { return -value_of(result, "loss"); }
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;
  void write_files(const std::filesystem::path& run_dir) const override;
  std::string describe() const override;
  void visit_state(StateVisitor& visitor) override;
  std::map<std::string, nn::ParameterCut> cut_weights() const override { return cut_weights_of(*model_); }

  models::LanguageModel& model() { return *model_; }
  const nn::Fp8Linears* fp8() const { return fp8_ ? &fp8_->linears() : nullptr; }  // null without precision.blocks=fp8

 private:
  data::LanguageStreamOptions stream_options() const;
  void balance_experts(const at::Tensor& skip);
  std::string fp8_text() const;
  PlanInput plan_of_blocks() const;
  void count_tokens();
  LanguageRows micro_rows(int64_t first) const;
  at::Tensor metrics_of(const models::LanguageOutput& output, const objectives::LanguageLoss& loss, double share,
                        bool first_of_all) const;

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  int64_t rows_ = 0, micro_batch_size_ = 0;  // this rank's of the global batch; of a micro-batch
  std::vector<data::WeightedSource> sources_;
  std::vector<data::ValidationSlice> slices_;
  data::LanguageMeta meta_;
  std::filesystem::path folder_;  // where the tokenizer's file lies
  std::optional<data::TextEncoder> text_;
  std::shared_ptr<models::LanguageModel> model_;
  Mixtures mixtures_;
  std::unique_ptr<Fp8Blocks> fp8_;  // registered; null without precision.blocks=fp8
  std::vector<std::string> metric_names_;
  mutable std::string train_digest_;

  std::unique_ptr<data::LanguageStream> stream_;  // opened at the first step, at the position a resume may have set
  int64_t position_ = 0;                          // registered: samples used so far

  StagedBatches<data::LanguageStreamBatch> staged_;
  // Static: refilled before each step, at the same addresses.
  data::LanguageBatch batch_;  // this rank's rows
  at::Tensor gate_warmup_;     // 0-dim float32
  at::Tensor tokens_;          // 0-dim float32: labelled tokens of the global batch
  at::Tensor loads_;           // (mixtures, 3) float64, registered: of the step before

  std::unique_ptr<LanguageEvaluation> evaluation_;  // made by the first evaluation
};

// What a checkpoint says of the text that its model was trained on (Task::signature), and back. Error(checkpoint).
std::map<std::string, std::string> language_signature(const data::LanguageMeta& meta);
data::LanguageMeta meta_from_signature(const std::map<std::string, std::string>& info, const std::string& origin);

}  // namespace hrm::tasks
