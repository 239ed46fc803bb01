#include "hrm/tasks/contrastive.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>
#include <set>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/ops/complex_field.h"
#include "hrm/runtime/phase_clock.h"

namespace hrm::tasks {
namespace {

using config::ContrastiveRuleName;
using config::FieldDynamics;
using objectives::ContrastiveRule;

constexpr int64_t kCosineRows = 128;  // of a batch that the cosine with backprop is measured on

constexpr const char* kNudgedShare = "nudged";  // share of the windows that were nudged

// Columns of `changes_`.
enum Change : int64_t { kMetricChange, kAngleChange, kKinetic, kPotential, kGradient, kDrift, kChanges };

ops::FieldVerlet verlet(const config::ContrastiveConfig& config) {
  return {.dt = config.symplectic_dt,
          .mass = config.symplectic_m_cog,
          .hbar = config.symplectic_hbar_cog,
          .stiffness = config.symplectic_stiffness,
          .potential = config.symplectic_potential == config::FieldPotential::zero ? ops::FieldPotential::zero
                       : config.symplectic_potential == config::FieldPotential::harmonic
                           ? ops::FieldPotential::harmonic
                           : ops::FieldPotential::gaussian_well,
          .periodic = true};
}

ContrastiveRule rule_of(ContrastiveRuleName name) {
  switch (name) {
    case ContrastiveRuleName::symmetric:
      return ContrastiveRule::symmetric;
    case ContrastiveRuleName::one_sided:
      return ContrastiveRule::one_sided;
    case ContrastiveRuleName::scalar:
      return ContrastiveRule::scalar;
    case ContrastiveRuleName::backprop:
      return ContrastiveRule::backprop;
    default:
      return ContrastiveRule::readout;  // spsa adds its own gradients
  }
}

models::Resilience resilience_of(config::ResilienceSource source) {
  switch (source) {
    case config::ResilienceSource::constitutive:
      return models::Resilience::constitutive;
    case config::ResilienceSource::curvature:
      return models::Resilience::curvature;
    default:
      return models::Resilience::slots;
  }
}

bool has_nudged_phase(ContrastiveRuleName rule) {
  return rule == ContrastiveRuleName::symmetric || rule == ContrastiveRuleName::one_sided ||
         rule == ContrastiveRuleName::scalar;
}

}  // namespace

models::GeometricMemoryOptions memory_options(const config::ContrastiveConfig& config, int64_t features,
                                              int64_t classes) {
  return {.features = features,
          .classes = classes,
          .coords = config.coord_dim_n,
          .slots = config.learned_slots,
          .width = config.state_dim,
          .angles = config.rotor_mode == config::RotorMode::off ? 0 : config.rotor_k,
          .low_rank = config.lowrank_r,
          .hidden = config.hidden,
          .episodes = config.sdm_capacity,
          .field_rows = config.spatial_rows,
          .field_cols = config.spatial_cols,
          .field_dim = config.field_dim,
          .resilience = resilience_of(config.R_source),
          .metric = config.metric_mode == config::MetricMode::block_rot ? models::MetricForm::blocks
                                                                        : models::MetricForm::diagonal,
          .rotor = config.rotor_mode == config::RotorMode::derived ? models::RotorSource::keys
                                                                   : models::RotorSource::trained,
          .constants = {.kappa = config.kappa,
                        .gamma = config.gamma,
                        .retrieval_beta = config.retrieval_beta,
                        .cost_eps = config.cost_eps},
          .margin = config.margin,
          .beta_cap = config.beta_nudge,
          .beta_share = config.beta_share,
          .momentum = config.momentum};
}

objectives::ContrastiveOptions contrastive_options(const config::ContrastiveConfig& config) {
  return {.rule = rule_of(config.rule),
          .steps = config.tbptt_window_steps,
          .nudge_steps = config.nudge_steps > 0 ? config.nudge_steps : config.tbptt_window_steps,
          .beta_per_row = config.beta_per_row,
          .most_beta = config.beta_nudge};
}

namespace {

// Whether a metric is a mean over the rows of a batch. The others count once for all ranks and micro-batches.
bool of_rows(const std::string& name) {
  static const std::set<std::string> names{"loss",        "accuracy",       "lior",      "spd_mean",   "residual",
                                           "output_norm", "bits_per_token", "lior_plus", "lior_minus", "beta"};
  return names.contains(name);
}

}  // namespace

std::vector<std::string> contrastive_metric_names(const config::ContrastiveConfig& c, bool is_text) {
  std::vector<std::string> names{"loss",        "accuracy", "lior",  "R_mean", "spd_mean", "residual",    "beta",
                                 "contraction", "g_min",    "g_max", "dg",     "dtheta",   "output_norm", "mem_norm"};
  const auto add = [&](std::initializer_list<const char*> more) {
    names.insert(names.end(), more.begin(), more.end());
  };
  if (is_text) add({"bits_per_token"});
  if (has_nudged_phase(c.rule)) add({"lior_plus", "lior_minus"});
  if (c.nudge_every_windows > 1) add({kNudgedShare});
  if (c.sdm_capacity > 0) add({"bank_filled"});
  if (c.dynamics_mode == FieldDynamics::symplectic) {
    add({"field_energy", "field_kinetic", "field_potential", "field_gradient", "field_drift"});
  }
  if (c.cosine_every > 0) add({"cosine"});
  return names;
}

// Scores, distances and the two sums over slots of each row and step.
double contrastive_flops_per_sample(const config::ContrastiveConfig& c, int64_t classes) {
  const objectives::ContrastiveOptions options = contrastive_options(c);
  const double nudged = options.rule == ContrastiveRule::symmetric ? 2 : has_nudged_phase(c.rule) ? 1 : 0;
  const double phases = nudged / static_cast<double>(c.nudge_every_windows);
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double row_step =
      4 * number(c.learned_slots + c.sdm_capacity) * number(c.coord_dim_n + c.lowrank_r + c.state_dim);
  const double readout = 4 * number(classes) * number(c.state_dim);
  const double steps = number(options.steps) * row_step + phases * number(options.nudge_steps) * (row_step + readout);
  return options.rule == ContrastiveRule::backprop ? 3 * steps : steps;
}

bool half_values(const config::ContrastiveConfig& config, at::Device device) {
  return config.bank_dtype == config::BankDtype::automatic ? device.is_cuda()
                                                           : config.bank_dtype == config::BankDtype::float16;
}

NamedValues evaluate_memory(const models::GeometricMemory& memory, const config::ContrastiveConfig& config,
                            const ContrastiveSource& source, int64_t batch, at::Device device, parallel::Comm& comm,
                            const std::function<void(const EvalProgress&)>& progress) {
  const at::NoGradGuard no_grad;
  const models::GeometricMemory::Window window = memory.prepare(half_values(config, device));
  const auto logits = [&](const at::Tensor& inputs) {
    return memory.logits(memory.free_phase(window, memory.drive(window, inputs), config.tbptt_window_steps).o);
  };
  return evaluate_samples(source, batch, device, comm, logits, progress);
}

ContrastiveTask::ContrastiveTask(const config::Config& config, const Runtime& runtime,
                                 std::shared_ptr<parallel::Comm> comm)
    : SampleTask(config, runtime, std::move(comm)) {
  const config::ContrastiveConfig& c = config.contrastive;
  memory_ =
      std::make_shared<models::GeometricMemory>(memory_options(c, data_.train->features(), data_.train->classes()),
                                                static_cast<uint64_t>(config.run.seed), runtime.device);
  if (data_.scaling.mean.defined()) memory_->set_input_scaling(data_.scaling.mean, data_.scaling.deviation);
  memory_->build_parameter_set();
  const auto zeros = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::zeros(sizes, at::device(runtime.device).dtype(dtype));
  };
  cosine_ = zeros({}, at::kFloat);
  changes_ = zeros({kChanges}, at::kFloat);
  momentum_ = at::zeros_like(memory_->field());
  equilibrium_ = memory_->field().detach().clone();
  history_ = zeros({}, at::kLong);
  field_before_ = equilibrium_.clone();
  angles_before_ = memory_->angles().detach().clone();
  metric_before_ = memory_->metric_eigenvalues().detach();

  metric_names_ = contrastive_metric_names(c, data_.train->is_text());
  for (const bool first : {true, false}) {
    std::vector<double> scales;
    for (const std::string& name : metric_names_) scales.push_back(of_rows(name) ? micro_batch_share() : first ? 1 : 0);
    metric_scales_[first ? 0 : 1] = at::tensor(scales, at::kDouble).to(runtime.device);
  }
}

// The metric, the rotor and the field are not shrunk towards zero, which has no meaning for them.
optim::GroupDefaults contrastive_group_defaults() {
  optim::GroupDefaults defaults;
  defaults.decay_vectors = false;
  defaults.undecayed = {"log_metric", "metric_blocks", "angles", "field", "low_rank*"};
  defaults.not_matrices = {"metric_blocks", "field", "low_rank*", "readout*"};
  return defaults;
}

void ContrastiveTask::batch_loaded(int64_t step) {
  free_only_ = (step - 1) % config_.contrastive.nudge_every_windows != 0;
  const int64_t every = config_.contrastive.cosine_every;
  if (every > 0 && (step - 1) % every == 0) measure_cosine();
  const int64_t shown = config_.contrastive.progress_every;
  if (shown > 0 && step % shown == 0 && comm_->main()) {
    const at::NoGradGuard no_grad;
    progress_.measure(step, *memory_, memory_->prepare(half_values(config_.contrastive, runtime_.device)),
                      batch_.inputs, batch_.labels, config_.contrastive.tbptt_window_steps);
  }
}

void ContrastiveTask::finish_step() {
  for (const std::string& line : progress_.take()) log::info(line);
}

// Of all parameters but the readout, whose gradient is exact, on the first rows of the batch.
void ContrastiveTask::measure_cosine() {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::min(rows_, kCosineRows);
  const at::Tensor inputs = batch_.inputs.narrow(0, 0, rows), targets = batch_.labels.narrow(0, 0, rows);
  const auto window = memory_->prepare(half_values(config_.contrastive, runtime_.device));
  objectives::ContrastiveOptions options = contrastive_options(config_.contrastive);
  const models::Gradients ours =
      objectives::contrastive_gradients(*memory_, window, inputs, targets, options).gradients;
  options.rule = ContrastiveRule::backprop;
  const models::Gradients exact =
      objectives::contrastive_gradients(*memory_, window, inputs, targets, options).gradients;
  at::Tensor product = at::zeros({}, cosine_.options().dtype(at::kDouble)), own = product.clone(),
             other = product.clone();
  for (size_t i = 0; i < ours.size(); ++i) {
    if (memory_->parameter_names()[i].starts_with("readout") || !ours[i].defined() || !exact[i].defined()) continue;
    const at::Tensor a = ours[i].to(at::kDouble), b = exact[i].to(at::kDouble);
    product.add_((a * b).sum());
    own.add_(a.square().sum());
    other.add_(b.square().sum());
  }
  cosine_.copy_(product / (own * other).sqrt().clamp_min(1e-300));
}

void ContrastiveTask::forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  const at::NoGradGuard no_grad;
  const auto [inputs, targets] = batch_part(micro_batch);
  const bool half = half_values(config_.contrastive, runtime_.device);
  if (micro_batch == 0) {
    const PhaseRange range(Phase::prepare);
    window_ = memory_->prepare(half);
    field_before_.copy_(memory_->field());
    angles_before_.copy_(memory_->angles());
    metric_before_.copy_(memory_->metric_eigenvalues());
  }
  const PhaseRange range(Phase::window);
  objectives::ContrastiveOptions options = contrastive_options(config_.contrastive);
  if (free_only_) options.rule = ContrastiveRule::readout;
  objectives::ContrastiveResult result = objectives::contrastive_gradients(*memory_, window_, inputs, targets, options);
  if (config_.contrastive.rule == ContrastiveRuleName::spsa) {
    result.gradients = objectives::spsa_gradients(*memory_, inputs, targets, counter_, half,
                                                  {.steps = config_.contrastive.tbptt_window_steps,
                                                   .sigma = config_.contrastive.spsa_sigma,
                                                   .directions = config_.contrastive.spsa_directions,
                                                   .seed = static_cast<uint64_t>(config_.run.seed)});
  }
  add_gradients(memory_->parameter_set(), result.gradients, loss_scale);
  metric_sums.add_(metrics_of(result, micro_batch == 0 && comm_->main()));
  if (micro_batch == 0) last_ = result;
}

// In the order of contrastive_metric_names(). One cast and one product for all: a captured step pays for each kernel.
at::Tensor ContrastiveTask::metrics_of(const objectives::ContrastiveResult& result, bool first) const {
  const at::Tensor resilience = window_.cells.mean();
  const auto [least, most] = memory_->metric_eigenvalues().aminmax();
  std::vector<at::Tensor> values{result.loss,
                                 result.accuracy,
                                 result.speed * resilience,
                                 resilience,
                                 result.speed,
                                 result.residual,
                                 result.beta,
                                 memory_->contraction(window_),
                                 least,
                                 most,
                                 changes_.select(0, kMetricChange),
                                 changes_.select(0, kAngleChange),
                                 at::linalg_vector_norm(result.free.o, 2, at::IntArrayRef{1}).mean(),
                                 memory_->key_norm()};
  if (data_.train->is_text()) values.push_back(result.loss / std::numbers::ln2);
  const config::ContrastiveConfig& c = config_.contrastive;
  if (has_nudged_phase(c.rule)) {
    values.push_back(result.speed_plus * resilience);
    values.push_back(result.speed_minus * resilience);
  }
  if (c.nudge_every_windows > 1) values.push_back(at::full_like(resilience, free_only_ ? 0 : 1));
  if (c.sdm_capacity > 0) values.push_back((window_.slots.filled - c.learned_slots).to(at::kFloat));
  if (c.dynamics_mode == FieldDynamics::symplectic) {
    values.push_back(changes_.slice(0, kKinetic, kDrift).sum());
    for (const Change change : {kKinetic, kPotential, kGradient, kDrift}) values.push_back(changes_.select(0, change));
  }
  if (c.cosine_every > 0) values.push_back(cosine_);
  return at::stack(values).to(at::kDouble) * metric_scales_[first ? 0 : 1];
}

void ContrastiveTask::update_extra(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const PhaseRange range(Phase::project);
  memory_->project(skip);
  const at::Tensor metric = memory_->metric_eigenvalues(), angles = memory_->angles();
  changes_.select(0, kMetricChange).copy_((metric - metric_before_).norm());
  changes_.select(0, kAngleChange).copy_((angles - angles_before_).norm());
  if (config_.contrastive.sdm_capacity > 0) commit_episodes(skip);
  move_field(skip);
  // Temporaries must not outlive a captured step, or its pool of memory cannot be shared.
  last_ = {};
  window_ = {};
}

// Learning moves the equilibrium as far as the field, so that the dynamics do not pull it back.
void ContrastiveTask::move_field(const at::Tensor& skip) {
  const at::Tensor field = memory_->field().detach();
  equilibrium_.add_(field - field_before_);
  const config::ContrastiveConfig& c = config_.contrastive;
  if (c.dynamics_mode == FieldDynamics::symplectic) {
    const auto energies = [&] { return ops::complex_field_energies(field, momentum_, equilibrium_, verlet(c)); };
    const at::Tensor before = energies().sum();
    ops::complex_field_verlet_(field, momentum_, equilibrium_, std::nullopt, skip, c.tbptt_window_steps, verlet(c));
    const at::Tensor after = energies();
    changes_.slice(0, kKinetic, kDrift).copy_(after);
    changes_.select(0, kDrift).copy_((after.sum() - before) / before.clamp_min(1e-300));
  } else if (c.dynamics_mode == FieldDynamics::dissipative) {
    ops::complex_field_dissipative_(field, history_, std::nullopt, std::nullopt, std::nullopt, skip,
                                    c.tbptt_window_steps,
                                    {.dt = c.symplectic_dt, .mass = c.symplectic_m_cog, .hbar = c.symplectic_hbar_cog});
  }
}

// All ranks write the rows of all ranks, in their order, so that their rings are the same.
void ContrastiveTask::commit_episodes(const at::Tensor& skip) {
  at::Tensor x = last_.drive + last_.free.offset;
  at::Tensor targets = batch_.labels.narrow(0, 0, micro_batch_size_);
  if (!comm_->alone()) {
    const auto gathered = [&](const at::Tensor& part) {
      std::vector<int64_t> sizes = part.sizes().vec();
      sizes[0] *= comm_->ranks();
      const at::Tensor all = at::empty(sizes, part.options());
      comm_->all_gather(all, part.contiguous());
      return all;
    };
    x = gathered(x);
    targets = gathered(targets);
  }
  memory_->commit_episodes(window_, x, targets, skip);
}

NamedValues ContrastiveTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  NamedValues out;
  const auto count = static_cast<double>(std::max<int64_t>(steps, 1));
  const auto share = std::find(metric_names_.begin(), metric_names_.end(), kNudgedShare) - metric_names_.begin();
  const double nudged = config_.contrastive.nudge_every_windows > 1 ? sums[static_cast<size_t>(share)] : count;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    // Windows without nudged phases have no action and no beta of them.
    const bool of_nudged = metric_names_[i].starts_with("lior_") || metric_names_[i] == "beta";
    if (of_nudged && nudged == 0) continue;
    out.emplace_back(metric_names_[i], sums[i] / (of_nudged ? nudged : count));
  }
  return out;
}

double ContrastiveTask::flops_per_step() const {
  return static_cast<double>(config_.train.global_batch_size) *
         contrastive_flops_per_sample(config_.contrastive, data_.train->classes());
}

NamedValues ContrastiveTask::evaluate(const std::function<void(const EvalProgress&)>& progress) {
  return evaluate_memory(*memory_, config_.contrastive, *data_.test, evaluation_batch(), runtime_.device, *comm_,
                         progress);
}

std::string ContrastiveTask::describe() const {
  const config::ContrastiveConfig& c = config_.contrastive;
  std::string text = cat("model        geometric memory, ", memory_->parameter_set().count(), " parameters, ",
                         c.learned_slots, " slots, ", c.coord_dim_n, " coordinates, width ", c.state_dim);
  if (c.sdm_capacity > 0) text += cat(", ", c.sdm_capacity, " episodes");
  if (c.hidden > 0) text += cat(", ", c.hidden, " hidden units");
  text += cat("\nrule         ", name_of(c.rule), ", ", c.tbptt_window_steps, " free steps");
  return text + describe_data();
}

void ContrastiveTask::visit_state(StateVisitor& visitor) {
  visit_model(*memory_, visitor);
  visitor.tensor("field.momentum", momentum_, StateRole::carry);
  visitor.tensor("field.equilibrium", equilibrium_, StateRole::carry);
  visitor.tensor("field.history", history_, StateRole::carry);
  visitor.tensor("contrastive.changes", changes_, StateRole::loop);
  visitor.tensor("contrastive.cosine", cosine_, StateRole::loop);
  visit_position(visitor);
}

}  // namespace hrm::tasks
