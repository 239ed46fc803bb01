#include "hrm/nn/fp8_linears.h"

#include <ATen/ATen.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/linear.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A maximum above the range by rounding alone saturates nothing.
constexpr double kBeyondRange = 1 + 1e-5;

// ops::linear that raises the slots of its input and of its gradient. The master is an argument so that the node exists
// whenever it trains. A layer without a copy of its weight casts its master in both passes, so that no copy is kept.
struct GatheringLinear : torch::autograd::Function<GatheringLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& master, const Linear& linear,
                            const at::Tensor& x_slot, const at::Tensor& grad_slot) {
    ops::fp8_raise_amax_(x, x_slot);
    const bool trains = master.requires_grad();
    const at::Tensor weight = linear.compute_weight().detach();
    ctx->save_for_backward({trains ? x : at::Tensor(), linear.casts_weight() ? master : weight});
    ctx->saved_data["dtype"] = weight.scalar_type();
    ctx->saved_data["needs_x"] = x.requires_grad();
    // Slots and buffers are not saved variables, because each use adds to them in place.
    ctx->saved_data["grad_slot"] = grad_slot;
    ctx->saved_data["grad_weight"] = ops::gradient_buffer(master);
    return ops::linear(x, weight, master);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a layer that gathers maxima has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &grad_y = grads[0];
    ops::fp8_raise_amax_(grad_y, ctx->saved_data["grad_slot"].toTensor());
    if (x.defined()) {
      ops::linear_accumulate_(ctx->saved_data["grad_weight"].toTensor(), grad_y.reshape({-1, weight.size(0)}),
                              x.reshape({-1, weight.size(1)}));
    }
    variable_list out(5);
    if (ctx->saved_data["needs_x"].toBool()) {
      out[0] = ops::linear_grad_x(grad_y, weight.detach().to(ctx->saved_data["dtype"].toScalarType()));
    }
    return out;
  }
};

struct RowsOf {
  at::Tensor values;
  Fp8Layer::Rows weight;
  at::Tensor x_slot, grad_slot;
  Fp8Shared shared;
};

// The product and the input's gradient with a scale for each row of both operands. A weight's gradient sums over
// tokens, whose scales could not leave the sum: its operands have one scale each, of their own maximum.
struct RowsLinear : torch::autograd::Function<RowsLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& master,
                            const std::optional<at::Tensor>& residual, const RowsOf& of) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const auto [values, scales] = ops::quantize_fp8_rows(rows);
    at::Tensor x_slot, x_t;
    if (master.requires_grad()) {
      x_slot = ops::fp8_scale_now(rows, of.x_slot, of.shared.margin);
      x_t = std::get<1>(ops::quantize_fp8_pair(rows, x_slot, /*e5m2=*/false, /*values=*/false, /*transposed=*/true));
    } else {
      ops::fp8_raise_amax_(rows, of.x_slot);
    }
    ctx->saved_data["of"] = std::vector<at::Tensor>{of.weight.transposed, of.weight.transposed_scales, of.grad_slot,
                                                    x_slot, ops::gradient_buffer(master)};
    ctx->saved_data["margin"] = of.shared.margin;
    ctx->saved_data["e5m2"] = of.shared.e5m2;
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    ctx->save_for_backward({x_t});
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = of.values.size(0);
    const auto added = residual ? std::optional(residual->reshape({rows.size(0), -1})) : std::nullopt;
    return ops::fp8_rows_product(values, of.values, scales, of.weight.scales, x.scalar_type(), added).view(sizes);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a layer in 8 bits has no second derivative");
    const at::Tensor x_t = ctx->get_saved_variables()[0];
    const std::vector<at::Tensor> of = ctx->saved_data["of"].toTensorVector();
    const at::Tensor &weight_t = of[0], &weight_scales = of[1], &grad_slot = of[2], &x_slot = of[3], &buffer = of[4];
    const at::Tensor rows = grads[0].reshape({-1, grads[0].size(-1)});
    variable_list out(4);
    if (ctx->saved_data["has_residual"].toBool()) out[2] = grads[0];
    if (ctx->saved_data["needs_x"].toBool()) {
      const auto [values, scales] = ops::quantize_fp8_rows(rows);
      std::vector<int64_t> sizes = grads[0].sizes().vec();
      sizes.back() = weight_t.size(0);
      out[0] = ops::fp8_rows_product(values, weight_t, scales, weight_scales, rows.scalar_type()).view(sizes);
    }
    if (!buffer.defined()) {
      ops::fp8_raise_amax_(rows, grad_slot);
      return out;
    }
    const at::Tensor now = ops::fp8_scale_now(rows, grad_slot, ctx->saved_data["margin"].toDouble());
    const at::Tensor grad_t = std::get<1>(
        ops::quantize_fp8_pair(rows, now, ctx->saved_data["e5m2"].toBool(), /*values=*/false, /*transposed=*/true));
    ops::fp8_accumulate_(buffer, grad_t, x_t, now, x_slot);
    return out;
  }
};

std::string names_of(const std::vector<NamedLinear>& layers) {
  std::string names;
  for (const NamedLinear& layer : layers) names += (names.empty() ? "" : ", ") + layer.name;
  return names;
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

Fp8Layer::Fp8Layer(std::shared_ptr<const Fp8Shared> shared, ops::Fp8Weight weight, at::Tensor x_slot,
                   at::Tensor grad_slot, Rows rows)
    : shared_(std::move(shared)),
      weight_(std::move(weight)),
      x_slot_(std::move(x_slot)),
      grad_slot_(std::move(grad_slot)),
      rows_(std::move(rows)) {}

bool Fp8Layer::runs() const {
  return shared_->mode != Fp8Mode::off && at::GradMode::is_enabled();
}

bool Fp8Layer::quantises() const {
  return runs() && (shared_->mode == Fp8Mode::delayed || shared_->mode == Fp8Mode::current);
}

std::optional<double> Fp8Layer::margin() const {
  return shared_->mode == Fp8Mode::current ? std::optional(shared_->margin) : std::nullopt;
}

at::Tensor Fp8Layer::forward(const at::Tensor& x, const Linear& linear, const at::Tensor& residual,
                             bool x_is_kept) const {
  const at::Tensor& master = linear.weight();
  if (shared_->mode == Fp8Mode::gather) {
    const at::Tensor y = GatheringLinear::apply(x, master, linear, x_slot_, grad_slot_);
    return residual.defined() ? residual + y : y;
  }
  const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
  if (shared_->mode == Fp8Mode::rows) {
    return RowsLinear::apply(x, master, optional(residual),
                             RowsOf{weight_.values, rows_, x_slot_, grad_slot_, *shared_});
  }
  return ops::fp8_linear(x, weight_, x_slot_, grad_slot_, shared_->e5m2, master, optional(ops::gradient_buffer(master)),
                         margin(), optional(residual), x_is_kept && is_wide());
}

std::vector<NamedLinear> without_skipped(const std::vector<NamedLinear>& layers, const std::string& patterns) {
  std::vector<NamedLinear> left = layers;
  for (const std::string& pattern : split_list(patterns)) {
    const auto skipped = [&](const NamedLinear& layer) { return matches(pattern, layer.name); };
    require(std::any_of(layers.begin(), layers.end(), skipped), ExitCode::usage, "precision.fp8_skip: '", pattern,
            "' matches no linear layer; there are ", names_of(layers));
    std::erase_if(left, skipped);
  }
  return left;
}

Fp8Linears::Fp8Linears(const std::vector<NamedLinear>& layers, const Fp8LinearsOptions& options)
    : options_(options), layers_(without_skipped(layers, options.skip)), shared_(std::make_shared<Fp8Shared>()) {
  const at::NoGradGuard no_grad;
  require(!layers_.empty(), ExitCode::usage,
          layers.empty() ? "the model has no linear layer" : "no linear layer is left",
          " that could multiply in fp8; set precision.blocks to same",
          layers.empty() ? "" : ", or shorten precision.fp8_skip");
  for (const NamedLinear& layer : layers_) {
    const at::Tensor& weight = layer.linear->weight();
    require(weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0, ExitCode::usage, "the linear layer ", layer.name,
            " multiplies ", weight.size(1), " by ", weight.size(0),
            " values, but fp8 needs multiples of 16; change the widths in section lm, or skip it by ",
            "precision.fp8_skip=", layer.name);
  }
  shared_->margin = options.margin;
  shared_->e5m2 = options.e5m2;
  shared_->wide_weight = options.wide_weight;
  const auto all = all_ = static_cast<int64_t>(layers.size());
  const at::Device device = layers_.front().linear->weight().device();
  slots_ = ops::make_fp8_wide_slots(3 * all, false, device);
  history_ = at::zeros({2 * all, options.history}, slots_.options());
  values_ = at::zeros({static_cast<int64_t>(value_names().size())}, slots_.options().dtype(at::kDouble));
  std::vector<int64_t> places, inputs, outputs;
  for (const NamedLinear& layer : layers_) {
    const auto same = [&](const NamedLinear& other) { return other.linear == layer.linear; };
    places.push_back(std::find_if(layers.begin(), layers.end(), same) - layers.begin());
    inputs.push_back(layer.linear->weight().size(1));
    outputs.push_back(layer.linear->weight().size(0));
  }
  places_ = at::tensor(places, at::kLong).to(device);
  widths_ = at::cat({at::tensor(inputs, at::kDouble), at::tensor(outputs, at::kDouble)}).to(device);
  forget_scales();
  form_ = form_now();
  for (int64_t i = 0; i < count(); ++i) {
    Linear& linear = *layers_[static_cast<size_t>(i)].linear;
    const at::Tensor& weight = linear.weight();
    const auto options8 = slots_.options().dtype(at::kFloat8_e4m3fn);
    weights_.push_back({at::empty(weight.sizes(), options8), weight_slots().select(0, i)});
    if (weight.numel() < options.wide_weight && !options.rows) {
      weights_.back().transposed = at::empty({weight.size(1), weight.size(0)}, options8);
    }
    Fp8Layer::Rows rows;
    if (options.rows) {
      rows = {.transposed = at::empty({weight.size(1), weight.size(0)}, options8),
              .scales = at::ones({weight.size(0)}, slots_.options()),
              .transposed_scales = at::ones({weight.size(1)}, slots_.options())};
      rows_.push_back(rows);
    }
    linear.set_fp8(std::make_shared<const Fp8Layer>(shared_, weights_.back(), x_slots().select(0, i),
                                                    gradient_slots().select(0, i), std::move(rows)));
  }
}

Fp8Linears::~Fp8Linears() {
  shared_->mode = Fp8Mode::off;  // the layers may live longer
}

void Fp8Linears::begin_step(bool warm_up) {
  if (form_ != form_now()) {
    forget_scales();
    form_ = form_now();
  }
  shared_->mode = warm_up                           ? Fp8Mode::gather
                  : options_.rows                   ? Fp8Mode::rows
                  : options_.current || steps_ == 0 ? Fp8Mode::current
                                                    : Fp8Mode::delayed;
}

void Fp8Linears::quantize_weights() const {
  if (mode() == Fp8Mode::gather) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> weights, values, transposed;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Linear& linear = *layers_[i].linear;
    weights.push_back(linear.casts_weight() ? linear.weight().detach() : linear.compute_weight().detach());
    values.push_back(weights_[i].values);
    const at::Tensor& across = weights_[i].transposed;
    transposed.push_back(across.defined() ? across : at::empty({0}, values.back().options()));
  }
  const at::ScalarType compute = layers_.front().linear->compute_dtype();
  if (mode() != Fp8Mode::rows) {
    return ops::quantize_fp8_weights_(weights, values, transposed, weight_slots(), compute);
  }
  std::vector<at::Tensor> across, scales, transposed_scales;
  for (const Fp8Layer::Rows& rows : rows_) {
    across.push_back(rows.transposed);
    scales.push_back(rows.scales);
    transposed_scales.push_back(rows.transposed_scales);
  }
  ops::quantize_fp8_weight_rows_({weights, values, across, scales, transposed_scales}, weight_slots(), compute);
}

at::Tensor Fp8Linears::saturated() const {
  const at::NoGradGuard no_grad;
  const ops::Fp8Counts counts = ops::fp8_counts(slots_.narrow(0, 0, 2 * count()));
  const at::Tensor share = counts.clamped.to(at::kDouble) / (counts.rows.clamp_min(1) * widths_);
  return at::zeros({2, all_}, share.options()).index_copy_(1, places_, share.view({2, count()}));
}

at::Tensor Fp8Linears::layer_values() const {
  const at::NoGradGuard no_grad;
  const at::Tensor slots = slots_.narrow(0, 0, 3 * count());
  const at::Tensor amax = at::cat({history().select(1, 0), weight_slots().select(1, 2)});
  const at::Tensor both = at::stack({slots.select(1, 0).view({3, count()}), amax.view({3, count()})}, 1);
  const at::Tensor used = both.view({6, count()}).to(at::kDouble);
  return at::zeros({6, all_}, used.options()).index_copy_(1, places_, used);
}

at::Tensor Fp8Linears::maxima() const {
  return slots_.narrow(0, 0, 2 * count()).select(1, 2);
}

void Fp8Linears::update_scales() const {
  const at::NoGradGuard no_grad;
  const at::Tensor slots = slots_.narrow(0, 0, 3 * count()).view({3, count(), ops::kFp8WideSlot});
  const at::Tensor beyond = (slots.select(2, 2) * slots.select(2, 0)).gt(slots.select(2, 3) * kBeyondRange);
  const bool delayed = mode() == Fp8Mode::delayed;
  const at::Tensor saturated = delayed ? beyond.to(at::kDouble).mean(1) : at::zeros({3}, values_.options());
  ops::fp8_update_scales_(slots_.narrow(0, 0, 2 * count()), history(), options_.margin);
  const at::Tensor scales = slots.select(2, 0);
  const at::Tensor newest = at::cat({history().select(1, 0), slots.select(0, 2).select(1, 2)}).view({3, count()});
  values_.copy_(at::stack({scales.amax(1), scales.amin(1), newest.amax(1), saturated.to(at::kFloat)}, 1).flatten());
}

void Fp8Linears::forget_scales() {
  const at::NoGradGuard no_grad;
  slots_.copy_(ops::make_fp8_wide_slots(slots_.size(0), false, slots_.device()));
  if (options_.e5m2) gradient_slots().select(1, 3).fill_(ops::kFp8MaxE5m2);
  history_.zero_();
  values_.zero_();
  steps_ = 0;
}

std::vector<std::string> Fp8Linears::value_names() {
  std::vector<std::string> names;
  for (const char* kind : {"input", "gradient", "weight"}) {
    for (const char* value : {"scale_max", "scale_min", "amax", "saturated"}) names.push_back(cat(kind, "/", value));
  }
  return names;
}

int64_t Fp8Linears::form_now() const {
  return static_cast<int64_t>(hash_name(cat(names_of(layers_), options_.e5m2 ? ": e5m2" : ": e4m3")) >> 1);
}

void Fp8Linears::visit_state(StateVisitor& visitor) {
  visitor.tensor("fp8.slots", slots_, StateRole::loop);
  visitor.tensor("fp8.history", history_, StateRole::loop);
  visitor.tensor("fp8.values", values_, StateRole::loop);
  visitor.integer("fp8.form", form_);
  visitor.integer("fp8.steps", steps_);
}

}  // namespace hrm::nn
