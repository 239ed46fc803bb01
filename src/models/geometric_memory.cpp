#include "hrm/models/geometric_memory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hrm/nn/init.h"
#include "hrm/ops/complex_field.h"
#include "hrm/ops/geometry.h"

namespace hrm::models {
namespace {

constexpr double kFieldEps = 1e-8;  // of a cell's resilience
constexpr double kBendEps = 1e-16;  // of the field's squared Laplacian

// An upper bound of the squared spectral norm of a matrix, at most 2^(log2(min side)/8) times it: the trace of the 8th
// power of its Gram matrix. No iteration that may not have converged, and no eigenvalue solver, which a graph cannot
// capture.
at::Tensor squared_norm_bound(const at::Tensor& matrix) {
  const at::Tensor gram = matrix.size(0) <= matrix.size(1) ? matrix.matmul(matrix.t()) : matrix.t().matmul(matrix);
  const at::Tensor trace = gram.trace().clamp_min(1e-30);
  at::Tensor power = gram / trace;
  for (int i = 0; i < 3; ++i) power = power.matmul(power);
  return trace * power.trace().clamp_min(1e-30).pow(0.125);
}

// The x with softplus(x) = y > 0.
at::Tensor inverse_softplus(const at::Tensor& y) {
  return y + at::log(-at::expm1(-y));
}

// Block-diagonal (p, 2, 2) times a matrix (2 p, k).
at::Tensor blocks_times(const at::Tensor& blocks, const at::Tensor& matrix) {
  return blocks.matmul(matrix.reshape({blocks.size(0), 2, matrix.size(1)})).view(matrix.sizes());
}

// Of lower triangular blocks (p, 2, 2).
at::Tensor inverse_factors(const at::Tensor& factors) {
  const at::Tensor a = factors.select(1, 0).select(1, 0), b = factors.select(1, 1).select(1, 0),
                   c = factors.select(1, 1).select(1, 1);
  return at::stack({1 / a, at::zeros_like(b), -b / (a * c), 1 / c}, 1).view(factors.sizes());
}

// Eigenvalues of the blocks L L^T (p, 2, 2): the larger ones (p), then the smaller ones (p).
at::Tensor block_eigenvalues(const at::Tensor& factors) {
  const at::Tensor half = 0.5 * factors.square().sum({1, 2});
  const at::Tensor determinant = (factors.select(1, 0).select(1, 0) * factors.select(1, 1).select(1, 1)).square();
  const at::Tensor larger = half + (half.square() - determinant).clamp_min(0).sqrt();
  return at::cat({larger, determinant / larger});
}

// Values where `skip` is zero.
void update(const at::Tensor& tensor, const at::Tensor& value, const at::Tensor& skip) {
  tensor.copy_(skip.defined() ? at::where(skip.ne(0), tensor, value) : value);
}

}  // namespace

AffineParameters::AffineParameters(int64_t out, int64_t in, at::Device device) {
  weight = register_parameter("weight", at::zeros({out, in}, at::device(device)));
  bias = register_parameter("bias", at::zeros({out}, at::device(device)));
}

GeometricMemory::GeometricMemory(const GeometricMemoryOptions& options, uint64_t seed, at::Device device)
    : options_(options) {
  const GeometricMemoryOptions& o = options_;
  const auto zeros = [&](at::IntArrayRef sizes) { return at::zeros(sizes, at::device(device)); };
  encoder_ = register_module(
      "encoder", std::make_shared<AffineParameters>(o.coords, o.hidden > 0 ? o.hidden : o.features, device));
  const bool blocks = o.metric == MetricForm::blocks;
  TORCH_CHECK(!blocks || o.coords % 2 == 0,
              "GeometricMemory: a metric of blocks needs an even number of coordinates, got ", o.coords);
  if (blocks) {
    metric_blocks_ = register_parameter("metric_blocks", zeros({o.coords / 2, 3}));
  } else {
    log_metric_ = register_parameter("log_metric", zeros({o.coords}));
  }
  angles_ = o.rotor == RotorSource::keys ? register_buffer("angles", zeros({o.angles}))
                                         : register_parameter("angles", zeros({o.angles}));
  keys_ = register_parameter("keys", zeros({o.slots, o.coords}));
  values_ = register_parameter("values", zeros({o.slots, o.width}));
  field_ = register_parameter("field", zeros({o.field_rows, o.field_cols, o.field_dim, 2}));
  readout_ = register_module("readout", std::make_shared<AffineParameters>(o.classes, o.width, device));
  if (o.hidden > 0)
    hidden_ = register_module("hidden", std::make_shared<AffineParameters>(o.hidden, o.features, device));
  if (o.low_rank > 0) {
    low_vectors_ = register_parameter("low_rank_vectors", zeros({o.coords, o.low_rank}));
    low_log_weights_ = register_parameter("low_rank_log_weights", zeros({o.low_rank}));
  }
  input_mean_ = register_buffer("input_mean", zeros({o.features}));
  input_deviation_ = register_buffer("input_deviation", at::ones({}, at::device(device)));
  if (o.episodes > 0) {
    const auto counter = [&] { return at::zeros({}, at::device(device).dtype(at::kLong)); };
    ring_keys_ = register_buffer("ring_keys", zeros({o.episodes, o.coords}));
    ring_values_ = register_buffer("ring_values", zeros({o.episodes, o.width}));
    ring_position_ = register_buffer("ring_position", counter());
    filled_ = register_buffer("filled", counter());
    filled_.fill_(o.slots);
  }

  for (const auto& parameter : named_parameters()) names_.push_back(parameter.key());
  if (device.is_meta()) return;
  const at::NoGradGuard no_grad;
  const auto draw = [&](const at::Tensor& tensor, double std, const char* name) {
    if (tensor.numel() > 0) nn::trunc_normal_(tensor, std, seed, name);
  };
  draw(encoder_->weight, 1 / std::sqrt(static_cast<double>(encoder_->weight.size(1))), "encoder.weight");
  if (blocks) {
    draw(metric_blocks_, 0.3, "metric_blocks");
    const at::Tensor diagonal = metric_blocks_.slice(1, 0, 3, 2);  // the logarithms of its squares
    diagonal.copy_(inverse_softplus((0.5 * diagonal).exp()));
  } else {
    draw(log_metric_, 0.3, "log_metric");
  }
  draw(angles_, 0.1, "angles");
  draw(keys_, 1, "keys");
  draw(values_, 0.3, "values");
  draw(field_, 0.05, "field");
  field_.select(-1, 0).add_(1);
  draw(readout_->weight, 1 / std::sqrt(static_cast<double>(o.width)), "readout.weight");
  if (hidden_) {
    draw(hidden_->weight, 1 / std::sqrt(static_cast<double>(o.features)), "hidden.weight");
    hidden_->bias.fill_(0.1);  // inside [0, 1], where a unit can move
  }
  if (low_vectors_.defined()) {
    draw(low_vectors_, 1 / std::sqrt(static_cast<double>(o.coords)), "low_rank_vectors");
    low_log_weights_.fill_(-1);
  }
  project({});
}

void GeometricMemory::set_input_scaling(const at::Tensor& mean, const at::Tensor& deviation) {
  input_mean_.copy_(mean);
  input_deviation_.copy_(deviation);
}

at::Tensor GeometricMemory::cell_resilience() const {
  if (options_.resilience == Resilience::curvature) {
    // The weak-field metric (1 + h) delta over two dimensions has one curvature R_0101 = -Lap h / 2, and the
    // contraction ops::resilience_from_curvature makes |Lap h| / 4 of it. Here |Lap h| is the root mean square over
    // cells and components.
    const at::Tensor bend = ops::complex_field_laplacian(field_, /*periodic=*/true);
    return ((bend.square().sum(-1).mean() + kBendEps).sqrt() / 4 + kFieldEps).sqrt().view(1);
  }
  const at::Tensor squares = field_.square().sum(-1);
  const at::Tensor means =
      options_.resilience == Resilience::slots ? squares.mean(-1).flatten() : squares.mean().view(1);
  return (means + kFieldEps).sqrt();
}

at::Tensor GeometricMemory::slot_resilience(const at::Tensor& cells) const {
  const int64_t slots = options_.slots + options_.episodes, count = cells.size(0);
  return cells.repeat({(slots + count - 1) / count}).narrow(0, 0, slots);
}

at::Tensor GeometricMemory::key_norm() const {
  const at::Tensor learned = keys_.square().sum();
  return (ring_keys_.defined() ? learned + ring_keys_.square().sum() : learned).sqrt();
}

at::Tensor GeometricMemory::metric_eigenvalues() const {
  return log_metric_.defined() ? log_metric_.exp() : block_eigenvalues(ops::block_factors(metric_blocks_));
}

// An upper bound of the metric's largest eigenvalue; exact without a low-rank part.
at::Tensor GeometricMemory::largest_metric() const {
  const at::Tensor largest = metric_eigenvalues().max();
  if (options_.low_rank == 0) return largest;
  return largest + low_log_weights_.max().exp() * low_vectors_.square().sum();
}

// How stiffly the chart state is tied to its input. Hidden units give way: without them it is kappa.
at::Tensor GeometricMemory::effective_kappa() const {
  const double kappa = options_.constants.kappa;
  if (options_.hidden == 0) return at::full({}, kappa, keys_.options());
  return 1 / (1 / kappa + squared_norm_bound(encoder_->weight));
}

double GeometricMemory::longest_value() const {
  return std::sqrt(options_.margin / (2 * options_.constants.gamma * options_.constants.retrieval_beta));
}

GeometricMemory::Window GeometricMemory::prepare(bool half_values) const {
  const GeometricMemoryOptions& o = options_;
  const ops::GeometricConstants& c = o.constants;
  Window window;
  window.rotor = ops::rotor_matrix(angles_, o.coords);
  if (log_metric_.defined()) {
    window.root_metric = (0.5 * log_metric_).exp();
    window.scaling = window.root_metric.unsqueeze(1) * window.rotor;
    window.unscaling = window.rotor / window.root_metric.unsqueeze(1);
  } else {
    window.factors = ops::block_factors(metric_blocks_);
    window.scaling = blocks_times(window.factors.transpose(1, 2), window.rotor);
    window.unscaling = blocks_times(inverse_factors(window.factors), window.rotor);
  }
  if (o.low_rank > 0) {
    window.scaling = at::cat({window.scaling, (0.5 * low_log_weights_).exp().unsqueeze(1) * low_vectors_.t()});
  }
  window.metric = window.scaling.matmul(window.scaling.t());
  window.cells = cell_resilience();

  const at::Tensor keys = o.episodes > 0 ? at::cat({keys_, ring_keys_}) : keys_;
  const at::Tensor values = o.episodes > 0 ? at::cat({values_, ring_values_}) : values_;
  window.slots.keys = keys.matmul(window.scaling.t());
  window.slots.key_norms = window.slots.keys.square().sum(-1);
  window.slots.resilience = slot_resilience(window.cells);
  window.slots.values = half_values ? values.to(at::kHalf) : values;
  window.slots.filled = filled_;

  if (o.hidden > 0) {
    window.up = window.scaling.matmul(encoder_->weight);
    // The first n scaled coordinates give the chart back.
    at::Tensor inverse = window.unscaling.t();  // (n, n): x = inverse X
    if (o.low_rank > 0) inverse = at::cat({inverse, at::zeros({o.coords, o.low_rank}, inverse.options())}, 1);
    window.down = encoder_->weight.t().matmul(inverse);
  }

  const at::NoGradGuard no_grad;
  at::Tensor stiffness = c.kappa + window.cells.max() * largest_metric() / std::sqrt(c.cost_eps);
  at::Tensor hidden_rate = at::ones_like(stiffness);
  if (o.hidden > 0) {
    const at::Tensor coupling = c.kappa * squared_norm_bound(encoder_->weight);
    stiffness = stiffness + coupling;
    hidden_rate = 1 / (1 + c.kappa + coupling);
  }
  const at::Tensor limit = 2 * o.beta_share * c.gamma / squared_norm_bound(readout_->weight);
  window.rates =
      at::stack({1 / stiffness, at::full_like(stiffness, 0.5 / c.gamma), limit.clamp_max(o.beta_cap), hidden_rate});
  return window;
}

GeometricMemory::Drive GeometricMemory::drive(const Window& window, const at::Tensor& inputs) const {
  Drive drive{.inputs = inputs, .drive = {}, .hidden = {}};
  at::Tensor chart;
  if (hidden_) {
    drive.hidden = inputs.matmul(hidden_->weight.t()) + hidden_->bias;
    chart = encoder_->bias.unsqueeze(0).expand({inputs.size(0), options_.coords});
  } else {
    chart = inputs.matmul(encoder_->weight.t()) + encoder_->bias;
  }
  drive.drive = chart.matmul(window.scaling.t());
  return drive;
}

ops::GeometricHidden GeometricMemory::hidden_state(const Window& window, const Drive& drive,
                                                   const at::Tensor& h) const {
  if (!hidden_) return {};
  return {.state = h, .drive = drive.hidden, .up = window.up, .down = window.down};
}

namespace {

// The state that a free phase starts from: x at its drive, o = 0, h = drive of h.
struct Start {
  Start(const GeometricMemory::Window& window, const GeometricMemory::Drive& drive, int64_t width) {
    o = at::zeros({drive.drive.size(0), width}, drive.drive.options());
    if (drive.hidden.defined()) {
      h = drive.hidden.clamp(0, 1);
      offset = h.matmul(window.up.t());
    } else {
      offset = at::zeros_like(drive.drive);
    }
  }
  at::Tensor offset, o, h;
};

}  // namespace

ops::GeometricState GeometricMemory::free_phase(const Window& window, const Drive& drive, int64_t steps) const {
  const Start start(window, drive, options_.width);
  return ops::geometric_relax(drive.drive, start.offset, start.o, window.slots, window.metric, window.rates, {},
                              hidden_state(window, drive, start.h), steps, options_.constants, options_.momentum);
}

ops::GeometricState GeometricMemory::nudged_phase(const Window& window, const Drive& drive,
                                                  const ops::GeometricState& start, const at::Tensor& targets,
                                                  const at::Tensor& signs, int64_t steps) const {
  const ops::GeometricNudge nudge{
      .readout = readout_->weight, .bias = readout_->bias, .targets = targets, .signs = signs};
  return ops::geometric_relax(drive.drive, start.offset, start.o, window.slots, window.metric, window.rates, nudge,
                              hidden_state(window, drive, start.h), steps, options_.constants, options_.momentum);
}

at::Tensor GeometricMemory::logits(const at::Tensor& o) const {
  return o.matmul(readout_->weight.t()) + readout_->bias;
}

at::Tensor GeometricMemory::chart(const Window& window, const at::Tensor& x) const {
  return x.narrow(1, 0, options_.coords).matmul(window.unscaling);
}

void GeometricMemory::place(Gradients& gradients, std::string_view name, const at::Tensor& gradient) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) gradients[static_cast<size_t>(found - names_.begin())] = gradient;
}

at::Tensor GeometricMemory::backprop_loss(const at::Tensor& inputs, const at::Tensor& targets, int64_t steps) const {
  const Window window = prepare(/*half_values=*/false);
  const Drive in = drive(window, inputs);
  const Start start(window, in, options_.width);
  const ops::GeometricState state =
      ops::reference::geometric_relax(in.drive, start.offset, start.o, window.slots, window.metric, window.rates, {},
                                      hidden_state(window, in, start.h), steps, options_.constants, options_.momentum);
  return at::cross_entropy_loss(logits(state.o), targets);
}

namespace {

// Sums the rows that share an input: those of both phases, one below the other.
at::Tensor rows_of_inputs(const at::Tensor& rows, int64_t inputs) {
  return rows.size(0) == inputs ? rows : rows.view({-1, inputs, rows.size(1)}).sum(0);
}

}  // namespace

Gradients GeometricMemory::energy_gradients(const Window& window, const Drive& drive, const ops::GeometricState& state,
                                            const at::Tensor& scales) const {
  const GeometricMemoryOptions& o = options_;
  const ops::GeometricConstants& c = o.constants;
  const ops::GeometricSlots& slots = window.slots;
  const at::Tensor x = drive.drive + state.offset;
  const ops::ContrastiveStatistics sums = ops::contrastive_statistics(x, state.o, state.log_sum, scales, slots, c);
  Gradients gradients(names_.size());
  const auto set = [&](const char* name, const at::Tensor& gradient) { place(gradients, name, gradient); };

  const auto of_inputs = [&](const at::Tensor& rows) { return rows_of_inputs(rows, drive.inputs.size(0)); };
  // The encoder's residual x - A u - a in chart coordinates, times its scale.
  const at::Tensor strain = state.h.defined() ? state.offset - state.h.matmul(window.up.t()) : state.offset;
  const at::Tensor residual = chart(window, strain) * scales.unsqueeze(1);
  set("encoder.weight",
      -c.kappa * (state.h.defined() ? residual.t().matmul(state.h) : of_inputs(residual).t().matmul(drive.inputs)));
  set("encoder.bias", -c.kappa * residual.sum(0));
  if (hidden_) {
    const at::Tensor difference = (state.h - drive.hidden) * scales.unsqueeze(1);
    set("hidden.weight", -of_inputs(difference).t().matmul(drive.inputs));
    set("hidden.bias", -difference.sum(0));
  }

  set("values", -c.gamma * sums.values.narrow(0, 0, o.slots));
  // Behind the filled slots the sums are zero but the keys may be anything.
  at::Tensor keys = slots.keys;
  if (slots.filled.defined()) {
    const at::Tensor empty = at::arange(keys.size(0), keys.options().dtype(at::kLong)).ge(slots.filled);
    keys = keys.masked_fill(empty.unsqueeze(1), 0);
  }
  const at::Tensor pulls = sums.pulls.unsqueeze(1);
  set("keys", (pulls * keys - sums.pulled).narrow(0, 0, o.slots).matmul(window.scaling));

  // N = sum scales e (Kt - X)(Kt - X)^T: all that the metric and the rotor need.
  const at::Tensor cross = keys.t().matmul(sums.pulled);
  const at::Tensor outer =
      keys.t().matmul(pulls * keys) + x.t().matmul((scales * sums.row_pulls).unsqueeze(1) * x) - cross - cross.t();
  const at::Tensor diagonal = 0.5 * outer.diagonal();
  const at::Tensor inner = outer.narrow(0, 0, o.coords).narrow(1, 0, o.coords);
  at::Tensor turning;  // dE/dQ Q^T = L N L^-1
  if (log_metric_.defined()) {
    set("log_metric", diagonal.narrow(0, 0, o.coords));
    turning = window.root_metric.unsqueeze(1) * inner / window.root_metric.unsqueeze(0);
  } else {
    // dE/dL = L^-T N, of which the blocks count.
    const at::Tensor inverse = inverse_factors(window.factors), back = inverse.transpose(1, 2);
    const int64_t pairs = o.coords / 2;
    const at::Tensor by_factor = back.matmul(inner.reshape({pairs, 2, pairs, 2}).diagonal(0, 0, 2).permute({2, 0, 1}));
    const at::Tensor slopes = metric_blocks_.sigmoid();  // of softplus
    set("metric_blocks",
        at::stack({by_factor.select(1, 0).select(1, 0) * slopes.select(1, 0), by_factor.select(1, 1).select(1, 0),
                   by_factor.select(1, 1).select(1, 1) * slopes.select(1, 2)},
                  1));
    turning = blocks_times(back, blocks_times(window.factors, inner).t()).t();
  }
  if (o.angles > 0 && o.rotor == RotorSource::trained) {
    set("angles", ops::rotor_angle_gradient(angles_, turning));
  }
  if (o.low_rank > 0) {
    // sum e z z^T u_j sqrt D_j in scaled coordinates, back to the chart.
    const at::Tensor mixed = outer.narrow(0, 0, o.coords).narrow(1, o.coords, o.low_rank);
    set("low_rank_vectors", window.unscaling.t().matmul(mixed) * (0.5 * low_log_weights_).exp());
    set("low_rank_log_weights", diagonal.narrow(0, o.coords, o.low_rank));
  }

  if (o.resilience == Resilience::curvature) {
    // R = (a / 4 + eps)^(1/2), a = (mean |Lap T|^2 + eps)^(1/2); the Laplacian is symmetric.
    const at::Tensor bend = ops::complex_field_laplacian(field_, /*periodic=*/true);
    const at::Tensor size = (bend.square().sum(-1).mean() + kBendEps).sqrt();
    const auto values = static_cast<double>(o.field_rows * o.field_cols * o.field_dim);
    set("field", ops::complex_field_laplacian(bend, /*periodic=*/true) *
                     (sums.costs.sum() / (8 * values * window.cells * size)));
    return gradients;
  }
  const int64_t cells = window.cells.size(0), count = sums.costs.size(0), whole = (count + cells - 1) / cells * cells;
  const at::Tensor by_cell =
      at::constant_pad_nd(sums.costs, {0, whole - count}).view({-1, cells}).sum(0) / window.cells;
  const int64_t averaged = o.field_dim * (cells == 1 ? o.field_rows * o.field_cols : 1);
  const at::Tensor factors = by_cell / static_cast<double>(averaged);
  set("field", field_ * (cells == 1 ? factors.view({1, 1, 1, 1}) : factors.view({o.field_rows, o.field_cols, 1, 1})));
  return gradients;
}

// A low-rank part takes half of what the metric may have.
at::Tensor GeometricMemory::largest_metric_allowed() const {
  const at::Tensor limit =
      options_.margin / 2 * effective_kappa() / (options_.constants.retrieval_beta * cell_resilience().max().square());
  return limit / (options_.low_rank > 0 ? 2 : 1);
}

void GeometricMemory::project_metric(const at::Tensor& skip) {
  const at::Tensor most = largest_metric_allowed().clamp_max(ops::kMostMetric);
  if (log_metric_.defined()) {
    update(log_metric_, at::minimum(log_metric_, most.log()).clamp_min(std::log(ops::kLeastMetric)), skip);
    return;
  }
  // A diagonal below the least is raised where the bound, which one equilibrium needs, leaves room for it.
  const at::Tensor factors = ops::block_factors(metric_blocks_), least = at::zeros_like(factors);
  least.diagonal(0, 1, 2).fill_(std::sqrt(ops::kLeastMetric));
  const auto larger = [](const at::Tensor& blocks) { return block_eigenvalues(blocks).narrow(0, 0, blocks.size(0)); };
  const at::Tensor raised = at::where(least.gt(0), at::maximum(factors, least), factors);
  const at::Tensor roomy = at::where(larger(raised).le(most).view({-1, 1, 1}), raised, factors);
  const at::Tensor scaled = roomy * (most / larger(roomy)).clamp_max(1).sqrt().view({-1, 1, 1});
  const at::Tensor a = scaled.select(1, 0).select(1, 0), b = scaled.select(1, 1).select(1, 0),
                   c = scaled.select(1, 1).select(1, 1);
  // What obeys keeps its bits.
  const at::Tensor same = scaled.eq(factors).all(2).all(1).unsqueeze(1);
  update(metric_blocks_, at::where(same, metric_blocks_, at::stack({inverse_softplus(a), b, inverse_softplus(c)}, 1)),
         skip);
}

at::Tensor GeometricMemory::derived_angles() const {
  const int64_t n = options_.coords, pairs = n / 2, count = options_.angles;
  const at::Tensor centred = keys_ - keys_.mean(0);
  at::Tensor covariance = centred.t().matmul(centred) / static_cast<double>(keys_.size(0));
  const at::Tensor index = at::arange(pairs, angles_.options().dtype(at::kLong));
  std::vector<at::Tensor> layers;
  for (int64_t first = 0; first < count; first += pairs) {
    const int64_t layer = first / pairs, here = std::min(pairs, count - first);
    const at::Tensor a = (2 * index.narrow(0, 0, here) + layer).remainder(n), b = (a + 1).remainder(n);
    const at::Tensor spread = covariance.diagonal(), cross = covariance.flatten().index_select(0, a * n + b);
    // Turns the covariance of a and b to 0, as does each quarter turn more.
    const at::Tensor angle = 0.5 * at::atan2(-2 * cross, spread.index_select(0, a) - spread.index_select(0, b));
    const at::Tensor before = angles_.narrow(0, first, here);
    layers.push_back(angle + (0.5 * M_PI) * ((before - angle) / (0.5 * M_PI)).round());
    const at::Tensor turn = ops::rotor_matrix(at::cat({at::zeros({first}, angles_.options()), layers.back()}), n);
    covariance = turn.matmul(covariance).matmul(turn.t());
  }
  return at::cat(layers);
}

void GeometricMemory::project(const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const at::Tensor norms = values_.square().sum(-1, true).sqrt();
  update(values_, values_ * (longest_value() / norms.clamp_min(1e-30)).clamp_max(1), skip);

  project_metric(skip);
  if (options_.low_rank > 0) {
    const at::Tensor size = low_log_weights_.exp().max() * low_vectors_.square().sum();
    const at::Tensor share = largest_metric_allowed();
    update(low_vectors_, low_vectors_ * (share / size.clamp_min(1e-30)).clamp_max(1).sqrt(), skip);
  }
  if (options_.angles > 0) {
    const at::Tensor angles = options_.rotor == RotorSource::keys ? derived_angles() : angles_;
    update(angles_, ops::wrap_angles(angles), skip);
  }
}

at::Tensor GeometricMemory::contraction(const Window& window) const {
  const ops::GeometricConstants& c = options_.constants;
  return c.retrieval_beta * (window.cells.max().square() * largest_metric() / effective_kappa() +
                             c.gamma * values_.square().sum(-1).max());
}

void GeometricMemory::commit_episodes(const Window& window, const at::Tensor& x, const at::Tensor& targets,
                                      const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::min(x.size(0), options_.episodes);
  const at::Tensor places_in_chart = chart(window, x.narrow(0, 0, rows));
  const at::Tensor directions = readout_->weight.index_select(0, targets.narrow(0, 0, rows));
  const at::Tensor lengths = directions.square().sum(-1, true).sqrt().clamp_min(1e-30);
  const at::Tensor places = (ring_position_ + at::arange(rows, ring_position_.options())).remainder(options_.episodes);
  update(ring_keys_, ring_keys_.index_copy(0, places, places_in_chart), skip);
  update(ring_values_, ring_values_.index_copy(0, places, 0.9 * longest_value() * directions / lengths), skip);
  update(ring_position_, (ring_position_ + rows).remainder(options_.episodes), skip);
  update(filled_, (filled_ + rows).clamp_max(options_.slots + options_.episodes), skip);
}

}  // namespace hrm::models
