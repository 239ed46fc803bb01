#include "ops/linear/cuda/sm90/skinny_gemm_tiles.cuh"

namespace hrm::ops::cuda::sm90 {

bool fits_tiles(const cuda::SkinnyGemm& p) {
  return is_hopper() && p.norm == nullptr && p.rows >= 1 && p.rows <= kTileRowsMost &&
         p.inner % (p.scales == nullptr ? 8 : 16) == 0 && p.inner > 0 && p.inner <= INT32_MAX / 2 && p.width % 8 == 0 &&
         p.width > 0 && p.width <= INT32_MAX / 16 && p.element != Element::f32 && (p.scales == nullptr || p.steady) &&
         fits(p.adapter) && (p.x_pairs.values == nullptr ? p.pairs.values == nullptr : fits_pairs(p)) &&
         (p.pairs.values == nullptr || takes_pairs(p.width));
}

cudaError_t launch_tiles(const cuda::SkinnyGemm& params, cudaStream_t stream) {
  if (!fits_tiles(params)) return cudaErrorInvalidValue;
  if (params.x_pairs.values != nullptr) return launch_tiles_pairs(params, stream);
  return params.scales == nullptr ? start_tiles<TilesInput::bits16>(params, stream) : launch_tiles8(params, stream);
}

}  // namespace hrm::ops::cuda::sm90
