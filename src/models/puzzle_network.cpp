#include "hrm/models/puzzle_network.h"

#include <cmath>
#include <numbers>

#include "hrm/nn/init.h"

namespace hrm::models {
namespace {

// Holds the buffer `weights`, so that its full name is the official puzzle_emb.weights.
struct PuzzleEmbedding : torch::nn::Module {
  PuzzleEmbedding(int64_t entries, int64_t width, at::Device device)
      : weights(register_buffer("weights", at::zeros({entries, width}, at::device(device)))) {}
  at::Tensor weights;
};

}  // namespace

PuzzleNetwork::PuzzleNetwork(const config::ModelConfig& config, const PuzzleModelDims& dims, at::Device device)
    : PuzzleModel(config, dims), device_(device) {
  const int64_t D = config.hidden_size, L = dims.puzzle_emb_len + dims.seq_len;
  embed_tokens_ = register_module("embed_tokens", std::make_shared<nn::Embedding>(dims.vocab_size, D, device));
  if (config.pos_encodings == "learned") {
    embed_pos_ = register_module("embed_pos", std::make_shared<nn::Embedding>(L, D, device));
  } else if (config.pos_encodings == "rope") {
    rotary_ = nn::make_rotary_table(L, D / config.num_heads, config.rope_theta, device);
  }
  if (dims.puzzle_emb_ndim > 0) {
    puzzle_emb_weights_ = register_module("puzzle_emb", std::make_shared<PuzzleEmbedding>(dims.num_puzzle_identifiers,
                                                                                          dims.puzzle_emb_ndim, device))
                              ->weights;
  }
  lm_head_ = register_module("lm_head", std::make_shared<nn::Linear>(D, dims.vocab_size, device));
  q_head_ = register_module("q_head", std::make_shared<nn::Linear>(D, 2, device, /*bias=*/true));
  H_init_ = register_buffer("H_init", at::empty({D}, at::device(device)));
  L_init_ = register_buffer("L_init", at::empty({D}, at::device(device)));
}

std::shared_ptr<nn::ReasoningModule> PuzzleNetwork::make_level(const std::string& name, int64_t layers) {
  const nn::BlockSizes sizes{.width = config_.hidden_size,
                             .positions = dims_.puzzle_emb_len + dims_.seq_len,
                             .heads = config_.num_heads,
                             .expansion = config_.expansion,
                             .rms_norm_eps = config_.rms_norm_eps,
                             .mlp_t = config_.mlp_t};
  return register_module(name, std::make_shared<nn::ReasoningModule>(layers, sizes, rotary_, device_));
}

void PuzzleNetwork::initialise(uint64_t seed, at::ScalarType compute_dtype) {
  const at::NoGradGuard no_grad;
  nn::init_parameters(*this, seed);
  // Q starts near zero probability of halting, so that early training is not cut short.
  q_head_->weight().zero_();
  q_head_->bias().fill_(-5);
  nn::trunc_normal_(H_init_, 1.0, seed, "H_init");
  nn::trunc_normal_(L_init_, 1.0, seed, "L_init");
  // The official models keep both in bfloat16; rounded values export to that without loss.
  for (at::Tensor* row : {&H_init_, &L_init_}) row->copy_(row->to(at::kBFloat16));
  parameters_.build(*this, compute_dtype);
}

at::Tensor PuzzleNetwork::embed_inputs(const at::Tensor& inputs, const at::Tensor& puzzle_rows) const {
  const at::ScalarType dtype = parameters_.compute_dtype();
  const int64_t B = inputs.size(0), D = config_.hidden_size, P = dims_.puzzle_emb_len;
  at::Tensor rows = embed_tokens_->forward(inputs, dtype);
  if (P > 0) {
    const at::Tensor slots = at::constant_pad_nd(puzzle_rows.to(dtype), {0, P * D - puzzle_rows.size(1)});
    rows = at::cat({slots.view({B, P, D}), rows}, 1);
  }
  const double scale = std::sqrt(static_cast<double>(D));
  if (!embed_pos_) return rows * scale;
  // The positions are added in float32, so that their gradient, a sum over the batch, is float32 too.
  return ((rows + embed_pos_->weight()) * (scale / std::numbers::sqrt2)).to(dtype);
}

SegmentOutput PuzzleNetwork::read_out(const at::Tensor& z_H, const at::Tensor& z_L) const {
  const at::Tensor q = q_head_->forward(z_H.select(1, 0)).to(at::kFloat);
  return {.carry = {z_H.detach(), z_L.detach()},
          .logits = lm_head_->forward(z_H).narrow(1, dims_.puzzle_emb_len, dims_.seq_len),
          .q_halt = q.select(1, 0),
          .q_continue = q.select(1, 1)};
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

double PuzzleNetwork::forward_passes() const {
  return config_.no_ACT_continue || config_.halt_max_steps == 1 ? 1 : 2;
}

}  // namespace hrm::models
