#include "ops/linear/cuda/sm90/skinny_gemm_tiles.cuh"

namespace hrm::ops::cuda::sm90 {

cudaError_t launch_tiles8(const cuda::SkinnyGemm& params, cudaStream_t stream) {
  return start_tiles<TilesInput::widened>(params, stream);
}

}  // namespace hrm::ops::cuda::sm90
