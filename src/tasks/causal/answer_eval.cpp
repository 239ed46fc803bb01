#include "hrm/tasks/answer_eval.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "hrm/data/batch.h"
#include "hrm/metrics/text_metrics.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/rewards.h"
#include "hrm/runtime/nvtx.h"

namespace hrm::tasks {
namespace {

// The first example of each prompt of the source, spread evenly.
std::vector<int64_t> chosen_examples(const data::ChatSource& source, int64_t most) {
  std::set<std::string> seen;
  std::vector<int64_t> all;
  for (int64_t sample = 0; sample < source.num_samples(1); ++sample) {
    for (const int64_t example : source.examples_of(sample)) {
      if (seen.insert(source.dataset()[example].key).second) all.push_back(example);
    }
  }
  std::sort(all.begin(), all.end());
  const auto count = static_cast<int64_t>(all.size());
  if (most <= 0 || most >= count) return all;
  std::vector<int64_t> some;
  for (int64_t i = 0; i < most; ++i) some.push_back(all[static_cast<size_t>(i * count / most)]);
  return some;
}

bool is_right(const std::string& text, const std::vector<std::string>& answers) {
  return std::any_of(answers.begin(), answers.end(),
                     [&](const std::string& answer) { return objectives::same_answer(text, answer); });
}

// Values of one prompt, by metric.
using Values = std::map<std::string, double>;

Values measure(const EvaluatedPrompt& p) {
  Values v;
  const auto n = static_cast<int64_t>(p.sampled.size());
  if (!p.answers.empty()) {
    const auto right = static_cast<int64_t>(std::count(p.right.begin(), p.right.end(), true));
    for (const int64_t k : {1, 3, 5, 10, 20, 50, 100}) {
      if (k <= n) v["pass@" + std::to_string(k)] = metrics::pass_at_k(n, right, k);
    }
    v["greedy_right"] = is_right(p.greedy, p.answers) ? 1 : 0;
    int64_t covered = 0;
    for (const std::string& answer : p.answers) {
      covered += is_right(answer, p.sampled) ? 1 : 0;
    }
    v["covered"] = static_cast<double>(covered) / static_cast<double>(p.answers.size());
  }
  if (!p.reference.empty()) {
    v["rouge_1"] = metrics::rouge_n(p.greedy, p.reference, 1).f1;
    v["rouge_2"] = metrics::rouge_n(p.greedy, p.reference, 2).f1;
    v["rouge_l"] = metrics::rouge_l(p.greedy, p.reference).f1;
  }
  for (const int64_t order : {1, 2, 3}) v["distinct_" + std::to_string(order)] = metrics::distinct_n(p.sampled, order);
  v["self_bleu"] = metrics::self_bleu(p.sampled);
  v["diversity"] = p.diversity;
  v["different"] =
      static_cast<double>(std::set<std::string>(p.sampled.begin(), p.sampled.end()).size()) / static_cast<double>(n);
  v["finished"] = static_cast<double>(std::count(p.finished.begin(), p.finished.end(), true)) / static_cast<double>(n);
  double all_words = 0, unique = 0;
  for (const std::string& text : p.sampled) {
    const std::vector<std::string> words = metrics::words(text);
    all_words += static_cast<double>(words.size());
    unique += static_cast<double>(std::set<std::string>(words.begin(), words.end()).size());
  }
  v["answer_words"] = all_words / static_cast<double>(n);
  v["unique_words"] = unique / static_cast<double>(n);
  return v;
}

constexpr const char* kOrder[] = {
    "pass@1",  "pass@3",    "pass@5",       "pass@10",      "pass@20",    "pass@50",      "pass@100",  "greedy_right",
    "covered", "diversity", "different",    "distinct_1",   "distinct_2", "distinct_3",   "self_bleu", "rouge_1",
    "rouge_2", "rouge_l",   "answer_words", "unique_words", "finished",   "response_loss"};

// Cross-entropy of all responses to each of these prompts, by key, nats a token.
std::map<std::string, double> response_losses(const data::ChatSource& source, const std::set<std::string>& keys,
                                              const AnswerEvalOptions& options) {
  std::vector<int64_t> samples;
  for (int64_t sample = 0; sample < source.num_samples(options.response_positions); ++sample) {
    if (keys.count(source.example(sample).key) > 0) samples.push_back(sample);
  }
  const at::NoGradGuard no_grad;
  std::map<std::string, std::pair<double, double>> sums;  // of cross-entropy, of tokens
  const auto count = static_cast<int64_t>(samples.size());
  for (int64_t first = 0; first < count; first += options.response_rows) {
    const int64_t rows = std::min(options.response_rows, count - first), length = options.response_positions;
    const at::Tensor ids = at::empty({rows, length}, at::kLong), labels = at::empty({rows, length}, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      data::LanguageRow row{.shape = {0, length}};
      row.decoder_ids = ids[i].data_ptr<int64_t>();
      row.labels = labels[i].data_ptr<int64_t>();
      source.row(samples[static_cast<size_t>(first + i)], row);
    }
    const at::Tensor targets = labels.to(options.device);
    const at::Tensor hidden = options.response_model->forward({.ids = ids.to(options.device)}).hidden;
    const at::Tensor nats = objectives::token_scores(*options.response_model, hidden, targets, options.chunk)
                                .cross_entropy.sum(1, /*keepdim=*/false, at::kDouble)
                                .cpu();
    const at::Tensor tokens = labels.ne(data::kIgnoreLabel).sum(1);
    for (int64_t i = 0; i < rows; ++i) {
      auto& [loss, number] = sums[source.example(samples[static_cast<size_t>(first + i)]).key];
      loss += nats[i].item<double>();
      number += tokens[i].item<double>();
    }
  }
  std::map<std::string, double> means;
  for (const auto& [key, sum] : sums) {
    if (sum.second > 0) means[key] = sum.first / sum.second;
  }
  return means;
}

}  // namespace

AnswerEvaluation evaluate_answers(const data::ChatSource& source, AnswerSampler& sampler, AnswerDiversity* diversity,
                                  const AnswerEvalOptions& options,
                                  const std::function<void(const EvalProgress&)>& progress) {
  const std::vector<int64_t> examples = chosen_examples(source, options.prompts);
  const auto count = static_cast<int64_t>(examples.size());
  AnswerEvaluation out;
  for (int64_t first = 0; first < count; first += options.batch) {
    const ProfilerRange batch(RangeKind::eval, "eval.batch");
    const int64_t size = std::min(options.batch, count - first);
    std::vector<std::vector<int32_t>> prompts;
    AnswerOptions sampled{.samples = options.samples,
                          .max_new_tokens = options.max_new_tokens,
                          .sampling = options.sampling,
                          .seed = options.seed};
    for (int64_t i = 0; i < size; ++i) {
      prompts.push_back(source.dataset()[examples[static_cast<size_t>(first + i)]].prompt_ids);
      sampled.keys.push_back(static_cast<uint64_t>(first + i));
    }
    const auto generate = [&](const AnswerOptions& how) {
      const ProfilerRange range(RangeKind::sample, "generate");
      return sampler.sample(prompts, how);
    };
    const Answers answers = generate(sampled);
    AnswerOptions best = sampled;
    best.samples = 1;
    best.sampling = {.temperature = 0};
    const Answers greedy = generate(best);
    at::Tensor totals;
    if (diversity != nullptr)
      totals = diversity->measure(answers.texts, options.samples).totals.to(at::kCPU, at::kDouble);
    for (int64_t i = 0; i < size; ++i) {
      const data::ChatExample& example = source.dataset()[examples[static_cast<size_t>(first + i)]];
      EvaluatedPrompt p{.prompt = example.prompt,
                        .reference = example.response,
                        .answers = example.answers,
                        .greedy = greedy.texts[static_cast<size_t>(i)],
                        .sampled = {},
                        .right = {},
                        .finished = {}};
      for (int64_t s = 0; s < options.samples; ++s) {
        const auto row = static_cast<size_t>(i * options.samples + s);
        p.sampled.push_back(answers.texts[row]);
        p.finished.push_back(answers.finished[row]);
        if (!p.answers.empty()) p.right.push_back(is_right(answers.texts[row], p.answers));
      }
      p.diversity = totals.defined() ? totals[i].item<double>() : metrics::distinct_diversity(p.sampled, 2).total;
      out.prompts.push_back(std::move(p));
    }
    progress({.done = first + size, .total = count});
  }
  const auto key_of = [&](size_t prompt) { return source.dataset()[examples[prompt]].key; };
  std::map<std::string, double> losses;
  if (options.response_model != nullptr) {
    std::set<std::string> keys;
    for (size_t i = 0; i < examples.size(); ++i) keys.insert(key_of(i));
    losses = response_losses(source, keys, options);
  }
  std::map<std::string, std::vector<double>> values;
  for (size_t i = 0; i < out.prompts.size(); ++i) {
    EvaluatedPrompt& p = out.prompts[i];
    p.values = measure(p);
    if (const auto found = losses.find(key_of(i)); found != losses.end()) p.values["response_loss"] = found->second;
    for (const auto& [name, value] : p.values) values[name].push_back(value);
  }
  for (const char* name : kOrder) {
    if (const auto found = values.find(name); found != values.end()) {
      out.metrics.emplace_back(name, metrics::bootstrap_mean(found->second, options.seed, 2000));
    }
  }
  return out;
}

}  // namespace hrm::tasks
