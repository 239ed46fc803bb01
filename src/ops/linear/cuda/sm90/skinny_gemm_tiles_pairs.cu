#include "ops/linear/cuda/sm90/skinny_gemm_tiles.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

template <int kRows>
cudaError_t start_pairs(const cuda::SkinnyGemm& p, cudaStream_t stream) {
  using T = __nv_bfloat16;
  // A gated tile of one warpgroup would have half a run of columns.
  if (p.gated) return start_block<T, TilesBlock<kRows, 2, true, TilesInput::pairs>>(p, stream);
  if (enough_wide_tiles(p)) return start_block<T, TilesBlock<kRows, 2, false, TilesInput::pairs>>(p, stream);
  return start_block<T, TilesBlock<kRows, 1, false, TilesInput::pairs>>(p, stream);
}

}  // namespace

cudaError_t launch_tiles_pairs(const cuda::SkinnyGemm& params, cudaStream_t stream) {
  if (params.rows <= 16) return start_pairs<16>(params, stream);
  if (params.rows <= 32) return start_pairs<32>(params, stream);
  return start_pairs<kPairsRowsMost>(params, stream);
}

}  // namespace hrm::ops::cuda::sm90
