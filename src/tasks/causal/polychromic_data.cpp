#include "hrm/tasks/polychromic_data.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/polychromic_rewards.h"

namespace hrm::tasks {

PolychromicData::PolychromicData(const config::Config& config, const data::ChatEncoder& chat,
                                 const PolychromicPlan& plan, const parallel::Comm& comm)
    : config_(config),
      chat_(chat),
      plan_(plan),
      rank_(comm.rank()),
      ranks_(comm.ranks()),
      positions_(config.chat.max_length - 1) {
  // GRPO alone needs no responses to learn from.
  const bool packs = config.chat.packing;
  require(!packs || plan.grpo_from == 0, ExitCode::usage,
          "chat.packing puts several responses into a row, but GRPO (grpo.start_step = ", plan.grpo_from,
          ") takes one prompt of each; set one of them to its default");
  data::ChatSides sides = open_chat_data(config, chat, /*need_response=*/plan.grpo_from != 1);
  log::info("data         ", sides.train.dataset->origin(), ": ", sides.train.dataset->counts().text());
  train_ =
      std::make_shared<data::ChatSource>(sides.train.dataset, sides.train.examples, "train", packs ? positions_ : 0);
  if (plan.grpo_from > 0) open_prompts(sides.train);
  if (!config.data.test.empty()) {
    open_test_data(sides.train);
  } else if (sides.validation.dataset && !sides.validation.examples.empty()) {
    test_ = std::make_shared<data::ChatSource>(sides.validation.dataset, std::move(sides.validation.examples),
                                               "validation");
  }
  check_validation();
  batches_ = std::make_unique<data::ChatBatches>(train_, batch_options());
  check_responses();
}

// A prompt is asked once an epoch, however many responses to it the data has.
void PolychromicData::open_prompts(const data::ChatSide& training) {
  std::vector<int64_t> first;
  for (std::vector<int64_t>& one : training.dataset->examples_of_prompts(training.examples)) {
    first.push_back(one.front());
    examples_of_prompt_.emplace(one.front(), std::move(one));
  }
  prompts_ = first.size() == training.examples.size()
                 ? train_
                 : std::make_shared<data::ChatSource>(training.dataset, std::move(first), "prompts of train");
  prompt_batches_ = std::make_unique<data::ChatBatches>(prompts_, batch_options());
}

// What counts on evaluations without any would be skipped silently.
void PolychromicData::check_validation() const {
  const config::ChatConfig& chat = config_.chat;
  const bool is_split = data::is_split_chat_folder(config_.data.train);
  if (is_split && ((chat.val_share > 0 && chat.val_share != config::ChatConfig().val_share) || chat.test_share > 0)) {
    log::warn("chat.val_share and chat.test_share split nothing: '", printable(config_.data.train),
              "' is split already, by its train file");
  }
  if (test_) return;
  const std::string way = is_split ? cat("'", printable(config_.data.train),
                                         "' has no val.jsonl beside its train.jsonl (or *.json); put one there")
                                   : std::string("chat.val_share is 0; set it to 0.1");
  const config::TrainConfig& train = config_.train;
  for (const auto& [key, given] :
       {std::pair{"train.eval_every", train.eval_every > 0}, std::pair{"train.keep_best", train.keep_best},
        std::pair{"train.early_stop_evals", train.early_stop_evals > 0}}) {
    require(!given, ExitCode::usage, key, " needs prompts to evaluate, but data.test is empty and ", way,
            ", set data.test to a file of JSON lines, or leave ", key, " out");
  }
}

void PolychromicData::open_test_data(const data::ChatSide& training) {
  const auto other = std::make_shared<data::ChatDataset>(config_.data.test, chat_,
                                                         data::chat_data_options(config_, /*need_response=*/true));
  log::info("validation   ", other->origin(), ": ", other->counts().text());
  std::vector<int64_t> examples(static_cast<size_t>(other->size()));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  data::check_no_leak(training, {other, examples});
  test_ = std::make_shared<data::ChatSource>(other, std::move(examples), "test");
}

// Of data without responses nothing is evaluated, and a reward may have nothing to compare with.
void PolychromicData::check_responses() {
  if (plan_.grpo_from > 0) {
    for (const auto& [name, weight] : weighted_reward_names(config_.grpo.rewards)) {
      if (name != "answer") continue;
      const auto count = std::count_if(examples_of_prompt_.begin(), examples_of_prompt_.end(), [&](const auto& prompt) {
        return train_->dataset().right_answers(prompt.second).empty();
      });
      require(count == 0, ExitCode::data, train_->origin(), ": ", count, " of ", examples_of_prompt_.size(),
              " prompts have neither a response nor right answers, which the reward 'answer' compares with; take them "
              "out, or leave the reward out");
    }
  }
  const auto has_response = [&] {
    for (int64_t i = 0; i < test_->num_samples(positions_); ++i) {
      if (!test_->example(i).response.empty()) return true;
    }
    return false;
  };
  if (test_ && !has_response()) {
    require(config_.train.early_stop_evals == 0 && !config_.train.keep_best, ExitCode::usage,
            "train.early_stop_evals and train.keep_best go by the cross-entropy of responses, and the prompts of ",
            test_->origin(), " have none; leave them out");
    log::info("validation   ", test_->origin(), " has no responses: nothing is evaluated");
    test_.reset();
  }
}

data::ChatBatchOptions PolychromicData::batch_options() const {
  return {.seed = static_cast<uint64_t>(config_.run.seed),
          .global_batch_size = config_.train.global_batch_size,
          .rank = rank_,
          .ranks = ranks_,
          .max_len = positions_,
          .buckets = config_.chat.buckets,
          .pad_to = plan_.row_multiple,
          .pool_batches = config_.chat.pool_batches,
          .pinned = false};
}

std::vector<std::string> PolychromicData::right_answers(int64_t example) const {
  return train_->dataset().right_answers(examples_of_prompt_.at(example));
}

// The step that takes the next batch: several steps of GRPO may learn from one.
int64_t PolychromicData::step_after(int64_t step) const {
  return step + (plan_.kind(step) == PolychromicKind::rewards ? plan_.reward_updates : 1);
}

void PolychromicData::start_prefetch(int64_t step) {
  prefetch_.reset();  // the old thread reads the same order
  prefetch_ = std::make_unique<data::ChatPrefetch>(
      [this, step, position = position_]() mutable {
        const bool rewards = plan_.kind(step) == PolychromicKind::rewards;
        data::ChatBatch batch = (rewards ? prompt_batches_ : batches_)->batch(position);
        position = batch.position_after;
        step = step_after(step);
        return batch;
      },
      config_.data.prefetch_batches);
}

data::ChatBatch PolychromicData::next(int64_t step) {
  if (!prefetch_ || step != expected_step_ || position_ != expected_position_) start_prefetch(step);
  data::ChatBatch batch = prefetch_->next();
  wait_ms_ = prefetch_->wait_ms();
  position_ = expected_position_ = batch.position_after;
  expected_step_ = step_after(step);
  return batch;
}

std::string PolychromicData::next_digest(PolychromicKind kind) const {
  data::ChatBatchOptions options = batch_options();
  options.rank = 0;
  options.ranks = 1;
  options.pad_to = 1;  // a resume may change it
  const auto& source = kind == PolychromicKind::rewards ? prompts_ : train_;
  const data::ChatBatch batch = data::ChatBatches(source, options).batch(position_);
  Hasher hasher;
  for (const at::Tensor& tensor : {batch.rows.decoder_ids, batch.rows.labels, batch.rows.document_ids}) {
    if (!tensor.defined()) continue;
    const at::Tensor bytes = tensor.contiguous();
    hasher.update({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return hasher.hex();
}

double PolychromicData::samples_per_epoch() const {
  const auto samples = static_cast<double>(train_->num_samples(positions_)), epochs = config_.train.epochs,
             batch = static_cast<double>(config_.train.global_batch_size);
  if (plan_.grpo_from == 0) return samples;
  const auto prompts = static_cast<double>(prompts_->num_samples(positions_));
  if (epochs <= 0) return plan_.grpo_from == 1 ? prompts : samples;
  if (plan_.reward_updates <= 1 && prompts == samples) return samples;
  const double batches = epochs * samples / batch, before = std::min(batches, static_cast<double>(plan_.grpo_from - 1));
  const double of_prompts = (batches - before) * (prompts / samples);
  return (before + of_prompts * static_cast<double>(plan_.reward_updates)) * batch / epochs;
}

std::string PolychromicData::describe() const {
  std::string text =
      cat("data         ", train_->num_samples(positions_), train_->packed() ? " packed rows of " : " examples of ",
          train_->origin(), ", template ", chat_.name(), ", up to ", config_.chat.max_length, " tokens");
  if (test_) text += cat("\nvalidation   ", test_->num_samples(positions_), " examples of ", test_->origin());
  return text;
}

}  // namespace hrm::tasks
