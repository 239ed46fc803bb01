#include "hrm/nn/transformer_block.h"

#include <ATen/ATen.h>

#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/recompute.h"

namespace hrm::nn {
namespace {

StepRows shaped(const StepRows& from, at::IntArrayRef sizes) {
  StepRows to{from.x.reshape(sizes), from.ahead};
  if (to.ahead.scaled.defined()) to.ahead.scaled = to.ahead.scaled.view(sizes);
  return to;
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerBlockOptions& options, std::shared_ptr<FeedForward> mlp,
                                   at::Device device)
    : options_(options) {
  const auto norm = [&](const char* name) {
    return register_module(name, std::make_shared<RmsNorm>(options.attention.width, options.eps, device, /*groups=*/1,
                                                           options.centred_norms));
  };
  require(!options.norms_behind || !options.cross, ExitCode::unexpected,
          "a block with cross-attention has its norms in front; set norms_behind to false");
  require(!options.across || !options.norms_behind, ExitCode::unexpected, "a block that is cut has its norms in front");
  input_norm_ = norm(options.norms_behind ? "post_attention_layernorm" : "input_layernorm");
  self_attn_ =
      register_module("self_attn", std::make_shared<CausalAttention>(options.attention, device, options.weights));
  if (options.cross) {
    require(options.weights == WeightFormat::f32, ExitCode::unexpected,
            "a block with cross-attention does not support quantised weights; use WeightFormat::f32");
    cross_norm_ = norm("cross_layernorm");
    cross_attn_ = register_module("cross_attn", std::make_shared<CrossAttention>(options.attention, device));
  }
  mlp_norm_ = norm(options.norms_behind ? "post_feedforward_layernorm" : "post_attention_layernorm");
  mlp_ = register_module("mlp", std::move(mlp));
}

at::Tensor TransformerBlock::compute(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory,
                                     LayerCache* cache) {
  if (options_.across) return compute_part(x, pass, memory, cache);
  if (options_.norms_behind) return add_normed(x, self_attn_->forward(x, pass, cache));
  at::Tensor h = self_attn_->normed_add(*input_norm_, x, pass, cache);
  if (cross_attn_) {
    const ops::NormedStream second = cross_norm_->forward_stream(h);
    h = cross_attn_->forward_add(second.y, second.x, *memory);
  }
  const PartResult result;
  return mlp_->normed_add(*mlp_norm_, h.reshape({-1, h.size(-1)})).view(h.sizes());
}

at::Tensor TransformerBlock::compute_part(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory,
                                          LayerCache* cache) {
  const TensorAcross& across = *options_.across;
  const int64_t tokens = pass.rows * pass.positions;
  const auto enter = [&](const at::Tensor& y) { return across.enter(y, tokens).view({pass.rows, pass.positions, -1}); };
  const auto add_normed = [&](const ops::NormedStream& before, const ops::Pieces& sums, const RmsNorm& norm) {
    return ops::add_rms_norm(before.x, sums, norm.scale(), norm.eps());
  };
  const ops::NormedStream first = input_norm_->forward_stream(x);
  const ops::Pieces attended = self_attn_->forward_across(across, first.y, pass, cache);
  ops::NormedStream second = add_normed(first, attended, cross_attn_ ? *cross_norm_ : *mlp_norm_);
  if (cross_attn_) {
    const at::Tensor sums = cross_attn_->forward(enter(second.y), *memory);
    second = add_normed(second, across.leave(sums.view({tokens, -1})), *mlp_norm_);
  }
  const PartResult result;
  return ops::add_pieces(second.x, mlp_->forward_across(across, second.y, tokens));
}

// All parts have all rows: the few of a step are sent once, not gathered first. What adds them also prepares the next
// norm where products by tiles read that, as the product itself does in a whole block.
StepRows TransformerBlock::step_part(const StepRows& rows, const AttentionPass& pass, const LayerCache* memory,
                                     const LayerCache& cache, const RmsNorm* next) {
  const std::vector<int64_t> sizes = rows.x.sizes().vec();
  const bool tiles = self_attn_->o_proj().weight().numel() >= ops::kDecodeTileElements;
  const auto add = [&](const at::Tensor& x, const at::Tensor& sums, const RmsNorm* norm) -> StepRows {
    auto [y, ahead] = options_.across->add_sums(x.reshape({-1, x.size(-1)}), sums.reshape({-1, x.size(-1)}),
                                                tiles && norm != nullptr ? norm->scale() : at::Tensor());
    return {std::move(y), std::move(ahead)};
  };
  StepRows h =
      add(rows.x, self_attn_->step_sums(*input_norm_, rows, pass, cache), cross_attn_ ? nullptr : mlp_norm_.get());
  if (cross_attn_) h = add(h.x, cross_attn_->forward(cross_norm_->forward(h.x.view(sizes)), *memory), mlp_norm_.get());
  return shaped(add(h.x, mlp_->step_sums(*mlp_norm_, h), next), sizes);
}

at::Tensor TransformerBlock::add_normed(const at::Tensor& x, const at::Tensor& attended) const {
  const at::Tensor h = x + input_norm_->forward(attended);
  const at::Tensor out = mlp_->forward(h.reshape({-1, h.size(-1)})).view(h.sizes());
  return h + mlp_norm_->forward(out);
}

StepRows TransformerBlock::step(const StepRows& rows, const AttentionPass& pass, const LayerCache* memory,
                                const LayerCache& cache, const TransformerBlock* next) {
  const at::NoGradGuard no_grad;
  const RmsNorm* const next_norm = next == nullptr ? nullptr : next->input_norm_.get();  // of the same form
  if (options_.across) return step_part(rows, pass, memory, cache, next_norm);
  if (block_use_) block_use_->before_step(block_);
  if (options_.norms_behind) return {add_normed(rows.x, self_attn_->step(rows.x, pass, cache))};
  StepRows h = self_attn_->step_add(*input_norm_, rows, pass, cache, cross_attn_ ? nullptr : mlp_norm_.get());
  if (cross_attn_) h = {cross_attn_->forward_add(cross_norm_->forward(h.x), h.x, *memory)};
  const std::vector<int64_t> sizes = h.x.sizes().vec();
  return shaped(mlp_->step_add(*mlp_norm_, shaped(h, {-1, h.x.size(-1)}), next_norm), sizes);
}

at::Tensor TransformerBlock::compute_again_later(const at::Tensor& x, const AttentionPass& pass,
                                                 const LayerCache* memory) {
  // Names and weights of the losses are known after the first call. Their values are outputs, like the block's own.
  const auto losses = std::make_shared<std::vector<AuxiliaryLoss>>();
  // The dropout mode may have changed by the time of the backward pass.
  const std::shared_ptr<LoraShared> lora = adapters();
  const bool drops = lora && lora->drops;
  const auto part = [this, pass, losses, lora, drops](const std::vector<at::Tensor>& inputs) {
    const WithLoraDropout as_then(lora, drops);
    LayerCache cross;
    if (inputs.size() > 1) cross = {inputs[1], inputs[2]};
    std::vector<at::Tensor> out{compute(inputs[0], pass, inputs.size() > 1 ? &cross : nullptr, nullptr)};
    *losses = mlp_->take_auxiliary_losses();
    for (AuxiliaryLoss& loss : *losses) out.push_back(std::exchange(loss.value, {}));
    return out;
  };
  std::vector<at::Tensor> inputs{x};
  if (memory != nullptr) inputs.insert(inputs.end(), {memory->keys, memory->values});
  const std::vector<at::Tensor> out = nn::recompute(part, inputs, trained_parameter());
  for (size_t i = 0; i < losses->size(); ++i) {
    losses_.push_back({(*losses)[i].name, out[i + 1], (*losses)[i].weight});
  }
  return out[0];
}

// The shared state of the block's adapters; null without adapters.
std::shared_ptr<LoraShared> TransformerBlock::adapters() const {
  for (const std::shared_ptr<torch::nn::Module>& module : modules(/*include_self=*/false)) {
    if (const auto* adapter = dynamic_cast<const LoraAdapter*>(module.get())) return adapter->shared();
  }
  return nullptr;
}

at::Tensor TransformerBlock::trained_parameter() const {
  const std::vector<at::Tensor> all = parameters();
  for (const at::Tensor& parameter : all) {
    if (parameter.requires_grad()) return parameter;
  }
  return all.front();
}

at::Tensor TransformerBlock::forward(const at::Tensor& x, const AttentionPass& pass, const LayerCache* memory,
                                     LayerCache* cache) {
  // Outside the recomputed part, so that each use is marked once.
  const at::Tensor input = mark_use(x);
  if (block_use_) block_use_->before(block_);
  const bool again = options_.recompute && at::GradMode::is_enabled();
  const at::Tensor out = again ? compute_again_later(input, pass, memory) : compute(input, pass, memory, cache);
  return block_use_ ? block_use_->after(out, block_) : out;
}

LayerCache TransformerBlock::project_memory(const at::Tensor& memory) const {
  const at::Tensor marked = mark_use(memory), input = options_.across ? options_.across->share(marked) : marked;
  if (!block_use_) return cross_attn_->project(input);
  block_use_->before(block_);
  const LayerCache projected = cross_attn_->project(input);
  return {block_use_->after(projected.keys, block_), block_use_->after(projected.values, block_)};
}

at::Tensor TransformerBlock::mark_use(const at::Tensor& input) const {
  return gradient_ready_ ? gradient_ready_->mark(input, gradient_group_) : input;
}

std::optional<TransformerBlock::PlainParts> TransformerBlock::plain_parts() const {
  const auto* swiglu = dynamic_cast<const SwigluFeedForward*>(mlp_.get());
  const AttentionSizes& sizes = options_.attention;
  const bool plain = !options_.across && !options_.norms_behind && !options_.centred_norms && !sizes.wide_qk_norm;
  if (!plain || swiglu == nullptr || swiglu->gelu() || cross_attn_ || sizes.kv_heads != sizes.heads ||
      sizes.heads * sizes.head_dim != sizes.width || sizes.eps != options_.eps) {
    return std::nullopt;
  }
  for (const Linear* linear :
       {&self_attn_->qkv_proj(), &self_attn_->o_proj(), &swiglu->gate_up_proj(), &swiglu->down_proj()}) {
    if (linear->needs_forward()) return std::nullopt;
  }
  return PlainParts{.input_norm = input_norm_.get(),
                    .mlp_norm = mlp_norm_.get(),
                    .q_norm = self_attn_->q_norm(),
                    .k_norm = self_attn_->k_norm(),
                    .qkv_proj = &self_attn_->qkv_proj(),
                    .o_proj = &self_attn_->o_proj(),
                    .gate_up_proj = &swiglu->gate_up_proj(),
                    .down_proj = &swiglu->down_proj(),
                    .heads = sizes.heads,
                    .eps = options_.eps,
                    .recompute = options_.recompute};
}

std::vector<AuxiliaryLoss> TransformerBlock::take_auxiliary_losses() {
  return std::exchange(losses_, {});
}

}  // namespace hrm::nn
