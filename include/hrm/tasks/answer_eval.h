#pragma once
// What a causal language model's answers to prompts are worth: right or not, how near to a reference, how varied.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hrm/data/chat_source.h"
#include "hrm/metrics/text_statistics.h"
#include "hrm/models/language_model.h"
#include "hrm/tasks/answer_diversity.h"
#include "hrm/tasks/answer_sampler.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {

struct AnswerEvalOptions {
  int64_t samples = 10;  // of each prompt
  int64_t prompts = 0;   // so many, spread evenly over those there are; 0: all
  int64_t max_new_tokens = 100;
  SamplingOptions sampling = {.temperature = 0.7, .top_p = 0.9};
  uint64_t seed = 0;
  int64_t batch = 32;  // prompts whose answers are sampled together
  // What measures the data's responses to each prompt; null: they are not.
  models::LanguageModel* response_model = nullptr;
  at::Device device = at::kCPU;    // where it is
  int64_t response_positions = 0;  // of a row with prompt and response
  int64_t response_rows = 8;       // of a batch
  int64_t chunk = 2048;            // tokens whose logits exist at one time
};

// One prompt with its answers, for a report.
struct EvaluatedPrompt {
  std::string prompt, reference;     // the data's response; empty: there is none
  std::vector<std::string> answers;  // right ones of the data
  std::string greedy;                // the best token each time
  std::vector<std::string> sampled;
  std::vector<bool> right, finished;          // of `sampled`; right is empty where the data knows no right answers
  double diversity = 0;                       // by AnswerDiversity
  std::map<std::string, double> values = {};  // this prompt's, by the names of AnswerEvaluation::metrics
};

struct AnswerEvaluation {
  std::vector<EvaluatedPrompt> prompts;
  // Means over prompts with 95 % bootstrap intervals. With right answers in the data: pass@k (k 1, 3, 5, 10, ... up to
  // samples), greedy_right, covered (different right answers / all right ones). Diversity: diversity (within a prompt,
  // by the configured metric), distinct_1, distinct_2, distinct_3, self_bleu, different (fraction of different
  // answers). Texts: rouge_1, rouge_2, rouge_l (F1 of the greedy answer against the response), answer_words,
  // unique_words, finished. response_loss: cross-entropy of all responses to the prompt, nats per token.
  std::vector<std::pair<std::string, metrics::Interval>> metrics;
};

// Each prompt of `source` once, whatever number of responses it has. `diversity` may be null: then by distinct pairs of
// words. Deterministic for a seed. What `progress` throws ends it.
AnswerEvaluation evaluate_answers(const data::ChatSource& source, AnswerSampler& sampler, AnswerDiversity* diversity,
                                  const AnswerEvalOptions& options,
                                  const std::function<void(const EvalProgress&)>& progress);

}  // namespace hrm::tasks
