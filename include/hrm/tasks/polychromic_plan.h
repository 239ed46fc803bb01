#pragma once
// What each step of a polychromic training learns from, and how many completions it samples. Only numbers, no tensors.

#include <cstdint>

#include "hrm/config/config.h"

namespace hrm::tasks {

// What a step trains on.
enum class PolychromicKind {
  responses,  // cross-entropy of the data's responses
  diversity,  // that, and the diversity of sampled answers
  rewards,    // GRPO
};

// The settings of a configuration with performance_mode applied.
struct PolychromicPlan {
  // `ranks` must divide train.global_batch_size, and train.micro_batch_size what is left.
  explicit PolychromicPlan(const config::Config& config, int64_t ranks);

  PolychromicKind kind(int64_t step) const;  // steps count from 1

  int64_t rows = 0, micro_rows = 0, micro_batches = 0;  // of this rank: of the global batch, of a micro-batch
  int64_t every = 1;
  int64_t diverse_prompts = 0, diverse_samples = 0, diverse_tokens = 0;  // of a micro-batch; of a prompt; of an answer
  int64_t reward_samples = 0, reward_tokens = 0;
  int64_t reward_updates = 1;  // steps that learn from one batch of answers, one after the other
  int64_t grpo_from = 0;       // 0: never
  bool samples_for_diversity = false;
  bool diversity_has_gradient = false;  // false without it, and where it is a constant in the loss (compat)
  // Rows are padded to a multiple of it. Above 1 with precision.blocks=fp8: the positions of each pass, rows x length,
  // are then a multiple of 16.
  int64_t row_multiple = 1;

  int64_t padded(int64_t positions) const;  // to a multiple of row_multiple

  int64_t most_samples() const;  // rows of sampled answers that a step can have on this rank
  int64_t most_tokens() const;   // of an answer

  // Of a step of this kind that samples answers.
  int64_t prompts(PolychromicKind kind) const;  // of a micro-batch: those that are answered
  int64_t samples(PolychromicKind kind) const;  // answers to each of them
  int64_t tokens(PolychromicKind kind) const;   // of an answer, at most
  int64_t answers(PolychromicKind kind) const { return prompts(kind) * samples(kind); }  // of a micro-batch
  // Whether gradients come from completions.
  bool learns_from_answers(PolychromicKind kind) const;

  // Whether a step learns once more from answers that `updates` steps have learned from.
  bool learns_again(PolychromicKind kind, int64_t updates) const;
  // Batches of the data that the next `count` steps of this kind take, where `updates` is as above.
  int64_t batches_of(int64_t count, PolychromicKind kind, int64_t updates) const;
};

}  // namespace hrm::tasks
