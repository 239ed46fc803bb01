#include "hrm/models/decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/nn/moe.h"
#include "hrm/nn/swiglu.h"

namespace hrm::models {
namespace {

nn::Cut cut_of(const DecoderOptions& o) {
  return o.across ? o.across->cut() : nn::Cut{};
}

// Throws unless each part gets as much.
void check_cut(const DecoderOptions& o) {
  const int64_t parts = cut_of(o).parts;
  const auto divides = [&](int64_t size, const char* what) {
    require(size % parts == 0, ExitCode::usage, "parallel.tensor = ", parts, " does not divide the ", size, " ", what,
            " of the model; set it to a divisor");
  };
  divides(o.heads, "attention heads");
  divides(o.kv_heads, "key and value heads");
  divides(o.inner, "inner columns of the feed-forward layers");
  require(nn::Cut{.part = parts - 1, .parts = parts}.range(o.vocabulary).count > 0, ExitCode::usage,
          "parallel.tensor = ", parts, " leaves the last rank nothing of a vocabulary of ", o.vocabulary,
          "; set it lower");
  require(!o.form.wide_qk_norm && !o.form.norms_behind, ExitCode::usage,
          "parallel.tensor cannot cut a model that norms all heads together, or what a layer gives; set it to 1");
  require(o.experts.count == 0 && !o.feed_forward, ExitCode::usage, "parallel.tensor cannot cut experts; set it to 1");
  require(o.weights != nn::WeightFormat::nf4, ExitCode::usage,
          "parallel.tensor cannot cut weights in NF4, whose scales are shared by elements of several parts; set it to "
          "1, or hf.quantize to int8, fp8 or none");
}

nn::TransformerBlockOptions block_options(const DecoderOptions& o, bool cross) {
  const nn::Cut cut = cut_of(o);
  return {.attention = {.width = o.width,
                        .heads = o.heads / cut.parts,
                        .kv_heads = o.kv_heads / cut.parts,
                        .head_dim = o.head_dim,
                        .eps = o.eps,
                        .qk_norm = o.qk_norm,
                        .wide_qk_norm = o.form.wide_qk_norm,
                        .bias = o.form.qkv_bias,
                        .joined = o.form.joined_weights,
                        .cut = cut},
          .eps = o.eps,
          .cross = cross,
          .recompute = o.recompute,
          .weights = o.weights,
          .norms_behind = o.form.norms_behind,
          .centred_norms = o.form.centred_norms,
          .across = o.across};
}

// Which position each place of a cache gets from rows of these lengths (B): the last one of its remainder, and any one
// where the row has none. (B, places)
at::Tensor last_positions(const at::Tensor& lengths, int64_t places) {
  const at::Tensor last = lengths.unsqueeze(1) - 1;
  return (last - (last - at::arange(places, lengths.options())).remainder(places)).clamp_min_(0);
}

}  // namespace

// No loss of their load: in transformers it is only there on demand (output_router_logits).
nn::MoeOptions expert_options(const DecoderOptions& o) {
  return {.experts = o.experts.count,
          .top_k = o.experts.top_k,
          .inner = o.experts.inner,
          .activation = ops::ExpertActivation::swiglu,
          .normalize = o.experts.normalize,
          .load_weight = 0,
          .mixtral_names = o.form.mixtral_names,
          .dtype = o.expert_dtype};
}

TransformerBlocks add_blocks(torch::nn::Module& owner, int64_t layers, const DecoderOptions& o, bool cross,
                             const nn::FeedForwardFactory& feed_forward, at::Device device) {
  const auto list = owner.register_module("layers", std::make_shared<torch::nn::Module>());
  require(!o.across || !feed_forward, ExitCode::usage, "parallel.tensor cannot cut experts; set it to 1");
  const nn::SwigluForm form{.gelu = o.form.gelu_gate, .joined = o.form.joined_weights, .cut = cut_of(o)};
  TransformerBlocks blocks;
  for (int64_t i = 0; i < layers; ++i) {
    std::shared_ptr<nn::FeedForward> mlp;
    if (feed_forward) {
      mlp = feed_forward(i);
    } else if (o.experts.has(i)) {
      mlp = std::make_shared<nn::MoeFeedForward>(o.width, expert_options(o), device);
    } else {
      mlp = std::make_shared<nn::SwigluFeedForward>(o.width, o.inner / form.cut.parts, device, o.weights, form);
    }
    blocks.push_back(list->register_module(
        std::to_string(i), std::make_shared<nn::TransformerBlock>(block_options(o, cross), std::move(mlp), device)));
  }
  return blocks;
}

DecoderOptions resolve(DecoderOptions o) {
  require(o.vocabulary > 0 && o.width > 0 && o.layers > 0 && o.heads > 0 && o.positions > 0, ExitCode::usage,
          "a decoder needs a vocabulary, a width, layers, heads and positions of at least 1, not ", o.vocabulary, ", ",
          o.width, ", ", o.layers, ", ", o.heads, " and ", o.positions);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  require(o.head_dim > 0 || o.width % o.heads == 0, ExitCode::usage, o.heads,
          " attention heads do not divide the width ", o.width, "; give head_dim");
  if (o.head_dim == 0) o.head_dim = o.width / o.heads;
  require(o.kv_heads > 0 && o.heads % o.kv_heads == 0, ExitCode::usage, o.kv_heads,
          " key and value heads do not divide ", o.heads, " query heads; set kv_heads to a divisor");
  require(o.weights == nn::WeightFormat::f32 || !o.feed_forward, ExitCode::unexpected,
          "custom feed-forward layers do not support quantised weights; use WeightFormat::f32");
  require((o.form == DecoderForm{} && o.experts.count == 0) || !o.feed_forward, ExitCode::unexpected,
          "custom feed-forward layers go only with blocks of the plain form, without experts of their own");
  require(o.experts.count == 0 || (!o.form.gelu_gate && !o.form.joined_weights), ExitCode::unexpected,
          "experts have a SiLU gate, and files hold their projections apart; they go with no other form");
  require(o.weights == nn::WeightFormat::f32 || o.experts.count == 0, ExitCode::unexpected,
          "experts do not support quantised weights; use WeightFormat::f32");
  if (o.inner == 0) o.inner = nn::swiglu_width(o.width, 4);
  if (o.across) check_cut(o);
  return o;
}

Decoder::Decoder(const DecoderOptions& options, bool cross, at::Device device)
    : options_(resolve(options)), cross_(cross) {
  const DecoderOptions& o = options_;
  rotary_ = nn::make_rotary_table(o.positions, o.head_dim, o.rope_theta, device, o.rope);
  embed_tokens_ = register_module("embed_tokens",
                                  std::make_shared<nn::Embedding>(o.vocabulary, o.width, device, "weight", cut_of(o)));
  if (!o.tied) embed_tokens_->set_before_blocks();
  embed_tokens_->set_rounded();
  layers_ = add_blocks(*this, o.layers, o, cross, o.feed_forward, device);
  norm_ = register_module("norm",
                          std::make_shared<nn::RmsNorm>(o.width, o.eps, device, /*groups=*/1, o.form.centred_norms));
  lm_head_ =
      register_module("lm_head", o.tied ? std::make_shared<nn::LmHead>(embed_tokens_->weight(), o.vocabulary, o.across)
                                        : std::make_shared<nn::LmHead>(o.width, o.vocabulary, device, o.across));
}

void Decoder::init_own(uint64_t seed, const std::string& name) {
  const double scale = 1 / std::sqrt(2 * static_cast<double>(options_.layers));
  const auto is_scaled = [](const std::string& key) {
    return key.ends_with("o_proj.weight") || key.ends_with("down_proj.weight");
  };
  const nn::OutlineOwners owners(*this);
  for (auto& item : named_parameters()) {
    if (!is_scaled(item.key()) || item.value().is_meta()) continue;
    if (nn::HasComputeWeight* const owner = owners.of(item.value())) {
      owner->set_source(
          [rows = owner->source(), scale](int64_t first, int64_t count) { return rows(first, count).mul_(scale); });
    } else {
      item.value().mul_(scale);
    }
  }
  // The same values, for one layer at a time.
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(*this)) {
    const std::string full_name = name.empty() ? layer.weight : cat(name, ".", layer.weight);
    const double factor = is_scaled(layer.weight) ? scale : 1;
    // A layer that is cut by columns is quantised by whole rows.
    const nn::ParameterCut& cut = layer.linear->cut();
    const bool columns = cut.by == nn::CutBy::columns;
    const int64_t in = cut.whole_sizes(layer.linear->weight().sizes())[1];
    const at::Tensor whole_rows = layer.linear->weight().new_empty({layer.linear->weight().size(0), in});
    const nn::RowSource rows = columns ? nn::initial_rows(whole_rows, seed, full_name)
                                       : nn::initial_rows(layer.linear->weight(), seed, full_name, cut);
    layer.linear->hold_by([rows, in, weight_name = layer.weight, factor](nn::Linear& to, int64_t first, int64_t count) {
      const at::Tensor weight = at::empty({to.weight().size(0), in}, at::kFloat);
      nn::read_elements(rows, weight.size(1), first * weight.size(1),
                        weight.view(-1).narrow(0, 0, count * weight.size(1)));
      if (factor != 1) weight.mul_(factor);
      to.hold_quantized(weight, weight_name);
    });
  }
}

std::vector<nn::LayerCache> Decoder::project_memory(const at::Tensor& memory) const {
  require(memory.defined() == cross_, ExitCode::unexpected, "this decoder ", cross_ ? "needs a" : "does not accept a",
          " memory");
  std::vector<nn::LayerCache> projected;
  if (cross_) {
    for (const auto& layer : layers_) projected.push_back(layer->project_memory(memory));
  }
  return projected;
}

void Decoder::check_length(int64_t length) const {
  require(length <= options_.positions, ExitCode::usage, "a row of ", length, " positions is longer than the ",
          options_.positions, " that the model was built for; shorten it");
}

nn::RotaryTable Decoder::rotary_rows(int64_t length) const {
  return {rotary_.cos.narrow(0, 0, length), rotary_.sin.narrow(0, 0, length)};
}

// (B, T, D); of a part of the decoder this part's rows of the stream that the prefix begins, (k, D).
at::Tensor Decoder::embed(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& prefix) const {
  const at::Tensor h = embed_tokens_->forward(ids, dtype);
  if (!options_.across) return scaled(h);
  require(!prefix.defined() || !options_.form.scaled_embedding, ExitCode::unexpected,
          "a decoder that is cut and scales its embedding has no prefix");
  const at::Tensor sums = prefix.defined() ? at::cat({options_.across->as_sums(prefix), h}, 1) : h;
  return scaled(ops::add_pieces({}, options_.across->leave(sums.flatten(0, -2))));
}

// Of a step, (B, 1, D) on every part.
at::Tensor Decoder::embed_step(const at::Tensor& ids, at::ScalarType dtype) const {
  const at::Tensor h = embed_tokens_->forward(ids.unsqueeze(1), dtype);
  if (!options_.across) return scaled(h);
  return scaled(options_.across->add_sums({}, h.flatten(0, -2), {}).y.view(h.sizes()));
}

at::Tensor Decoder::scaled(const at::Tensor& h) const {
  if (!options_.form.scaled_embedding) return h;
  // The factor is rounded to the dtype of the activations, as in the transformers library.
  const double factor = std::sqrt(static_cast<double>(options_.width));
  return h * at::scalar_tensor(factor, at::kFloat).to(h.scalar_type()).item<double>();
}

// After the norm, (rows, positions, D) of all tokens.
at::Tensor Decoder::normed(const at::Tensor& h, int64_t rows, int64_t positions) const {
  if (!options_.across) return norm_->forward(h);
  return options_.across->enter(norm_->forward(h), rows * positions).view({rows, positions, -1});
}

at::Tensor Decoder::run(const at::Tensor& ids, at::ScalarType dtype, nn::AttentionPass pass, const at::Tensor& prefix,
                        const std::vector<nn::LayerCache>& memory, DecodeCache* cache) {
  at::Tensor h = embed(ids, dtype, prefix);
  const int64_t P = prefix.defined() ? prefix.size(1) : 0, length = P + ids.size(1);
  if (P > 0 && !options_.across) h = at::cat({prefix, h}, 1);
  check_length(length);
  pass.rows = ids.size(0);
  pass.positions = length;
  pass.rotary = rotary_rows(length);
  pass.mask = ops::plain_mask(length, pass.spans, ids.device());
  for (size_t i = 0; i < layers_.size(); ++i) {
    h = layers_[i]->forward(h, pass, cross_ ? &memory[i] : nullptr, cache != nullptr ? &cache->layers[i] : nullptr);
  }
  if (options_.across) return normed(h, ids.size(0), length).narrow(1, P, ids.size(1));
  return norm_->forward(P > 0 ? h.narrow(1, P, ids.size(1)) : h);
}

at::Tensor Decoder::forward(const at::Tensor& ids, at::ScalarType dtype, const at::Tensor& documents,
                            const at::Tensor& prefix, const at::Tensor& memory, int64_t most_documents) {
  require(!documents.defined() || !prefix.defined(), ExitCode::unexpected,
          "a row with a prefix cannot hold several documents");
  const nn::AttentionPass pass{.spans = ops::attention_spans(documents, most_documents, options_.window)};
  return run(ids, dtype, pass, prefix, project_memory(memory), nullptr);
}

at::Tensor Decoder::forward(const at::Tensor& ids, at::ScalarType dtype, const nn::SharedTokens& shared) {
  require(!cross_ && ids.dim() == 2 && ids.size(0) == 1, ExitCode::unexpected,
          "prefix sharing needs ids of shape (1, U) and a decoder without cross-attention");
  check_length(shared.longest());
  const ops::AttentionSpans spans{.window = options_.window};
  const nn::AttentionPass pass{.rotary = rotary_rows(shared.longest()),
                               .mask = ops::plain_mask(shared.longest(), spans, ids.device()),
                               .spans = spans,
                               .shared = shared,
                               .rows = 1,
                               .positions = ids.size(1)};
  at::Tensor h = embed(ids, dtype);
  for (const auto& layer : layers_) h = layer->forward(h, pass);
  return normed(h, 1, ids.size(1));
}

DecodeCache Decoder::make_cache(int64_t rows, int64_t capacity, at::ScalarType dtype) const {
  require(capacity <= options_.positions, ExitCode::usage, "a cache of ", capacity, " positions is longer than the ",
          options_.positions, " that the model was built for; use a smaller capacity");
  const at::Device device = norm_->parameters().front().device();
  const int64_t places = options_.window > 0 ? std::min(capacity, options_.window) : capacity;
  DecodeCache cache;
  cache.capacity = capacity;
  const auto zeros = [&] {
    return at::zeros({rows, options_.kv_heads / cut_of(options_).parts, places, options_.head_dim},
                     at::device(device).dtype(dtype));
  };
  for (size_t i = 0; i < layers_.size(); ++i) cache.layers.push_back({zeros(), zeros()});
  cache.lengths = at::zeros({rows}, at::device(device).dtype(at::kLong));
  return cache;
}

at::Tensor Decoder::prefill(const at::Tensor& ids, const at::Tensor& lengths, at::ScalarType dtype, DecodeCache& cache,
                            const at::Tensor& prefix, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  const int64_t P = prefix.defined() ? prefix.size(1) : 0, places = cache.layers.front().keys.size(2);
  require(P + ids.size(1) <= cache.capacity, ExitCode::usage, "a prompt of ", P + ids.size(1),
          " positions does not fit into a cache of ", cache.capacity);
  cache.lengths.copy_(lengths + P);
  nn::AttentionPass pass{.spans = {.window = options_.window}};
  if (P + ids.size(1) > places) pass.cached = last_positions(cache.lengths, places);
  cache.memory = project_memory(memory);
  const at::Tensor hidden = run(ids, dtype, pass, prefix, cache.memory, &cache);
  return hidden;
}

at::Tensor Decoder::step(const at::Tensor& ids, at::ScalarType dtype, DecodeCache& cache) {
  const at::NoGradGuard no_grad;
  const nn::AttentionPass pass{.rotary = rotary_, .spans = {.window = options_.window}, .place = cache.lengths};
  nn::StepRows h{embed_step(ids, dtype)};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const nn::TransformerBlock* const next = i + 1 < layers_.size() ? layers_[i + 1].get() : nullptr;
    h = layers_[i]->step(h, pass, cross_ ? &cache.memory[i] : nullptr, cache.layers[i], next);
  }
  cache.lengths.add_(1);
  return norm_->forward(h.x.squeeze(1));
}

}  // namespace hrm::models
