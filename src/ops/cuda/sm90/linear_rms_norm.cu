#include "ops/cuda/sm90/linear_rms_norm.cuh"

#include <algorithm>

#include "ops/cuda/sm90/launch.cuh"
#include "ops/cuda/sm90/linear_epilogues.h"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kStages = 3;

template <Input kInput, int kBlocks>
cudaError_t start_rms_norm(const LinearRmsNorm& p, cudaStream_t stream) {
  CUtensorMap map_a, map_w, map_residual, map_y;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128 / kBlocks);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, p.width, p.inner, 8);
  if (error == cudaSuccess) error = encode_column_chunks(map_residual, p.residual, p.rows, p.width, 64, 4);
  if (error == cudaSuccess) error = encode_column_chunks(map_y, p.y, p.rows, p.width, 64, 4);
  if (error != cudaSuccess) return error;
  RowNormShape shape{};
  shape.rstd = p.rstd;
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>(p.inner / 64);
  shape.eps = p.eps;
  const auto tiles = static_cast<int>((p.rows + 127) / 128);
  const int clusters = std::min(tiles, multiprocessors() / kBlocks);
  return start(linear_rms_norm_kernel<kInput, kBlocks, kStages>, clusters * kBlocks, 384,
               row_norm_shared_bytes(kStages, kBlocks), kBlocks, stream, map_a, map_w, map_residual, map_y, shape);
}

template <Input kInput>
cudaError_t start_by_width(const LinearRmsNorm& p, cudaStream_t stream) {
  return p.width == 256 ? start_rms_norm<kInput, 1>(p, stream) : start_rms_norm<kInput, 2>(p, stream);
}

}  // namespace

bool fits(const LinearRmsNorm& p) {
  return is_hopper() && (p.width == 256 || p.width == 512) && p.inner % 64 == 0 && p.inner > 0 && p.rows > 0 &&
         p.rows <= INT32_MAX - 128 && p.element != Element::f32;
}

cudaError_t launch(const LinearRmsNorm& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_by_width<Input::f16>(p, stream) : start_by_width<Input::bf16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
