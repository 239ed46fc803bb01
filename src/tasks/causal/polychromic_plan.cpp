#include "hrm/tasks/polychromic_plan.h"

#include <algorithm>
#include <numeric>

namespace hrm::tasks {
namespace {

constexpr int64_t kSafeSamples = 3, kSafeTokens = 80, kSafeEvery = 10;
constexpr int64_t kFp8Positions = 16;  // ops/fp8_linear.h

}  // namespace

PolychromicPlan::PolychromicPlan(const config::Config& config, int64_t ranks) {
  const config::PolychromicConfig& p = config.polychromic;
  const config::GrpoConfig& g = config.grpo;
  rows = config.train.global_batch_size / ranks;
  micro_rows = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : rows;
  micro_batches = rows / micro_rows;
  grpo_from = g.start_step;
  samples_for_diversity = p.objective != config::PolychromicObjective::none && grpo_from != 1;
  diversity_has_gradient = samples_for_diversity && p.objective != config::PolychromicObjective::compat;
  const bool safe = p.performance_mode == config::PerformanceMode::safe;
  every = safe ? std::max(p.compute_diversity_every_n_steps, kSafeEvery) : p.compute_diversity_every_n_steps;
  if (samples_for_diversity) {
    diverse_prompts = std::min(micro_rows, p.max_examples_for_diversity);
    diverse_samples = safe ? std::min(p.n_generations, kSafeSamples) : p.n_generations;
    diverse_tokens = safe ? std::min(p.max_generation_length, kSafeTokens) : p.max_generation_length;
  }
  if (grpo_from > 0) {
    reward_samples = g.num_generations;
    reward_tokens = g.max_completion_length;
    reward_updates = g.num_iterations;
  }
  if (config.precision.blocks == config::BlockPrecision::fp8) {
    int64_t common = kFp8Positions;
    if (grpo_from != 1) common = std::gcd(common, micro_rows);
    for (const PolychromicKind kind : {PolychromicKind::diversity, PolychromicKind::rewards}) {
      common = std::gcd(common, answers(kind));
    }
    row_multiple = kFp8Positions / common;
  }
}

int64_t PolychromicPlan::padded(int64_t positions) const {
  return (positions + row_multiple - 1) / row_multiple * row_multiple;
}

PolychromicKind PolychromicPlan::kind(int64_t step) const {
  if (grpo_from > 0 && step >= grpo_from) return PolychromicKind::rewards;
  return samples_for_diversity && (step - 1) % every == 0 ? PolychromicKind::diversity : PolychromicKind::responses;
}

int64_t PolychromicPlan::most_samples() const {
  return std::max(micro_batches * diverse_prompts * diverse_samples, rows * reward_samples);
}

int64_t PolychromicPlan::most_tokens() const {
  return std::max(diverse_tokens, reward_tokens);
}

int64_t PolychromicPlan::prompts(PolychromicKind kind) const {
  return kind == PolychromicKind::rewards ? micro_rows : diverse_prompts;
}

int64_t PolychromicPlan::samples(PolychromicKind kind) const {
  return kind == PolychromicKind::rewards ? reward_samples : diverse_samples;
}

int64_t PolychromicPlan::tokens(PolychromicKind kind) const {
  return kind == PolychromicKind::rewards ? reward_tokens : diverse_tokens;
}

bool PolychromicPlan::learns_from_answers(PolychromicKind kind) const {
  return kind == PolychromicKind::rewards || (kind == PolychromicKind::diversity && diversity_has_gradient);
}

bool PolychromicPlan::learns_again(PolychromicKind kind, int64_t updates) const {
  return kind == PolychromicKind::rewards && updates > 0 && updates < reward_updates;
}

int64_t PolychromicPlan::batches_of(int64_t count, PolychromicKind kind, int64_t updates) const {
  const int64_t per_batch = kind == PolychromicKind::rewards ? reward_updates : 1;
  const int64_t left = updates > 0 ? std::max<int64_t>(per_batch - updates, 0) : 0;
  return std::max<int64_t>(count - left + per_batch - 1, 0) / per_batch;
}

}  // namespace hrm::tasks
