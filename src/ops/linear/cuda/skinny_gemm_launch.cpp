#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/skinny_gemm.h"
#include "ops/linear/cuda/skinny_gemm_product.h"
#include "ops/linear/cuda/sm90/skinny_gemm_split.h"
#include "ops/linear/cuda/sm90/skinny_gemm_tiles.h"

namespace hrm::ops::cuda {
namespace {

// Where tiles are used for all rows, so that a row's bits do not depend on how many there are, but for pairs: from the
// products of a model of width 1,024 on, whose steps of decoding then take two thirds of the time for 48 rows (H200,
// docs/benchmarks.md). Where autograd may follow, up to 64 rows: its gates come from a second product.
bool takes_tiles(const SkinnyGemm& p) {
  constexpr int64_t kMost = 64;
  // An adapter's A, for more rows than skinny_gemm_split.h takes. cuBLASLt has two kernels for it, behind which the
  // product that follows cannot begin early.
  constexpr int64_t kNarrow = 64;
  if (p.steady && !p.gated && p.width <= kNarrow && p.inner >= sm90::kSplitInner && p.rows > sm90::kSplitRows) {
    return true;
  }
  return p.inner * p.width >= kDecodeTileElements && (p.gated || p.width < 8192 || p.scales != nullptr) &&
         (p.steady || p.rows <= kMost);
}

// On an H200, beside cuBLASLt: with a norm, whose work each block does again, up to 8 rows; without, a layer of width
// 768 in 2.8 to 4.9 us for 32 rows instead of 3.4 to 5.8, but a vocabulary of 32,000 in 18 us for 16 rows instead of
// 13; gates, which the library does not do, in 7.7 us for 64 rows instead of 11.6 by the kernel for many rows.
bool pays(const SkinnyGemm& p) {
  return p.rows <= 8 || p.gated || (p.rows <= 32 && p.width < 8192);
}

Weight8Format format_of(const at::Tensor& weight) {
  return weight.scalar_type() == at::kChar ? Weight8Format::int8 : Weight8Format::e4m3;
}

// Slices that the kernel has no room for make it refuse.
SkinnyAdapter adapter_of(const DecodeAdapter& a) {
  SkinnyAdapter out{};
  out.slices = static_cast<int>(a.slices.size());
  out.rank = static_cast<int>(a.B.size(1));
  out.scale = static_cast<float>(a.scale);
  for (size_t i = 0; i < std::min<size_t>(a.slices.size(), kSkinnySlicesMost); ++i) {
    const LoraSlice& s = a.slices[i];
    out.slice[i] = {static_cast<int>(s.out), static_cast<int>(s.first), static_cast<int>(s.rows)};
  }
  return out;
}

}  // namespace

at::Tensor skinny_gemm(const at::Tensor& x, const at::Tensor& weight, const SkinnyGemmOptions& options) {
  const bool bits8 = options.scales.defined();
  if (bits8 && !is_aligned(weight)) return {};
  if (!use_kernel(x) || x.numel() == 0 || (!bits8 && weight.scalar_type() != x.scalar_type())) return {};
  const at::Tensor norm = options.norm.defined() ? aligned_rows(options.norm) : at::Tensor();
  SkinnyGemm params{};
  params.rows = x.numel() / x.size(-1);
  params.inner = x.size(-1);
  params.width = weight.size(0) / (options.gated ? 2 : 1);
  params.eps = static_cast<float>(options.eps);
  params.gated = options.gated;
  params.steady = options.steady;
  params.element = element_of(x);
  const at::Tensor scales = bits8 ? aligned_rows(options.scales) : at::Tensor();
  if (bits8) {
    params.scales = scales.const_data_ptr<float>();
    params.format = format_of(weight);
  }
  if (options.adapter) params.adapter = adapter_of(*options.adapter);
  // What a kernel has prepared for the norm is used by tiles alone, so they also take small weights then.
  const bool tiles = (takes_tiles(params) || options.ahead.scaled.defined()) && sm90::fits_tiles(params);
  const bool ahead = tiles && options.ahead.scaled.defined();
  if (tiles && norm.defined() && !ahead) return {};
  if (!tiles && norm.defined()) params.norm = norm.const_data_ptr<float>();
  if ((!tiles && (!fits(params) || !pays(params))) || at::cuda::getDeviceProperties(x.get_device())->major < 8)
    return {};
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor rows = aligned_rows(ahead ? options.ahead.scaled : x), columns = aligned_rows(weight);
  at::Tensor u, B;
  if (options.adapter) {
    u = aligned_rows(options.adapter->u);
    B = aligned_rows(options.adapter->B);
    params.adapter.u = u.const_data_ptr();
    params.adapter.B = B.const_data_ptr();
  }
  // A copy of a weight is written by the kernel in front, so it must not be read before that one is done.
  const auto is_copy = [](const at::Tensor& to, const at::Tensor& from) {
    return to.const_data_ptr() != from.const_data_ptr();
  };
  if (params.steady && (is_copy(columns, weight) || (options.adapter && is_copy(B, options.adapter->B)))) {
    if (bits8 || options.adapter) return {};
    params.steady = false;
  }
  const at::Tensor added = options.residual.defined() ? options.residual.contiguous() : at::Tensor();
  at::Tensor out = at::empty(with_last_size(x, params.width), rows.options());
  params.x = rows.const_data_ptr();
  params.weight = columns.const_data_ptr();
  params.residual = added.defined() ? added.const_data_ptr() : nullptr;
  params.out = out.mutable_data_ptr();
  if (ahead) params.x_squares = options.ahead.squares.const_data_ptr<float>();
  if (tiles && options.pairs.defined() && sm90::fits_pairs(params)) {
    const int64_t bytes = pairs_bytes(params.rows, params.inner);
    TORCH_CHECK(options.pairs.numel() == bytes && is_aligned(options.pairs), "hrm::decode_linear: pairs of ",
                rows.sizes(), " have ", bytes, " bytes, aligned to 16, got ", options.pairs.numel());
    params.x_pairs = pairs_in(const_cast<uint8_t*>(options.pairs.const_data_ptr<uint8_t>()), params.rows, params.inner);
  }
  const auto make_pairs = [&] {
    if (params.x_pairs.values == nullptr || options.made == nullptr || !sm90::takes_pairs(params.width)) return;
    const int64_t bytes = pairs_bytes(params.rows, params.width);
    options.made->pairs = at::empty({bytes}, rows.options().dtype(at::kByte));
    params.pairs = pairs_in(options.made->pairs.mutable_data_ptr<uint8_t>(), params.rows, params.width);
  };
  if (params.gated) make_pairs();
  const at::Tensor next_norm = options.next_norm.defined() ? aligned_rows(options.next_norm) : at::Tensor();
  if (tiles && next_norm.defined() && params.element == Element::bf16) {
    options.made->scaled = at::empty_like(out);
    options.made->squares = at::empty({params.rows, square_parts(params.width)}, next_norm.options());
    params.next_norm = next_norm.const_data_ptr<float>();
    params.scaled = options.made->scaled.mutable_data_ptr();
    params.squares = options.made->squares.mutable_data_ptr<float>();
    make_pairs();
  }
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (tiles) {
    C10_CUDA_CHECK(sm90::launch_tiles(params, stream));
  } else if (!options.normed && sm90::fits_split(params)) {
    C10_CUDA_CHECK(sm90::launch_split(params, stream));
  } else {
    C10_CUDA_CHECK(launch(params, stream));
  }
  return out;
}

}  // namespace hrm::ops::cuda
