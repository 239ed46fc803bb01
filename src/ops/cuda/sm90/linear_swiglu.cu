#include "ops/cuda/sm90/linear_swiglu.cuh"

#include <algorithm>

#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/linear_epilogues.h"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kColumns = 64;  // gates of a slice; its ups are as many
constexpr int kStages = 4;
constexpr int kConsumers = 3;

template <Input kInput, bool kSave>
cudaError_t start_swiglu(const LinearSwigluForward& p, cudaStream_t stream) {
  using Op = LinearSwiglu<kInput, kColumns, kSave>;
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 64);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, 2 * p.width, p.inner, kColumns / 32);
  if (error != cudaSuccess) return error;
  Op op{};
  op.act = p.act;
  op.gate_up = p.gate_up;
  op.rows = p.rows;
  op.width = p.width;
  StationaryShape shape{};
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>(p.inner / 64);
  shape.slices = static_cast<int>(p.width / kColumns);
  shape.groups = static_cast<int>(std::min<int64_t>((p.rows + 63) / 64, std::max(1, multiprocessors() / shape.slices)));
  shape.box_distance = static_cast<int>(p.width / 32);
  return start(stationary_kernel<Op, kStages, kConsumers>, shape.slices * shape.groups, 128 * (kConsumers + 1),
               stationary_shared_bytes<Op>(shape.blocks_k, kStages, kConsumers), 1, stream, map_a, map_w, shape, op);
}

}  // namespace

bool fits(const LinearSwigluForward& p) {
  return is_hopper() && p.width % kColumns == 0 && p.width > 0 && p.inner % 64 == 0 && p.inner > 0 &&
         p.inner <= 64 * kStationaryBlocksK && p.rows > 0 && p.rows <= INT32_MAX - 64 && p.element != Element::f32;
}

cudaError_t launch(const LinearSwigluForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.element == Element::f16) {
    return p.gate_up != nullptr ? start_swiglu<Input::f16, true>(p, stream)
                                : start_swiglu<Input::f16, false>(p, stream);
  }
  return p.gate_up != nullptr ? start_swiglu<Input::bf16, true>(p, stream)
                              : start_swiglu<Input::bf16, false>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
