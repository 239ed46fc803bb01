#include "hrm/nn/causal_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hrm/base/error.h"
#include "hrm/nn/across_linear.h"
#include "hrm/nn/fp8_block.h"
#include "hrm/nn/fp8_rows_block.h"
#include "hrm/ops/decode_attention.h"
#include "hrm/ops/qkv_heads.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double sign) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  // The tables are float32, so the products are too, for any dtype of x.
  const at::Tensor first = at::mul(a, cos).addcmul_(b, sin, -sign), second = at::mul(b, cos).addcmul_(a, sin, sign);
  return at::cat({first, second}, -1).to(x.scalar_type());
}

struct RotatePairs : torch::autograd::Function<RotatePairs> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turn(x, cos, sin, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list table = ctx->get_saved_variables();
    return {turn(grads[0], table[0], table[1], -1), at::Tensor(), at::Tensor()};
  }
};

void check_sizes(const AttentionSizes& s) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0, ExitCode::usage, s.kv_heads,
          " key and value heads do not divide ", s.heads, " query heads; set kv_heads to a divisor");
}

// (B, T, heads * hd) -> (B, T, heads, hd)
at::Tensor split_heads(const at::Tensor& t, int64_t head_dim) {
  return t.unflatten(-1, {t.size(-1) / head_dim, head_dim});
}

// k and v: (B, Hkv, T, hd)
void write_cache(const LayerCache& cache, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cached) {
  const at::NoGradGuard no_grad;
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    if (cached.defined()) {
      to.copy_(from.gather(2, cached.unsqueeze(1).unsqueeze(3).expand(to.sizes())));
    } else {
      to.narrow(2, 0, from.size(2)).copy_(from);
    }
  };
  write(cache.keys, k);
  write(cache.values, v);
}

}  // namespace

at::Tensor rotate_pairs(const at::Tensor& x, const RotaryTable& rows) {
  return RotatePairs::apply(x, rows.cos, rows.sin);
}

at::Tensor grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                             bool causal) {
  const int64_t share = q.size(1) / k.size(1);
  if (!mask.defined()) {
    return at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0, causal, /*scale=*/std::nullopt,
                                            /*enable_gqa=*/share > 1);
  }
  // ATen's kernels with a mask do not support grouped heads.
  const auto for_queries = [&](const at::Tensor& t) { return share > 1 ? t.repeat_interleave(share, 1) : t; };
  return at::scaled_dot_product_attention(q, for_queries(k), for_queries(v), mask);
}

CausalAttention::CausalAttention(const AttentionSizes& sizes, at::Device device, WeightFormat format) : sizes_(sizes) {
  check_sizes(sizes);
  const int64_t rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim;
  require(!sizes.qk_norm || !sizes.wide_qk_norm, ExitCode::unexpected,
          "norms of q and k are over each head or over all of them, not both");
  const auto linear = [&](const char* name, int64_t in, int64_t out, bool bias) {
    return register_module(name, std::make_shared<Linear>(in, out, device, bias, format));
  };
  qkv_proj_ = linear("qkv_proj", sizes.width, rows, sizes.bias);
  o_proj_ = linear("o_proj", sizes.heads * sizes.head_dim, sizes.width, /*bias=*/false);
  if (!sizes.cut.whole()) {
    require(!wide(), ExitCode::unexpected, "norms over all heads of q and k need all heads, so they cannot be cut");
    const int64_t q = sizes.cut.parts * sizes.heads * sizes.head_dim;
    const int64_t kv = sizes.cut.parts * sizes.kv_heads * sizes.head_dim;
    qkv_proj_->set_cut({.by = CutBy::heads, .cut = sizes.cut, .pieces = {q, kv, kv}});
    o_proj_->set_cut({.by = CutBy::columns, .cut = sizes.cut, .pieces = {q}});
  }
  if (!sizes.qk_norm && !wide()) return;
  const int64_t q_width = wide() ? sizes.heads * sizes.head_dim : sizes.head_dim;
  const int64_t k_width = wide() ? sizes.kv_heads * sizes.head_dim : sizes.head_dim;
  q_norm_ = register_module("q_norm", std::make_shared<RmsNorm>(q_width, sizes.eps, device));
  k_norm_ = register_module("k_norm", std::make_shared<RmsNorm>(k_width, sizes.eps, device));
}

at::Tensor CausalAttention::normed_widely(const at::Tensor& qkv) const {
  const int64_t q = sizes_.heads * sizes_.head_dim, kv = sizes_.kv_heads * sizes_.head_dim;
  const std::vector<at::Tensor> parts = qkv.split_with_sizes({q, kv, kv}, -1);
  return at::cat({q_norm_->forward(parts[0].contiguous()), k_norm_->forward(parts[1].contiguous()), parts[2]}, -1);
}

at::Tensor CausalAttention::project(const at::Tensor& x) const {
  const at::Tensor qkv = qkv_proj_->forward(x);
  return wide() ? normed_widely(qkv) : qkv;
}

ops::PairedRows CausalAttention::step_mix(const at::Tensor& qkv, const AttentionPass& pass, const LayerCache& cache,
                                          bool pairs) const {
  ops::DecodeAttentionOptions options{
      .cos = pass.rotary.cos, .sin = pass.rotary.sin, .eps = sizes_.eps, .window = pass.spans.window, .steady = true};
  if (sizes_.qk_norm) {
    options.q_weight = q_norm_->weight();
    options.k_weight = k_norm_->weight();
  }
  const at::Tensor rows = qkv.squeeze(1);
  if (!pairs) return ops::decode_attention_(rows, cache.keys, cache.values, pass.place, options).unsqueeze(1);
  ops::PairedRows mixed = ops::decode_attention_paired_(rows, cache.keys, cache.values, pass.place, options);
  mixed.rows = mixed.rows.unsqueeze(1);
  return mixed;
}

at::Tensor CausalAttention::step(const at::Tensor& x, const AttentionPass& pass, const LayerCache& cache) const {
  return o_proj_->forward(step_mix(project(x), pass, cache, /*pairs=*/false).rows);
}

StepRows CausalAttention::step_add(const RmsNorm& norm, const StepRows& rows, const AttentionPass& pass,
                                   const LayerCache& cache, const RmsNorm* next) const {
  const at::Tensor qkv = step_linear(*qkv_proj_, norm, rows).rows;
  const ops::PairedRows mixed = step_mix(wide() ? normed_widely(qkv) : qkv, pass, cache, step_reads_pairs(*o_proj_));
  return step_product(*o_proj_, mixed, rows.x, next);
}

at::Tensor CausalAttention::step_sums(const RmsNorm& norm, const StepRows& rows, const AttentionPass& pass,
                                      const LayerCache& cache) const {
  const at::Tensor qkv = step_linear(*qkv_proj_, norm, rows).rows;
  return step_sums_of(*o_proj_, step_mix(qkv, pass, cache, step_reads_pairs(*o_proj_)));
}

ops::QkvHeadOptions CausalAttention::head_options(const AttentionPass& pass) const {
  ops::QkvHeadOptions options{.cos = pass.rotary.cos, .sin = pass.rotary.sin, .eps = sizes_.eps};
  if (sizes_.qk_norm) {
    options.q_weight = q_norm_->weight();
    options.k_weight = k_norm_->weight();
  }
  return options;
}

// (B, T, Hq hd)
at::Tensor CausalAttention::attend(const ops::QkvHeads& heads, const AttentionPass& pass, LayerCache* cache) const {
  const at::Tensor q = heads.q.transpose(1, 2), k = heads.k.transpose(1, 2), v = heads.v.transpose(1, 2);
  if (cache != nullptr) write_cache(*cache, k, v, pass.cached);
  if (!pass.mask.defined() && pass.spans.limit(heads.q.size(1))) {
    return ops::masked_attention(heads.q, heads.k, heads.v, pass.spans).flatten(-2);
  }
  const at::Tensor mixed = grouped_attention(q, k, v, pass.mask, pass.causal && !pass.mask.defined());
  return mixed.transpose(1, 2).flatten(-2);
}

// For rows of qkv that may be shorter than those of the pass.
at::Tensor CausalAttention::attend(const at::Tensor& qkv, const AttentionPass& pass) const {
  const int64_t T = qkv.size(1);
  AttentionPass part{.causal = pass.causal, .spans = pass.spans};
  if (pass.rotary.cos.defined()) part.rotary = {pass.rotary.cos.narrow(0, 0, T), pass.rotary.sin.narrow(0, 0, T)};
  if (pass.mask.defined()) part.mask = pass.mask.narrow(-2, 0, T).narrow(-1, 0, T);
  const ops::QkvSizes sizes{sizes_.heads, sizes_.kv_heads, sizes_.head_dim};
  return attend(ops::qkv_heads_(qkv, sizes, head_options(part)), part, nullptr);
}

at::Tensor CausalAttention::mix_projected(const at::Tensor& qkv, const AttentionPass& pass, LayerCache* cache) const {
  if (pass.shared.defined()) {
    SharedTokens::Rows rows = pass.shared.to_rows(qkv);
    rows.others = attend(rows.others, pass);
    if (rows.whole.defined()) rows.whole = attend(rows.whole, pass);
    return pass.shared.to_tokens(rows);
  }
  return attend(ops::qkv_heads_(qkv, {sizes_.heads, sizes_.kv_heads, sizes_.head_dim}, head_options(pass)), pass,
                cache);
}

at::Tensor CausalAttention::mix(const at::Tensor& x, const AttentionPass& pass, LayerCache* cache) const {
  // The product that rotates heads by itself knows neither biases nor norms over all heads.
  if (pass.shared.defined() || qkv_proj_->needs_forward() || wide()) return mix_projected(project(x), pass, cache);
  const ops::QkvSizes sizes{sizes_.heads, sizes_.kv_heads, sizes_.head_dim};
  return attend(ops::qkv_heads_of(x, qkv_proj_->compute_weight(), qkv_proj_->weight(), sizes, head_options(pass)), pass,
                cache);
}

ops::Pieces CausalAttention::forward_across(const TensorAcross& across, const at::Tensor& rows,
                                            const AttentionPass& pass, LayerCache* cache) const {
  const int64_t tokens = pass.rows * pass.positions;
  const at::Tensor qkv = enter_linear(across, rows, tokens, *qkv_proj_).view({pass.rows, pass.positions, -1});
  return linear_leave(across, mix_projected(qkv, pass, cache).reshape({tokens, -1}), *o_proj_);
}

at::Tensor CausalAttention::rows_normed_add(const RmsNorm& norm, const at::Tensor& x, const AttentionPass& pass,
                                            LayerCache* cache) const {
  const ops::QkvHeadOptions options = head_options(pass);
  const bool trains = at::GradMode::is_enabled() && sizes_.qk_norm &&
                      (options.q_weight.requires_grad() || options.k_weight.requires_grad());
  if (pass.shared.defined() || wide() || trains) {
    const ops::NormedStream stream = rows_normed_linear(x, norm, *qkv_proj_);
    const at::Tensor qkv = wide() ? normed_widely(stream.y) : stream.y;
    return o_proj_->forward_add(mix_projected(qkv, pass, cache), stream.x);
  }
  const RowsHeads in = rows_qkv_heads(x, norm, *qkv_proj_, {sizes_.heads, sizes_.kv_heads, sizes_.head_dim}, options);
  return o_proj_->forward_add(attend(in.heads, pass, cache), in.x);
}

at::Tensor CausalAttention::forward_add(const at::Tensor& x, const at::Tensor& residual, const AttentionPass& pass,
                                        LayerCache* cache) const {
  // Attention keeps its result, but not the one that is put together from shared rows.
  return o_proj_->forward_add(mix(x, pass, cache), residual, /*x_is_kept=*/!pass.shared.defined());
}

at::Tensor CausalAttention::normed_add(const RmsNorm& norm, const at::Tensor& x, const AttentionPass& pass,
                                       LayerCache* cache) const {
  if (qkv_proj_->takes_fp8_rows(x)) return rows_normed_add(norm, x, pass, cache);
  if (qkv_proj_->fp8_layer() == nullptr || wide() || pass.shared.defined()) {
    const ops::NormedStream stream = norm.forward_stream(x);
    return forward_add(stream.y, stream.x, pass, cache);
  }
  const ops::QkvSizes sizes{sizes_.heads, sizes_.kv_heads, sizes_.head_dim};
  const ops::QkvHeadOptions options = head_options(pass);
  if (!sizes_.qk_norm) {
    const Fp8Heads in = fp8_qkv_heads(x, norm, *qkv_proj_, sizes, options);
    return o_proj_->forward_add(attend(in.heads, pass, cache), in.x, /*x_is_kept=*/true);
  }
  const ops::NormedStream stream = fp8_normed_linear(x, norm, *qkv_proj_);
  return o_proj_->forward_add(attend(ops::qkv_heads_(stream.y, sizes, options), pass, cache), stream.x,
                              /*x_is_kept=*/true);
}

at::Tensor CausalAttention::forward(const at::Tensor& x, const AttentionPass& pass, LayerCache* cache) const {
  return o_proj_->forward(mix(x, pass, cache), /*x_is_kept=*/!pass.shared.defined());
}

std::vector<AdaptableLinear> CausalAttention::adaptable_linears() {
  const int64_t q = sizes_.heads * sizes_.head_dim, kv = sizes_.kv_heads * sizes_.head_dim;
  if (sizes_.joined) return {{qkv_proj_, {{"qkv_proj", q + 2 * kv}}}, {o_proj_, {{"o_proj", sizes_.width}}}};
  return {{qkv_proj_, {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}}, {o_proj_, {{"o_proj", sizes_.width}}}};
}

CrossAttention::CrossAttention(const AttentionSizes& sizes, at::Device device) : sizes_(sizes) {
  check_sizes(sizes);
  const int64_t q_rows = sizes.heads * sizes.head_dim, kv_rows = sizes.kv_heads * sizes.head_dim;
  q_proj_ = register_module("q_proj", std::make_shared<Linear>(sizes.width, q_rows, device));
  kv_proj_ = register_module("kv_proj", std::make_shared<Linear>(sizes.width, 2 * kv_rows, device));
  o_proj_ = register_module("o_proj", std::make_shared<Linear>(q_rows, sizes.width, device));
  if (sizes.cut.whole()) return;
  const int64_t q = sizes.cut.parts * q_rows, kv = sizes.cut.parts * kv_rows;
  q_proj_->set_cut({.by = CutBy::rows, .cut = sizes.cut, .pieces = {q}});
  kv_proj_->set_cut({.by = CutBy::heads, .cut = sizes.cut, .pieces = {kv, kv}});
  o_proj_->set_cut({.by = CutBy::columns, .cut = sizes.cut, .pieces = {q}});
}

LayerCache CrossAttention::project(const at::Tensor& memory) const {
  const auto parts = kv_proj_->forward(memory).chunk(2, -1);
  return {split_heads(parts[0], sizes_.head_dim).transpose(1, 2),
          split_heads(parts[1], sizes_.head_dim).transpose(1, 2)};
}

at::Tensor CrossAttention::mix(const at::Tensor& x, const LayerCache& memory) const {
  const at::Tensor q = split_heads(q_proj_->forward(x), sizes_.head_dim).transpose(1, 2);
  const at::Tensor mixed = grouped_attention(q, memory.keys, memory.values, {}, /*causal=*/false);
  return mixed.transpose(1, 2).flatten(-2);
}

at::Tensor CrossAttention::forward(const at::Tensor& x, const LayerCache& memory) const {
  return o_proj_->forward(mix(x, memory), /*x_is_kept=*/true);
}

at::Tensor CrossAttention::forward_add(const at::Tensor& x, const at::Tensor& residual,
                                       const LayerCache& memory) const {
  return o_proj_->forward_add(mix(x, memory), residual, /*x_is_kept=*/true);
}

}  // namespace hrm::nn
