#pragma once
// Rewards of completions. A reward sees all completions of a prompt at once, because the value of one can
// depend on the others (diversity).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/fine_tuning_settings.h"

namespace hrm::objectives {

// N answers to one prompt. What a reward needs and does not find is Error(usage) that names both.
struct AnswerGroup {
  std::string prompt;
  std::vector<std::string> texts;            // N
  std::vector<int64_t> tokens = {};          // N: length of each answer, with the token that ends it
  std::vector<bool> finished = {};           // N: the answer ended by itself, not at the longest length allowed
  std::vector<std::string> references = {};  // right answers, one of which is enough
  std::vector<double> diversity = {};        // N: GroupDiversity::rows of this group
  at::Tensor prompt_embedding = {};          // (d) float32
  at::Tensor embeddings = {};                // (N, d) float32
};

class Reward {
 public:
  virtual ~Reward() = default;
  virtual std::string name() const = 0;
  // One finite number for each answer.
  virtual std::vector<double> of(const AnswerGroup& group) const = 0;
};

struct RewardOptions {
  std::string name;  // one of reward_names()
  // format: the whole answer has this form (hrm/data/text_pattern.h); it begins and ends so; it is one JSON object.
  // At least one of them must be asked for, and all that are must hold.
  std::string pattern = {}, prefix = {}, suffix = {};
  bool json_object = false;
  // answer: only the first line that is not empty counts.
  bool first_line = false;
  // overlong: answers of more than max_tokens - margin tokens lose.
  int64_t max_tokens = 0, margin = 0;
  std::string head = {};  // learned: a safetensors file
};

// answer      1 where the answer is one of the references (same_answer), otherwise 0
// diversity   the answer's row of the diversity metric
// engagement  length, heuristic parts below
// finished    1 where the answer ended by itself, otherwise 0
// format      1 where the answer has the form asked for, otherwise 0
// heuristic   0.30 relevance + 0.15 length + 0.15 sentiment + 0.10 lexical + 0.10 punctuation + 0.20 engagement; 0
// below 3
//             characters, 0.3 above 500 (text_heuristics.h)
// learned     a small network on the embeddings of prompt and answer (LearnedHead)
// length, lexical, punctuation, relevance, sentiment: parts of the heuristic alone
// overlong    0 up to max_tokens - margin tokens, falling to -1 at max_tokens (DAPO, arXiv 2503.14476, equation 13)
const std::vector<std::string>& reward_names();

// Error(usage) for an unknown name (with the nearest one) and for options that the reward does not support. Error(data)
// for a file that is not such a network.
std::unique_ptr<Reward> make_reward(const RewardOptions& options);

// The same answer but for letter case, Unicode composition, white space (runs count as one blank), quotation marks
// around it and .,;:!? at its end.
bool same_answer(const std::string& text, const std::string& reference);

// Rewards of groups: (K, G, N) float64 on the CPU, K rewards, N answers of the largest group, 0 beyond a smaller one's.
// Error(unexpected) when a reward gives another number of values; Error(data) with its name when one is not finite.
at::Tensor score_groups(const std::vector<std::unique_ptr<Reward>>& rewards, const std::vector<AnswerGroup>& groups);

// weighted_sum: sum_k w_k R_k. separately_normalised: each reward is first normalised like group_advantages (scale
// group), so that none dominates another by its spread (GDPO). The result is already an advantage, and needs
// AdvantageScale::none.
using config::RewardCombination;

// rewards (K, G, N), one weight for each of the K; counts as in group_advantages -> (G, N), 0 beyond a group's count.
at::Tensor combine_rewards(const at::Tensor& rewards, const std::vector<double>& weights, RewardCombination how,
                           const at::Tensor& counts = {}, double eps = 1e-4);

// sigmoid(W3 relu(W2 relu(W1 [e_prompt; e_answer] + b1) + b2) + b3), without gradient.
class LearnedHead {
 public:
  // Tensors layers.{0,1,2}.{weight,bias}, float32 or any floating type, of shapes (h, 2d), (h/2, h), (1, h/2). Throws
  // Error(data) naming the file and the tensor.
  explicit LearnedHead(const std::string& file);

  // prompt (d), answers (N, d) -> (N) float32 in 0..1. Error(usage) when d is not the file's.
  at::Tensor forward(const at::Tensor& prompt, const at::Tensor& answers) const;

 private:
  std::string file_;
  std::vector<at::Tensor> weights_, biases_;  // of the three layers
};

}  // namespace hrm::objectives
