// By LibTorch's flash attention, where it takes the input; otherwise in blocks of plain ATen.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "ops/attention/masked_attention_impl.h"

namespace hrm::ops {
namespace {

// The second dimension of a grid, in which LibTorch's kernels have rows or documents.
constexpr int64_t kMostSequences = 65535;

bool flash_fits(const at::Tensor& q, const AttentionSpans& spans) {
  const int64_t hd = q.size(3), sequences = spans.offsets.defined() ? spans.offsets.size(1) - 1 : q.size(0);
  if (spans.starts.defined() && !spans.offsets.defined()) return false;
  if ((q.scalar_type() != at::kBFloat16 && q.scalar_type() != at::kHalf) || q.numel() == 0) return false;
  if (hd % 8 != 0 || hd > 256 || sequences > kMostSequences || !at::globalContext().userEnabledFlashSDP()) return false;
  const cudaDeviceProp& device = *at::cuda::getDeviceProperties(q.get_device());
  // Heads of more than 192 need the shared memory of 8.0, 9.0 or 10.x.
  const bool large = device.minor == 0 && device.major <= 9;
  return device.major >= 8 && (hd <= 192 || large || device.major == 10);
}

// Its kernels need contiguous heads of 16-byte alignment.
at::Tensor flash_rows(const at::Tensor& t) {
  const bool aligned = t.stride(3) == 1 && t.stride(2) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(0) % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  return aligned ? t : t.clone(at::MemoryFormat::Contiguous);
}

// How its window is given; -1: no limit on that side.
struct Limits {
  explicit Limits(const at::Tensor& q, const AttentionSpans& spans)
      : positions(q.size(1)),
        left(spans.window > 0 && spans.window < positions ? spans.window - 1 : -1),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))) {}
  int64_t positions, left;
  double scale;
};

// The part `i` of `count` of the rows of (B, T, H, hd), one behind the other: (B / count T, H, hd).
at::Tensor part_of(const at::Tensor& t, int64_t i, int64_t count) {
  const int64_t rows = t.size(0) / count;
  return t.narrow(0, i * rows, rows).flatten(0, 1);
}

MaskedForward flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionSpans& spans) {
  const Limits limits(q, spans);
  const auto call = [&](const at::Tensor& qs, const at::Tensor& ks, const at::Tensor& vs,
                        const OptionalTensor& offsets) {
    return at::_flash_attention_forward(qs, ks, vs, offsets, offsets, limits.positions, limits.positions,
                                        /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false, limits.scale,
                                        limits.left, /*window_size_right=*/0);
  };
  if (!spans.offsets.defined()) {
    auto [out, sums, state, unused, debug] = call(q, k, v, std::nullopt);
    return {out, sums, state};
  }
  const int64_t parts = spans.offsets.size(0);
  std::vector<at::Tensor> out, sums;
  MaskedForward all;
  for (int64_t i = 0; i < parts; ++i) {
    auto [part, sum, state, unused, debug] =
        call(part_of(q, i, parts), part_of(k, i, parts), part_of(v, i, parts), spans.offsets.select(0, i));
    out.push_back(part);
    sums.push_back(sum);
    all.state = state;
  }
  all.out = (parts == 1 ? out.front() : at::cat(out)).view(q.sizes());
  all.sums = parts == 1 ? sums.front().unsqueeze(0) : at::stack(sums);
  return all;
}

MaskedGradients flash_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const MaskedForward& forward, const AttentionSpans& spans) {
  const Limits limits(q, spans);
  const at::Tensor unused = at::empty({0}, q.options());
  const auto call = [&](const at::Tensor& grad, const at::Tensor& qs, const at::Tensor& ks, const at::Tensor& vs,
                        const at::Tensor& out, const at::Tensor& sums, const at::Tensor& offsets) {
    return at::_flash_attention_backward(grad, qs, ks, vs, out, sums, offsets, offsets, limits.positions,
                                         limits.positions, /*dropout_p=*/0, /*is_causal=*/true, forward.state, unused,
                                         limits.scale, limits.left, /*window_size_right=*/0);
  };
  if (!spans.offsets.defined()) return call(grad_out, q, k, v, forward.out, forward.sums, {});
  const int64_t parts = spans.offsets.size(0);
  std::vector<at::Tensor> grads[3];
  for (int64_t i = 0; i < parts; ++i) {
    const auto part = [&](const at::Tensor& t) { return part_of(t, i, parts); };
    const auto [grad_q, grad_k, grad_v] = call(part(grad_out), part(q), part(k), part(v), part(forward.out),
                                               forward.sums.select(0, i), spans.offsets.select(0, i));
    grads[0].push_back(grad_q);
    grads[1].push_back(grad_k);
    grads[2].push_back(grad_v);
  }
  const auto whole = [&](const std::vector<at::Tensor>& list, const at::Tensor& like) {
    return (parts == 1 ? list.front() : at::cat(list)).view(like.sizes());
  };
  return {whole(grads[0], q), whole(grads[1], k), whole(grads[2], v)};
}

MaskedForward forward_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpans& spans) {
  if (!flash_fits(q, spans)) return blocks::masked_attention_forward(q, k, v, spans);
  return flash_forward(flash_rows(q), flash_rows(k), flash_rows(v), spans);
}

at::Tensor masked_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& starts,
                       const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention", q, k, v, spans);
  const c10::cuda::CUDAGuard guard(q.device());
  return wants_plain_mask() ? reference::masked_attention(q, k, v, spans) : forward_of(q, k, v, spans).out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> masked_forward_cuda(const at::Tensor& q, const at::Tensor& k,
                                                                   const at::Tensor& v, const OptionalTensor& starts,
                                                                   const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention_forward", q, k, v, spans);
  const c10::cuda::CUDAGuard guard(q.device());
  const MaskedForward forward = forward_of(q, k, v, spans);
  return {forward.out, forward.sums, forward.state};
}

MaskedGradients masked_backward_cuda(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const at::Tensor& out, const at::Tensor& sums,
                                     const at::Tensor& state, const OptionalTensor& starts,
                                     const OptionalTensor& offsets, int64_t window) {
  const AttentionSpans spans = spans_of(starts, offsets, window);
  check_masked_attention("hrm::masked_attention_backward", q, k, v, spans);
  const c10::cuda::CUDAGuard guard(q.device());
  const MaskedForward forward{out, sums, state};
  // The sums tell which of the two computed them.
  if (sums.dim() == 4) return blocks::masked_attention_backward(grad_out, q, k, v, forward, spans);
  return flash_backward(grad_out.contiguous(), flash_rows(q), flash_rows(k), flash_rows(v), forward, spans);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("masked_attention", &masked_cuda);
  m.impl("masked_attention_forward", &masked_forward_cuda);
  m.impl("masked_attention_backward", &masked_backward_cuda);
}

}  // namespace hrm::ops
