// Attention within windows and documents, block by block of queries, in plain ATen. The backward pass computes the
// scores again, so that neither pass keeps more than those of one block.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/masked_attention_impl.h"

namespace hrm::ops::blocks {
namespace {

at::Tensor wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

// (B, T, Hkv, hd) -> (B, Hkv, T, hd)
at::Tensor keys_of(const at::Tensor& t) {
  return wide(t.transpose(1, 2)).contiguous();
}

// A block of queries, and the keys within its reach.
struct Block {
  int64_t first = 0, count = 0, keys = 0;  // keys: where those begin; they end with the block
  int64_t reach() const { return first + count - keys; }
};

class Blocks {
 public:
  Blocks(const at::Tensor& q, const at::Tensor& k, const AttentionSpans& spans)
      : spans_(spans),
        positions_(q.size(1)),
        kv_heads_(k.size(2)),
        share_(q.size(2) / k.size(2)),
        scale_(1 / std::sqrt(static_cast<double>(q.size(3)))),
        index_(at::arange(positions_, at::device(q.device()).dtype(at::kInt))) {
    // A block costs (size + reach) keys for each query; narrow ones cost calls.
    const int64_t size = spans.window > 0 ? std::clamp<int64_t>(spans.window, 64, 256) : 256;
    for (int64_t first = 0; first < positions_; first += size) {
      const int64_t count = std::min(size, positions_ - first);
      list_.push_back({first, count, spans.window > 0 ? std::max<int64_t>(0, first - spans.window + 1) : 0});
    }
    if (!spans.starts.defined() || !spans.starts.is_cpu() || spans.starts.numel() == 0) return;
    // Starts do not descend within a row.
    const at::Tensor least = spans.starts.amin(0);
    for (Block& block : list_) block.keys = std::max<int64_t>(block.keys, least.const_data_ptr<int>()[block.first]);
  }

  const std::vector<Block>& list() const { return list_; }

  // The block's part of (B, T, Hq, hd) as (B, Hkv, share * count, hd): the queries of a group are rows for its keys.
  at::Tensor queries(const at::Tensor& t, const Block& b) const {
    return wide(t.narrow(1, b.first, b.count).unflatten(2, {kv_heads_, share_}).permute({0, 2, 3, 1, 4})).flatten(2, 3);
  }
  // Back to (B, count, Hq, hd).
  at::Tensor from_queries(const at::Tensor& t, const Block& b) const {
    return t.unflatten(2, {share_, b.count}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
  }
  at::Tensor seen(const at::Tensor& keys, const Block& b) const { return keys.narrow(2, b.keys, b.reach()); }
  // The block's part of sums (B, Hkv, share, T), for each row of queries().
  at::Tensor sums(const at::Tensor& t, const Block& b) const {
    return t.narrow(3, b.first, b.count).reshape({t.size(0), kv_heads_, share_ * b.count, 1});
  }

  // (B, Hkv, share * count, reach), -inf for what a query does not see.
  at::Tensor scores(const at::Tensor& queries, const at::Tensor& keys, const Block& b) const {
    const at::Tensor scores = at::matmul(queries, seen(keys, b).transpose(2, 3)).mul_(scale_);
    scores.unflatten(2, {share_, b.count}).masked_fill_(hidden(b), -std::numeric_limits<double>::infinity());
    return scores;
  }
  double scale() const { return scale_; }

 private:
  // Broadcasts to (B, Hkv, share, count, reach).
  at::Tensor hidden(const Block& b) const {
    const at::Tensor key = index_.narrow(0, b.keys, b.reach());
    const at::Tensor back = index_.narrow(0, b.first, b.count).unsqueeze(1) - key;
    at::Tensor hidden = back.lt(0);
    if (spans_.window > 0) hidden = hidden.logical_or(back.ge(spans_.window));
    if (!spans_.starts.defined()) return hidden;
    const at::Tensor earlier = key.lt(spans_.starts.narrow(1, b.first, b.count).unsqueeze(2));  // (B, count, reach)
    return hidden.logical_or(earlier).unsqueeze(1).unsqueeze(1);
  }

  const AttentionSpans& spans_;
  int64_t positions_, kv_heads_, share_;
  double scale_;
  at::Tensor index_;
  std::vector<Block> list_;
};

}  // namespace

MaskedForward masked_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSpans& spans) {
  const Blocks blocks(q, k, spans);
  const at::Tensor keys = keys_of(k), values = keys_of(v);
  const at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor sums = at::empty({q.size(0), k.size(2), q.size(2) / k.size(2), q.size(1)}, keys.options());
  for (const Block& b : blocks.list()) {
    const at::Tensor scores = blocks.scores(blocks.queries(q, b), keys, b);
    const at::Tensor sum = scores.logsumexp(-1, /*keepdim=*/true);
    sums.narrow(3, b.first, b.count).copy_(sum.view({sums.size(0), sums.size(1), sums.size(2), b.count}));
    const at::Tensor mixed = at::matmul(scores.sub_(sum).exp_(), blocks.seen(values, b));
    out.narrow(1, b.first, b.count).copy_(blocks.from_queries(mixed, b));
  }
  return {out, sums, at::empty({0}, q.options())};
}

MaskedGradients masked_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const MaskedForward& forward,
                                          const AttentionSpans& spans) {
  const Blocks blocks(q, k, spans);
  const at::Tensor keys = keys_of(k), values = keys_of(v);
  const at::Tensor grad_q = at::empty(q.sizes(), q.options());
  const at::Tensor grad_keys = at::zeros_like(keys), grad_values = at::zeros_like(values);
  for (const Block& b : blocks.list()) {
    const at::Tensor queries = blocks.queries(q, b), grad = blocks.queries(grad_out, b);
    const at::Tensor weights = blocks.scores(queries, keys, b).sub_(blocks.sums(forward.sums, b)).exp_();
    blocks.seen(grad_values, b).add_(at::matmul(weights.transpose(2, 3), grad));
    const at::Tensor dot = (grad * blocks.queries(forward.out, b)).sum(-1, /*keepdim=*/true);
    const at::Tensor grad_scores =
        at::matmul(grad, blocks.seen(values, b).transpose(2, 3)).sub_(dot).mul_(weights).mul_(blocks.scale());
    grad_q.narrow(1, b.first, b.count).copy_(blocks.from_queries(at::matmul(grad_scores, blocks.seen(keys, b)), b));
    blocks.seen(grad_keys, b).add_(at::matmul(grad_scores.transpose(2, 3), queries));
  }
  const auto rounded = [](const at::Tensor& grad, const at::Tensor& like) {
    return grad.to(like.scalar_type()).transpose(1, 2).contiguous();
  };
  return {grad_q, rounded(grad_keys, k), rounded(grad_values, v)};
}

}  // namespace hrm::ops::blocks
