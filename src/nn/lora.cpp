#include "hrm/nn/lora.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/formats/peft_config.h"
#include "hrm/ops/dropout.h"
#include "hrm/ops/lora.h"
#include "nn/adapted_product.h"
#include "ops/common/accumulate_type.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Slices = std::vector<ops::LoraSlice>;

// The masters are arguments so that the node exists whenever they are trained, even if x needs no gradient.
struct LoraLinear : torch::autograd::Function<LoraLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*A_master*/,
                            const at::Tensor& /*B_master*/, const std::optional<at::Tensor>& residual,
                            const AdaptedProduct* product) {
    const AdaptedProduct::Result result = product->forward(x, residual);
    ctx->save_for_backward(product->saved(x, result.u));
    product->keep(ctx, "product");
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["has_residual"] = residual.has_value();
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a low-rank adapter has no second derivative");
    const variable_list saved = ctx->get_saved_variables();
    const AdaptedGradient gradient = AdaptedGradient::of(ctx, "product", saved);
    variable_list result(5);
    result[0] = gradient.backward(grads[0], ctx->saved_data["needs_x"].toBool());
    if (ctx->saved_data["has_residual"].toBool()) result[3] = grads[0];
    return result;
  }
};

// Whether `name` equals `end` or ends with it at a dot.
bool is_or_ends_with(const std::string& name, const std::string& end) {
  return name == end || name.ends_with("." + end);
}

// z with the columns of each slice multiplied by magnitude / norm.
struct DoraScale : torch::autograd::Function<DoraScale> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& z, const at::Tensor& magnitude,
                            const at::Tensor& norms, const Slices* slices) {
    const at::Tensor factors = at::ones({z.size(-1)}, norms.options()), ratio = magnitude.to(norms.dtype()) / norms;
    for (const ops::LoraSlice& s : *slices) {
      factors.narrow(0, s.out, s.rows).copy_(ratio.narrow(0, s.first, s.rows));
    }
    ctx->save_for_backward({z, factors, norms});
    ctx->saved_data["needs_magnitude"] = magnitude.requires_grad();
    std::vector<int64_t> flat;
    for (const ops::LoraSlice& s : *slices) flat.insert(flat.end(), {s.out, s.rows});
    ctx->saved_data["slices"] = flat;
    return z.to(factors.scalar_type()).mul(factors).to(z.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &z = saved[0], &factors = saved[1], &norms = saved[2];
    const at::Tensor grad = grads[0].to(factors.scalar_type());
    at::Tensor grad_magnitude;
    if (ctx->saved_data["needs_magnitude"].toBool()) {
      const at::Tensor sums = matrix_of(grad * z.to(factors.scalar_type())).sum(0);
      const std::vector<int64_t> flat = ctx->saved_data["slices"].toIntVector();
      std::vector<at::Tensor> parts;
      for (size_t i = 0; i < flat.size(); i += 2) parts.push_back(sums.narrow(0, flat[i], flat[i + 1]));
      grad_magnitude = at::cat(parts).div_(norms);
    }
    return {grad.mul(factors).to(z.scalar_type()), grad_magnitude, at::Tensor(), at::Tensor()};
  }
};

// Experts have adapters alike, and only plain ones.
void check_experts(const AdaptableLinear& layer, const std::vector<bool>& wanted, const LoraOptions& options,
                   ExitCode code, const std::string& where) {
  const auto parts = static_cast<size_t>(layer.expert_parts);
  if (parts == 0) return;
  for (size_t i = parts; i < wanted.size(); ++i) {
    require(wanted[i] == wanted[i - parts], code, where, "the targets match '",
            layer.parts[wanted[i] ? i : i - parts].name, "' but not '", layer.parts[wanted[i] ? i - parts : i].name,
            "'; an adapter is on all experts of a layer or on none");
  }
  require(options.dropout == 0 && !options.dora, code, where,
          "adapters on experts have no dropout and no DoRA; set lora.dropout=0 and lora.dora=false, or leave the "
          "experts out of lora.targets");
}

// Uniform in +-bound; a function of (seed, name) only. A part gets the values that it has in the whole.
void uniform_(const at::Tensor& tensor, double bound, uint64_t seed, const std::string& name, const ParameterCut& cut) {
  const at::Tensor values = at::empty(cut.whole_sizes(tensor.sizes()), at::kFloat);
  CounterRng rng(seed, Stream::init, hash_name(name));
  float* to = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) to[i] = static_cast<float>(bound * (2.0 * rng.uniform() - 1.0));
  tensor.copy_(cut.whole() ? values : cut.part_of(values));
}

}  // namespace

double lora_scale(const LoraOptions& o) {
  const auto rank = static_cast<double>(o.rank);
  return o.alpha / (o.rslora ? std::sqrt(rank) : rank);
}

LoraAdapter::LoraAdapter(int64_t in, const std::vector<LoraPart>& parts, const std::vector<bool>& wanted,
                         std::shared_ptr<LoraShared> shared, at::Device device, const ParameterCut& cut)
    : shared_(std::move(shared)) {
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LoraPart& part = parts[i];
    if (wanted[i]) {
      slices_.push_back({.out = out_, .first = rows, .rows = part.rows});
      rows += part.rows;
      targets_.push_back(part);
    }
    out_ += part.rows;
  }
  const int64_t rank = shared_->options.rank;
  lora_A_ =
      register_module("lora_A", std::make_shared<Linear>(in, rank * static_cast<int64_t>(targets_.size()), device));
  lora_B_ = register_module("lora_B", std::make_shared<Linear>(rank, rows, device));
  if (cut.by == CutBy::columns) {
    lora_A_->set_cut(cut);
  } else if (!cut.whole()) {
    ParameterCut of_targets = cut;
    // Adapters see the pieces of a layer each, or the layer as one.
    if (parts.size() > 1) {
      of_targets.pieces.clear();
      for (const LoraPart& target : targets_) of_targets.pieces.push_back(cut.cut.parts * target.rows);
    }
    lora_B_->set_cut(of_targets);
  }
  if (shared_->options.dora) {
    magnitude_ = register_parameter("lora_magnitude_vector", at::ones({rows}, at::device(device)));
  }
}

DropoutColumns LoraAdapter::columns() const {
  const ParameterCut& cut = lora_A_->cut();
  if (cut.whole()) return {};
  return {.first = cut.boxes().front().there, .all = cut.pieces.front()};
}

AdaptedProduct LoraAdapter::product(const FrozenWeight& weight, bool drops) const {
  const LoraOptions& o = shared_->options;
  return {.weight = weight,
          .A = lora_A_->compute_weight(),
          .B = lora_B_->compute_weight(),
          .A_master = lora_A_->weight(),
          .B_master = lora_B_->weight(),
          .slices = slices_,
          .scale = lora_scale(o),
          .p = drops && at::GradMode::is_enabled() && shared_->drops ? o.dropout : 0,
          .seed = seed_,
          .step = shared_->step,
          .columns = columns()};
}

at::Tensor LoraAdapter::forward(const at::Tensor& x, const FrozenWeight& weight,
                                const std::optional<at::Tensor>& residual) const {
  if (shared_->options.dora) {
    const at::Tensor y = dora_forward(x, weight);
    return residual ? *residual + y : y;
  }
  const AdaptedProduct adapted = product(weight);
  if (!at::GradMode::is_enabled()) return adapted.forward(x, residual).y;
  return LoraLinear::apply(x, adapted.A_master, adapted.B_master, residual, &adapted);
}

at::Tensor LoraAdapter::dora_forward(const at::Tensor& x, const FrozenWeight& weight) const {
  const at::Tensor norms = dora_norms(weight.read());
  const AdaptedProduct plain = product(weight, /*drops=*/false);
  if (!at::GradMode::is_enabled()) return DoraScale::apply(plain.forward(x).y, magnitude_, norms, &slices_);
  const auto adapted = [&](const at::Tensor& in) {
    const at::Tensor z = LoraLinear::apply(in, plain.A_master, plain.B_master, std::nullopt, &plain);
    return DoraScale::apply(z, magnitude_, norms, &slices_);
  };
  const double p = product(weight).p;
  if (p == 0) return adapted(x);
  const at::Tensor dropped = ops::dropout(x, shared_->step, p, seed_);
  return frozen_linear(x - dropped, weight, adapted(dropped));
}

at::Tensor LoraAdapter::adapted_rows(size_t target, const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = ops::accumulate_type(weight);
  const ops::LoraSlice& s = slices_[target];
  const int64_t rank = shared_->options.rank;
  const at::Tensor A = lora_A_->compute_weight().narrow(0, static_cast<int64_t>(target) * rank, rank).to(type);
  const at::Tensor B = lora_B_->compute_weight().narrow(0, s.first, s.rows).to(type);
  return at::addmm(weight.narrow(0, s.out, s.rows).to(type), B, A, 1, lora_scale(shared_->options));
}

at::Tensor LoraAdapter::dora_norms(const at::Tensor& weight) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (size_t i = 0; i < slices_.size(); ++i) {
    norms.push_back(at::linalg_vector_norm(adapted_rows(i, weight), 2, at::IntArrayRef{1}));
  }
  // A zero row has norm 0; the clamp avoids a division by it.
  return at::cat(norms).clamp_min_(std::numeric_limits<float>::min());
}

void LoraAdapter::begin_dora(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  for (const ops::LoraSlice& s : slices_) {
    const at::Tensor rows = weight.narrow(0, s.out, s.rows).to(ops::accumulate_type(weight));
    magnitude_.narrow(0, s.first, s.rows).copy_(at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}));
  }
}

void LoraAdapter::merge_dora(const at::Tensor& weight) {
  if (!merged_.defined()) merged_ = at::empty_like(weight);
  merge_dora(weight, merged_);
}

void LoraAdapter::merge_dora(const at::Tensor& weight, const at::Tensor& merged) const {
  const at::NoGradGuard no_grad;
  const at::Tensor factors = magnitude_.to(ops::accumulate_type(weight)) / dora_norms(weight);
  if (!merged.is_same(weight)) merged.copy_(weight);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const ops::LoraSlice& s = slices_[i];
    merged.narrow(0, s.out, s.rows)
        .copy_(adapted_rows(i, weight).mul_(factors.narrow(0, s.first, s.rows).unsqueeze(1)));
  }
}

ops::LoraLayer LoraAdapter::to_merge(const at::Tensor& weight) {
  if (!merged_.defined()) merged_ = at::empty_like(weight);
  return to_merge(weight, merged_);
}

ops::LoraLayer LoraAdapter::to_merge(const at::Tensor& weight, const at::Tensor& merged) const {
  return {.merged = merged,
          .weight = weight,
          .A = lora_A_->compute_weight(),
          .B = lora_B_->compute_weight(),
          .slices = slices_};
}

std::vector<LoraAdapter::Pair> LoraAdapter::pairs() const {
  const int64_t rank = shared_->options.rank;
  std::vector<Pair> result;
  for (size_t i = 0; i < slices_.size(); ++i) {
    result.push_back({targets_[i].name, lora_A_->weight().detach().narrow(0, static_cast<int64_t>(i) * rank, rank),
                      lora_B_->weight().detach().narrow(0, slices_[i].first, slices_[i].rows)});
    if (magnitude_.defined()) {
      result.back().magnitude = magnitude_.detach().narrow(0, slices_[i].first, slices_[i].rows);
    }
    result.back().A_cut = lora_A_->cut();
    result.back().B_cut = lora_B_->cut();
    // Several targets are pieces of one B.
    if (slices_.size() > 1 && !lora_B_->cut().whole()) result.back().B_cut.pieces = {lora_B_->cut().pieces[i]};
  }
  return result;
}

void LoraAdapter::init_own(uint64_t seed, const std::string& name) {
  const at::Tensor &A = lora_A_->weight(), &B = lora_B_->weight();
  const ParameterCut& cut = lora_A_->cut();
  const auto in = static_cast<double>(cut.whole_sizes(A.sizes())[1]);
  uniform_(A, 1 / std::sqrt(in), seed, name + ".lora_A.weight", cut);
  B.detach().zero_();
  if (magnitude_.defined()) magnitude_.detach().fill_(1);  // until begin_dora()
}

LoraSet::LoraSet(torch::nn::Module& model, const LoraOptions& options, at::Device device)
    : shared_(std::make_shared<LoraShared>()), cuts_(model) {
  const ExitCode code = options.origin.empty() ? ExitCode::usage : ExitCode::checkpoint;
  const std::string where = options.origin.empty() ? "" : options.origin + ": ";
  require(options.rank >= 1 && options.dropout >= 0 && options.dropout < 1, code, where,
          "a low-rank adapter needs a rank of at least 1 and a dropout in [0, 1), not ", options.rank, " and ",
          options.dropout);
  shared_->options = options;
  shared_->step = at::zeros({}, at::device(device).dtype(at::kLong));
  for (at::Tensor& parameter : model.parameters()) parameter.set_requires_grad(false);
  std::vector<std::string> known;
  std::string known_text;
  std::set<std::string> matched;
  std::set<std::string> joined_weights;  // of layers that fuse several projections
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& item : model.named_parameters()) parameters.emplace_back(item.key(), item.value());
  const auto name_of = [&](const at::Tensor& weight) {
    for (const auto& [name, parameter] : parameters) {
      if (parameter.is_same(weight)) return name;
    }
    return std::string();
  };
  const auto wants = [&](const std::string& name) {
    for (const std::string& module : options.modules_to_save) {
      if (is_or_ends_with(name, module)) return false;  // it is trained in full
    }
    if (options.wants) return options.wants(name);
    bool any = false;
    for (const std::string& target : options.targets) {
      if (target != kAllLinear && !is_or_ends_with(name, target)) continue;
      matched.insert(target);
      any = true;
    }
    return any;
  };
  for (const auto& item : model.named_modules()) {
    auto* has = dynamic_cast<HasAdaptableLinears*>(item.value().get());
    if (has == nullptr) continue;
    const std::string path = has->adapted_path(item.key());
    for (AdaptableLinear& layer : has->adaptable_linears()) {
      std::vector<bool> wanted;
      const std::string weight = name_of(layer.linear->weight());
      if (layer.parts.size() > 1 || layer.expert_parts > 0) joined_weights.insert(weight);
      for (const LoraPart& part : layer.parts) {
        const std::string name = part.name.substr(part.name.rfind('.') + 1);
        if (std::find(known.begin(), known.end(), name) == known.end()) {
          known_text += (known.empty() ? "" : ", ") + name;
          known.push_back(name);
        }
        wanted.push_back(wants(path.empty() ? part.name : cat(path, ".", part.name)));
      }
      if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) continue;
      check_experts(layer, wanted, options, code, where);
      const ParameterCut& cut = layer.linear->cut();
      require(cut.whole() || !options.dora, code, where,
              "DoRA norms whole rows of weights, of which parallel.tensor gives each rank a part; set lora.dora to "
              "false, or parallel.tensor to 1");
      const auto adapter =
          std::make_shared<LoraAdapter>(layer.linear->weight().size(1), layer.parts, wanted, shared_, device, cut);
      adapter->set_seed(options.seed + static_cast<int64_t>(hash_name(cat(item.key(), ".", layers_.size())) >> 1));
      layer.linear->attach(adapter);
      layers_.push_back({path, weight, layer.linear, adapter});
    }
  }
  const std::string adapters_are_for = known.empty() ? "none in this model" : known_text;
  for (const std::string& target : options.targets) {
    if (options.wants || !options.origin.empty()) break;
    require(matched.count(target) > 0, code, "no layer is called '", printable_start(target),
            "'; layers that can have an adapter: ", adapters_are_for);
  }
  require(
      !layers_.empty(), code, where,
      "no layer of the model matches the targets of the adapter; layers that can have an adapter: ", adapters_are_for);
  shared_->merges = !is_quantized(layers_.front().linear->format());
  // Routers have another name in files; only training of the whole model changes them.
  std::erase_if(parameters, [&](const auto& item) {
    return joined_weights.count(item.first) > 0 || item.first.ends_with(".router.weight");
  });
  std::map<std::string, WeightFormat> quantized;
  for (const QuantizedLayer& layer : quantized_layers(model)) quantized[layer.weight] = layer.linear->format();
  save_modules(parameters, quantized);
}

void LoraSet::save_modules(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                           const std::map<std::string, WeightFormat>& quantized) {
  const LoraOptions& o = shared_->options;
  const ExitCode code = o.origin.empty() ? ExitCode::usage : ExitCode::checkpoint;
  const std::string where = o.origin.empty() ? "" : o.origin + ": ";
  for (const std::string& module : o.modules_to_save) {
    bool found = false;
    for (const auto& [name, parameter] : parameters) {
      // PEFT compares suffixes as plain text here: "norm" matches every norm.
      if (!name.substr(0, name.rfind('.')).ends_with(module)) continue;
      found = true;
      const auto same = [&, weight = &name](const Layer& layer) { return layer.weight == *weight; };
      const auto stored = quantized.find(name);
      const bool is_stored = stored != quantized.end();
      require(!is_stored && std::none_of(layers_.begin(), layers_.end(), same), code, where, "'",
              printable_start(module), "' cannot be trained in full, because it ",
              is_stored ? cat("is stored as ", nn::name(stored->second)) : "has an adapter");
      if (parameter.requires_grad()) continue;  // two names of one module
      at::Tensor(parameter).set_requires_grad(true);
      saved_.emplace_back(name, parameter);
    }
    require(found, code, where, "no module that can be trained in full is called '", printable_start(module),
            "'; use embed_tokens, lm_head, norms, o_proj or down_proj");
  }
}

void LoraSet::draw_apart(int64_t rank) {
  for (const Layer& layer : layers_) {
    if (rank > 0) layer.adapter->set_seed(static_cast<int64_t>(hash_name(cat(layer.adapter->seed(), ".", rank)) >> 1));
  }
}

void LoraSet::initialise(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    layer.adapter->init_own(seed, cat(layer.path, ".", i));
    if (!shared_->options.dora) continue;
    layer.adapter->begin_dora(is_quantized(layer.linear->format()) ? layer.linear->dequantized(at::kFloat)
                                                                   : layer.linear->read_base_weight());
  }
}

void LoraSet::set_mode(LoraMode mode) {
  require(mode != LoraMode::merged || !shared_->merges || layers_.front().adapter->merged_weight().defined(),
          ExitCode::unexpected, "LoRA mode 'merged' has no merged weights yet; call LoraSet::merge() first");
  shared_->mode = mode;
}

void LoraSet::merge() {
  if (!shared_->merges) return;
  const at::NoGradGuard no_grad;
  if (shared_->options.dora) {
    for (const Layer& layer : layers_) layer.adapter->merge_dora(layer.linear->base_weight());
    return;
  }
  std::vector<ops::LoraLayer> all;
  all.reserve(layers_.size());
  for (const Layer& layer : layers_) all.push_back(layer.adapter->to_merge(layer.linear->base_weight()));
  ops::lora_merge_(all, lora_scale(shared_->options));
}

void LoraSet::forget_merged() {
  require(shared_->mode != LoraMode::merged, ExitCode::unexpected,
          "merged weights are in use; set another LoRA mode before freeing them");
  for (const Layer& layer : layers_) layer.adapter->forget_merged();
}

at::Tensor LoraSet::merged_weight(const std::string& parameter) const {
  for (const Layer& layer : layers_) {
    if (layer.weight != parameter) continue;
    if (shared_->merges) return layer.adapter->merged_weight();
    const at::Tensor merged = layer.linear->dequantized(layer.linear->frozen_weight().weight.scalar_type());
    const at::NoGradGuard no_grad;
    if (shared_->options.dora) {
      layer.adapter->merge_dora(merged, merged);
      return merged;
    }
    ops::lora_merge_({layer.adapter->to_merge(merged, merged)}, lora_scale(shared_->options));
    return merged;
  }
  return {};
}

std::vector<LoraAdapter::Pair> LoraSet::pairs() const {
  std::vector<LoraAdapter::Pair> all;
  for (const Layer& layer : layers_) {
    for (LoraAdapter::Pair& pair : layer.adapter->pairs()) {
      if (!layer.path.empty()) pair.name = cat(layer.path, ".", pair.name);
      all.push_back(std::move(pair));
    }
  }
  return all;
}

}  // namespace hrm::nn
