#pragma once
// The puzzle task: HRM, TRM and the plain Transformer with adaptive computation time (ACT) on grids of tokens.
//
// A global batch has one ACT slot per sample. A slot keeps its sample, its recurrent state and its segment count from
// step to step until it halts. Micro-batch m owns the slots [m * micro, (m + 1) * micro), so the split of a global
// batch does not change what is computed. Ranks own equal numbers of slots, in order. Samples, draws and rows follow
// the slot's place in the global batch, so the number of ranks changes nothing either.

#include <map>
#include <memory>
#include <string>

#include "hrm/config/config.h"
#include "hrm/data/dataset.h"
#include "hrm/data/device_table.h"
#include "hrm/data/stream.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/objectives/act.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/puzzle_eval.h"
#include "hrm/tasks/row_pool.h"
#include "hrm/tasks/staged_batches.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

// The entry of a checkpoint's manifest that holds the vocabulary_text of the training data, if it has a vocabulary.
inline constexpr const char* kVocabularyInfo = "vocabulary";

class PuzzleTask : public Task {
 public:
  // Opens the data, builds the model. Error(data) or Error(usage) where they do not fit. `comm`: the ranks that train
  // together, null = this one alone; forward_backward, update_extra, evaluate and visit_state of a whole run on all.
  PuzzleTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm = nullptr);

  nn::ParameterSet& parameters() override { return model_->parameter_set(); }
  const std::vector<std::string>& metric_names() const override;
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override;
  at::Tensor step_loss(const at::Tensor& sums) const override;
  void skip_batches(int64_t count) override;
  std::string progress_text(const NamedValues& summary) const override;
  double samples_per_epoch() const override;
  double flops_per_step() const override;
  double load_batch(int64_t step, double lr_factor) override;
  std::vector<at::Tensor> step_inputs() const override;
  int64_t graph_key() const override;
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override;
  void update_extra(const at::Tensor& skip) override;
  void finish_step() override;
  std::vector<std::string> optional_state() const override { return {nn::Fp8Recursions::kStatePrefix}; }
  // As the official code does when it loads a checkpoint of other puzzles.
  std::vector<std::string> weights_by_sample() const override { return {"puzzle_emb.weights"}; }
  bool can_evaluate() const override { return test_ != nullptr; }
  std::string nothing_to_evaluate() const override {
    return "data.test is empty: there is nothing to evaluate; set it to a dataset directory or a CSV file";
  }
  std::vector<std::pair<std::string, int64_t>> evaluation_sizes() const override;
  double flops_per_evaluated_sample() const override;
  void prepare_untrained_evaluation() override;
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override;
  std::string eval_text(const NamedValues& result) const override;
  double score(const NamedValues& result) const override;
  std::string describe() const override;
  std::map<std::string, std::string> signature() const override;
  std::map<std::string, std::string> source_digests() const override;
  std::string next_batch_digest(int64_t step) override;
  void visit_state(StateVisitor& visitor) override;

  models::PuzzleModel& model() { return *model_; }

 private:
  void find_position();
  void open_data();
  double load_rows();
  void draw_exploration(int64_t step);
  void set_depth(int64_t step);
  void prepare_fp8(int64_t step);
  void share_cursor();
  std::string attention_text() const;

  const config::Config& config_;
  Runtime runtime_;
  std::shared_ptr<parallel::Comm> comm_;
  int64_t slots_ = 0, first_slot_ = 0;  // this rank's of the global batch
  std::shared_ptr<const data::PuzzleDataset> train_, test_;
  std::shared_ptr<models::PuzzleModel> model_;
  objectives::ActState state_;  // (slots_) slots
  int64_t micro_batch_size_ = 0;

  // Where the rows come from; opened at the first step, at the position that a resume may have set.
  std::unique_ptr<data::DeviceTable> table_;   // draws them on the device; null: the stream does, on the host
  std::unique_ptr<data::TrainStream> stream_;  // reference semantics: a batch offers one row to each slot
  std::unique_ptr<RowPool> pool_;              // otherwise: slots take rows as they halt
  at::Tensor cursor_after_;                    // with a pool and several ranks: its cursor when all have taken theirs
  mutable std::string train_digest_;
  int64_t position_ = 0;  // registered: group visits (stream) or rows (pool) used so far

  StagedBatches<data::StreamBatch> staged_;
  // Static: refilled before each step, at the same addresses.
  data::PuzzleBatch batch_;         // this step's rows on the device; unused with a pool
  objectives::HaltDraws draws_;     // this step's exploration draws on the device
  at::Tensor keys_;                 // (slots_) int64, step * 2^24 + global slot; undefined if the model draws nothing
  at::Tensor puzzle_rows_;          // (micro-batch, puzzle_emb_ndim) float32 leaf
  at::Tensor embedding_rows_grad_;  // (slots_, puzzle_emb_ndim) float32, this step's row gradients
  at::Tensor embedding_lr_;         // 0-dim float32 on the device

  std::unique_ptr<PuzzleEvaluation> evaluation_;  // made by the first evaluation
};

}  // namespace hrm::tasks
