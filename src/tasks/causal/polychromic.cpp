#include "hrm/tasks/polychromic.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/weight_gather.h"
#include "hrm/runtime/phase_clock.h"
#include "tasks/causal/group_defaults.h"

namespace hrm::tasks {
namespace {

std::unique_ptr<Fp8Blocks> open_fp8(const config::Config& config, const Runtime& runtime, const PolychromicPlan& plan,
                                    CausalLm& lm) {
  if (!runtime.precision.fp8_blocks) return nullptr;
  padded_causal_positions(config, lm.facts, plan);
  for (const nn::NamedLinear& layer : fp8_layers(*lm.model, config.precision)) {
    const at::Tensor& weight = layer.linear->weight();
    require(weight.size(0) % kFp8Multiple == 0 && weight.size(1) % kFp8Multiple == 0, ExitCode::usage,
            "the linear layer ", layer.name, " of '", config.hf.model, "' multiplies ", weight.size(1), " by ",
            weight.size(0), " values, but fp8 needs multiples of 16; skip it by precision.fp8_skip=", layer.name,
            ", or set precision.blocks to same");
  }
  return std::make_unique<Fp8Blocks>(config.precision, *lm.model, /*keeps_copies=*/plan.most_samples() > 0);
}

}  // namespace

PolychromicTask::PolychromicTask(const config::Config& config, const Runtime& runtime,
                                 std::shared_ptr<parallel::Comm> comm, std::shared_ptr<parallel::Comm> tensor)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      plan_(config, comm_->ranks()),
      lm_(open_causal_lm(config, runtime, /*positions=*/0, parallel::across_of(std::move(tensor)),
                         /*outline=*/parallel::builds_outline(config.parallel, *comm_))),
      fp8_(open_fp8(config, runtime, plan_, lm_)),
      chat_(open_causal_tokenizer(config, lm_.facts)),
      data_(config, chat_, plan_, *comm_),
      sampling_(config, runtime, plan_, lm_, chat_, data_, *comm_),
      metrics_(plan_, sampling_.reward_names(), sampling_.measures_diversity(),
               fp8_ ? fp8_metric_names(*lm_.model) : std::vector<std::string>()),
      times_(sampling_.samples()),
      responses_(plan_.rows, data_.padded_positions(), data_.meta().pad_id, data_.most_documents(), runtime.device),
      answers_(answer_options(), runtime.device),
      loss_(config, plan_, lm_, metrics_, responses_, answers_, runtime.device),
      matrix_elements_(matrix_elements(lm_)) {
  if (lm_.lora) lm_.lora->draw_apart(comm_->rank());
  const auto metrics = static_cast<int64_t>(metrics_.names().size());
  host_metrics_ = at::zeros({metrics}, at::device(runtime.device).dtype(at::kDouble));
}

AnswerBatch::Options PolychromicTask::answer_options() const {
  const bool diverse = plan_.diversity_has_gradient;
  return {.rows = plan_.most_samples(),
          .positions = causal_positions(config_, lm_.facts),
          .micro_batches = plan_.micro_batches,
          .pad_id = data_.meta().pad_id,
          .buckets = config_.chat.buckets,
          .multiple = plan_.row_multiple,
          .keeps_log_p = plan_.reward_updates > 1,
          .shares_prompts =
              config_.polychromic.share_prompts != config::SharedPrompts::off && (diverse || plan_.reward_samples > 0),
          .response_tokens = diverse ? plan_.micro_rows * data_.padded_positions() : 0};
}

optim::GroupDefaults PolychromicTask::group_defaults() const {
  return causal_group_defaults();
}

bool PolychromicTask::waits_for_device(int64_t step) const {
  const PolychromicKind kind = plan_.kind(step);
  return kind != PolychromicKind::responses && !plan_.learns_again(kind, answers_.updates());
}

double PolychromicTask::load_batch(int64_t step, double) {
  double waited = 0;
  if (fp8_) fp8_->begin_step(step);
  kind_ = plan_.kind(step);
  metrics_.clear_host();
  if (kind_ == PolychromicKind::rewards && comm_->main()) metrics_.add_host(kRewardUpdates, 1);
  samples_now_ = waits_for_device(step);
  if (plan_.learns_again(kind_, answers_.updates())) {
    answers_.learn_again(answer_layout(), *comm_);
  } else {
    batch_ = data_.next(step);
    waited = data_.wait_ms();
    responses_.load(batch_.rows);
    answers_.clear();
  }
  return waited;
}

void PolychromicTask::prepare_step(int64_t step) {
  if (samples_now_) {
    // Sampling waits for the device: what is still in its queue belongs to the step before.
    synchronize(runtime_.device);
    times_.add_sampling(sampling_.sample(step, kind_, batch_, answer_layout(), answers_, metrics_));
  }
  // From page-locked memory: the host would wait for the device otherwise.
  const at::Tensor values =
      at::empty(host_metrics_.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(runtime_.device.is_cuda()));
  std::copy(metrics_.host().begin(), metrics_.host().end(), values.mutable_data_ptr<double>());
  host_metrics_.copy_(values, /*non_blocking=*/true);
  count_flops();
}

AnswerLayout PolychromicTask::answer_layout() const {
  return {.rows = plan_.answers(kind_),
          .samples = plan_.samples(kind_),
          .learned = plan_.learns_from_answers(kind_),
          .responses = joins_responses() ? responses_.host_ids() : at::Tensor()};
}

// Whether a step's responses and answers go through the model in one pass. Dropout is of responses alone.
bool PolychromicTask::joins_responses() const {
  return config_.polychromic.share_prompts == config::SharedPrompts::responses && kind_ == PolychromicKind::diversity &&
         !data_.packed() && !(lm_.lora && config_.lora.dropout > 0);
}

// Rows and completions of this step at their padded width; a shared prompt counts once. The backward pass also counts
// the weights if they are trained.
void PolychromicTask::count_flops() {
  const bool rewards = kind_ == PolychromicKind::rewards;
  const int64_t rows = plan_.learns_from_answers(kind_) ? plan_.answers(kind_) : 0;
  const int64_t positions =
      answers_.shared_tokens() > 0 && rows > 0 ? answers_.shared_tokens() : rows * answers_.width();
  const auto answers = static_cast<double>(plan_.micro_batches * positions * comm_->ranks());
  const double tokens = rewards ? 0 : static_cast<double>(config_.train.global_batch_size * responses_.width());
  const double passes = lm_.lora ? 2 : 3;
  // The model without its adapter reads the answers, too.
  const double reference = rewards && config_.grpo.beta > 0 ? answers : 0;
  times_.add_work(2 * matrix_elements_ * (passes * (tokens + answers) + reference),
                  (tokens + answers) / comm_->ranks());
}

std::vector<at::Tensor> PolychromicTask::step_inputs() const {
  std::vector<at::Tensor> inputs{responses_.all_ids(),  responses_.all_labels(), answers_.all_ids(),
                                 answers_.all_labels(), answers_.all_weights(),  answers_.all_advantages(),
                                 host_metrics_};
  for (const at::Tensor& more : {responses_.all_documents(), answers_.all_log_p(), answers_.shared_buffer()}) {
    if (more.defined()) inputs.push_back(more);
  }
  return inputs;
}

// Widths come in few sizes.
int64_t PolychromicTask::graph_key() const {
  const int64_t positions = answers_.all_ids().size(1);
  int64_t form = (static_cast<int64_t>(kind_) * (data_.padded_positions() + 1) + responses_.width()) * (positions + 1) +
                 answers_.width();
  form = form * (plan_.most_samples() * positions + 1) + answers_.shared_tokens();
  form = 2 * form + (answers_.updates() > 1 ? 1 : 0);
  return fp8_ ? form * Fp8Blocks::kGraphKeys + fp8_->graph_key() : form;
}

void PolychromicTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  if (micro_batch == 0) {
    loss_.count_tokens(*comm_);
    metric_sums.add_(host_metrics_);
    if (fp8_) fp8_->quantize_weights();
  }
  const auto backward = [&](const at::Tensor& loss) {
    const PhaseRange range(Phase::backward);
    loss.backward(loss_scale.defined() ? loss_scale.to(loss.scalar_type()) : at::Tensor());
  };
  const auto forward = [&](auto&& pass) {
    const PhaseRange range(Phase::forward);
    return pass();
  };
  if (kind_ == PolychromicKind::rewards) {
    backward(forward([&] { return loss_.rewards(micro_batch, metric_sums); }));
  } else if (answers_.shared_tokens() > 0 && joins_responses()) {
    backward(forward([&] { return loss_.joint(micro_batch, metric_sums); }));
  } else {
    const at::Tensor loss = forward([&] { return loss_.responses(micro_batch, metric_sums); });
    if (!plan_.learns_from_answers(kind_)) {
      backward(loss);
    } else if (comm_->alone()) {
      // One after the other, so that only one pass is kept at a time.
      backward(loss);
      backward(forward([&] { return loss_.diversity(micro_batch); }));
    } else {
      // Gradients are complete, and travel, when one backward pass is through both.
      backward(loss + forward([&] { return loss_.diversity(micro_batch); }));
    }
  }
  if (fp8_ && micro_batch + 1 == plan_.micro_batches) metrics_.add_of_steps(metric_sums, fp8_->metrics(*comm_));
  // Masks of the next micro-batch are others.
  if (lm_.lora) lm_.lora->step().add_(1);
}

void PolychromicTask::update_extra(const at::Tensor& skip) {
  (void)skip;
  if (fp8_) fp8_->update_scales(*comm_);
}

void PolychromicTask::finish_step() {
  if (fp8_) fp8_->count_step();
}

// Of `count` steps those that learn once more from answers take no batch.
void PolychromicTask::skip_batches(int64_t count) {
  data_.skip(plan_.batches_of(count, kind_, answers_.updates()));
  answers_.forget();
}

NamedValues PolychromicTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  if (!evaluation_) {
    const LanguageEvalOptions options{
        .shape = {0, data_.positions()},
        .rows = config_.eval.batch_size > 0 ? config_.eval.batch_size : std::max<int64_t>(1, plan_.micro_rows),
        .chunk = config_.objective.chunk,
        .every_batch = !comm_->alone() && config_.parallel.zero == 3};
    std::vector<data::ValidationSlice> slices{{"validation", data_.validation(), config_.eval.max_samples}};
    evaluation_ = std::make_unique<LanguageEvaluation>(*lm_.model, options, std::move(slices), chat_.encoder(),
                                                       runtime_.device, comm_);
  }
  return evaluation_->run(progress);
}

std::map<std::string, std::string> PolychromicTask::signature() const {
  return {{"task", "polychromic"},
          {"vocab_size", std::to_string(lm_.facts.vocab_size)},
          {data::kChatTemplate, name_of(chat_.name())},
          {"tokenizer_digest", data_.meta().tokenizer_digest}};
}

std::map<std::string, std::string> PolychromicTask::source_digests() const {
  std::map<std::string, std::string> digests{{"training data", data_.digest()},
                                             {"tokenizer", data_.meta().tokenizer_digest}};
  if (base_digest_.empty()) base_digest_ = base_digest(config_);
  if (!base_digest_.empty()) digests.emplace(kFrozenModel, base_digest_);
  return digests;
}

std::string PolychromicTask::progress_text(const NamedValues& summary) const {
  std::string text = cat("loss ", metrics::fixed(value_of(summary, "loss"), 3));
  for (const auto& [what, name] : {std::pair{"cross-entropy", "cross_entropy"}, std::pair{"diversity", "diversity"},
                                   std::pair{"reward", "reward"}}) {
    for (const auto& [key, value] : summary) {
      if (key == name) text += cat(" | ", what, " ", metrics::fixed(value, 3));
    }
  }
  return text + times_.progress_text();
}

std::string PolychromicTask::describe() const {
  std::string text = describe_causal_lm(config_, lm_);
  if (fp8_) {
    text += "\nfp8          " +
            fp8_->describe(cat(lm_.facts.experts.count > 0 ? ", experts and routers" : "", ", evaluation and sampling"),
                           runtime_);
    if (plan_.row_multiple > 1) text += cat("\n             rows are padded to multiples of ", plan_.row_multiple);
  }
  text += "\n" + data_.describe();
  if (plan_.samples_for_diversity) {
    text += cat("\ndiversity    ", config_.polychromic.objective, ", weight ", config_.polychromic.diversity_weight,
                ", ", plan_.diverse_samples, " answers of up to ", plan_.diverse_tokens, " tokens to ",
                plan_.diverse_prompts * plan_.micro_batches * comm_->ranks(), " prompts every ", plan_.every,
                plan_.every == 1 ? " step" : " steps", "; ", sampling_.describe());
  }
  if (plan_.grpo_from > 0) {
    text += cat("\nrewards      from step ", plan_.grpo_from, " on: ", config_.grpo.rewards, "; ", plan_.reward_samples,
                " answers of up to ", plan_.reward_tokens, " tokens to each of ", data_.prompts(), " prompts, loss ",
                config_.grpo.loss_type);
    if (plan_.reward_updates > 1) text += cat("; ", plan_.reward_updates, " updates from each batch of answers");
  }
  return text;
}

void PolychromicTask::visit_state(StateVisitor& visitor) {
  TrainedWeights(lm_).visit_state(visitor);
  if (fp8_) fp8_->visit_state(visitor);
  if (lm_.lora) {
    at::Tensor step = lm_.lora->step();
    visitor.tensor("lora.step", step, StateRole::loop);
  }
  sampling_.visit_state(visitor);
  visitor.integer("sampler.position", data_.position());
  const int64_t rows = plan_.rows * plan_.reward_samples;
  answers_.visit_state(visitor, rows, comm_->rank() * rows, comm_->ranks() * rows);
}

}  // namespace hrm::tasks
