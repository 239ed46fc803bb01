// The readable version, and the oracle: a mask of all pairs of positions.
#include <ATen/ATen.h>

#include "ops/attention/masked_attention_impl.h"

namespace hrm::ops::reference {

at::Tensor causal_mask(int64_t positions, const AttentionSpans& spans, at::Device device) {
  const at::Tensor index = at::arange(positions, at::device(device).dtype(at::kInt));
  const at::Tensor back = index.unsqueeze(1) - index;  // (T, T), distance back to the key
  at::Tensor mask = back.ge(0);
  if (spans.window > 0) mask = mask.logical_and(back.lt(spans.window));
  if (!spans.starts.defined()) return mask;
  return mask.logical_and(index.ge(spans.starts.unsqueeze(2))).unsqueeze(1);
}

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpans& spans) {
  // Of no rows, LibTorch returns no tensor on a GPU.
  if (q.numel() == 0) return (q + (k.sum() + v.sum())).contiguous();
  const int64_t share = q.size(2) / k.size(2);
  // ATen's kernels that take a mask know no groups.
  const auto for_queries = [&](const at::Tensor& t) {
    return (share > 1 ? t.repeat_interleave(share, 2) : t).transpose(1, 2);
  };
  const at::Tensor mask = causal_mask(q.size(1), spans, q.device());
  return at::scaled_dot_product_attention(q.transpose(1, 2), for_queries(k), for_queries(v), mask)
      .transpose(1, 2)
      .contiguous();
}

}  // namespace hrm::ops::reference
