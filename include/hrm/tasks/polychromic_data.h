#pragma once
// The data of a polychromic training: examples (a prompt and a response) to fine-tune on, prompts that GRPO asks, and
// examples to evaluate on. Steps of GRPO go through the prompts, other steps through the examples; both count samples
// by one position.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_batches.h"
#include "hrm/data/chat_open.h"
#include "hrm/data/chat_prefetch.h"
#include "hrm/data/chat_template.h"
#include "hrm/parallel/comm.h"
#include "hrm/tasks/polychromic_plan.h"

namespace hrm::tasks {

class PolychromicData {
 public:
  // Opens data.train and data.test, splits off the evaluation, and logs the numbers of examples. `config` and `chat`
  // must outlive this. Error(data) or Error(usage) for data that do not fit the configuration: a prompt on both sides
  // of the split, prompts without right answers for the reward `answer`, packing with GRPO, or evaluations without
  // examples.
  PolychromicData(const config::Config& config, const data::ChatEncoder& chat, const PolychromicPlan& plan,
                  const parallel::Comm& comm);

  int64_t positions() const { return positions_; }                       // of a row with prompt and response, at most
  int64_t padded_positions() const { return plan_.padded(positions_); }  // of a row of next()
  bool packed() const { return train_->packed(); }
  int64_t most_documents() const { return packed() ? train_->most_documents(positions_) : 0; }  // of a packed row
  const data::LanguageMeta& meta() const { return train_->meta(); }
  const data::ChatExample& example(int64_t index) const { return train_->dataset()[index]; }
  // To the prompt of an example that a batch of GRPO has: of all examples with that prompt.
  std::vector<std::string> right_answers(int64_t example) const;

  // This rank's rows of the global batch at position(), which then is behind it. Padded as the plan says. `step`: which
  // takes it. A thread prepares the batches of later steps ahead.
  data::ChatBatch next(int64_t step);
  // Milliseconds that the last next() waited for the thread.
  double wait_ms() const { return wait_ms_; }
  // XXH3-128, hex, of that global batch, the same on any number of ranks.
  std::string next_digest(PolychromicKind kind) const;
  void skip(int64_t batches) { position_ += batches * config_.train.global_batch_size; }
  int64_t& position() { return position_; }  // samples used so far; the only state

  // Samples of one pass: with GRPO all prompts once, before it all examples. Several updates from one batch of
  // completions make an epoch longer, as if there were more samples.
  double samples_per_epoch() const;
  int64_t prompts() const { return prompts_->num_samples(positions_); }  // with GRPO
  std::string digest() const { return train_->digest(); }
  // Null where nothing is evaluated.
  const std::shared_ptr<const data::ChatSource>& validation() const { return test_; }
  std::string describe() const;

 private:
  data::ChatBatchOptions batch_options() const;
  void open_prompts(const data::ChatSide& training);
  void open_test_data(const data::ChatSide& training);
  void check_validation() const;
  void check_responses();
  void start_prefetch(int64_t step);
  int64_t step_after(int64_t step) const;

  const config::Config& config_;
  const data::ChatEncoder& chat_;
  PolychromicPlan plan_;
  int rank_, ranks_;
  int64_t positions_;
  std::shared_ptr<const data::ChatSource> train_, test_;
  std::unique_ptr<data::ChatBatches> batches_;
  // What GRPO asks, one example of each prompt; null without it. Those of train_ where no prompt has another.
  std::shared_ptr<const data::ChatSource> prompts_;
  std::unique_ptr<data::ChatBatches> prompt_batches_;
  std::unordered_map<int64_t, std::vector<int64_t>> examples_of_prompt_;  // by that one
  int64_t position_ = 0;
  // The step and position that the thread expects next. Another one starts it anew.
  int64_t expected_step_ = 0, expected_position_ = 0;
  double wait_ms_ = 0;
  std::unique_ptr<data::ChatPrefetch> prefetch_;  // goes before what its thread reads
};

}  // namespace hrm::tasks
