#pragma once
// Rewards of completions. A reward sees all completions of a prompt at once, because the value of one can depend on the
// others (diversity).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/fine_tuning_settings.h"

namespace hrm::objectives {

// N completions of one prompt. A reward whose input is missing throws Error(usage) that names both.
struct AnswerGroup {
  std::string prompt;
  std::vector<std::string> texts;            // N
  std::vector<int64_t> tokens = {};          // N: length of each completion, including its end token
  std::vector<bool> finished = {};           // N: the completion ended by itself, not at the maximum length
  std::vector<std::string> references = {};  // right answers, any of which suffices
  std::vector<double> diversity = {};        // N: GroupDiversity::rows of this group
  at::Tensor prompt_embedding = {};          // (d) float32
  at::Tensor embeddings = {};                // (N, d) float32
};

class Reward {
 public:
  virtual ~Reward() = default;
  virtual std::string name() const = 0;
  // Returns one finite number per completion.
  virtual std::vector<double> of(const AnswerGroup& group) const = 0;
};

struct RewardOptions {
  std::string name;  // one of reward_names()
  // format: the whole completion matches this pattern (hrm/data/text_pattern.h), has this prefix or suffix, or is one
  // JSON object. At least one of them must be set, and all that are set must hold.
  std::string pattern = {}, prefix = {}, suffix = {};
  bool json_object = false;
  // answer: only the first non-empty line counts.
  bool first_line = false;
  // overlong: penalises completions of more than max_tokens - margin tokens.
  int64_t max_tokens = 0, margin = 0;
  std::string head = {};  // learned: a safetensors file
};

// The rewards:
//    answer       1 if the completion is one of the references (same_answer), otherwise 0
//    diversity    the completion's row of the diversity metric
//    engagement, length, lexical, punctuation, relevance, sentiment: one part of the heuristic
//    finished     1 if the completion ended by itself, otherwise 0
//    format       1 if the completion has the requested form, otherwise 0
//    heuristic    0.30 relevance + 0.15 length + 0.15 sentiment + 0.10 lexical + 0.10 punctuation + 0.20 engagement;
//                 0 below 3 characters, 0.3 above 500 (text_heuristics.h)
//    learned      a small network on the embeddings of prompt and completion (LearnedHead)
//    overlong     0 up to max_tokens - margin tokens, falling to -1 at max_tokens (DAPO, arXiv 2503.14476, equation 13)
const std::vector<std::string>& reward_names();

// Throws Error(usage) for an unknown name, with the nearest one, and for options that do not fit the reward. Throws
// Error(data) for a file that is not such a network.
std::unique_ptr<Reward> make_reward(const RewardOptions& options);

// Compares two answers. Ignores letter case, Unicode composition, the length of white-space runs, surrounding quotation
// marks and trailing .,;:!? characters.
bool same_answer(const std::string& text, const std::string& reference);

// Rewards of groups: (K, G, N) float64 on the CPU, for K rewards and N completions in the largest group. Entries beyond
// the end of a smaller group are 0. Throws Error(unexpected) if a reward returns the wrong number of values, and
// Error(data) that names the reward if a value is not finite.
at::Tensor score_groups(const std::vector<std::unique_ptr<Reward>>& rewards, const std::vector<AnswerGroup>& groups);

// weighted_sum: sum_k w_k R_k. separately_normalised: first normalises each reward with group_advantages (scale group),
// so that none drowns another by its spread (GDPO). The result is then already an advantage; use AdvantageScale::none.
using config::RewardCombination;

// rewards (K, G, N) with K weights -> (G, N), 0 beyond a group's count. counts: see group_advantages.
at::Tensor combine_rewards(const at::Tensor& rewards, const std::vector<double>& weights, RewardCombination how,
                           const at::Tensor& counts = {}, double eps = 1e-4);

// sigmoid(W3 relu(W2 relu(W1 [e_prompt; e_answer] + b1) + b2) + b3), without gradient.
class LearnedHead {
 public:
  // Reads the tensors layers.{0,1,2}.{weight,bias} of any floating type, with weight shapes (h, 2d), (h/2, h), (1,
  // h/2). Throws Error(data) that names the file and the tensor.
  explicit LearnedHead(const std::string& file);

  // prompt (d), answers (N, d) -> (N) float32 in 0..1. Throws Error(usage) if d differs from the file's.
  at::Tensor forward(const at::Tensor& prompt, const at::Tensor& answers) const;

 private:
  std::string file_;
  std::vector<at::Tensor> weights_, biases_;  // of the three layers
};

}  // namespace hrm::objectives
