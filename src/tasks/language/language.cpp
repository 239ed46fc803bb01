#include "hrm/tasks/language.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/batch.h"
#include "hrm/data/language_open.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/moe.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/weight_gather.h"
#include "hrm/runtime/phase_clock.h"
#include "tasks/fake_quantized.h"
#include "tasks/language/plan.h"

namespace hrm::tasks {
namespace {

constexpr const char* kMixture = "moe/";
constexpr std::array kLoadNames = {"load_entropy", "load_max", "dropped"};

bool has_core(const config::Config& config) {
  return models::reads_prompts(config.lm);
}

// How many rows of triples lose something, said before the training begins.
void tell_of_cuts(const data::WeightedSource& weighted, const config::DataConfig& config) {
  const auto* triples = dynamic_cast<const data::TripleDataset*>(weighted.source.get());
  if (triples == nullptr) return;
  const int64_t all = triples->num_samples(config.decoder_len);
  const int64_t cut = triples->cut_records({config.encoder_len, config.decoder_len});
  if (cut == 0) return;
  log::info("data         ", cut, " of ", all, " records of ", triples->origin(),
            " are longer than data.encoder_len = ", config.encoder_len, " and data.decoder_len = ", config.decoder_len,
            " and are cut");
}

}  // namespace

std::vector<std::string> language_metric_names(const config::Config& config, models::LanguageModel& model) {
  const Mixtures mixtures = models::mixtures_of(model);
  std::vector<std::string> names{"loss", "cross_entropy", "tokens"};
  if (has_core(config)) names.emplace_back("gate");
  if (config.objective.deep_supervision > 0) names.emplace_back("deep_supervision");
  if (config.objective.halting > 0) names.emplace_back("halting");
  if (!mixtures.empty()) names.emplace_back("auxiliary");
  for (const auto& [name, mixture] : mixtures) {
    for (const char* value : kLoadNames) names.push_back(cat(kMixture, name, "/", value));
  }
  if (config.precision.blocks == config::BlockPrecision::fp8) {
    for (std::string& name : fp8_metric_names(model)) names.push_back(std::move(name));
  }
  return names;
}

void check_fp8_rows(const config::Config& config, int64_t rows) {
  const auto check = [&](const std::string& what, int64_t positions) {
    require(rows * positions % kFp8Multiple == 0, ExitCode::usage,
            "precision.blocks = fp8 multiplies 16 positions at a time, but ", "a micro-batch of ", rows, " rows has ",
            rows, " x ", positions, " positions of ", what,
            "; make their product a multiple of 16 by train.micro_batch_size or the length of rows, or set ",
            "precision.blocks to same");
  };
  const config::LmConfig& lm = config.lm;
  const bool prompts = models::reads_prompts(lm);
  const int64_t prefix = prompts && lm.bridge == config::LmBridge::prefix ? lm.prefix_len : 0;
  if (!prompts) return check("text", config.data.encoder_len + config.data.decoder_len);
  check(prefix > 0 ? "answers with lm.prefix_len" : "answers", prefix + config.data.decoder_len);
  if (lm.encoder == config::LmEncoder::transformer) check("prompts", config.data.encoder_len);
}

// Norms and biases do not decay, and neither do the learned beginnings of the memories.
optim::GroupDefaults language_group_defaults(const Mixtures& mixtures) {
  optim::GroupDefaults defaults;
  defaults.decay_vectors = false;
  defaults.undecayed = {"*h_init", "*l_init", "*.pos"};
  defaults.not_matrices = {"*embed*", "*head.weight", "*router*", "*h_init", "*l_init", "*.pos", "*conv1d*"};
  for (const auto& [name, mixture] : mixtures) {
    for (const char* part : {".up.weight", ".gate_up.weight", ".down.weight"}) {
      defaults.stacks[name + part] = mixture->options().experts;
    }
  }
  return defaults;
}

objectives::LanguageLossOptions language_loss_options(const config::Config& config) {
  return {.deep_supervision = config.objective.deep_supervision,
          .halting = config.objective.halting,
          .halting_target = config.objective.halting_target,
          .chunk = config.objective.chunk};
}

LanguageTask::LanguageTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm,
                           std::shared_ptr<parallel::Comm> tensor)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      sources_(data::open_language_training(config.data)),
      staged_(runtime.device) {
  meta_ = sources_.front().source->meta();
  folder_ = std::filesystem::path(sources_.front().source->origin()).parent_path();
  text_ = data::encoder_of(meta_, folder_);
  slices_ = data::open_validation_slices(config.data, meta_, config.eval.max_samples);
  for (const data::WeightedSource& source : sources_) tell_of_cuts(source, config.data);

  {
    const nn::OutlineScope outline(parallel::builds_outline(config.parallel, *comm_));
    model_ = models::make_language_model(config, models::language_sizes(config.data, meta_.vocab_size),
                                         static_cast<uint64_t>(config.run.seed), runtime.device, runtime.compute_dtype,
                                         parallel::across_of(std::move(tensor)));
  }
  mixtures_ = models::mixtures_of(*model_);
  metric_names_ = language_metric_names(config, *model_);
  rows_ = config.train.global_batch_size / comm_->ranks();
  micro_batch_size_ = config.train.micro_batch_size > 0 ? config.train.micro_batch_size : rows_;
  if (runtime.precision.fp8_blocks) {
    check_fp8_rows(config, micro_batch_size_);
    fp8_ = std::make_unique<Fp8Blocks>(config.precision, *model_);
  }

  const auto options = at::device(runtime.device);
  const auto ids = [&](int64_t length) { return at::full({rows_, length}, meta_.pad_id, options.dtype(at::kLong)); };
  if (config.data.encoder_len > 0) {
    batch_.encoder_ids = ids(config.data.encoder_len);
    batch_.encoder_mask = at::zeros({rows_, config.data.encoder_len}, options.dtype(at::kBool));
  }
  batch_.decoder_ids = ids(config.data.decoder_len);
  batch_.labels = at::full_like(batch_.decoder_ids, data::kIgnoreLabel);
  if (config.data.document_masks && !has_core(config)) {
    batch_.document_ids = at::zeros({rows_, config.data.decoder_len}, options.dtype(at::kInt));
    batch_.most_documents = data::most_documents(sources_, config.data.decoder_len);
  }
  batch_.valid_rows = rows_;
  gate_warmup_ = at::ones({}, options.dtype(at::kFloat));
  tokens_ = at::ones({}, options.dtype(at::kFloat));
  loads_ = at::zeros({static_cast<int64_t>(mixtures_.size()), static_cast<int64_t>(kLoadNames.size())},
                     options.dtype(at::kDouble));
}

data::LanguageStreamOptions LanguageTask::stream_options() const {
  return {.seed = static_cast<uint64_t>(config_.run.seed),
          .shape = {config_.data.encoder_len, config_.data.decoder_len},
          .global_batch_size = config_.train.global_batch_size,
          .rank = comm_->rank(),
          .ranks = comm_->ranks(),
          .prefetch_batches = config_.data.prefetch_batches,
          .pinned = runtime_.device.is_cuda()};
}

double LanguageTask::load_batch(int64_t step, double) {
  gate_warmup_.fill_(step > config_.lm.gate_warmup_steps ? 1 : 0);
  if (fp8_) fp8_->begin_step(step);
  if (!stream_) stream_ = std::make_unique<data::LanguageStream>(sources_, stream_options(), position_);
  staged_.make_room();
  data::LanguageStreamBatch next = stream_->next();
  const data::LanguageBatch& rows = next.batch;
  for (const auto& [to, from] :
       {std::pair{&batch_.encoder_ids, &rows.encoder_ids}, std::pair{&batch_.encoder_mask, &rows.encoder_mask},
        std::pair{&batch_.decoder_ids, &rows.decoder_ids}, std::pair{&batch_.labels, &rows.labels},
        std::pair{&batch_.document_ids, &rows.document_ids}}) {
    if (to->defined() && from->defined()) to->copy_(*from, /*non_blocking=*/true);
  }
  position_ = next.position_after;
  staged_.hold(std::move(next));
  return stream_->wait_ms();
}

std::vector<at::Tensor> LanguageTask::step_inputs() const {
  std::vector<at::Tensor> inputs{batch_.decoder_ids, batch_.labels, gate_warmup_};
  for (const at::Tensor* tensor : {&batch_.encoder_ids, &batch_.encoder_mask, &batch_.document_ids}) {
    if (tensor->defined()) inputs.push_back(*tensor);
  }
  return inputs;
}

// Every rank divides by the tokens of all.
void LanguageTask::count_tokens() {
  const at::NoGradGuard no_grad;
  const at::Tensor count = batch_.labels.ne(data::kIgnoreLabel).sum().to(at::kFloat).view({1});
  comm_->all_reduce_in_step(count);
  tokens_.copy_(count.select(0, 0).clamp_min(1));
}

LanguageRows LanguageTask::micro_rows(int64_t first) const {
  data::LanguageBatch micro = batch_;
  for (at::Tensor* tensor :
       {&micro.encoder_ids, &micro.encoder_mask, &micro.decoder_ids, &micro.labels, &micro.document_ids}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, first, micro_batch_size_);
  }
  LanguageRows rows = language_rows(micro, has_core(config_));
  if (has_core(config_)) rows.inputs.gate_warmup = gate_warmup_;
  rows.inputs.earlier_cycles = config_.objective.deep_supervision > 0;
  return rows;
}

void LanguageTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  if (micro_batch == 0) count_tokens();
  if (micro_batch == 0 && fp8_) fp8_->quantize_weights();
  const double share = static_cast<double>(micro_batch_size_) / static_cast<double>(config_.train.global_batch_size);
  const objectives::LanguageLossOptions options = language_loss_options(config_);
  models::LanguageOutput output;
  objectives::LanguageLoss loss;
  {
    const PhaseRange range(Phase::forward);
    const LanguageRows rows = micro_rows(micro_batch * micro_batch_size_);
    output = model_->forward(rows.inputs);
    loss = objectives::language_loss(*model_, output, rows.labels, options, tokens_, share);
  }
  const PhaseRange range(Phase::backward);
  loss.loss.backward(loss_scale.defined() ? loss_scale.to(loss.loss.scalar_type()) : at::Tensor());
  const at::NoGradGuard no_grad;
  at::Tensor sums = metrics_of(output, loss, share, micro_batch == 0 && comm_->main());
  if (fp8_) {
    const bool last = (micro_batch + 1) * micro_batch_size_ == rows_;
    sums =
        at::cat({sums, last ? fp8_->metrics(*comm_) : at::zeros({metric_sums.numel() - sums.numel()}, sums.options())});
  }
  metric_sums.add_(sums);
}

// In the order of metric_names(), without those of fp8 blocks.
at::Tensor LanguageTask::metrics_of(const models::LanguageOutput& output, const objectives::LanguageLoss& loss,
                                    double share, bool first_of_all) const {
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  std::vector<at::Tensor> sums{wide(loss.loss), wide(loss.cross_entropy), wide(loss.labelled)};
  if (has_core(config_)) sums.push_back(wide(output.gate.mean()) * share);
  if (config_.objective.deep_supervision > 0) sums.push_back(wide(loss.deep_supervision));
  if (config_.objective.halting > 0) sums.push_back(wide(loss.halting) * share);
  std::vector<at::Tensor> all{at::stack(sums)};
  // What all ranks know alike, once.
  const auto add_once = [&](const at::Tensor& values) { all.push_back(values.flatten() * (first_of_all ? 1 : 0)); };
  if (!mixtures_.empty()) {
    all.push_back((wide(loss.auxiliary) * share).view({1}));
    add_once(loads_);
  }
  return all.size() == 1 ? all.front() : at::cat(all);
}

void LanguageTask::update_extra(const at::Tensor& skip) {
  if (fp8_) fp8_->update_scales(*comm_);
  if (!mixtures_.empty()) balance_experts(skip);
}

void LanguageTask::finish_step() {
  if (fp8_) fp8_->count_step();
}

void LanguageTask::balance_experts(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> counts;
  for (const auto& [name, mixture] : mixtures_) counts.push_back(mixture->counts());
  if (!comm_->alone()) {
    const at::Tensor all = at::stack(counts);
    comm_->all_reduce_in_step(all);
    for (size_t i = 0; i < counts.size(); ++i) counts[i].copy_(all[static_cast<int64_t>(i)]);
  }
  ops::moe_loads_(loads_, counts);
  for (const auto& [name, mixture] : mixtures_) mixture->balance(skip);
}

void LanguageTask::skip_batches(int64_t count) {
  require(!stream_, ExitCode::unexpected, "batches can be left out before the first step alone");
  position_ = data::position_after(stream_options(), position_, count);
}

at::Tensor LanguageTask::step_loss(const at::Tensor& sums) const {
  return sums.select(0, 0).clone();
}

NamedValues LanguageTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  NamedValues out;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    out.emplace_back(metric_names_[i], sums[i] / static_cast<double>(std::max<int64_t>(steps, 1)));
  }
  return fp8_ ? fp8_->only_used(std::move(out)) : out;
}

std::string LanguageTask::progress_text(const NamedValues& summary) const {
  std::string text = cat("loss ", metrics::fixed(value_of(summary, "loss"), 3), " | cross-entropy ",
                         metrics::fixed(value_of(summary, "cross_entropy"), 3));
  if (has_core(config_)) text += cat(" | gate ", metrics::fixed(value_of(summary, "gate"), 2));
  double entropy = 1;
  for (const auto& [name, value] : summary) {
    if (name.starts_with(kMixture) && name.ends_with("load_entropy")) entropy = std::min(entropy, value);
  }
  if (!mixtures_.empty()) text += cat(" | load entropy ", metrics::fixed(entropy, 3));
  return text;
}

double LanguageTask::samples_per_epoch() const {
  return static_cast<double>(data::epoch_samples(sources_, config_.data.decoder_len));
}

double LanguageTask::flops_per_step() const {
  return models::training_flops_per_row(config_, models::language_sizes(config_.data, meta_.vocab_size)) *
         static_cast<double>(config_.train.global_batch_size);
}

NamedValues LanguageTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  if (!evaluation_) {
    evaluation_ = std::make_unique<LanguageEvaluation>(*model_, language_eval_options(config_, comm_->ranks()), slices_,
                                                       text_, runtime_.device, comm_);
  }
  return evaluation_->run(progress, has_core(config_) ? gate_warmup_ : at::Tensor());
}

std::map<std::string, std::string> language_signature(const data::LanguageMeta& meta) {
  return {{"task", "language"},
          {"vocab_size", std::to_string(meta.vocab_size)},
          {"pad_id", std::to_string(meta.pad_id)},
          {"bos_id", std::to_string(meta.bos_id)},
          {"eos_id", std::to_string(meta.eos_id)},
          {"tokenizer_file", meta.tokenizer_file},
          {"tokenizer_digest", meta.tokenizer_digest}};
}

data::LanguageMeta meta_from_signature(const std::map<std::string, std::string>& info, const std::string& origin) {
  const auto text = [&](const char* key) {
    const auto found = info.find(key);
    require(found != info.end(), ExitCode::checkpoint, "the manifest of '", origin, "' lacks ", key,
            ", so it is not a checkpoint of a language model");
    return found->second;
  };
  const auto number = [&](const char* key, int64_t least) {
    const std::string value = text(key);
    const auto whole = value == "-1" ? std::optional<uint64_t>() : whole_number(value);
    const int64_t result = whole && *whole <= INT32_MAX ? static_cast<int64_t>(*whole) : -1;
    require(result >= least && (whole || value == "-1"), ExitCode::checkpoint, "the manifest of '", origin, "' gives ",
            key, " = '", printable_start(value), "', which is not an id");
    return result;
  };
  return {.vocab_size = number("vocab_size", 1),
          .pad_id = number("pad_id", 0),
          .bos_id = number("bos_id", -1),
          .eos_id = number("eos_id", -1),
          .tokenizer_file = text("tokenizer_file"),
          .tokenizer_digest = text("tokenizer_digest")};
}

std::map<std::string, std::string> LanguageTask::signature() const {
  return language_signature(meta_);
}

std::map<std::string, std::string> LanguageTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = data::sources_digest(sources_);
  return {{"training data", train_digest_}, {"tokenizer", meta_.tokenizer_digest}};
}

std::string LanguageTask::next_batch_digest(int64_t) {
  return data::language_batch_digest(sources_, stream_options(), position_);
}

void LanguageTask::write_files(const std::filesystem::path& run_dir) const {
  if (meta_.tokenizer_file.empty() || meta_.tokenizer_file == data::kByteTokenizer) return;
  const std::filesystem::path from = folder_ / meta_.tokenizer_file, to = run_dir / meta_.tokenizer_file;
  std::error_code ignored;
  if (std::filesystem::equivalent(from, to, ignored)) return;
  write_text_atomic(to, read_text(from, ExitCode::data));
}

std::string LanguageTask::describe() const {
  const config::LmConfig& lm = config_.lm;
  std::string text = cat(
      "model        ", models::reads_prompts(lm) ? cat(lm.style, " HRM language model") : std::string("decoder"), ", ",
      model_->parameter_set().count(), " parameters, hidden ", lm.hidden_size, ", vocabulary ", meta_.vocab_size);
  if (models::reads_prompts(lm)) {
    text += cat(", ", lm.encoder, " encoder, ", lm.h_cycles, " cycles of ", lm.l_steps, " steps, bridge ", lm.bridge);
  }
  if (!mixtures_.empty()) {
    const nn::MoeOptions options = models::expert_options(config_);
    text += cat("\nexperts      ", options.experts, ", each token through ", options.top_k, ", in ", mixtures_.size(),
                " blocks; ", config_.moe.activation, ", ", options.inner, " wide, by ",
                ops::moe_experts_way(runtime_.device, runtime_.compute_dtype, config_.lm.hidden_size, options.inner));
  }
  if (fp8_) text += "\nfp8          " + fp8_text();
  text += describe_fake_quantize(config_, *model_);
  text += "\ndata         ";
  for (size_t i = 0; i < sources_.size(); ++i) {
    text += cat(i > 0 ? ", " : "", sources_[i].source->num_samples(config_.data.decoder_len), " rows of ",
                sources_[i].source->origin());
  }
  text +=
      cat("; ", config_.data.encoder_len > 0 ? cat("prompts of ", config_.data.encoder_len, " and ") : std::string(),
          "rows of ", config_.data.decoder_len, " tokens");
  for (const data::ValidationSlice& slice : slices_) {
    text += cat("\nvalidation   ", slice.name, ": ", slice.source->origin());
  }
  return text;
}

std::string LanguageTask::fp8_text() const {
  const std::string text =
      fp8_->describe(cat(mixtures_.empty() ? "" : ", experts and routers",
                         models::reads_prompts(config_.lm) ? ", the reasoning core with its bridge" : "",
                         ", evaluation and generation"),
                     runtime_);
  const std::string why = runtime_.device.is_cpu() ? "" : why_fp8_does_not_pay(plan_of_blocks(), micro_batch_size_);
  return why.empty() ? text : cat(text, "\n             ", why);
}

// By the rates of this GPU, or of one like it.
PlanInput LanguageTask::plan_of_blocks() const {
  const GpuFacts* gpu = find_gpu(runtime_.device_name);
  const Fp8Parameters parameters = fp8_parameters(*model_, config_.precision);
  return {.config = config_,
          .model = std::make_shared<LanguagePlan>(config_.lm, models::language_sizes(config_.data, meta_.vocab_size)),
          .fp8_parameters = parameters.count,
          .fp8_share = parameters.share,
          .gpu = gpu != nullptr ? *gpu : known_gpus().front(),
          .ranks = comm_->ranks()};
}

void LanguageTask::visit_state(StateVisitor& visitor) {
  visit_model(*model_, visitor);
  if (fp8_) fp8_->visit_state(visitor);
  if (!mixtures_.empty()) visitor.tensor("moe.loads", loads_, StateRole::loop);
  visitor.integer("sampler.position", position_);
}

}  // namespace hrm::tasks
