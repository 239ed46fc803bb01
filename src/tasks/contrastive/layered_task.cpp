#include "hrm/tasks/layered_task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>

#include "hrm/base/text.h"
#include "hrm/nn/init.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/runtime/phase_clock.h"

namespace hrm::tasks {
namespace {

using config::ContrastiveRuleName;
using models::Contrast;

constexpr int64_t kCompared = 128;  // rows of a batch that cosines are measured on

at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return -logits.log_softmax(-1).gather(1, labels.unsqueeze(1)).mean();
}

}  // namespace

models::LayeredEnergyOptions layered_options(const config::ContrastiveConfig& config, int64_t features,
                                             int64_t classes) {
  return {.inputs = features,
          .hidden = std::vector<int64_t>(static_cast<size_t>(config.layer_count), config.layer_width),
          .classes = classes,
          .free_steps = config.tbptt_window_steps,
          .momentum = config.momentum,
          .margin = config.margin};
}

models::Nudging layered_nudging(const config::ContrastiveConfig& config) {
  return {.beta = config.beta_nudge,
          .share = config.beta_share,
          .one_sided = config.rule == ContrastiveRuleName::one_sided,
          .steps = config.nudge_steps};
}

NamedValues evaluate_layered(const models::LayeredEnergy& model, const config::ContrastiveConfig& config,
                             const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                             const std::function<void(const EvalProgress&)>& progress) {
  const auto logits = [&](const at::Tensor& inputs) {
    return config.rule == ContrastiveRuleName::feedforward ? model.feed_forward_logits(inputs) : model.logits(inputs);
  };
  return evaluate_samples(source, batch, device, comm, logits, progress);
}

LayeredTask::LayeredTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm)
    : SampleTask(config, runtime, std::move(comm)) {
  const config::ContrastiveConfig& c = config.contrastive;
  model_ = std::make_shared<models::LayeredEnergy>(layered_options(c, data_.train->features(), data_.train->classes()),
                                                   runtime.device);
  nn::init_parameters(*model_, static_cast<uint64_t>(config.run.seed));
  model_->project_();
  if (data_.scaling.mean.defined()) model_->set_input_scaling(data_.scaling.mean, data_.scaling.deviation);
  parameter_set_.build(*model_, at::kFloat);
  contraction_ = at::zeros({}, at::device(runtime.device).dtype(at::kFloat));
  cosines_ = at::zeros({1 + c.layer_count}, at::device(runtime.device).dtype(at::kDouble));

  metric_names_ = {"loss", "accuracy"};
  if (data_.train->is_text()) metric_names_.emplace_back("bits_per_token");
  if (c.rule != ContrastiveRuleName::feedforward) {
    metric_names_.emplace_back("residual");
    metric_names_.emplace_back("contraction");
  }
  if (nudged()) metric_names_.emplace_back("beta");
  if (c.cosine_every > 0) {
    metric_names_.emplace_back("cosine");
    for (int64_t l = 0; l < c.layer_count; ++l) metric_names_.push_back(cat("cosine_layer", l));
  }
}

optim::GroupDefaults LayeredTask::group_defaults() const {
  optim::GroupDefaults defaults;
  defaults.decay_vectors = false;
  defaults.not_matrices = {"readout*"};
  return defaults;
}

bool LayeredTask::nudged() const {
  const ContrastiveRuleName rule = config_.contrastive.rule;
  return rule == ContrastiveRuleName::symmetric || rule == ContrastiveRuleName::one_sided;
}

void LayeredTask::batch_loaded(int64_t step) {
  const int64_t every = config_.contrastive.cosine_every;
  if (every > 0 && (step - 1) % every == 0) measure_cosines();
}

// The gradient of the readout is exact, so its cosine would say nothing.
void LayeredTask::measure_cosines() {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::min(rows_, kCompared);
  const at::Tensor inputs = batch_.inputs.narrow(0, 0, rows), labels = batch_.labels.narrow(0, 0, rows);
  const Contrast ours = model_->contrast(inputs, labels, layered_nudging(config_.contrastive));
  const Contrast exact = model_->backprop(inputs, labels);
  // Rows: product, square of ours, square of the exact gradient. A column for each layer.
  const int64_t layers = config_.contrastive.layer_count;
  const at::Tensor sums = at::zeros({3, layers}, cosines_.options());
  for (int64_t l = 0; l < layers; ++l) {
    for (const int64_t i : {2 * l, 2 * l + 1}) {  // weight and bias
      const at::Tensor a = ours.gradients[static_cast<size_t>(i)].to(at::kDouble);
      const at::Tensor b = exact.gradients[static_cast<size_t>(i)].to(at::kDouble);
      sums.select(1, l).add_(at::stack({(a * b).sum(), a.square().sum(), b.square().sum()}));
    }
  }
  const at::Tensor all = at::cat({sums.sum(1, true), sums}, 1);
  cosines_.copy_(all.select(0, 0) / (all.select(0, 1) * all.select(0, 2)).sqrt().clamp_min(1e-300));
}

Contrast LayeredTask::contrast(const data::VectorBatch& rows) const {
  const config::ContrastiveConfig& c = config_.contrastive;
  switch (c.rule) {
    case ContrastiveRuleName::backprop:
      return model_->backprop(rows.inputs, rows.labels);
    case ContrastiveRuleName::feedforward:
      return model_->feed_forward_backprop(rows.inputs, rows.labels);
    case ContrastiveRuleName::readout:
      return model_->readout_only(rows.inputs, rows.labels);
    case ContrastiveRuleName::spsa: {
      Contrast result = model_->readout_only(rows.inputs, rows.labels);
      const auto loss = [&] { return mean_cross_entropy(model_->logits(rows.inputs), rows.labels); };
      result.gradients = objectives::spsa_gradients(
          model_->parameters(), loss, counter_,
          {.sigma = c.spsa_sigma, .directions = c.spsa_directions, .seed = static_cast<uint64_t>(config_.run.seed)});
      return result;
    }
    default:
      return model_->contrast(rows.inputs, rows.labels, layered_nudging(c));
  }
}

void LayeredTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  const at::NoGradGuard no_grad;
  const bool first = micro_batch == 0 && comm_->main();
  const PhaseRange range(Phase::window);
  if (micro_batch == 0) contraction_.copy_(model_->contraction());
  const Contrast result = contrast(batch_part(micro_batch));
  add_gradients(parameter_set_, result.gradients, loss_scale);
  metric_sums.add_(metrics_of(result, first));
}

// In the order of metric_names(). What does not depend on the batch counts once for all ranks and micro-batches.
at::Tensor LayeredTask::metrics_of(const Contrast& result, bool first) const {
  const double share = micro_batch_share(), once = first ? 1 : 0;
  const at::Tensor loss = result.loss.to(at::kDouble) * share;
  std::vector<at::Tensor> values{loss,
                                 result.correct.to(at::kDouble) / static_cast<double>(config_.train.global_batch_size)};
  if (data_.train->is_text()) values.push_back(loss / std::numbers::ln2);
  const config::ContrastiveConfig& c = config_.contrastive;
  if (c.rule != ContrastiveRuleName::feedforward) {
    values.push_back(result.residual.max().to(at::kDouble) * share);
    values.push_back(contraction_.to(at::kDouble) * once);
  }
  if (nudged()) values.push_back(result.beta.to(at::kDouble) * once);
  if (c.cosine_every > 0) {
    for (int64_t i = 0; i < cosines_.numel(); ++i) values.push_back(cosines_.select(0, i) * once);
  }
  return at::stack(values);
}

// A network without feedback has no equilibrium to keep.
void LayeredTask::update_extra(const at::Tensor& skip) {
  if (config_.contrastive.rule == ContrastiveRuleName::feedforward) return;
  const PhaseRange range(Phase::project);
  model_->project_(skip);
}

std::string LayeredTask::why_not_captured() const {
  const ContrastiveRuleName rule = config_.contrastive.rule;
  const bool autograd = rule == ContrastiveRuleName::backprop || rule == ContrastiveRuleName::feedforward;
  return autograd ? cat("contrastive.rule=", name_of(rule), " runs autograd") : "";
}

double LayeredTask::flops_per_step() const {
  const config::ContrastiveConfig& c = config_.contrastive;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double width = number(c.layer_width), couplings = number(c.layer_count - 1);
  const double drive = 2 * number(data_.train->features()) * width;
  const double readout = 2 * number(data_.train->classes()) * width;
  const double coupling = 4 * couplings * width * width;  // up and down
  const double free = drive + number(c.tbptt_window_steps) * coupling + readout;
  const double rows = number(config_.train.global_batch_size);
  switch (c.rule) {
    case ContrastiveRuleName::backprop:
      return rows * 3 * free;
    case ContrastiveRuleName::feedforward:
      return rows * 3 * (drive + coupling / 2 + readout);
    case ContrastiveRuleName::readout:
      return rows * (free + readout);
    case ContrastiveRuleName::spsa:
      return rows * (1 + 2 * number(c.spsa_directions)) * free;
    default: {
      const double phases = c.rule == ContrastiveRuleName::one_sided ? 1 : 2;
      const double steps = number(c.nudge_steps > 0 ? c.nudge_steps : c.tbptt_window_steps);
      return rows * (free + phases * steps * (coupling + 2 * readout) + drive + coupling + readout);
    }
  }
}

NamedValues LayeredTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  return evaluate_layered(*model_, config_.contrastive, *data_.test, evaluation_batch(), runtime_.device, *comm_,
                          progress);
}

std::string LayeredTask::describe() const {
  const config::ContrastiveConfig& c = config_.contrastive;
  std::string text = cat("model        layered network, ", parameter_set_.count(), " parameters, ", c.layer_count,
                         c.layer_count == 1 ? " hidden layer of " : " hidden layers of ", c.layer_width, " units");
  text += cat("\nrule         ", name_of(c.rule));
  if (c.rule != ContrastiveRuleName::feedforward) text += cat(", ", c.tbptt_window_steps, " free steps");
  return text + describe_data();
}

void LayeredTask::visit_state(StateVisitor& visitor) {
  visit_model(*model_, visitor);
  visitor.tensor("contrastive.cosines", cosines_, StateRole::loop);
  visit_position(visitor);
}

}  // namespace hrm::tasks
