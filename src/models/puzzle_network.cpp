#include "hrm/models/puzzle_network.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

#include "hrm/base/error.h"
#include "hrm/nn/init.h"
#include "hrm/nn/recompute.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/damped_update.h"
#include "hrm/ops/embed.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/start_state.h"
#include "ops/common/optional_tensor.h"

namespace hrm::models {
namespace {

// Draws of a row that one key tells apart: the updates of all its segments.
constexpr int64_t kDrawsPerKey = 1 << 16;

// Holds the buffer `weights`, so that its full name is the official puzzle_emb.weights.
struct PuzzleEmbedding : torch::nn::Module {
  PuzzleEmbedding(int64_t entries, int64_t width, at::Device device)
      : weights(register_buffer("weights", at::zeros({entries, width}, at::device(device)))) {}
  at::Tensor weights;
};

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The weights of the heads, and the buffers of their float32 gradients, as in hrm/ops/linear.h.
struct HeadWeights {
  at::Tensor lm_weight, q_weight, q_bias;                                // compute dtype
  at::Tensor grad_lm_weight = {}, grad_q_weight = {}, grad_q_bias = {};  // undefined where not trained
};

// z_H @ weight^T for all positions, (B, L, V). On a GPU rows are padded to multiples of 16 bytes. With rows of 11
// logits, this GEMM and those of the backward pass would use single-element loads.
at::Tensor position_logits(const at::Tensor& z_H, const at::Tensor& weight) {
  if (!z_H.is_cuda() || ops::backend() == ops::Backend::reference) return at::linear(z_H, weight);
  const int64_t B = z_H.size(0), L = z_H.size(1), V = weight.size(0);
  const auto unit = static_cast<int64_t>(16 / z_H.element_size());
  const int64_t pitch = (V + unit - 1) / unit * unit;
  const at::Tensor logits = at::empty_strided({B, L, V}, {L * pitch, pitch, 1}, z_H.options());
  ops::linear_out(logits.view({B * L, V}), z_H.reshape({B * L, -1}), weight);
  return logits;
}

// z_H (B, L, D) -> logits of every position (B, L, V) in the compute dtype, and Q values of the first (B, 2) float32.
// Autograd would widen the gradient of the first position to all positions and add it to that of the logits. This
// function adds it directly to the first position's rows. The masters are arguments so that the node exists whenever
// they are trained.
struct Heads : torch::autograd::Function<Heads> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& z_H, const at::Tensor& /*lm_master*/,
                               const at::Tensor& /*q_master*/, const at::Tensor& /*q_bias_master*/,
                               const HeadWeights& weights) {
    ctx->save_for_backward({z_H, weights.lm_weight, weights.q_weight});
    // The buffers are not saved variables, because each use adds to them in place.
    ctx->saved_data["grad_lm_weight"] = weights.grad_lm_weight;
    ctx->saved_data["grad_q_weight"] = weights.grad_q_weight;
    ctx->saved_data["grad_q_bias"] = weights.grad_q_bias;
    return {position_logits(z_H, weights.lm_weight),
            at::linear(z_H.select(1, 0), weights.q_weight, weights.q_bias).to(at::kFloat)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "the heads have no second derivative (logits ", grads[0].sizes(), ")");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &z_H = saved[0], &lm_weight = saved[1], &q_weight = saved[2];
    const auto buffer = [&](const char* name) { return ctx->saved_data[name].toTensor(); };
    const at::Tensor grad_logits = grads[0].reshape({-1, lm_weight.size(0)});
    const at::Tensor grad_q = grads[1].to(z_H.scalar_type());
    if (const at::Tensor grad = buffer("grad_lm_weight"); grad.defined()) {
      ops::linear_accumulate_(grad, grad_logits, z_H.reshape({-1, z_H.size(2)}));
    }
    if (const at::Tensor grad = buffer("grad_q_weight"); grad.defined()) {
      ops::linear_accumulate_(grad, grad_q, z_H.select(1, 0));
    }
    if (const at::Tensor grad = buffer("grad_q_bias"); grad.defined()) {
      grad.add_(at::sum(grad_q, at::IntArrayRef{0}, /*keepdim=*/false, grad.scalar_type()));
    }
    const at::Tensor grad_z = ops::linear_grad_x(grad_logits, lm_weight).view(z_H.sizes());
    grad_z.select(1, 0).addmm_(grad_q, q_weight);
    return {grad_z, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

PuzzleNetwork::PuzzleNetwork(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleModel(config, dims), device_(device) {
  const int64_t D = config.hidden_size, L = dims.puzzle_emb_len + dims.seq_len;
  embed_tokens_ = register_module("embed_tokens", std::make_shared<nn::Embedding>(dims.vocab_size, D, device));
  if (config.pos_encodings == config::PositionEncoding::learned) {
    embed_pos_ = register_module("embed_pos", std::make_shared<nn::Embedding>(L, D, device));
  } else if (config.pos_encodings == config::PositionEncoding::rope) {
    rotary_ = nn::make_rotary_table(L, D / config.num_heads, config.rope_theta, device);
  }
  if (dims.puzzle_emb_ndim > 0) {
    puzzle_emb_weights_ = register_module("puzzle_emb", std::make_shared<PuzzleEmbedding>(dims.num_puzzle_identifiers,
                                                                                          dims.puzzle_emb_ndim, device))
                              ->weights;
  }
  lm_head_ = register_module("lm_head", std::make_shared<nn::Linear>(D, dims.vocab_size, device));
  q_head_ = register_module("q_head", std::make_shared<nn::Linear>(D, 2, device, /*bias=*/true));
  if (config.facts().flat_names) {
    H_init_ = L_init_ = register_buffer("init_hidden", at::empty({D}, at::device(device)));
    return;
  }
  H_init_ = register_buffer("H_init", at::empty({D}, at::device(device)));
  L_init_ = register_buffer("L_init", at::empty({D}, at::device(device)));
}

std::shared_ptr<nn::ReasoningModule> PuzzleNetwork::make_level(const std::string& name, int64_t layers) {
  const nn::BlockSizes sizes{.width = config_.hidden_size,
                             .positions = dims_.puzzle_emb_len + dims_.seq_len,
                             .heads = config_.num_heads,
                             .expansion = config_.expansion,
                             .rms_norm_eps = config_.rms_norm_eps,
                             .mlp_t = config_.mlp_t,
                             .convolution = config_.facts().convolution};
  return register_module(
      name, std::make_shared<nn::ReasoningModule>(layers, sizes, rotary_, device_, config_.facts().flat_names));
}

void PuzzleNetwork::initialise(uint64_t seed, at::ScalarType compute_dtype) {
  const at::NoGradGuard no_grad;
  nn::init_parameters(*this, seed);
  // Q starts with a halting probability near zero, so that early training is not cut short.
  q_head_->weight().zero_();
  q_head_->bias().fill_(-5);
  // The official models store these rows in bfloat16, so that rounded values export without loss.
  for (const auto& item : named_buffers(/*recurse=*/false)) {
    nn::trunc_normal_(item.value(), 1.0, seed, item.key());
    item.value().copy_(item.value().to(at::kBFloat16));
  }
  parameters_.build(*this, compute_dtype, blocks_run_once());
}

at::Tensor PuzzleNetwork::embed_inputs(const at::Tensor& inputs, const at::Tensor& puzzle_rows) const {
  const at::ScalarType dtype = parameters_.compute_dtype();
  const int64_t P = dims_.puzzle_emb_len;
  const double scale = config_.embed_scale * std::sqrt(static_cast<double>(config_.hidden_size));
  const auto embed = [&](double factor) {
    return ops::embed(inputs, embed_tokens_->weight(), P > 0 ? std::optional(puzzle_rows) : std::nullopt, P, factor,
                      dtype);
  };
  if (!embed_pos_) return embed(scale);
  // The positions are added in float32, so that their gradient, a sum over the batch, is float32 too.
  return ((embed(1) + embed_pos_->weight()) * (scale / std::numbers::sqrt2)).to(dtype);
}

ReadOut PuzzleNetwork::read_heads(const at::Tensor& z_H) const {
  const at::Tensor &lm = lm_head_->weight(), &q_weight = q_head_->weight(), &q_bias = q_head_->bias();
  HeadWeights weights{.lm_weight = lm_head_->compute_weight().detach(),
                      .q_weight = q_head_->compute_weight().detach(),
                      .q_bias = q_bias.detach().to(z_H.scalar_type())};
  if (at::GradMode::is_enabled()) {
    weights.grad_lm_weight = ops::gradient_buffer(lm);
    weights.grad_q_weight = ops::gradient_buffer(q_weight);
    weights.grad_q_bias = ops::gradient_buffer(q_bias);
  }
  const variable_list heads = Heads::apply(z_H, lm, q_weight, q_bias, weights);
  return {.position_logits = heads[0], .q = heads[1]};
}

void PuzzleNetwork::read_cycle(const at::Tensor& z_H, std::vector<ReadOut>& earlier) const {
  if (config_.loss_every_cycle && at::GradMode::is_enabled()) earlier.push_back(read_heads(z_H));
}

SegmentOutput PuzzleNetwork::read_out(const at::Tensor& z_H, const at::Tensor& z_L) const {
  const auto [logits, q] = read_heads(z_H);
  return {.carry = {z_H.detach(), z_L.detach()},
          .logits = logits.narrow(1, dims_.puzzle_emb_len, dims_.seq_len),
          .q_halt = q.select(1, 0),
          .q_continue = q.select(1, 1),
          .position_logits = logits,
          .q = q};
}

at::Tensor PuzzleNetwork::read_q(const at::Tensor& first) const {
  const at::NoGradGuard no_grad;
  return q_head_->forward(first).to(at::kFloat);
}

at::Tensor PuzzleNetwork::update(const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection,
                                 const SegmentDraws& draws, int64_t& number) const {
  const int64_t own = settles() ? number++ : number;
  if (!config_.recompute || !at::GradMode::is_enabled()) return compute_update(module, z, injection, draws, own);
  const auto part = [this, &module, draws, own](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {compute_update(module, in[0], in[1], draws, own)};
  };
  return nn::recompute(part, {z, injection}, module.layers().front()->mlp().down_proj().weight()).front();
}

at::Tensor PuzzleNetwork::compute_update(const nn::ReasoningModule& module, const at::Tensor& z,
                                         const at::Tensor& injection, const SegmentDraws& draws, int64_t number) const {
  const at::Tensor updated = module.forward(z, injection);
  return settles() ? damped(updated, z, draws, number) : updated;
}

at::Tensor PuzzleNetwork::recorded_start(const at::Tensor& z, const at::Tensor& carry) const {
  return config_.recompute && at::GradMode::is_enabled() && z.is_same(carry) ? z.clone() : z;
}

at::Tensor PuzzleNetwork::recur(const nn::ReasoningModule& module, const at::Tensor& z, const at::Tensor& injection,
                                const SegmentDraws& draws, int64_t& number, int64_t times) const {
  if (!settles()) return module.recur(z, injection, times);
  at::Tensor out = z;
  for (int64_t i = 0; i < times; ++i) out = damped(module.recur(out, injection), out, draws, number++);
  return out;
}

bool PuzzleNetwork::settles() const {
  return config_.damping > 0 || config_.path_noise > 0;
}

at::Tensor PuzzleNetwork::damped(const at::Tensor& updated, const at::Tensor& z, const SegmentDraws& draws,
                                 int64_t number) const {
  if (draws.given.defined()) {
    return ops::damped_update(updated, z.contiguous(), std::nullopt, number, config_.damping, 0, 0) +
           config_.path_noise * draws.given.select(0, number);
  }
  return ops::damped_update(updated, z.contiguous(), ops::optional_tensor(draws.first), number, config_.damping,
                            config_.path_noise, static_cast<int64_t>(draws.seed));
}

void PuzzleModel::start_rows(const Carry& carry, const at::Tensor& fresh, const at::Tensor& keys, uint64_t seed) const {
  const at::NoGradGuard no_grad;
  if (config_.start_std > 0) {
    require(keys.defined(), ExitCode::unexpected, "a model with random starts was given no keys");
    const at::Tensor draws = keys * kDrawsPerKey;
    ops::start_state_(carry.z_H, fresh, draws, 0, config_.start_std, static_cast<int64_t>(seed));
    ops::start_state_(carry.z_L, fresh, draws, 1, config_.start_std, static_cast<int64_t>(seed));
    return;
  }
  const at::Tensor rows = fresh.view({-1, 1, 1});
  carry.z_H.copy_(at::where(rows, H_init_.to(carry.z_H.scalar_type()), carry.z_H));
  carry.z_L.copy_(at::where(rows, L_init_.to(carry.z_L.scalar_type()), carry.z_L));
}

SegmentDraws PuzzleModel::draws_of_segment(const at::Tensor& keys, const at::Tensor& segments, uint64_t seed) const {
  if (!config_.draws()) return {};
  require(keys.defined(), ExitCode::unexpected, "a model with noise was given no keys");
  const int64_t updates = config_.H_cycles * (config_.L_cycles + 1);
  return {.first = keys * kDrawsPerKey + segments.to(at::kLong) * updates, .seed = seed};
}

at::Tensor PuzzleModel::q_values(const Carry& carry, const at::Tensor& inputs, const at::Tensor& puzzle_rows,
                                 const SegmentDraws& draws) {
  const at::NoGradGuard no_grad;
  const SegmentOutput out = segment(carry, inputs, puzzle_rows, draws);
  return out.q.defined() ? out.q : at::stack({out.q_halt, out.q_continue}, 1);
}

double PuzzleNetwork::block_flops() const {
  const auto D = static_cast<double>(config_.hidden_size);
  const auto L = static_cast<double>(dims_.puzzle_emb_len + dims_.seq_len);
  const auto inner = static_cast<double>(nn::swiglu_width(config_.hidden_size, config_.expansion));
  const auto inner_t = static_cast<double>(nn::swiglu_width(dims_.puzzle_emb_len + dims_.seq_len, config_.expansion));
  const double attention = 2 * L * D * 4 * D + 4 * L * L * D;  // projections; scores and mixing
  const double mlp = 2 * L * D * 3 * inner, mlp_t = 2 * D * L * 3 * inner_t;
  return (config_.mlp_t ? mlp_t : attention) + mlp;
}

double PuzzleNetwork::head_flops() const {
  const auto D = static_cast<double>(config_.hidden_size);
  const auto L = static_cast<double>(dims_.puzzle_emb_len + dims_.seq_len);
  return 2 * D * (L * static_cast<double>(dims_.vocab_size) + 2);
}

double PuzzleNetwork::step_flops(int64_t recorded_blocks) const {
  const double losses = config_.loss_every_cycle ? static_cast<double>(gradient_cycles()) : 1;
  return forward_passes() * flops_per_sample_segment() + (losses - 1) * head_flops() +
         2 * (static_cast<double>(recorded_blocks) * block_flops() + losses * head_flops());
}

double PuzzleNetwork::forward_passes() const {
  return config_.no_ACT_continue || config_.halt_max_steps == 1 ? 1 : 2;
}

}  // namespace hrm::models
