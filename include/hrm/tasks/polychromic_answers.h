#pragma once
// The rows of completions that a step learns from, where its captured work reads them: the same addresses in each
// step. GRPO may learn from one batch of answers in several steps (grpo.num_iterations), and a checkpoint keeps them.
// Shapes: M micro-batches of B rows, N of which, one after the other, answer one prompt; T positions at most; W
// positions of this step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/prefix_sharing.h"

namespace hrm::tasks {

// How the answers of a step lie.
struct AnswerLayout {
  int64_t rows = 0;           // B
  int64_t samples = 0;        // N
  bool learned = true;        // gradients come from them
  at::Tensor responses = {};  // the rows in whose pass they go through the model (PrefixSharing::read), or undefined
};

// A micro-batch's rows, W wide, contiguous, and the tokens in them that are shared.
struct AnswerRows {
  at::Tensor ids, labels;  // (B, W) int64: labels[r][t] is what ids[r][t] shall give
  at::Tensor weights;      // (B, W) float32: objectives::score_weights, for diversity
  int64_t first = 0, count = 0;
  std::optional<PrefixSharedTokens> shared = {};
};

// W for rows of up to `longest` positions, at most `positions`: the smallest of `buckets` widths, padded to a multiple
// of `multiple`.
int64_t answer_width(int64_t longest, int64_t positions, int64_t buckets, int64_t multiple = 1);

class AnswerBatch {
 public:
  struct Options {
    int64_t rows = 0;           // room for M B rows
    int64_t positions = 0;      // T
    int64_t micro_batches = 1;  // M
    int64_t pad_id = 0;
    int64_t buckets = 1;       // widths W that there are
    int64_t multiple = 1;      // of which W is one, even above T
    bool keeps_log_p = false;  // for several steps from one batch
    bool shares_prompts = false;
    int64_t response_tokens = 0;  // with shares_prompts: of the responses that share a pass, of a micro-batch
  };
  AnswerBatch(const Options& options, at::Device device);

  // The step has no answers.
  void clear();
  // Rows of prompt and completion: position t predicts id t + 1. Only ids of the completion count; with `only_finished`
  // only those of completions that ended by themselves. All ranks call it together and use the widest rank's W. The
  // weights of the rows are still those of the previous step. Error(unexpected) for a row of more than T positions.
  void write(const std::vector<std::vector<int32_t>>& prompts, const Answers& answers, const AnswerLayout& layout,
             bool only_finished, parallel::Comm& comm);
  // In place of write(): one more update from the rows that are there, by rewards. Rows of a checkpoint may have been
  // padded to another multiple.
  void learn_again(const AnswerLayout& layout, parallel::Comm& comm);
  // The next step takes new answers.
  void forget() { updates_ = 0; }

  // For what was written: (M B, W) for diversity; (M B) of any type and device, for the first update by rewards.
  void set_weights(const at::Tensor& weights);
  void set_advantages(const at::Tensor& advantages);

  int64_t width() const { return width_; }                  // W; 0 where the step has no answers
  int64_t shared_tokens() const { return shared_tokens_; }  // of a micro-batch that shares its prompts; 0: it does not
  int64_t updates() const { return updates_; }  // steps that learned from these rows by rewards, this one too

  // Device work, which may be captured.
  AnswerRows rows(int64_t micro_batch) const;
  at::Tensor advantages(const AnswerRows& rows) const { return advantages_.narrow(0, rows.first, rows.count); }
  // Log-probabilities by the policy that sampled, (B, W) float32. The first update stores its own, `log_p`, and gets an
  // undefined tensor; later ones read them. Undefined without keeps_log_p.
  at::Tensor sampled_log_p(const AnswerRows& rows, const at::Tensor& log_p) const;
  at::Tensor step_labels() const;  // (rows, W), a view; a column without meaning where W is 0

  // The tensors of the captured work, at static addresses: ids and labels (rows, P) int64, weights (rows, P) and
  // advantages (rows) float32, where P is T, padded. If needed, also log-probabilities (rows, P) float32 and the tables
  // of prefix sharing, int32; undefined otherwise.
  const at::Tensor& all_ids() const { return ids_; }
  const at::Tensor& all_labels() const { return labels_; }
  const at::Tensor& all_weights() const { return weights_; }
  const at::Tensor& all_advantages() const { return advantages_; }
  const at::Tensor& all_log_p() const { return log_p_; }
  at::Tensor shared_buffer() const { return shared_ ? shared_->buffer() : at::Tensor(); }

  // Prefix of the names in visit_state().
  static constexpr const char* kStatePrefix = "answers.";
  // With keeps_log_p: answers that the next step may learn from, the first `rows` of this rank, T positions of each. By
  // their place in the global batch, `first_row` of `global_rows`, so that a run can continue with another number of
  // ranks.
  void visit_state(StateVisitor& visitor, int64_t rows, int64_t first_row, int64_t global_rows);

 private:
  void pad();
  void share(const at::Tensor& ids, const at::Tensor& labels, parallel::Comm& comm);
  at::Tensor written(const at::Tensor& all) const;

  Options options_;
  at::Device device_;
  AnswerLayout layout_;
  int64_t width_ = 0, shared_tokens_ = 0;
  int64_t updates_ = 0;
  at::Tensor ids_, labels_, weights_, advantages_, log_p_;
  std::unique_ptr<PrefixSharing> shared_;  // null without shares_prompts
  bool shared_is_of_rows_ = false;         // whether it was made from these rows
};

}  // namespace hrm::tasks
