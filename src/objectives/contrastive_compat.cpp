#include "hrm/objectives/contrastive_compat.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "hrm/objectives/contrastive_rules.h"
#include "hrm/ops/complex_field.h"
#include "hrm/ops/geometric_retrieval.h"
#include "hrm/ops/geometry.h"

namespace hrm::objectives {
namespace {

// The field's settings, as its op takes them. Nothing collapses the field: the op gets no evidence.
ops::FieldDissipative dissipative(const CompatSettings& settings) {
  const CompatField& field = settings.field;
  return {.dt = field.dt,
          .mass = field.mass,
          .hbar = field.hbar,
          .memory_gain = field.memory_gain,
          .history_capacity = field.history_capacity,
          .periodic = settings.commit == CompatCommit::main};
}

// J = 1, or none.
std::optional<at::Tensor> source_of_ones(const at::Tensor& field, bool source) {
  if (!source) return std::nullopt;
  at::Tensor ones = at::zeros_like(field);
  ones.select(-1, 0).fill_(1);
  return ones;
}

at::Tensor masked_mean(const at::Tensor& x, const at::Tensor& mask) {
  const at::Tensor weights = mask.to(x.scalar_type());
  return (x * weights.unsqueeze(-1)).sum(1) / weights.sum(1).clamp_min(1).unsqueeze(1);
}

at::Tensor look_up(const at::Tensor& embedding, const at::Tensor& ids, const at::Tensor& modality) {
  const at::Tensor rows =
      embedding.index_select(0, ids.reshape({-1})).view({ids.size(0), ids.size(1), embedding.size(1)});
  return modality.defined() ? rows + modality : rows;
}

// The first n columns, or all and zeros.
at::Tensor first_columns(const at::Tensor& x, int64_t n) {
  const int64_t width = x.size(-1);
  return width < n ? at::constant_pad_nd(x, {0, n - width}) : x.narrow(-1, 0, n).contiguous();
}

}  // namespace

CompatState make_compat_state(const CompatSizes& sizes, at::Device device, std::optional<at::Generator> generator,
                              at::ScalarType bank_dtype) {
  TORCH_CHECK(sizes.axes >= 1 && sizes.angles >= 0 && (sizes.axes >= 2 || sizes.angles == 0) && sizes.width >= 1 &&
                  sizes.slots >= 1 && sizes.field_x >= 1 && sizes.field_y >= 1 && sizes.field_dim >= 1,
              "make_compat_state: bad sizes: n ", sizes.axes, ", k ", sizes.angles, ", d ", sizes.width, ", M ",
              sizes.slots, ", field ", sizes.field_x, " x ", sizes.field_y, " x ", sizes.field_dim, "^2");
  const auto floats = at::device(device).dtype(at::kFloat), counter = at::device(device).dtype(at::kLong);
  const std::vector<int64_t> shape{sizes.field_x, sizes.field_y, sizes.field_dim, sizes.field_dim};
  const at::Tensor real = at::randn(shape, generator, at::dtype(at::kFloat));
  const at::Tensor imaginary = at::randn(shape, generator, at::dtype(at::kFloat));
  return {.field = (at::stack({real, imaginary}, -1) / std::sqrt(2.0)).to(device),
          .g = at::ones({sizes.axes}, floats),
          .theta = at::zeros({sizes.angles}, floats),
          .bank_coord = at::zeros({sizes.slots, sizes.axes}, floats),
          .bank_state = at::zeros({sizes.slots, sizes.width}, floats.dtype(bank_dtype)),
          .bank_next = at::zeros({}, counter),
          .bank_filled = at::zeros({}, counter),
          .history = at::zeros({}, counter),
          .window = at::zeros({}, counter)};
}

CompatWindow::CompatWindow(const CompatSettings& settings, CompatState state)
    : settings_(settings), state_(std::move(state)) {
  const CompatState& s = state_;
  TORCH_CHECK(settings.steps >= 2 && settings.beta_nudge > 0 && settings.eps > 0,
              "CompatWindow: needs at least two steps, and beta_nudge and eps above 0, got ", settings.steps, ", ",
              settings.beta_nudge, " and ", settings.eps);
  TORCH_CHECK(s.field.dim() == 5 && s.field.size(4) == 2 && s.field.size(2) == s.field.size(3),
              "CompatWindow: the field must be (Nx, Ny, D, D, 2), got ", s.field.sizes());
  TORCH_CHECK(s.g.dim() == 1 && s.theta.dim() == 1 && s.bank_coord.dim() == 2 && s.bank_state.dim() == 2 &&
                  s.bank_coord.size(1) == s.g.size(0) && s.bank_state.size(0) == s.bank_coord.size(0) &&
                  s.bank_coord.size(0) >= 1,
              "CompatWindow: g must be (n), theta (k), the bank (M, n) and (M, d), got ", s.g.sizes(), ", ",
              s.theta.sizes(), ", ", s.bank_coord.sizes(), " and ", s.bank_state.sizes());
  for (const at::Tensor& counter : {s.bank_next, s.bank_filled, s.history, s.window}) {
    TORCH_CHECK(counter.dim() == 0 && counter.scalar_type() == at::kLong && counter.device() == s.field.device(),
                "CompatWindow: counters must be 0-dim int64 on the field's device, got ", counter.sizes(), " ",
                counter.scalar_type(), " on ", counter.device());
  }
}

CompatBatch CompatWindow::encode(const at::Tensor& embedding, const at::Tensor& ids, const at::Tensor& mask,
                                 const at::Tensor& modality) const {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(embedding.dim() == 2 && embedding.size(1) == state_.bank_state.size(1) && ids.dim() == 2 &&
                  ids.size(1) >= 1 && (!mask.defined() || mask.sizes() == ids.sizes()) &&
                  (!modality.defined() || modality.sizes() == embedding.sizes().slice(1)),
              "CompatWindow: needs an embedding (V, d) with the bank's width ", state_.bank_state.size(1),
              ", ids (B, T), a mask of their shape and a modality vector (d), got ", embedding.sizes(), ", ",
              ids.sizes(), ", ", mask.defined() ? mask.sizes() : ids.sizes(), " and ",
              modality.defined() ? modality.sizes() : embedding.sizes().slice(1));
  const int64_t n = state_.g.size(0), tokens = ids.size(1);
  const at::Tensor weights = mask.defined() ? mask : at::ones_like(ids);
  const at::Tensor x = look_up(embedding, ids, modality);
  CompatBatch batch;
  batch.coords = first_columns(x, n);
  batch.query = masked_mean(batch.coords, weights);
  batch.state = masked_mean(x, weights);
  batch.states = x.to(state_.bank_state.scalar_type());
  at::Tensor targets = ids;
  if (settings_.shifted_target && tokens > 1) {
    targets = at::cat({ids.narrow(1, 1, tokens - 1), ids.narrow(1, tokens - 1, 1)}, 1);
  }
  batch.target = masked_mean(first_columns(look_up(embedding, targets, modality), n), weights);
  return batch;
}

at::Tensor CompatWindow::rotate(const at::Tensor& v) const {
  // By sums: a matrix product may be in TF32.
  return (v.unsqueeze(1) * ops::rotor_matrix(state_.theta, state_.g.size(0))).sum(2);
}

// y (B, S, d) of each step. The distances are those of the whole phase, so a step is a row of a product.
at::Tensor CompatWindow::retrieve_each(const CompatBatch& batch, const at::Tensor& query,
                                       const at::Tensor& resiliences) const {
  const int64_t tokens = batch.coords.size(1), slots = state_.bank_coord.size(0);
  const at::Tensor from = query.unsqueeze(1);
  const auto distances = [&](const at::Tensor& coords) {
    return (((coords - from).square() * state_.g).sum(-1) + settings_.eps).sqrt();
  };
  const at::Tensor empty = at::arange(slots, state_.bank_filled.options()).ge(state_.bank_filled);
  const at::Tensor costs =
      at::cat({distances(batch.coords), distances(state_.bank_coord).masked_fill(empty, INFINITY)}, 1);
  const at::Tensor scores = costs.unsqueeze(1) * (resiliences * -settings_.retrieval_beta).view({1, -1, 1});
  const at::Tensor weights = scores.softmax(-1).to(state_.bank_state.scalar_type());
  const at::Tensor own = weights.narrow(2, 0, tokens).matmul(batch.states);
  return (own + weights.narrow(2, tokens, slots).matmul(state_.bank_state)).to(query.scalar_type());
}

CompatPhase CompatWindow::phase(const CompatBatch& batch, const at::Tensor& query, const at::Tensor& velocity,
                                bool source) {
  const int64_t steps = settings_.steps;
  CompatPhase out;
  out.velocity = velocity;
  // The mean of |T| before each step: nothing else of the field is read.
  out.resiliences = at::empty({steps}, state_.g.options().requires_grad(false));
  ops::complex_field_dissipative_(state_.field, state_.history, source_of_ones(state_.field, source), std::nullopt,
                                  std::nullopt, std::nullopt, steps, dissipative(settings_), out.resiliences);
  if (settings_.retrieve_each_step) {
    out.retrieved = retrieve_each(batch, query, out.resiliences).select(1, steps - 1);
  } else {
    const ops::RetrievalCandidates candidates{.coords = batch.coords,
                                              .states = batch.states,
                                              .bank_coords = state_.bank_coord,
                                              .bank_states = state_.bank_state,
                                              .filled = state_.bank_filled};
    out.retrieved = ops::geometric_retrieval(query, candidates, out.resiliences.select(0, steps - 1), state_.g,
                                             settings_.retrieval_beta, settings_.eps);
  }
  const at::Tensor speed = ops::lior_step(velocity, state_.g, out.resiliences.select(0, 0), settings_.eps).speed;
  out.liors = (out.resiliences.unsqueeze(1) * speed).mean(1);
  out.lior = out.liors.mean();
  out.resilience = out.resiliences.mean();
  out.speed = speed.mean();
  return out;
}

CompatPhase CompatWindow::free_phase(const CompatBatch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor rotated = rotate(batch.query);
  return phase(batch, rotated, rotated, /*source=*/false);
}

at::Tensor CompatWindow::nudge(const CompatBatch& batch, const CompatPhase& free) const {
  const at::NoGradGuard no_grad;
  return settings_.nudge_scale * (batch.target - free.velocity);
}

CompatPhase CompatWindow::nudged_phase(const CompatBatch& batch, const at::Tensor& nudge) {
  const at::NoGradGuard no_grad;
  // Without a nudge the query is not a copy, so v is rotated, too.
  if (!nudge.defined()) return free_phase(batch);
  // Where n = D, main passes the metric by position: with a nudge before it, it becomes the field's source.
  const bool source = settings_.commit == CompatCommit::main && state_.g.size(0) == state_.field.size(2);
  return phase(batch, rotate(batch.query + nudge), batch.query, source);
}

CompatUpdate CompatWindow::update(const CompatPhase& free, const CompatPhase& nudged) const {
  const at::NoGradGuard no_grad;
  CompatUpdate out;
  out.dL = nudged.lior - free.lior;
  out.accepted = at::isfinite(out.dL);
  // The mean velocity is rotated once more, in place, so the angles see the rotated one.
  const at::Tensor w = rotate(free.velocity.mean(0, /*keepdim=*/true)).squeeze(0);
  const ScalarDirection direction = scalar_direction(w, w, state_.theta.size(0));
  const at::Tensor factor = out.dL / -settings_.beta_nudge, rejected = out.accepted.logical_not();
  out.g_grad = (factor * direction.g).masked_fill(rejected, 0);
  out.theta_grad = (factor * direction.theta).masked_fill(rejected, 0);
  return out;
}

void CompatWindow::apply(const CompatUpdate& update, const at::Tensor& lr) {
  const at::NoGradGuard no_grad;
  state_.g.sub_(lr * update.g_grad);
  state_.theta.sub_(lr * update.theta_grad);
  project_metric_(state_.g, state_.theta);
}

void CompatWindow::commit(const at::Tensor& coords, const at::Tensor& states, const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const int64_t slots = state_.bank_coord.size(0), rows = coords.size(0), taken = std::min(slots, rows);
  const at::Tensor places = at::remainder(at::arange(taken, state_.bank_next.options()) + state_.bank_next, slots);
  const auto write = [&](const at::Tensor& bank, const at::Tensor& all) {
    at::Tensor last = all.narrow(0, rows - taken, taken).to(bank.scalar_type());
    if (skip.defined()) last = at::where(skip.ne(0), bank.index_select(0, places), last);
    bank.index_copy_(0, places, last);
  };
  write(state_.bank_coord, coords);
  write(state_.bank_state, states);
  // NaN skips, too.
  const at::Tensor written = skip.defined() ? skip.eq(0).to(at::kLong) * taken : at::full_like(state_.bank_next, taken);
  state_.bank_next.add_(written).remainder_(slots);
  state_.bank_filled.add_(written).clamp_max_(slots);
}

CompatResult CompatWindow::phases(const CompatBatch& batch) {
  const at::NoGradGuard no_grad;
  CompatResult out;
  const at::Tensor before = state_.field.clone();
  out.free = free_phase(batch);
  if (settings_.nudge) out.nudge = nudge(batch, out.free);
  // The history is not restored.
  state_.field.copy_(before);
  out.nudged = nudged_phase(batch, out.nudge);
  return out;
}

CompatResult CompatWindow::run(const CompatBatch& batch, const at::Tensor& lr) {
  const at::NoGradGuard no_grad;
  CompatResult out = phases(batch);
  out.update = update(out.free, out.nudged);
  apply(out.update, lr);
  // By the window, then by the loop around it.
  for (int i = 0; i < 2; ++i) commit(batch, out.free);
  state_.window.add_(1);
  return out;
}

PathDiagnostics path_diagnostics(const at::Tensor& velocities, const at::Tensor& resiliences, const at::Tensor& noise) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(velocities.dim() == 2 && velocities.size(0) >= 2 &&
                  resiliences.sizes() == velocities.sizes().slice(0, 1) && noise.dim() == 2 &&
                  noise.size(1) == velocities.size(1),
              "path_diagnostics: needs velocities (S, n) with S >= 2, resiliences (S) and noise (draws, n), got ",
              velocities.sizes(), ", ", resiliences.sizes(), " and ", noise.sizes());
  const at::Tensor last = velocities.select(0, -1), r = resiliences.select(0, -1);
  const at::Tensor gain = r * last.square().sum() - r * (last + 0.1 * noise).square().sum(1);
  const auto centred = [](const at::Tensor& x) { return x - x.mean(); };
  const at::Tensor a = centred(resiliences), b = centred(at::linalg_vector_norm(velocities, 2, at::IntArrayRef{1}));
  const at::Tensor scale = ((a.square().sum() + 1e-8) * (b.square().sum() + 1e-8)).sqrt();
  return {.geodesic = (last - velocities.select(0, -2)).norm(),
          .optimality = gain.clamp_min(0).mean(),
          .coupling = ((a * b).sum() / scale + 1).abs()};
}

PathDiagnostics path_diagnostics(const CompatPhase& phase, const at::Tensor& noise) {
  const at::Tensor mean = phase.velocity.mean(0, /*keepdim=*/true);
  return path_diagnostics(mean.expand({phase.resiliences.size(0), mean.size(1)}), phase.resiliences, noise);
}

}  // namespace hrm::objectives
