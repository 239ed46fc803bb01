// The part of a step in front of its captured work: answers are sampled, measured, and become rows with weights.
#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/data/batch.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/polychromic.h"
#include "tasks/polychromic_metrics.h"

namespace hrm::tasks {
namespace {

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The smallest of `buckets` widths up to `most` that holds `longest`.
int64_t bucket_width(int64_t longest, int64_t most, int64_t buckets) {
  const int64_t unit = rounded_up((most + buckets - 1) / buckets, 8);
  return std::min(most, std::max<int64_t>(unit, rounded_up(longest, unit)));
}

at::Tensor flags(const std::vector<bool>& values) {
  const at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kBool);
  std::copy(values.begin(), values.end(), out.data_ptr<bool>());
  return out;
}

}  // namespace

void PolychromicTask::sample_answers(int64_t step, const data::ChatBatch& batch) {
  const ProfilerRange range(RangeKind::data, "generate");
  const bool rewards = kind_ == PolychromicKind::rewards;
  const config::PolychromicConfig& p = config_.polychromic;
  const config::GrpoConfig& g = config_.grpo;
  AnswerOptions options{.samples = rewards ? plan_.reward_samples : plan_.diverse_samples,
                        .max_new_tokens = rewards ? plan_.reward_tokens : plan_.diverse_tokens,
                        .sampling = rewards ? SamplingOptions{g.temperature, g.top_k, g.top_p, g.min_p}
                                            : SamplingOptions{p.diversity_temperature, p.diversity_top_k,
                                                              p.diversity_top_p, p.diversity_min_p},
                        .seed = static_cast<uint64_t>(config_.run.seed),
                        .keys = {}};
  const int64_t of_micro = rewards ? plan_.micro_rows : plan_.diverse_prompts;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> examples;
  for (int64_t micro = 0; micro < plan_.micro_batches; ++micro) {
    for (int64_t i = 0; i < of_micro; ++i) {
      const int64_t row = micro * plan_.micro_rows + i;
      const int64_t example = batch.examples[static_cast<size_t>(row)];
      prompts.push_back(train_->dataset()[example].prompt_ids);
      examples.push_back(example);
      // By the place in the global batch, whatever ranks and micro-batches it is cut into.
      const int64_t place = (step - 1) * config_.train.global_batch_size + comm_->rank() * plan_.rows + row;
      options.keys.push_back(static_cast<uint64_t>(place));
    }
  }
  const Answers answers = sampler_->sample(prompts, options);
  write_answers(prompts, answers);
  const auto groups = static_cast<int64_t>(prompts.size());
  if (rewards) {
    weigh_rewards(answers, examples);
  } else {
    weigh_diversity(answers, groups);
  }
  const auto ranks = static_cast<double>(comm_->ranks());
  const auto finished = static_cast<double>(std::count(answers.finished.begin(), answers.finished.end(), true));
  fact("answer_tokens", static_cast<double>(answers.tokens()));
  fact("finished", finished / static_cast<double>(answers.texts.size()) / ranks);
  if (comm_->main()) fact(rewards ? kRewardSteps : kDiversitySteps, 1);
  times_.merge += sampler_->merge_ms();
  times_.prefill += sampler_->prefill_ms();
  times_.decode += sampler_->decode_ms();
  times_.answer_tokens += answers.tokens();
  for (const std::vector<int32_t>& prompt : prompts) times_.prompt_tokens += static_cast<int64_t>(prompt.size());
  if (diversity_) {
    times_.encode += diversity_->encode_ms();
    times_.measure += diversity_->metric_ms();
    times_.encoded_tokens += diversity_->encoded_tokens();
  }
}

// Rows of prompt and answer: position t gives id t + 1, of which those of the answer count.
void PolychromicTask::write_answers(const std::vector<std::vector<int32_t>>& prompts, const Answers& answers) {
  const auto rows = static_cast<int64_t>(answers.ids.size());
  int64_t longest = 1;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t length =
        prompts[static_cast<size_t>(row / answers.samples)].size() + answers.ids[static_cast<size_t>(row)].size();
    longest = std::max(longest, static_cast<int64_t>(length) - 1);
  }
  // The longest of all ranks, so that they have one shape of the captured step, and one state to save.
  if (!comm_->alone()) {
    const at::Tensor most = at::full({}, longest, at::device(runtime_.device).dtype(at::kLong));
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(most, parallel::Reduction::max);
    longest = most.item<int64_t>();
  }
  require(longest <= positions_, ExitCode::unexpected, "a sampled row of ", longest, " positions, room is for ",
          positions_);
  answer_width_ = bucket_width(longest, positions_, config_.chat.buckets);
  const at::Tensor ids = at::full({rows, answer_width_}, train_->meta().pad_id, at::kLong);
  const at::Tensor labels = at::full_like(ids, data::kIgnoreLabel);
  const bool leaves_out = kind_ == PolychromicKind::rewards && config_.grpo.mask_truncated_completions;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t>& prompt = prompts[static_cast<size_t>(row / answers.samples)];
    const std::vector<int32_t>& answer = answers.ids[static_cast<size_t>(row)];
    auto* id = ids.data_ptr<int64_t>() + row * answer_width_;
    auto* label = labels.data_ptr<int64_t>() + row * answer_width_;
    const auto begun = static_cast<int64_t>(prompt.size()), end = begun + static_cast<int64_t>(answer.size());
    for (int64_t t = 0; t + 1 < end; ++t) {
      id[t] = t < begun ? prompt[static_cast<size_t>(t)] : answer[static_cast<size_t>(t - begun)];
      if (t + 1 < begun || (leaves_out && !answers.finished[static_cast<size_t>(row)])) continue;
      label[t] = answer[static_cast<size_t>(t + 1 - begun)];
    }
  }
  answer_ids_.narrow(0, 0, rows).narrow(1, 0, answer_width_).copy_(ids);
  answer_labels_.narrow(0, 0, rows).narrow(1, 0, answer_width_).copy_(labels);
  share_answers(ids, labels);
}

int64_t PolychromicTask::samples_of_prompt() const {
  return kind_ == PolychromicKind::rewards ? plan_.reward_samples : plan_.diverse_samples;
}

int64_t PolychromicTask::answers_of_micro_batch() const {
  return (kind_ == PolychromicKind::rewards ? plan_.micro_rows : plan_.diverse_prompts) * samples_of_prompt();
}

bool PolychromicTask::learns_from_answers() const {
  return kind_ == PolychromicKind::rewards ||
         (kind_ == PolychromicKind::diversity && config_.polychromic.objective != config::PolychromicObjective::compat);
}

// Whether a step's responses and answers go through the model in one pass. Dropout is of responses alone.
bool PolychromicTask::joins_responses() const {
  return config_.polychromic.share_prompts == "responses" && kind_ == PolychromicKind::diversity &&
         !documents_.defined() && !(lm_.lora && config_.lora.dropout > 0);
}

// Where each token of the answers' rows, (sampled, width) on the CPU, stands.
void PolychromicTask::share_answers(const at::Tensor& ids, const at::Tensor& labels) {
  shared_is_of_answers_ = true;
  answer_tokens_kept_ = 0;
  if (!shared_answers_ || !learns_from_answers()) return;
  int64_t tokens = shared_answers_->read(ids, labels, plan_.micro_batches, samples_of_prompt(),
                                         joins_responses() ? response_ids_ : at::Tensor());
  // One shape of all ranks, as of the rows.
  if (!comm_->alone()) {
    const at::Tensor most = at::full({}, tokens, at::device(runtime_.device).dtype(at::kLong));
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(most, parallel::Reduction::max);
    tokens = most.item<int64_t>();
  }
  answer_tokens_kept_ = SharedAnswers::capacity(tokens, answers_of_micro_batch(), answer_width_);
  if (answer_tokens_kept_ > 0) shared_answers_->write(answer_tokens_kept_);
}

objectives::GroupDiversity PolychromicTask::measure(const Answers& answers) {
  return diversity_->measure(answers.texts, answers.samples);
}

void PolychromicTask::weigh_diversity(const Answers& answers, int64_t groups) {
  const config::PolychromicConfig& p = config_.polychromic;
  const objectives::GroupDiversity found = measure(answers);
  const int64_t n = answers.samples, rows = groups * n;
  const auto all_groups = static_cast<double>(groups * comm_->ranks());

  // Sum of D over all ranks, for the running mean that later steps compare with.
  at::Tensor sum = found.totals.sum(at::kDouble).view({1});
  const double own = sum.item<double>();
  if (!comm_->alone()) {
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(sum);
  }

  at::Tensor advantages;
  if (p.objective == config::PolychromicObjective::marginal) {
    const at::Tensor members = objectives::subset_members(n, p.subset_size);
    const at::Tensor units = diversity_->embeddings().view({groups, n, -1});
    const at::Tensor distances = 1 - at::bmm(units, units.transpose(1, 2));
    const at::Tensor on_device = members.to(distances.device());
    const at::Tensor values = objectives::set_values(objectives::subset_diversity(distances, on_device), {}, on_device,
                                                     objectives::SetMode::diversity);
    advantages = objectives::marginal_advantages(values, on_device);
  } else {
    advantages = objectives::score_advantages(found, objectives::diversity_baseline_from_name(p.baseline), running_);
  }
  running_.add(sum.select(0, 0), at::full_like(sum.select(0, 0), all_groups));

  // Nothing is gained by saying nothing.
  std::vector<bool> empty;
  for (const std::string& text : answers.texts) empty.push_back(text.empty());
  const at::Tensor barred = flags(empty).view({groups, n}).to(advantages.device());
  at::Tensor mean_square;
  if (p.normalize_advantages) {
    mean_square = advantages.square().sum(at::kDouble) / (all_groups * static_cast<double>(n));
    if (!comm_->alone()) {
      const parallel::StepClock::Wait waiting(comm_->clock());
      comm_->all_reduce(mean_square);
    }
  }
  advantages = objectives::shape_advantages(advantages, {.normalize = p.normalize_advantages, .clip = p.advantage_clip},
                                            barred, mean_square)
                   .to(at::kFloat);
  const at::Tensor mask =
      answer_labels_.narrow(0, 0, rows).narrow(1, 0, answer_width_).ne(data::kIgnoreLabel).to(at::kFloat);
  const double Z = p.length_norm == "max" ? static_cast<double>(plan_.diverse_tokens) : 1;
  answer_weights_.narrow(0, 0, rows)
      .narrow(1, 0, answer_width_)
      .copy_(objectives::score_weights(advantages, mask, p.diversity_weight, Z,
                                       at::full({}, all_groups, advantages.options())));

  fact("diversity", own / all_groups);
  fact("diversity_loss", -p.diversity_weight * own / all_groups);
  fact("loss", -p.diversity_weight * own / all_groups);
  fact("advantage", advantages.abs().mean().item<double>() / static_cast<double>(comm_->ranks()));
}

void PolychromicTask::weigh_rewards(const Answers& answers, const std::vector<int64_t>& examples) {
  const config::GrpoConfig& g = config_.grpo;
  const auto groups = static_cast<int64_t>(examples.size());
  const int64_t n = answers.samples;
  const auto ranks = static_cast<double>(comm_->ranks());
  std::vector<objectives::AnswerGroup> all;
  at::Tensor rows, embeddings, prompts;
  if (diversity_) {
    const objectives::GroupDiversity found = measure(answers);
    rows = found.rows.to(at::kCPU, at::kDouble);
    fact("diversity", found.totals.mean().item<double>() / ranks);
    if (diversity_->embeddings().defined()) {
      embeddings = diversity_->embeddings().to(at::kCPU, at::kFloat).view({groups, n, -1});
      std::vector<std::string> asked;
      for (const int64_t example : examples) asked.push_back(train_->dataset()[example].prompt);
      prompts = diversity_->embed(asked).to(at::kCPU, at::kFloat);
    }
  }
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t example = examples[static_cast<size_t>(group)];
    const data::ChatDataset& dataset = train_->dataset();
    objectives::AnswerGroup one{.prompt = dataset[example].prompt,
                                .texts = {},
                                .references = dataset.right_answers(examples_of_prompt_.at(example))};
    for (int64_t i = 0; i < n; ++i) {
      const auto row = static_cast<size_t>(group * n + i);
      one.texts.push_back(answers.texts[row]);
      one.tokens.push_back(static_cast<int64_t>(answers.ids[row].size()));
      one.finished.push_back(answers.finished[row]);
      // Nothing is gained by saying nothing.
      if (rows.defined()) one.diversity.push_back(one.texts.back().empty() ? 0 : rows[group][i].item<double>());
    }
    if (embeddings.defined()) {
      one.embeddings = embeddings[group];
      one.prompt_embedding = prompts[group];
    }
    all.push_back(std::move(one));
  }
  const at::Tensor each = objectives::score_groups(rewards_, all);  // (K, G, N)
  const auto how = objectives::reward_combination_from_name(g.reward_combination);
  const bool normalised = how == objectives::RewardCombination::separately_normalised;
  const at::Tensor combined = objectives::combine_rewards(each, reward_weights_, how);
  // The standard deviation of the batch is that of all ranks.
  at::Tensor whole = at::zeros({groups * comm_->ranks(), n}, at::kDouble);
  whole.narrow(0, comm_->rank() * groups, groups).copy_(combined);
  if (!comm_->alone()) {
    const at::Tensor there = whole.to(runtime_.device);
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(there);
    whole = there.to(at::kCPU);
  }
  const objectives::GroupAdvantages found = objectives::group_advantages(
      whole, {},
      normalised ? objectives::AdvantageScale::none : objectives::advantage_scale_from_name(g.scale_rewards));
  const at::Tensor own = found.values.narrow(0, comm_->rank() * groups, groups);
  advantages_.narrow(0, 0, groups * n).copy_(own.reshape({-1}));

  const at::Tensor plain =
      objectives::combine_rewards(each, reward_weights_, objectives::RewardCombination::weighted_sum);
  const double zero =
      found.zero_variance.narrow(0, comm_->rank() * groups, groups).to(at::kDouble).mean().item<double>();
  fact("reward", plain.mean().item<double>() / ranks);
  fact("reward_std", plain.std(1).mean().item<double>() / ranks);
  fact("zero_variance", zero / ranks);
  fact("advantage", own.abs().mean().item<double>() / ranks);
  for (size_t k = 0; k < rewards_.size(); ++k) {
    fact(kRewardPrefix + rewards_[k]->name(), each[static_cast<int64_t>(k)].mean().item<double>() / ranks);
  }
  // Said at the first of such steps and at each hundredth.
  if (found.zero_variance.all().item<bool>() && level_steps_++ % 100 == 0 && comm_->main()) {
    log::info(
        "rewards      all answers to each prompt of this step got the same reward, so that it teaches nothing: its "
        "loss is 0. If that goes on, prompts are too easy or too hard, or a reward tells no two answers apart");
  }
}

}  // namespace hrm::tasks
