#include "hrm/tasks/polychromic.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/batch.h"
#include "hrm/data/chat_open.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/token_log_probs.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/metric_text.h"

namespace hrm::tasks {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSafeSamples = 3, kSafeTokens = 80, kSafeEvery = 10;
// How many steps sampled answers, by what for: what such steps alone have is divided by their number.
constexpr const char *kDiversitySteps = "diversity_steps", *kRewardSteps = "reward_steps";
constexpr const char* kRewardPrefix = "reward/";

// "answer*2,length" -> {("answer", 2), ("length", 1)}.
std::vector<std::pair<std::string, double>> weighted_names(const std::string& text) {
  std::vector<std::pair<std::string, double>> out;
  for (const std::string& part : split_list(text)) {
    const size_t star = part.find('*');
    double weight = 1;
    if (star != std::string::npos) {
      size_t used = 0;
      const std::string number = part.substr(star + 1);
      try {
        weight = std::stod(number, &used);
      } catch (const std::exception&) {
        used = 0;
      }
      require(used == number.size() && used > 0 && std::isfinite(weight), ExitCode::usage, "grpo.rewards: '",
              printable_start(part), "' has no weight behind the star; write e.g. answer*2");
    }
    out.emplace_back(part.substr(0, star), weight);
  }
  return out;
}

// Each reward takes its own options alone.
objectives::RewardOptions reward_options(const std::string& name, const config::GrpoConfig& g) {
  objectives::RewardOptions options{.name = name};
  if (name == "format") options.pattern = g.reward_pattern;
  if (name == "answer") options.first_line = g.reward_first_line;
  if (name == "learned") options.head = g.reward_head;
  if (name == "overlong") {
    options.max_tokens = g.max_completion_length;
    options.margin = std::max<int64_t>(1, g.max_completion_length / 5);
  }
  return options;
}

}  // namespace

PolychromicPlan::PolychromicPlan(const config::Config& config, int64_t ranks) {
  const config::PolychromicConfig& p = config.polychromic;
  const config::GrpoConfig& g = config.grpo;
  rows = config.train.global_batch_size / ranks;
  micro_rows = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : rows;
  micro_batches = rows / micro_rows;
  grpo_from = g.start_step;
  samples_for_diversity = p.objective != "none" && grpo_from != 1;
  const bool safe = p.performance_mode == "safe";
  every = safe ? std::max(p.compute_diversity_every_n_steps, kSafeEvery) : p.compute_diversity_every_n_steps;
  if (samples_for_diversity) {
    diverse_prompts = std::min(micro_rows, p.max_examples_for_diversity);
    diverse_samples = safe ? std::min(p.n_generations, kSafeSamples) : p.n_generations;
    diverse_tokens = safe ? std::min(p.max_generation_length, kSafeTokens) : p.max_generation_length;
  }
  if (grpo_from > 0) {
    reward_samples = g.num_generations;
    reward_tokens = g.max_completion_length;
  }
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

PolychromicTask::PolychromicTask(const config::Config& config, const Runtime& runtime,
                                 std::shared_ptr<parallel::Comm> comm)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      plan_(config, comm_->ranks()) {
  const auto options = at::device(runtime.device);
  lm_ = open_causal_lm(config, runtime);
  chat_ = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(config, lm_.facts));
  row_len_ = config.chat.max_length - 1;
  positions_ = causal_positions(config, lm_.facts);
  open_data();
  running_ = objectives::make_running_diversity(runtime.device);

  metric_names_ = {"loss", "cross_entropy", "tokens"};
  if (plan_.most_samples() > 0) {
    const bool measures = plan_.samples_for_diversity || config.grpo.diversity_weight > 0 ||
                          config.grpo.rewards.find("diversity") != std::string::npos;
    const std::string& rewards = config.grpo.rewards;
    const bool embeds = rewards.find("learned") != std::string::npos ||
                        rewards.find("relevance") != std::string::npos ||
                        rewards.find("heuristic") != std::string::npos;
    if (measures || (embeds && plan_.grpo_from > 0)) {
      diversity_ = std::make_unique<AnswerDiversity>(config.polychromic, runtime.device, runtime.compute_dtype);
    }
    const int64_t most = config.polychromic.generation_batch > 0 ? config.polychromic.generation_batch
                         : runtime.device.is_cuda()              ? 256
                                                                 : 64;
    sampler_ = std::make_unique<AnswerSampler>(*lm_.model, lm_.lora.get(), *chat_,
                                               std::min(most, generation_bucket(plan_.most_samples())), positions_,
                                               config.runtime.cuda_graphs);
    for (const char* name :
         {kDiversitySteps, kRewardSteps, "diversity", "diversity_loss", "advantage", "answer_tokens", "finished"}) {
      metric_names_.emplace_back(name);
    }
  }
  if (plan_.grpo_from > 0) {
    for (const char* name : {"reward", "reward_std", "zero_variance", "kl", "clip_low", "clip_high", "ratio"}) {
      metric_names_.emplace_back(name);
    }
    for (const auto& [name, weight] : weighted_names(config.grpo.rewards)) {
      rewards_.push_back(objectives::make_reward(reward_options(name, config.grpo)));
      reward_weights_.push_back(weight);
      metric_names_.push_back(kRewardPrefix + name);
    }
    if (config.grpo.diversity_weight > 0) {
      rewards_.push_back(objectives::make_reward({.name = "diversity"}));
      reward_weights_.push_back(config.grpo.diversity_weight);
      metric_names_.push_back(cat(kRewardPrefix, "diversity"));
    }
  }
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    require(metric_index_.emplace(metric_names_[i], static_cast<int64_t>(i)).second, ExitCode::usage,
            "grpo.rewards names '", metric_names_[i], "' twice; give it one weight");
  }
  make_buffers();
}

void PolychromicTask::open_data() {
  // GRPO alone needs no responses to learn from.
  data::ChatSides sides = open_chat_data(config_, *chat_, /*need_response=*/plan_.grpo_from != 1);
  log::info("data         ", sides.train.dataset->origin(), ": ", sides.train.dataset->counts().text());
  train_ = std::make_shared<data::ChatSource>(sides.train.dataset, std::move(sides.train.examples), "train");
  if (!config_.data.test.empty()) {
    open_test_data(*sides.train.dataset);
  } else if (sides.validation.dataset && !sides.validation.examples.empty()) {
    test_ = std::make_shared<data::ChatSource>(sides.validation.dataset, std::move(sides.validation.examples),
                                               "validation");
  }
  batches_ = std::make_unique<data::ChatBatches>(train_, batch_options());
}

void PolychromicTask::open_test_data(const data::ChatDataset& training) {
  const auto other = std::make_shared<data::ChatDataset>(config_.data.test, *chat_,
                                                         chat_data_options(config_, *chat_, /*need_response=*/true));
  log::info("validation   ", other->origin(), ": ", other->counts().text());
  const std::vector<std::string> keys = training.keys();
  const std::set<std::string> known(keys.begin(), keys.end());
  std::vector<int64_t> examples(static_cast<size_t>(other->size()));
  for (size_t i = 0; i < examples.size(); ++i) {
    examples[i] = static_cast<int64_t>(i);
    require(known.count((*other)[examples[i]].key) == 0, ExitCode::data, other->place(examples[i]),
            ": this prompt is in data.train, too, so that its evaluation would say nothing; take it out of one of "
            "them, or leave data.test empty for a share of the prompts of data.train");
  }
  test_ = std::make_shared<data::ChatSource>(other, std::move(examples), "test");
}

void PolychromicTask::make_buffers() {
  const auto longs = at::device(runtime_.device).dtype(at::kLong);
  const auto floats = longs.dtype(at::kFloat);
  const int64_t pad = train_->meta().pad_id, sampled = plan_.most_samples();
  ids_ = at::full({plan_.rows, row_len_}, pad, longs);
  labels_ = at::full_like(ids_, data::kIgnoreLabel);
  answer_ids_ = at::full({sampled, positions_}, pad, longs);
  answer_labels_ = at::full_like(answer_ids_, data::kIgnoreLabel);
  answer_weights_ = at::zeros({sampled, positions_}, floats);
  advantages_ = at::zeros({sampled}, floats);
  facts_ = at::zeros({static_cast<int64_t>(metric_names_.size())}, longs.dtype(at::kDouble));
  tokens_ = at::ones({}, floats);
  answer_tokens_ = at::ones({}, floats);
  facts_of_step_.assign(metric_names_.size(), 0);
}

data::ChatBatchOptions PolychromicTask::batch_options() const {
  return {.seed = static_cast<uint64_t>(config_.run.seed),
          .global_batch_size = config_.train.global_batch_size,
          .rank = comm_->rank(),
          .ranks = comm_->ranks(),
          .max_len = row_len_,
          .buckets = config_.chat.buckets,
          .pool_batches = config_.chat.pool_batches,
          .pinned = false};
}

optim::GroupDefaults PolychromicTask::group_defaults() const {
  optim::GroupDefaults defaults;
  defaults.decay_vectors = false;
  defaults.not_matrices = {"*embed*", "*head.weight"};
  return defaults;
}

int64_t PolychromicTask::metric(const std::string& name) const {
  const auto found = metric_index_.find(name);
  require(found != metric_index_.end(), ExitCode::unexpected, "no metric '", name, "'");
  return found->second;
}

void PolychromicTask::fact(const std::string& name, double value) {
  facts_of_step_[static_cast<size_t>(metric(name))] += value;
}

double PolychromicTask::load_batch(int64_t step, double) {
  using Clock = std::chrono::steady_clock;
  const auto ms = [](Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  const Clock::time_point begun = Clock::now();
  if (step_began_ != Clock::time_point{}) times_.others += ms(begun - step_began_);
  ++times_.steps;
  const data::ChatBatch batch = batches_->batch(position_);
  width_ = batch.rows.decoder_ids.size(1);
  ids_.narrow(1, 0, width_).copy_(batch.rows.decoder_ids);
  labels_.narrow(1, 0, width_).copy_(batch.rows.labels);
  position_ = batch.position_after;
  kind_ = plan_.kind(step);
  facts_of_step_.assign(metric_names_.size(), 0);
  answer_width_ = 0;
  if (kind_ != PolychromicKind::responses) {
    // Sampling waits for the device: what is still in its queue belongs to the step before.
    synchronize(runtime_.device);
    times_.others += ms(Clock::now() - begun);
    sample_answers(step, batch);
  }
  facts_.copy_(at::tensor(facts_of_step_, at::kDouble));
  step_began_ = Clock::now();
  return 0;
}

std::vector<at::Tensor> PolychromicTask::step_inputs() const {
  return {ids_, labels_, answer_ids_, answer_labels_, answer_weights_, advantages_, facts_};
}

// Widths come in few sizes.
int64_t PolychromicTask::step_form() const {
  return (static_cast<int64_t>(kind_) * (row_len_ + 1) + width_) * (positions_ + 1) + answer_width_;
}

// Every rank divides by the tokens of all.
void PolychromicTask::count_tokens() {
  const at::NoGradGuard no_grad;
  const auto labelled = [&](const at::Tensor& labels) { return labels.ne(data::kIgnoreLabel).sum(); };
  at::Tensor counts = at::stack({labelled(labels_.narrow(1, 0, width_)),
                                 labelled(answer_labels_.narrow(1, 0, std::max<int64_t>(answer_width_, 1)))})
                          .to(at::kFloat);
  if (!comm_->alone()) {
    const parallel::StepClock::Wait waiting(comm_->clock());
    comm_->all_reduce(counts);
  }
  counts = counts.clamp_min(1);
  tokens_.copy_(counts[0]);
  answer_tokens_.copy_(counts[1]);
}

void PolychromicTask::add_metric(at::Tensor& metrics, const std::string& name, const at::Tensor& value) const {
  metrics.select(0, metric(name)).add_(value.detach());
}

at::Tensor PolychromicTask::response_loss(int64_t micro_batch, at::Tensor& metrics) {
  const int64_t first = micro_batch * plan_.micro_rows;
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(0, first, plan_.micro_rows).narrow(1, 0, width_).contiguous();
  };
  const models::LanguageOutput output = lm_.model->forward({.ids = part(ids_)});
  const objectives::LanguageLoss loss =
      objectives::language_loss(*lm_.model, output, part(labels_), {.chunk = config_.objective.chunk}, tokens_);
  add_metric(metrics, "loss", loss.loss);
  add_metric(metrics, "cross_entropy", loss.cross_entropy);
  add_metric(metrics, "tokens", loss.labelled);
  return loss.loss;
}

PolychromicTask::AnswerRows PolychromicTask::answer_rows(int64_t micro_batch) const {
  const bool rewards = kind_ == PolychromicKind::rewards;
  const int64_t each =
      rewards ? plan_.micro_rows * plan_.reward_samples : plan_.diverse_prompts * plan_.diverse_samples;
  AnswerRows rows{.ids = {}, .labels = {}, .weights = {}, .first = micro_batch * each, .count = each};
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(0, rows.first, each).narrow(1, 0, answer_width_).contiguous();
  };
  rows.ids = part(answer_ids_);
  rows.labels = part(answer_labels_);
  rows.weights = part(answer_weights_);
  return rows;
}

// The policy that sampled had no dropout, and its temperature.
at::Tensor PolychromicTask::diversity_loss(int64_t micro_batch, at::Tensor& metrics) {
  (void)metrics;
  const AnswerRows rows = answer_rows(micro_batch);
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor hidden = lm_.model->forward({.ids = rows.ids}).hidden;
  if (lm_.lora) lm_.lora->set_dropout(true);
  return objectives::score_loss(hidden, lm_.model->head(), rows.labels, rows.weights,
                                config_.polychromic.diversity_temperature, config_.objective.chunk)
      .loss;
}

at::Tensor PolychromicTask::reward_loss(int64_t micro_batch, at::Tensor& metrics) {
  const config::GrpoConfig& g = config_.grpo;
  const AnswerRows rows = answer_rows(micro_batch);
  const auto log_probs = [&] {
    return objectives::token_log_probs(lm_.model->forward({.ids = rows.ids}).hidden, lm_.model->head(), rows.labels,
                                       g.temperature, config_.objective.chunk)
        .log_p;
  };
  at::Tensor reference;
  if (g.beta > 0) {
    const at::NoGradGuard no_grad;
    const nn::WithLoraMode off(*lm_.lora, nn::LoraMode::off);
    reference = log_probs();
  }
  if (lm_.lora) lm_.lora->set_dropout(false);
  const at::Tensor logp = log_probs();
  if (lm_.lora) lm_.lora->set_dropout(true);
  const at::Tensor mask = rows.labels.ne(data::kIgnoreLabel);
  const objectives::PolicyOptions options{.aggregation = objectives::policy_aggregation_from_name(g.loss_type),
                                          .ratio = objectives::ratio_level_from_name(g.importance_sampling_level),
                                          .epsilon_low = g.epsilon,
                                          .epsilon_high = g.epsilon_high > 0 ? g.epsilon_high : g.epsilon,
                                          .delta = g.delta > 0 ? std::optional(g.delta) : std::nullopt,
                                          .beta = g.beta,
                                          .max_tokens = g.max_completion_length};
  const at::Tensor answers =
      at::full_like(answer_tokens_, static_cast<double>(config_.train.global_batch_size * plan_.reward_samples));
  const objectives::PolicyLoss loss =
      objectives::policy_loss(logp, /*logp_old=*/{}, reference, mask, advantages_.narrow(0, rows.first, rows.count),
                              options, {.tokens = answer_tokens_, .rows = answers});
  add_metric(metrics, "loss", loss.loss);
  add_metric(metrics, "kl", loss.kl);
  add_metric(metrics, "clip_low", loss.clip_low);
  add_metric(metrics, "clip_high", loss.clip_high);
  add_metric(metrics, "ratio", loss.ratio_mean);
  return loss.loss;
}

void PolychromicTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  if (micro_batch == 0) {
    count_tokens();
    metric_sums.add_(facts_);
  }
  const auto backward = [&](const at::Tensor& loss) {
    const ProfilerRange range(RangeKind::step, "backward");
    loss.backward(loss_scale.defined() ? loss_scale.to(loss.scalar_type()) : at::Tensor());
  };
  const bool estimates = kind_ == PolychromicKind::diversity && config_.polychromic.objective != "compat";
  const auto forward = [&](auto&& pass) {
    const ProfilerRange range(RangeKind::step, "forward");
    return pass();
  };
  if (kind_ == PolychromicKind::rewards) {
    backward(forward([&] { return reward_loss(micro_batch, metric_sums); }));
  } else {
    const at::Tensor loss = forward([&] { return response_loss(micro_batch, metric_sums); });
    if (!estimates) {
      backward(loss);
    } else if (comm_->alone()) {
      // One after the other, so that only one pass is kept at a time.
      backward(loss);
      backward(forward([&] { return diversity_loss(micro_batch, metric_sums); }));
    } else {
      // Gradients are complete, and travel, when one backward pass is through both.
      backward(loss + forward([&] { return diversity_loss(micro_batch, metric_sums); }));
    }
  }
  // Masks of the next micro-batch are others.
  if (lm_.lora) lm_.lora->step().add_(1);
}

void PolychromicTask::skip_batches(int64_t count) {
  position_ += count * config_.train.global_batch_size;
}

at::Tensor PolychromicTask::step_loss(const at::Tensor& sums) const {
  return sums.select(0, 0).clone();
}

NamedValues PolychromicTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  const auto sum = [&](const std::string& name) {
    const auto found = metric_index_.find(name);
    return found == metric_index_.end() ? 0 : sums[static_cast<size_t>(found->second)];
  };
  const double all = static_cast<double>(std::max<int64_t>(steps, 1)), diverse = sum(kDiversitySteps),
               rewarded = sum(kRewardSteps), responses = all - rewarded;
  NamedValues out;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    const std::string& name = metric_names_[i];
    const auto is = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
    };
    double over = rewarded;  // what is not named here is of rewards
    if (is({"loss"})) over = all;
    if (is({"cross_entropy", "tokens"})) over = responses;
    if (is({"diversity_loss"})) over = diverse;
    if (is({"diversity"})) over = diversity_ ? diverse + rewarded : 0;
    if (is({"advantage", "answer_tokens", "finished"})) over = diverse + rewarded;
    if (is({kDiversitySteps, kRewardSteps})) over = 1;
    if (over > 0) out.emplace_back(name, sums[i] / over);
  }
  if (const double ms = sum("generate_ms"); ms > 0)
    out.emplace_back("generated_per_s", sum("answer_tokens") / ms * 1e3);
  return out;
}

NamedValues PolychromicTask::take_performance() {
  if (!sampler_ || times_.steps == 0) return {};
  const auto steps = static_cast<double>(times_.steps);
  const auto rate = [](int64_t tokens, double ms) { return ms > 0 ? static_cast<double>(tokens) / ms * 1e3 : 0; };
  last_generated_per_s_ = rate(times_.answer_tokens, times_.prefill + times_.decode);
  NamedValues out{{"merge_ms", times_.merge / steps},
                  {"prefill_ms", times_.prefill / steps},
                  {"decode_ms", times_.decode / steps},
                  {"encode_ms", times_.encode / steps},
                  {"diversity_ms", times_.measure / steps},
                  {"train_ms", times_.others / steps},
                  {"prefill_tokens_per_s", rate(times_.prompt_tokens, times_.prefill)},
                  {"decode_tokens_per_s", rate(times_.answer_tokens, times_.decode)}};
  if (times_.encoded_tokens > 0) out.emplace_back("encode_tokens_per_s", rate(times_.encoded_tokens, times_.encode));
  times_ = {};
  return out;
}

std::string PolychromicTask::progress_text(const NamedValues& summary) const {
  const auto find = [&](const std::string& name) -> const double* {
    for (const auto& [key, value] : summary) {
      if (key == name) return &value;
    }
    return nullptr;
  };
  std::string text = cat("loss ", fixed(value_of(summary, "loss"), 3));
  const auto add = [&](const char* what, const char* name, int digits) {
    if (const double* value = find(name)) text += cat(" | ", what, " ", fixed(*value, digits));
  };
  add("cross-entropy", "cross_entropy", 3);
  add("diversity", "diversity", 3);
  add("reward", "reward", 3);
  if (last_generated_per_s_ > 0) text += cat(" | generated ", fixed(last_generated_per_s_, 0), " tok/s");
  return text;
}

double PolychromicTask::samples_per_epoch() const {
  return static_cast<double>(train_->num_samples(row_len_));
}

// Of the linear layers and the head: rows at their full length, answers at theirs, backward for the weights, too, where
// these are trained.
double PolychromicTask::flops_per_step() const {
  double weights = 0;
  for (const auto& item : lm_.model->named_parameters()) {
    const bool head = item.key().find("lm_head") != std::string::npos;
    const bool embedding = item.key().find("embed_tokens") != std::string::npos;
    if (item.value().dim() == 2 && (!embedding || lm_.facts.tied) && !(head && lm_.facts.tied)) {
      weights += static_cast<double>(item.value().numel());
    }
  }
  const double passes = lm_.lora ? 2 : 3;
  double tokens = plan_.grpo_from == 1 ? 0 : static_cast<double>(config_.train.global_batch_size * row_len_);
  const double sampled = static_cast<double>(plan_.most_samples() * comm_->ranks() * positions_);
  tokens += plan_.samples_for_diversity ? sampled / static_cast<double>(plan_.every)
            : plan_.grpo_from > 0       ? sampled
                                        : 0;
  return 2 * passes * weights * tokens;
}

NamedValues PolychromicTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  if (!evaluation_) {
    const LanguageEvalOptions options{
        .shape = {0, row_len_},
        .rows = config_.eval.batch_size > 0 ? config_.eval.batch_size : std::max<int64_t>(1, plan_.micro_rows),
        .chunk = config_.objective.chunk};
    std::vector<data::ValidationSlice> slices{{"validation", test_, config_.eval.max_samples}};
    evaluation_ = std::make_unique<LanguageEvaluation>(*lm_.model, options, std::move(slices), chat_->encoder(),
                                                       runtime_.device, comm_);
  }
  return evaluation_->run(progress);
}

std::map<std::string, std::string> PolychromicTask::signature() const {
  const data::LanguageMeta& meta = train_->meta();
  return {{"task", "polychromic"},
          {"vocab_size", std::to_string(lm_.facts.vocab_size)},
          {"chat_template", chat_->name()},
          {"tokenizer_digest", meta.tokenizer_digest}};
}

std::map<std::string, std::string> PolychromicTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = train_->digest();
  std::map<std::string, std::string> digests{{"training data", train_digest_},
                                             {"tokenizer", train_->meta().tokenizer_digest}};
  if (base_digest_.empty()) base_digest_ = base_digest(config_);
  if (!base_digest_.empty()) digests.emplace("frozen model", base_digest_);
  return digests;
}

std::string PolychromicTask::next_batch_digest() {
  data::ChatBatchOptions whole = batch_options();
  whole.rank = 0;
  whole.ranks = 1;
  const data::ChatBatch batch = data::ChatBatches(train_, whole).batch(position_);
  Hasher hasher;
  for (const at::Tensor& tensor : {batch.rows.decoder_ids, batch.rows.labels}) {
    const at::Tensor bytes = tensor.contiguous();
    hasher.update({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return hasher.hex();
}

// What a model of the adapter in the checkpoints, or of all its weights, needs beside them.
void PolychromicTask::write_files(const fs::path& run_dir) const {
  const fs::path to = run_dir / "hf",
                 tokenizer = config_.hf.tokenizer.empty() ? config_.hf.model : config_.hf.tokenizer;
  fs::create_directories(to);
  const auto copy = [&](const fs::path& from, const char* name) {
    std::error_code ignored;
    if (!fs::exists(from / name, ignored) || fs::equivalent(from / name, to / name, ignored)) return;
    write_text_atomic(to / name, read_text(from / name, ExitCode::data));
  };
  for (const char* name : {"config.json", "generation_config.json"}) copy(config_.hf.model, name);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) copy(tokenizer, name);
}

std::string PolychromicTask::describe() const {
  std::string text = cat("model        ", lm_.facts.model_type, " of ", config_.hf.model, ", ", lm_.facts.layers,
                         " layers, hidden ", lm_.facts.hidden_size, ", vocabulary ", lm_.facts.vocab_size,
                         config_.hf.weights == "random" ? ", random weights" : "");
  if (lm_.lora) {
    text += cat("\nadapter      rank ", config_.lora.r, ", ", lm_.model->parameter_set().count(), " parameters, on ",
                config_.lora.targets);
    if (const nn::Nf4Memory nf4 = nn::nf4_memory(*lm_.model); nf4.elements > 0) {
      const auto mib = [](int64_t bytes) { return fixed(static_cast<double>(bytes) / 0x1p20, 1); };
      text += cat("\nbase         NF4, ", nf4.elements, " parameters of the blocks' linear layers in ", mib(nf4.bytes),
                  " MiB (", mib(2 * nf4.elements), " in bf16), and ", mib(nf4.workspace),
                  " MiB to dequantise one layer at a time");
    }
  } else {
    text += cat("\ntrained      all ", lm_.model->parameter_set().count(), " parameters");
  }
  text += cat("\ndata         ", train_->num_samples(row_len_), " examples of ", train_->origin(), ", template ",
              chat_->name(), ", up to ", config_.chat.max_length, " tokens");
  if (test_) text += cat("\nvalidation   ", test_->num_samples(row_len_), " examples of ", test_->origin());
  if (plan_.samples_for_diversity) {
    text += cat("\ndiversity    ", config_.polychromic.objective, ", weight ", config_.polychromic.diversity_weight,
                ", ", plan_.diverse_samples, " answers of up to ", plan_.diverse_tokens, " tokens to ",
                plan_.diverse_prompts * plan_.micro_batches * comm_->ranks(), " prompts every ", plan_.every,
                plan_.every == 1 ? " step" : " steps", "; ", diversity_->describe());
  }
  if (plan_.grpo_from > 0) {
    text += cat("\nrewards      from step ", plan_.grpo_from, " on: ", config_.grpo.rewards, "; ", plan_.reward_samples,
                " answers of up to ", plan_.reward_tokens, " tokens to each prompt, loss ", config_.grpo.loss_type);
  }
  return text;
}

void PolychromicTask::visit_state(StateVisitor& visitor) {
  TrainedWeights(lm_).visit_state(visitor);
  if (lm_.lora) {
    at::Tensor step = lm_.lora->step();
    visitor.tensor("lora.step", step, StateRole::loop);
  }
  if (sampler_) visitor.tensor("diversity.running", running_.state, StateRole::loop);
  visitor.integer("sampler.position", position_);
}

}  // namespace hrm::tasks
