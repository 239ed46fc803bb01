#include "hrm/models/bert_encoder.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "models/bert_weights.h"

namespace hrm::models {
namespace {

// Added to the scores of padded tokens, so that their softmax weight becomes 0. Finite, so that a row of only padding
// has a valid softmax.
constexpr double kNoToken = -1e30;

void check_bert_options(const BertOptions& o) {
  require(o.vocabulary > 0 && o.width > 0 && o.layers > 0 && o.heads > 0 && o.inner > 0 && o.positions > 0 &&
              o.token_types > 0,
          ExitCode::usage,
          "a BERT needs a vocabulary, a width, layers, heads, an inner width, positions and token types of at least 1, "
          "not ",
          o.vocabulary, ", ", o.width, ", ", o.layers, ", ", o.heads, ", ", o.inner, ", ", o.positions, " and ",
          o.token_types);
  require(o.width % o.heads == 0, ExitCode::usage, o.heads, " attention heads do not divide BERT's width ", o.width);
}

}  // namespace

BertEncoder::BertEncoder(const BertOptions& options, const BertWeights& weights, at::Device device,
                         at::ScalarType dtype, const std::string& source)
    : options_(options) {
  check_bert_options(options);
  require(dtype == at::kFloat || dtype == at::kBFloat16, ExitCode::usage,
          "BERT computes in float32 or bfloat16, not in ", at::toString(dtype));
  const at::NoGradGuard no_grad;
  const BertWeights read = checked_bert_weights(options, weights, source);
  // Always a copy, because the caller may change its weights.
  const auto get = [&](const std::string& name) { return read.at(name).to(device, dtype, false, /*copy=*/true); };
  const auto affine = [&](const std::string& name) { return Affine{get(name + ".weight"), get(name + ".bias")}; };

  words_ = get("embeddings.word_embeddings.weight");
  positions_ = (read.at("embeddings.position_embeddings.weight").to(device, at::kFloat) +
                read.at("embeddings.token_type_embeddings.weight")[0].to(device, at::kFloat))
                   .to(dtype);
  norm_ = affine("embeddings.LayerNorm");
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string name = cat("encoder.layer.", i, ".");
    const Affine q = affine(name + "attention.self.query"), k = affine(name + "attention.self.key"),
                 v = affine(name + "attention.self.value");
    layers_.push_back({.qkv = {at::cat({q.weight, k.weight, v.weight}), at::cat({q.bias, k.bias, v.bias})},
                       .attention_out = affine(name + "attention.output.dense"),
                       .attention_norm = affine(name + "attention.output.LayerNorm"),
                       .up = affine(name + "intermediate.dense"),
                       .down = affine(name + "output.dense"),
                       .norm = affine(name + "output.LayerNorm")});
  }
}

at::Tensor BertEncoder::normed(const at::Tensor& x, const Affine& norm) const {
  return at::layer_norm(x, {options_.width}, norm.weight, norm.bias, options_.eps);
}

at::Tensor BertEncoder::run_layer(const Layer& layer, const at::Tensor& x, const at::Tensor& bias) const {
  const auto project = [](const at::Tensor& in, const Affine& a) { return at::linear(in, a.weight, a.bias); };
  const int64_t B = bias.size(0), T = bias.size(3), H = options_.heads;
  const auto heads = project(x, layer.qkv).view({B, T, 3, H, options_.width / H}).permute({2, 0, 3, 1, 4}).unbind();
  const at::Tensor mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], bias)
                               .transpose(1, 2)
                               .reshape({B * T, options_.width});
  const at::Tensor a = normed(project(mixed, layer.attention_out).add_(x), layer.attention_norm);
  return normed(project(at::gelu(project(a, layer.up)), layer.down).add_(a), layer.norm);
}

at::Tensor BertEncoder::forward(const at::Tensor& ids, const at::Tensor& mask) const {
  const at::NoGradGuard no_grad;
  require(ids.dim() == 2 && ids.sizes() == mask.sizes(), ExitCode::unexpected,
          "BERT needs ids and a mask of one shape (rows, tokens), not ", ids.sizes(), " and ", mask.sizes());
  const int64_t B = ids.size(0), T = ids.size(1);
  require(T <= options_.positions, ExitCode::usage, "a row of ", T, " tokens is longer than the ", options_.positions,
          " positions that the encoder was built for; truncate it");
  const at::Tensor bias = mask.eq(0).to(words_.scalar_type()).mul_(kNoToken).view({B, 1, 1, T});
  at::Tensor x =
      normed(at::embedding(words_, ids).add_(positions_.narrow(0, 0, T)), norm_).view({B * T, options_.width});
  for (const Layer& layer : layers_) x = run_layer(layer, x, bias);
  return x.view({B, T, options_.width});
}

at::Tensor BertEncoder::embed(const at::Tensor& ids, const at::Tensor& mask) const {
  const at::NoGradGuard no_grad;
  return normalised_rows(mean_of_tokens(forward(ids, mask), mask));
}

at::Tensor mean_of_tokens(const at::Tensor& hidden, const at::Tensor& mask) {
  const at::Tensor token = mask.ne(0).to(hidden.scalar_type()).unsqueeze(-1);
  const at::Tensor count = token.sum(1, /*keepdim=*/false, at::kFloat);
  return (hidden * token).sum(1, /*keepdim=*/false, at::kFloat).div_(count.clamp_min_(1));
}

at::Tensor normalised_rows(const at::Tensor& x) {
  return x / at::linalg_vector_norm(x, 2, -1, /*keepdim=*/true).clamp_min_(1e-12);
}

}  // namespace hrm::models
