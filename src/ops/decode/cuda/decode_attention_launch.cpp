#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/common/nothing_made.h"
#include "ops/cuda/launcher.h"
#include "ops/decode/cuda/decode_attention.h"
#include "ops/decode/decode_attention_impl.h"

namespace hrm::ops {
namespace {

// Whether the kernel can read and write this cache where it stands.
bool reachable(const at::Tensor& cache) {
  const int64_t pack = 16 / static_cast<int64_t>(cache.element_size()), hd = cache.size(3);
  return cache.stride(3) == 1 && cache.stride(2) == hd && cache.stride(0) % pack == 0 && cache.stride(1) % pack == 0 &&
         reinterpret_cast<uintptr_t>(cache.const_data_ptr()) % 16 == 0;
}

std::tuple<at::Tensor, at::Tensor> decode_attention_cuda(const at::Tensor& qkv, const at::Tensor& keys,
                                                         const at::Tensor& values, const at::Tensor& lengths,
                                                         const at::Tensor& cos, const at::Tensor& sin,
                                                         const std::optional<at::Tensor>& q_weight,
                                                         const std::optional<at::Tensor>& k_weight, double eps,
                                                         int64_t window, bool steady, bool pairs) {
  check_decode_attention(qkv, keys, values, lengths, cos, sin, q_weight, k_weight, eps, window);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const int64_t hd = keys.size(3), kv_heads = keys.size(1), heads = qkv.size(1) / hd - 2 * kv_heads;
  if (!cuda::use_kernel(qkv) || !cuda::decode_attention_fits(hd) || !reachable(keys) || !reachable(values)) {
    return {reference::decode_attention_(qkv, keys, values, lengths, cos, sin, q_weight, k_weight, eps, window),
            nothing_made()};
  }
  const at::Tensor rows = cuda::aligned_rows(qkv), places = lengths.contiguous();
  const at::Tensor q_factors = q_weight ? q_weight->contiguous() : at::Tensor();
  const at::Tensor k_factors = k_weight ? k_weight->contiguous() : at::Tensor();
  at::Tensor out = at::empty({qkv.size(0), heads * hd}, rows.options());
  at::Tensor paired = nothing_made();
  if (out.numel() == 0) return {out, paired};
  cuda::DecodeAttention params{};
  params.qkv = rows.const_data_ptr();
  params.keys = keys.mutable_data_ptr();
  params.values = values.mutable_data_ptr();
  params.out = out.mutable_data_ptr();
  params.lengths = places.const_data_ptr<int64_t>();
  params.cos = cos.const_data_ptr<float>();
  params.sin = sin.const_data_ptr<float>();
  params.q_weight = q_weight ? q_factors.const_data_ptr<float>() : nullptr;
  params.k_weight = k_weight ? k_factors.const_data_ptr<float>() : nullptr;
  params.rows = qkv.size(0);
  params.heads = heads;
  params.kv_heads = kv_heads;
  params.head_dim = hd;
  params.key_row = keys.stride(0);
  params.key_head = keys.stride(1);
  params.value_row = values.stride(0);
  params.value_head = values.stride(1);
  params.window = window;
  params.places = keys.size(2);
  params.eps = static_cast<float>(eps);
  params.steady = steady && places.is_same(lengths);  // a copy of them would be that kernel
  params.element = cuda::element_of(rows);
  if (pairs && cuda::makes_pairs(params)) {
    paired = at::empty({cuda::pairs_bytes(params.rows, heads * hd)}, rows.options().dtype(at::kByte));
    params.pairs = cuda::pairs_in(paired.mutable_data_ptr<uint8_t>(), params.rows, heads * hd);
  }
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {out, paired};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("decode_attention_", &decode_attention_cuda);
}

}  // namespace hrm::ops
