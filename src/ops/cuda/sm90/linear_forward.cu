#include "ops/cuda/sm90/linear_epilogues.h"
#include "ops/cuda/sm90/linear_tile.cuh"

namespace hrm::ops::cuda::sm90 {

bool fits(const LinearForward& p) {
  return fits_linear_tile(p.rows, p.width, p.inner, 2, p.element);
}

cudaError_t launch(const LinearForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) return start_linear_tile<Input::f16, Input::f16>(p, nullptr, nullptr, stream);
  return start_linear_tile<Input::bf16, Input::bf16>(p, nullptr, nullptr, stream);
}

}  // namespace hrm::ops::cuda::sm90
