#include "hrm/tasks/polychromic.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/batch.h"
#include "hrm/data/chat_open.h"
#include "hrm/formats/tokenizer_folder.h"
#include "tasks/polychromic_metrics.h"

namespace hrm::tasks {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnswerState = "answers.";
constexpr int64_t kSafeSamples = 3, kSafeTokens = 80, kSafeEvery = 10;

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
  samples_for_diversity = p.objective != config::PolychromicObjective::none && grpo_from != 1;
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
    reward_updates = g.num_iterations;
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
      plan_(config, comm_->ranks()),
      phases_(runtime.device, 3) {
  lm_ = open_causal_lm(config, runtime);
  if (lm_.lora) lm_.lora->draw_apart(comm_->rank());
  chat_ = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(config, lm_.facts));
  row_len_ = config.chat.max_length - 1;
  positions_ = causal_positions(config, lm_.facts);
  open_data();
  check_responses();
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
    sampler_ = std::make_unique<AnswerSampler>(*lm_.model, lm_.lora.get(), *chat_, lm_.facts.eos_ids,
                                               std::min(most, generation_bucket(plan_.most_samples())), positions_,
                                               config.runtime.cuda_graphs);
    for (const char* name :
         {kDiversitySteps, kRewardSteps, "diversity", "diversity_loss", "advantage", "answer_tokens", "finished"}) {
      metric_names_.emplace_back(name);
    }
  }
  if (plan_.grpo_from > 0) {
    for (const char* name :
         {kRewardUpdates, "reward", "reward_std", "zero_variance", "kl", "clip_low", "clip_high", "ratio"}) {
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
  matrix_elements_ = matrix_elements();
}

void PolychromicTask::open_data() {
  // GRPO alone needs no responses to learn from.
  const bool packs = config_.chat.packing;
  require(!packs || plan_.grpo_from == 0, ExitCode::usage,
          "chat.packing puts several responses into a row, but GRPO (grpo.start_step = ", plan_.grpo_from,
          ") takes one prompt of each; set one of them to its default");
  data::ChatSides sides = open_chat_data(config_, *chat_, /*need_response=*/plan_.grpo_from != 1);
  log::info("data         ", sides.train.dataset->origin(), ": ", sides.train.dataset->counts().text());
  train_ = std::make_shared<data::ChatSource>(sides.train.dataset, sides.train.examples, "train", packs ? row_len_ : 0);
  if (plan_.grpo_from > 0) open_prompts(sides.train);
  if (!config_.data.test.empty()) {
    open_test_data(sides.train);
  } else if (sides.validation.dataset && !sides.validation.examples.empty()) {
    test_ = std::make_shared<data::ChatSource>(sides.validation.dataset, std::move(sides.validation.examples),
                                               "validation");
  }
  check_validation();
  batches_ = std::make_unique<data::ChatBatches>(train_, batch_options());
}

// A prompt is asked once an epoch, however many responses to it the data has.
void PolychromicTask::open_prompts(const data::ChatSide& training) {
  std::vector<int64_t> first;
  for (std::vector<int64_t>& one : training.dataset->examples_of_prompts(training.examples)) {
    first.push_back(one.front());
    examples_of_prompt_.emplace(one.front(), std::move(one));
  }
  prompts_ = first.size() == training.examples.size()
                 ? train_
                 : std::make_shared<data::ChatSource>(training.dataset, std::move(first), "prompts of train");
  prompt_batches_ = std::make_unique<data::ChatBatches>(prompts_, batch_options());
}

// What counts on evaluations without any would be passed over silently.
void PolychromicTask::check_validation() const {
  const config::ChatConfig& chat = config_.chat;
  const bool is_split = data::is_split_chat_folder(config_.data.train);
  if (is_split && ((chat.val_share > 0 && chat.val_share != config::ChatConfig().val_share) || chat.test_share > 0)) {
    log::warn("chat.val_share and chat.test_share split nothing: '", printable(config_.data.train),
              "' is split already, by its train file");
  }
  if (test_) return;
  const std::string way = is_split ? cat("'", printable(config_.data.train),
                                         "' has no val.jsonl beside its train.jsonl (or *.json); put one there")
                                   : std::string("chat.val_share is 0; set it to 0.1");
  const config::TrainConfig& train = config_.train;
  for (const auto& [key, given] :
       {std::pair{"train.eval_every", train.eval_every > 0}, std::pair{"train.keep_best", train.keep_best},
        std::pair{"train.early_stop_evals", train.early_stop_evals > 0}}) {
    require(!given, ExitCode::usage, key, " needs prompts to evaluate, but data.test is empty and ", way,
            ", set data.test to a file of JSON lines, or leave ", key, " out");
  }
}

void PolychromicTask::open_test_data(const data::ChatSide& training) {
  const auto other = std::make_shared<data::ChatDataset>(config_.data.test, *chat_,
                                                         data::chat_data_options(config_, /*need_response=*/true));
  log::info("validation   ", other->origin(), ": ", other->counts().text());
  std::vector<int64_t> examples(static_cast<size_t>(other->size()));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  data::check_no_leak(training, {other, examples});
  test_ = std::make_shared<data::ChatSource>(other, std::move(examples), "test");
}

// Of data without responses nothing is evaluated, and a reward may have nothing to compare with.
void PolychromicTask::check_responses() {
  if (plan_.grpo_from > 0) {
    for (const auto& [name, weight] : weighted_names(config_.grpo.rewards)) {
      if (name != "answer") continue;
      const auto count = std::count_if(examples_of_prompt_.begin(), examples_of_prompt_.end(), [&](const auto& prompt) {
        return train_->dataset().right_answers(prompt.second).empty();
      });
      require(count == 0, ExitCode::data, train_->origin(), ": ", count, " of ", examples_of_prompt_.size(),
              " prompts have neither a response nor right answers, which the reward 'answer' compares with; take them "
              "out, or leave the reward out");
    }
  }
  const auto has_response = [&] {
    for (int64_t i = 0; i < test_->num_samples(row_len_); ++i) {
      if (!test_->example(i).response.empty()) return true;
    }
    return false;
  };
  if (test_ && !has_response()) {
    require(config_.train.early_stop_evals == 0 && !config_.train.keep_best, ExitCode::usage,
            "train.early_stop_evals and train.keep_best go by the cross-entropy of responses, and the prompts of ",
            test_->origin(), " have none; leave them out");
    log::info("validation   ", test_->origin(), " has no responses: nothing is evaluated");
    test_.reset();
  }
}

void PolychromicTask::make_buffers() {
  const auto longs = at::device(runtime_.device).dtype(at::kLong);
  const auto floats = longs.dtype(at::kFloat);
  const int64_t pad = train_->meta().pad_id, sampled = plan_.most_samples();
  ids_ = at::full({plan_.rows, row_len_}, pad, longs);
  labels_ = at::full_like(ids_, data::kIgnoreLabel);
  if (train_->packed()) documents_ = at::zeros({plan_.rows, row_len_}, longs.dtype(at::kInt));
  answer_ids_ = at::full({sampled, positions_}, pad, longs);
  answer_labels_ = at::full_like(answer_ids_, data::kIgnoreLabel);
  answer_weights_ = at::zeros({sampled, positions_}, floats);
  advantages_ = at::zeros({sampled}, floats);
  if (plan_.reward_updates > 1) answer_log_p_ = at::zeros({sampled, positions_}, floats);
  const bool diverse =
      plan_.samples_for_diversity && config_.polychromic.objective != config::PolychromicObjective::compat;
  if (config_.polychromic.share_prompts != "off" && (diverse || plan_.reward_samples > 0)) {
    shared_answers_ = std::make_unique<SharedAnswers>(plan_.micro_batches, sampled / plan_.micro_batches, positions_,
                                                      diverse ? plan_.micro_rows * row_len_ : 0, runtime_.device);
  }
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

// Rewards of answers that are there already, for one more update.
bool PolychromicTask::learns_again(PolychromicKind kind) const {
  return kind == PolychromicKind::rewards && updates_ > 0 && updates_ < plan_.reward_updates;
}

bool PolychromicTask::waits_for_device(int64_t step) const {
  const PolychromicKind kind = plan_.kind(step);
  return kind != PolychromicKind::responses && !learns_again(kind);
}

double PolychromicTask::load_batch(int64_t step, double) {
  kind_ = plan_.kind(step);
  facts_of_step_.assign(metric_names_.size(), 0);
  if (kind_ == PolychromicKind::rewards && comm_->main()) fact(kRewardUpdates, 1);
  if (learns_again(kind_)) {
    ++updates_;
    // Of answers that a checkpoint brought back.
    if (!shared_is_of_answers_) {
      const auto rows = [&](const at::Tensor& all) {
        return all.narrow(0, 0, plan_.micro_batches * answers_of_micro_batch()).narrow(1, 0, answer_width_).cpu();
      };
      share_answers(rows(answer_ids_), rows(answer_labels_));
    }
  } else {
    const data::ChatBatch batch = (kind_ == PolychromicKind::rewards ? prompt_batches_ : batches_)->batch(position_);
    width_ = batch.rows.decoder_ids.size(1);
    ids_.narrow(1, 0, width_).copy_(batch.rows.decoder_ids);
    response_ids_ = batch.rows.decoder_ids;
    labels_.narrow(1, 0, width_).copy_(batch.rows.labels);
    if (documents_.defined()) documents_.narrow(1, 0, width_).copy_(batch.rows.document_ids);
    position_ = batch.position_after;
    answer_width_ = answer_tokens_kept_ = 0;
    updates_ = kind_ == PolychromicKind::rewards ? 1 : 0;
    if (kind_ != PolychromicKind::responses) {
      // Sampling waits for the device: what is still in its queue belongs to the step before.
      synchronize(runtime_.device);
      sample_answers(step, batch);
    }
  }
  facts_.copy_(at::tensor(facts_of_step_, at::kDouble));
  count_flops();
  return 0;
}

std::vector<at::Tensor> PolychromicTask::step_inputs() const {
  std::vector<at::Tensor> inputs{ids_, labels_, answer_ids_, answer_labels_, answer_weights_, advantages_, facts_};
  for (const at::Tensor& more : {documents_, answer_log_p_}) {
    if (more.defined()) inputs.push_back(more);
  }
  if (shared_answers_) inputs.push_back(shared_answers_->buffer());
  return inputs;
}

// Widths come in few sizes.
int64_t PolychromicTask::step_form() const {
  int64_t form = (static_cast<int64_t>(kind_) * (row_len_ + 1) + width_) * (positions_ + 1) + answer_width_;
  form = form * (plan_.most_samples() * positions_ + 1) + answer_tokens_kept_;
  return 2 * form + (updates_ > 1 ? 1 : 0);
}

// `count` steps, of which those that learn once more from answers take no batch.
void PolychromicTask::skip_batches(int64_t count) {
  const int64_t each = kind_ == PolychromicKind::rewards ? plan_.reward_updates : 1;
  const int64_t left = updates_ > 0 ? std::max<int64_t>(each - updates_, 0) : 0;
  const int64_t batches = std::max<int64_t>(count - left + each - 1, 0) / each;
  position_ += batches * config_.train.global_batch_size;
  updates_ = 0;
}

// Of GRPO an epoch is all prompts once, before it all examples. Several updates from one batch of answers make an epoch
// longer: as if there were more samples.
double PolychromicTask::samples_per_epoch() const {
  const auto samples = static_cast<double>(train_->num_samples(row_len_)), epochs = config_.train.epochs,
             batch = static_cast<double>(config_.train.global_batch_size);
  if (plan_.grpo_from == 0) return samples;
  const auto prompts = static_cast<double>(prompts_->num_samples(row_len_));
  if (epochs <= 0) return plan_.grpo_from == 1 ? prompts : samples;
  if (plan_.reward_updates <= 1 && prompts == samples) return samples;
  const double batches = epochs * samples / batch, before = std::min(batches, static_cast<double>(plan_.grpo_from - 1));
  const double of_prompts = (batches - before) * (prompts / samples);
  return (before + of_prompts * static_cast<double>(plan_.reward_updates)) * batch / epochs;
}

// Elements of the matrices that a token is multiplied with: of the linear layers and the head.
double PolychromicTask::matrix_elements() const {
  double elements = 0;
  for (const auto& item : lm_.model->named_parameters()) {
    const bool head = item.key().find("lm_head") != std::string::npos;
    const bool embedding = item.key().find("embed_tokens") != std::string::npos;
    if (item.value().dim() == 2 && (!embedding || lm_.facts.tied) && !(head && lm_.facts.tied)) {
      elements += static_cast<double>(item.value().numel());
    }
  }
  return elements;
}

// Rows and answers of this step as wide as they are padded to, prompts that are shared once; backward for the weights,
// too, where these are trained.
void PolychromicTask::count_flops() {
  const bool rewards = kind_ == PolychromicKind::rewards;
  const int64_t sampled = learns_from_answers() ? plan_.micro_batches * answers_of_micro_batch() : 0;
  const bool shares = answer_tokens_kept_ > 0 && sampled > 0;
  const auto answers = static_cast<double>(
      (shares ? plan_.micro_batches * answer_tokens_kept_ : sampled * answer_width_) * comm_->ranks());
  const double tokens = rewards ? 0 : static_cast<double>(config_.train.global_batch_size * width_);
  work_.tokens += (tokens + answers) / comm_->ranks();
  const double passes = lm_.lora ? 2 : 3;
  // The model without its adapter reads the answers, too.
  const double reference = rewards && config_.grpo.beta > 0 ? answers : 0;
  work_.flops += 2 * matrix_elements_ * (passes * (tokens + answers) + reference);
  ++work_.steps;
}

double PolychromicTask::flops_per_step() const {
  return work_.steps > 0 ? work_.flops / static_cast<double>(work_.steps) : work_.flops_before;
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
          {data::kChatTemplate, chat_->name()},
          {"tokenizer_digest", meta.tokenizer_digest}};
}

std::map<std::string, std::string> PolychromicTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = train_->digest();
  std::map<std::string, std::string> digests{{"training data", train_digest_},
                                             {"tokenizer", train_->meta().tokenizer_digest}};
  if (base_digest_.empty()) base_digest_ = base_digest(config_);
  if (!base_digest_.empty()) digests.emplace(kFrozenModel, base_digest_);
  return digests;
}

std::string PolychromicTask::next_batch_digest(int64_t step) {
  data::ChatBatchOptions whole = batch_options();
  whole.rank = 0;
  whole.ranks = 1;
  const auto& source = plan_.kind(step) == PolychromicKind::rewards ? prompts_ : train_;
  const data::ChatBatch batch = data::ChatBatches(source, whole).batch(position_);
  Hasher hasher;
  for (const at::Tensor& tensor : {batch.rows.decoder_ids, batch.rows.labels, batch.rows.document_ids}) {
    if (!tensor.defined()) continue;
    const at::Tensor bytes = tensor.contiguous();
    hasher.update({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return hasher.hex();
}

// What a model of the adapter in the checkpoints, or of all its weights, needs beside them.
void PolychromicTask::write_files(const fs::path& run_dir) const {
  const fs::path to = run_dir / "hf";
  fs::create_directories(to);
  const auto copy = [&](const fs::path& from) {
    std::error_code ignored;
    const fs::path file = to / data::place_beside_tokenizer(from);
    if (!fs::exists(from, ignored) || fs::equivalent(from, file, ignored)) return;
    fs::create_directories(file.parent_path());
    write_text_atomic(file, read_text(from, ExitCode::data));
  };
  copy(fs::path(config_.hf.model) / "config.json");
  if (const fs::path folder = data::tokenizer_folder(config_.hf); has_tokenizer(folder)) {
    const FolderTokenizer tokenizer = read_folder_tokenizer(folder);
    std::error_code ignored;
    const bool itself = fs::equivalent(tokenizer.file, to / "tokenizer.json", ignored);
    if (!itself) write_text_atomic(to / "tokenizer.json", tokenizer.text);
  }
  for (const fs::path& file : hf_files_beside_weights(config_.hf)) copy(file);
}

void PolychromicTask::visit_state(StateVisitor& visitor) {
  TrainedWeights(lm_).visit_state(visitor);
  if (lm_.lora) {
    at::Tensor step = lm_.lora->step();
    visitor.tensor("lora.step", step, StateRole::loop);
  }
  if (sampler_) visitor.tensor("diversity.running", running_.state, StateRole::loop);
  visitor.integer("sampler.position", position_);
  if (answer_log_p_.defined()) visit_answers(visitor);
}

// Answers that the next step may learn from once more. By their place in the global batch, so that a run can go on with
// another number of ranks.
void PolychromicTask::visit_answers(StateVisitor& visitor) {
  const int64_t rows = plan_.rows * plan_.reward_samples;
  const StateSlice slice{comm_->rank() * rows, comm_->ranks() * rows};
  const auto tensor = [&](const char* name, const at::Tensor& all) {
    at::Tensor own = all.narrow(0, 0, rows);
    visitor.tensor(cat(kAnswerState, name), own, StateRole::carry, slice);
  };
  const uint32_t written = answer_ids_._version();
  tensor("ids", answer_ids_);
  if (answer_ids_._version() != written) shared_is_of_answers_ = false;  // read from a checkpoint
  tensor("labels", answer_labels_);
  tensor("log_p", answer_log_p_);
  tensor("advantages", advantages_);
  visitor.integer(cat(kAnswerState, "width"), answer_width_);
  visitor.integer(cat(kAnswerState, "updates"), updates_);
}

std::string PolychromicTask::optional_state() const {
  return kAnswerState;
}

}  // namespace hrm::tasks
