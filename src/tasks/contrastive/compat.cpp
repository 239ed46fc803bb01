#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/objectives/contrastive_rules.h"
#include "hrm/ops/linear.h"
#include "hrm/runtime/phase_clock.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/contrastive_compat.h"
#include "hrm/tasks/contrastive_data.h"

namespace hrm::tasks {
namespace {

using config::NudgeMode;

constexpr int64_t kNoises = 256, kDraws = 8;  // as many draws a window as in the original
constexpr double kEmbeddingDeviation = 0.02;

at::Tensor length(const at::Tensor& x) {
  return x.to(at::kDouble).square().sum().sqrt();
}

// `value` where the step is not skipped.
void take_over(const at::Tensor& kept, const at::Tensor& value, const at::Tensor& skip) {
  kept.copy_(at::where(skip.eq(0), value, kept));
}

}  // namespace

objectives::CompatSettings compat_settings(const config::ContrastiveConfig& config) {
  const bool main = config.commit == config::OriginalCommit::main;
  return {.commit = main ? objectives::CompatCommit::main : objectives::CompatCommit::guide,
          .steps = config.tbptt_window_steps,
          .retrieval_beta = config.retrieval_beta,
          .eps = config.eps,
          .beta_nudge = config.beta_nudge,
          .nudge_scale = config.nudge_scale,
          // A template must come with the batch, which text does not have; the original then nudges nothing.
          .nudge = config.nudge_mode == NudgeMode::target_embedding,
          .shifted_target = config.nudge_use_shifted_target,
          .retrieve_each_step = config.retrieve_each_step,
          .field = {.dt = config.symplectic_dt, .hbar = config.symplectic_hbar_cog, .mass = config.symplectic_m_cog}};
}

objectives::CompatSizes compat_sizes(const config::ContrastiveConfig& config) {
  return {.axes = config.coord_dim_n,
          .angles = config.rotor_k,
          .width = config.state_dim,
          .slots = config.sdm_capacity,
          .field_x = config.spatial_rows,
          .field_y = config.spatial_cols,
          .field_dim = config.field_dim};
}

CompatModel::CompatModel(const at::Tensor& g, const at::Tensor& theta, const at::Tensor& embedding)
    : g_(register_parameter("g", g)),
      theta_(theta.numel() > 0 ? register_parameter("theta", theta) : theta),
      embedding_(register_buffer("embedding", embedding)) {
  parameter_set_.build(*this, at::kFloat);
}

CompatTask::CompatTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm)
    : config_(config),
      runtime_(runtime),
      comm_(comm ? std::move(comm) : parallel::make_single_comm()),
      sources_({{.source = open_contrastive_text(config.data.train)}}),
      staged_(runtime.device) {
  const config::ContrastiveConfig& c = config.contrastive;
  const at::Device device = runtime.device;
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(config.run.seed));
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::dtype(at::kFloat)); };
  objectives::CompatState state = objectives::make_compat_state(compat_sizes(c), device, generator,
                                                                half_values(c, device) ? at::kHalf : at::kFloat);
  const int64_t vocabulary = sources_.front().source->meta().vocab_size;
  const at::Tensor embedding = (draw({vocabulary, c.state_dim}) * kEmbeddingDeviation).to(device);
  noise_ = draw({kNoises, kDraws, c.coord_dim_n}).to(device);

  model_ = std::make_shared<CompatModel>(state.g, state.theta, embedding);
  state.g = model_->g().detach();
  state.theta = model_->theta().detach();
  field_ = state.field.clone();
  history_ = state.history.clone();
  window_ = std::make_unique<objectives::CompatWindow>(compat_settings(c), std::move(state));

  rows_ = config.train.global_batch_size / comm_->ranks();
  const auto zeros = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::zeros(sizes, at::device(device).dtype(dtype));
  };
  ids_ = zeros({rows_, c.context}, at::kLong);
  counter_ = zeros({}, at::kLong);
  velocity_ = zeros({rows_, c.coord_dim_n}, at::kFloat);
  episode_ = zeros({rows_, c.state_dim}, at::kFloat);
  g_before_ = this->state().g.clone();
  theta_before_ = this->state().theta.clone();
  changes_ = zeros({2}, at::kDouble);
  metric_names_ = {"loss", "lior",   "lior_plus",   "dL",       "R_mean", "spd_mean", "g_min",   "g_max",
                   "dg",   "dtheta", "bank_filled", "mem_norm", "E_geo",  "E_var",    "E_struct"};
}

data::LanguageStreamOptions CompatTask::stream_options() const {
  return {.seed = static_cast<uint64_t>(config_.run.seed),
          .shape = {0, config_.contrastive.context},
          .global_batch_size = config_.train.global_batch_size,
          .rank = comm_->rank(),
          .ranks = comm_->ranks(),
          .pinned = runtime_.device.is_cuda()};
}

double CompatTask::load_batch(int64_t step, double) {
  if (!stream_) stream_ = std::make_unique<data::LanguageStream>(sources_, stream_options(), position_);
  staged_.make_room();
  data::LanguageStreamBatch next = stream_->next();
  ids_.copy_(next.batch.decoder_ids, /*non_blocking=*/true);
  position_ = next.position_after;
  staged_.hold(std::move(next));
  counter_.fill_(step);
  return stream_->wait_ms();
}

// Means over the rows of all ranks, so that every rank makes the update of one process.
void CompatTask::reduce(objectives::CompatResult& result) const {
  if (comm_->alone()) return;
  objectives::CompatPhase &free = result.free, &nudged = result.nudged;
  const at::Tensor sums = at::cat({at::stack({free.lior, free.speed, nudged.lior}), free.velocity.mean(0)});
  comm_->all_reduce_in_step(sums);
  sums.div_(static_cast<double>(comm_->ranks()));
  free.lior = sums.select(0, 0);
  free.speed = sums.select(0, 1);
  nudged.lior = sums.select(0, 2);
  free.velocity = sums.narrow(0, 3, sums.size(0) - 3).unsqueeze(0);
}

void CompatTask::forward_backward(int64_t, const at::Tensor& loss_scale, at::Tensor& metric_sums) {
  const at::NoGradGuard no_grad;
  const objectives::CompatState& state = window_->state();
  state.field.copy_(field_);
  state.history.copy_(history_);
  g_before_.copy_(state.g);
  theta_before_.copy_(state.theta);
  objectives::CompatResult result;
  {
    const PhaseRange range(Phase::window);
    const objectives::CompatBatch batch = window_->encode(model_->embedding(), ids_);
    result = window_->phases(batch);
    velocity_.copy_(result.free.velocity);
    episode_.copy_(batch.state);
  }
  reduce(result);
  result.update = window_->update(result.free, result.nudged);
  if (comm_->main()) {
    // Gradients are sums over ranks, and all of them made the same. A difference that is not finite has a gradient
    // that is not, so that the trainer skips the step and says so.
    const auto add = [&](const at::Tensor& parameter, const at::Tensor& gradient) {
      if (parameter.numel() == 0) return;
      const at::Tensor told =
          gradient.masked_fill(result.update.accepted.logical_not(), std::numeric_limits<double>::quiet_NaN());
      ops::gradient_buffer(parameter).add_(loss_scale.defined() ? told * loss_scale : told);
    };
    add(model_->g(), result.update.g_grad);
    add(model_->theta(), result.update.theta_grad);
    metric_sums.add_(metrics_of(result));
  }
}

// In the order of metric_names().
at::Tensor CompatTask::metrics_of(const objectives::CompatResult& result) const {
  const objectives::CompatState& state = window_->state();
  const at::Tensor velocity = result.free.velocity.mean(0, /*keepdim=*/true);
  const at::Tensor noise = noise_.index_select(0, at::remainder(counter_, kNoises).view({1})).squeeze(0);
  const objectives::PathDiagnostics path = objectives::path_diagnostics(
      velocity.expand({result.free.resiliences.size(0), velocity.size(1)}), result.free.resiliences, noise);
  std::vector<at::Tensor> values{result.free.lior,      result.free.lior,       result.nudged.lior,
                                 result.update.dL,      result.free.resilience, result.free.speed,
                                 state.g.min(),         state.g.max(),          changes_.select(0, 0),
                                 changes_.select(0, 1), state.bank_filled,      length(state.bank_coord),
                                 path.geodesic,         path.optimality,        path.coupling};
  for (at::Tensor& value : values) value = value.to(at::kDouble);
  return at::stack(values);
}

at::Tensor CompatTask::of_all_ranks(const at::Tensor& rows) const {
  if (comm_->alone()) return rows;
  const at::Tensor all = at::empty({rows.size(0) * comm_->ranks(), rows.size(1)}, rows.options());
  comm_->all_gather(all, rows);
  return all;
}

void CompatTask::update_extra(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const PhaseRange range(Phase::project);
  const objectives::CompatState& state = window_->state();
  const at::Tensor g = state.g.clone(), theta = state.theta.clone();
  objectives::project_metric_(g, theta);
  take_over(state.g, g, skip);
  take_over(state.theta, theta, skip);
  changes_.copy_(at::stack({length(state.g - g_before_), length(state.theta - theta_before_)}));
  // As the original: by the window, then by the loop around it.
  const at::Tensor coords = of_all_ranks(velocity_), states = of_all_ranks(episode_);
  for (int i = 0; i < 2; ++i) window_->commit(coords, states, skip);
  take_over(field_, state.field, skip);
  take_over(history_, state.history, skip);
  state.window.add_(skip.eq(0));
}

void CompatTask::skip_batches(int64_t count) {
  require(!stream_, ExitCode::unexpected, "batches can be left out before the first step alone");
  position_ = data::position_after(stream_options(), position_, count);
}

NamedValues CompatTask::summarize(const std::vector<double>& sums, int64_t steps) const {
  NamedValues out;
  for (size_t i = 0; i < metric_names_.size(); ++i) {
    out.emplace_back(metric_names_[i], sums[i] / static_cast<double>(std::max<int64_t>(steps, 1)));
  }
  return out;
}

std::string CompatTask::progress_text(const NamedValues& summary) const {
  return cat("lior ", metrics::fixed(value_of(summary, "lior"), 5), " | dL ", value_of(summary, "dL"), " | R ",
             metrics::fixed(value_of(summary, "R_mean"), 4));
}

double CompatTask::samples_per_epoch() const {
  return static_cast<double>(data::epoch_samples(sources_, config_.contrastive.context));
}

// Distances and the mix of each retrieval.
double CompatTask::flops_per_step() const {
  const config::ContrastiveConfig& c = config_.contrastive;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double retrievals = 2 * number(c.retrieve_each_step ? c.tbptt_window_steps : 1);
  return number(config_.train.global_batch_size) * retrievals * 2 * number(c.context + c.sdm_capacity) *
         number(c.coord_dim_n + c.state_dim);
}

std::string CompatTask::nothing_to_evaluate() const {
  return "there is nothing to evaluate, for the window of contrastive.mode=compat predicts nothing; train with "
         "contrastive.mode=sound";
}

NamedValues CompatTask::evaluate(const std::function<void(const EvalProgress&)>&) {
  fail(ExitCode::usage, nothing_to_evaluate());
}

std::string CompatTask::eval_text(const NamedValues&) const {
  fail(ExitCode::usage, nothing_to_evaluate());
}

double CompatTask::score(const NamedValues&) const {
  fail(ExitCode::usage, nothing_to_evaluate());
}

std::map<std::string, std::string> CompatTask::signature() const {
  return {{"task", "contrastive"},
          {"mode", "compat"},
          {"vocab_size", std::to_string(sources_.front().source->meta().vocab_size)}};
}

std::map<std::string, std::string> CompatTask::source_digests() const {
  if (train_digest_.empty()) train_digest_ = data::sources_digest(sources_);
  return {{"training data", train_digest_}};
}

std::string CompatTask::next_batch_digest(int64_t) {
  return data::language_batch_digest(sources_, stream_options(), position_);
}

std::string CompatTask::describe() const {
  const config::ContrastiveConfig& c = config_.contrastive;
  const data::LanguageSource& source = *sources_.front().source;
  return cat("model        Trainer2's window of commit ", c.commit, ", ", model_->parameter_set().count(),
             " trained numbers: ", c.coord_dim_n, " of the metric and ", c.rotor_k, " angles; ", c.sdm_capacity,
             " slots of width ", c.state_dim, ", a field of ", c.spatial_rows, " x ", c.spatial_cols,
             " matrices\nrule         the original's, which does not learn (docs/contrastive.md); ",
             c.tbptt_window_steps, " free and as many nudged steps, nudge_mode ", c.nudge_mode, "\ntraining     ",
             source.origin(), ": ", source.num_samples(c.context), " rows of ", c.context, " tokens, vocabulary ",
             source.meta().vocab_size);
}

void CompatTask::visit_state(StateVisitor& visitor) {
  visit_model(*model_, visitor);
  objectives::CompatState state = window_->state();
  visitor.tensor("compat.field", field_, StateRole::carry);
  visitor.tensor("compat.history", history_, StateRole::carry);
  visitor.tensor("compat.bank_coord", state.bank_coord, StateRole::carry);
  visitor.tensor("compat.bank_state", state.bank_state, StateRole::carry);
  visitor.tensor("compat.bank_next", state.bank_next, StateRole::carry);
  visitor.tensor("compat.bank_filled", state.bank_filled, StateRole::carry);
  visitor.tensor("compat.window", state.window, StateRole::carry);
  visitor.tensor("compat.changes", changes_, StateRole::loop);
  visitor.integer("sampler.position", position_);
}

}  // namespace hrm::tasks
