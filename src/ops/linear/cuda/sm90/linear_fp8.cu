#include "ops/linear/cuda/sm90/linear_fp8.h"

#include "ops/linear/cuda/sm90/linear_tile.cuh"
#include "ops/linear/cuda/sm90/swiglu_registers.cuh"

namespace hrm::ops::cuda::sm90 {
bool fits(const LinearFp8& p) {
  return fits_linear_tile(p.rows, p.width, p.inner, 1, p.element);
}

cudaError_t launch(const LinearFp8& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) {
    return start_linear_tile<Input::e4m3, Input::f16>(p, p.x_slot, p.weight_slot, stream);
  }
  return start_linear_tile<Input::e4m3, Input::bf16>(p, p.x_slot, p.weight_slot, stream);
}

bool fits(const LinearSwigluFp8& p) {
  return p.width % 128 == 0 && fits_linear_tile(p.rows, 2 * p.width, p.inner, 1, p.element);
}

namespace {

template <Input kRounded>
cudaError_t start_keeping(const LinearSwigluFp8& p, cudaStream_t stream) {
  return start_swiglu_registers<Input::e4m3, kRounded, 4, 3, /*kGrouped=*/false, /*kKeeps=*/true>(
      p, p.x_slot, p.weight_slot, p.act_slot, stream, {}, 1, p.gate_up);
}

}  // namespace

cudaError_t launch(const LinearSwigluFp8& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.gate_up != nullptr) {
    return p.element == Element::f16 ? start_keeping<Input::f16>(p, stream) : start_keeping<Input::bf16>(p, stream);
  }
  return p.element == Element::f16
             ? start_swiglu_registers<Input::e4m3, Input::f16>(p, p.x_slot, p.weight_slot, p.act_slot, stream)
             : start_swiglu_registers<Input::e4m3, Input::bf16>(p, p.x_slot, p.weight_slot, p.act_slot, stream);
}

}  // namespace hrm::ops::cuda::sm90
