#pragma once
// The losses of a polychromic step: of the data's responses, of the diversity of completions, of both in one pass, and
// of rewards. All is device work that may be captured. It reads the rows of the batches at static addresses, and shapes
// from the host, which Task::graph_key tells apart. Sums over tokens are divided by the tokens of the global batch, so
// micro-batches and ranks add up.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "hrm/config/config.h"
#include "hrm/models/language_model.h"
#include "hrm/parallel/comm.h"
#include "hrm/tasks/causal_lm.h"
#include "hrm/tasks/polychromic_answers.h"
#include "hrm/tasks/polychromic_metrics.h"
#include "hrm/tasks/polychromic_plan.h"
#include "hrm/tasks/polychromic_responses.h"

namespace hrm::tasks {

class PolychromicLoss {
 public:
  // All must live as long.
  PolychromicLoss(const config::Config& config, const PolychromicPlan& plan, CausalLm& lm,
                  const PolychromicMetrics& metrics, const ResponseBatch& responses, const AnswerBatch& answers,
                  at::Device device);

  // Before a step's first micro-batch: the number of labels on all ranks.
  void count_tokens(parallel::Comm& comm);

  // Of one micro-batch: 0-dim, differentiable. `sums`: metrics are added to it (PolychromicMetrics::add).
  // Cross-entropy of the responses.
  at::Tensor responses(int64_t micro_batch, at::Tensor& sums);
  // The term of polychromic.diversity_weight: its gradient counts, its value does not. Without dropout, as the policy
  // that sampled had none.
  at::Tensor diversity(int64_t micro_batch);
  // Both sums in one pass, in which the answers' prompts are those of the responses. The answers must have been written
  // with these responses, and share tokens.
  at::Tensor joint(int64_t micro_batch, at::Tensor& sums);
  // The clipped surrogate of GRPO with its KL term (objectives/policy_gradient.h). Without dropout.
  at::Tensor rewards(int64_t micro_batch, at::Tensor& sums);

 private:
  at::Tensor cross_entropy(const models::LanguageOutput& output, int64_t micro_batch, at::Tensor& sums);
  at::Tensor diversity_term(const at::Tensor& hidden, const AnswerRows& rows);
  at::Tensor answer_log_probs(const AnswerRows& rows, double temperature);
  at::Tensor without_dropout(const std::function<at::Tensor()>& pass);

  const config::Config& config_;
  const PolychromicPlan& plan_;
  CausalLm& lm_;
  const PolychromicMetrics& metrics_;
  const ResponseBatch& responses_;
  const AnswerBatch& answers_;
  at::Tensor tokens_, answer_tokens_;  // 0-dim float32: labels of the global batch, at least 1
};

}  // namespace hrm::tasks
