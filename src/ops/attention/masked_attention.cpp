#include "hrm/ops/masked_attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/attention.h"
#include "hrm/ops/backend.h"
#include "ops/attention/masked_attention_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {
namespace {

// The second dimension of a grid, in which LibTorch's kernels have the documents.
constexpr int64_t kMostDocuments = 65535;

// The greatest number of rows that divides B and whose documents fit; 1 if none do.
int64_t rows_of_part(int64_t rows, int64_t most) {
  for (int64_t part = 1; part <= rows; ++part) {
    if (rows % part == 0 && rows / part * most <= kMostDocuments) return rows / part;
  }
  return 1;
}

}  // namespace

AttentionSpans attention_spans(const at::Tensor& documents, int64_t most, int64_t window) {
  TORCH_CHECK(window >= 0 && most >= 0, "hrm::attention_spans: window ", window, " and ", most, " documents of a row");
  AttentionSpans spans{.window = window};
  if (!documents.defined()) return spans;
  TORCH_CHECK(documents.dim() == 2, "hrm::attention_spans: documents must be (B, T), got ", documents.sizes());
  const int64_t B = documents.size(0), T = documents.size(1);
  if (T == 0) return spans;
  const at::Tensor first = at::ones({B, 1}, documents.options().dtype(at::kBool));
  const at::Tensor begins = at::cat({first, documents.narrow(1, 1, T - 1).ne(documents.narrow(1, 0, T - 1))}, 1);
  const at::Tensor index = at::arange(T, documents.options().dtype(at::kInt));
  spans.starts = std::get<0>((index * begins).cummax(1)).to(at::kInt);
  if (documents.is_cpu() || B == 0) return spans;
  const int64_t of_row = most > 0 ? std::min(most, T) : T, rows = rows_of_part(B, of_row);
  // How many documents have begun at each position; the s-th begins where there are s + 1 for the first time.
  const at::Tensor begun = begins.view({B / rows, rows * T}).cumsum(1, at::kInt);
  const at::Tensor number = at::arange(1, rows * of_row + 2, index.options()).expand({B / rows, -1}).contiguous();
  spans.offsets = at::searchsorted(begun, number, /*out_int32=*/true);
  return spans;
}

void check_masked_attention(const char* op, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpans& spans) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(0) == k.size(0) &&
                  q.size(1) == k.size(1) && q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
              op, ": q must be (B, T, Hq, hd) and k and v (B, T, Hkv, hd), where Hkv divides Hq, got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  TORCH_CHECK(
      at::isFloatingType(q.scalar_type()) && k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
      op, ": q, k and v must have one floating-point dtype, got ", q.scalar_type(), ", ", k.scalar_type(), " and ",
      v.scalar_type());
  TORCH_CHECK(spans.window >= 0, op, ": a window of ", spans.window, " positions");
  const at::Tensor &starts = spans.starts, &offsets = spans.offsets;
  TORCH_CHECK(!starts.defined() || (starts.dim() == 2 && starts.size(0) == q.size(0) && starts.size(1) == q.size(1) &&
                                    starts.scalar_type() == at::kInt),
              op, ": starts must be (B, T) int32 for q ", q.sizes(), ", got ", starts.sizes(), " ",
              starts.scalar_type());
  TORCH_CHECK(!offsets.defined() || (starts.defined() && offsets.dim() == 2 && offsets.size(0) > 0 &&
                                     q.size(0) % offsets.size(0) == 0 && offsets.scalar_type() == at::kInt),
              op, ": offsets must be (C, S + 1) int32, where C divides the rows of q ", q.sizes(), ", beside starts, ",
              "got ", offsets.sizes(), " ", offsets.scalar_type());
}

bool wants_plain_mask() {
  return backend() == Backend::reference || attention_backend() == AttentionBackend::sdpa;
}

at::Tensor plain_mask(int64_t positions, const AttentionSpans& spans, at::Device device) {
  if (!wants_plain_mask() || !spans.limit(positions)) return {};
  return reference::causal_mask(positions, spans, device);
}

at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpans& spans) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                             const OptionalTensor&, int64_t)>
      op("hrm::masked_attention");
  return op(q, k, v, optional_tensor(spans.starts), optional_tensor(spans.offsets), spans.window);
}

MaskedForward masked_attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const AttentionSpans& spans) {
  static const Op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&, const OptionalTensor&, int64_t)>
      op("hrm::masked_attention_forward");
  const auto [out, sums, state] =
      op(q, k, v, optional_tensor(spans.starts), optional_tensor(spans.offsets), spans.window);
  return {out, sums, state};
}

MaskedGradients masked_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const MaskedForward& forward,
                                          const AttentionSpans& spans) {
  static const Op<MaskedGradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                  const OptionalTensor&, int64_t)>
      op("hrm::masked_attention_backward");
  return op(grad_out, q, k, v, forward.out, forward.sums, forward.state, optional_tensor(spans.starts),
            optional_tensor(spans.offsets), spans.window);
}

namespace {

at::Tensor masked_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& starts,
                      const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention", q, k, v, spans);
  if (wants_plain_mask()) return reference::masked_attention(q, k, v, spans);
  return blocks::masked_attention_forward(q, k, v, spans).out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> masked_forward_cpu(const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const OptionalTensor& starts,
                                                                  const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention_forward", q, k, v, spans);
  const MaskedForward forward = blocks::masked_attention_forward(q, k, v, spans);
  return {forward.out, forward.sums, forward.state};
}

MaskedGradients masked_backward_cpu(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& sums,
                                    const at::Tensor& state, const OptionalTensor& starts,
                                    const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention_backward", q, k, v, spans);
  return blocks::masked_attention_backward(grad_out, q, k, v, {out, sums, state}, spans);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("masked_attention(Tensor q, Tensor k, Tensor v, Tensor? starts, Tensor? offsets, int window) -> Tensor");
  m.def(
      "masked_attention_forward(Tensor q, Tensor k, Tensor v, Tensor? starts, Tensor? offsets, int window) -> (Tensor "
      "out, Tensor sums, Tensor state)");
  m.def(
      "masked_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums, Tensor state, "
      "Tensor? starts, Tensor? offsets, int window) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("masked_attention", &masked_cpu);
  m.impl("masked_attention_forward", &masked_forward_cpu);
  m.impl("masked_attention_backward", &masked_backward_cpu);
}

}  // namespace hrm::ops
