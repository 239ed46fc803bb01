#include "ops/linear/cuda/sm90/linear_rms_norm.cuh"

#include <algorithm>

#include "ops/cuda/sm90/launch.cuh"
#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/cuda/sm90/linear_rms_norm_few.cuh"
#include "ops/linear/cuda/sm90/linear_rms_norm_fp8.h"

namespace hrm::ops::cuda::sm90 {
namespace {

constexpr int kStages = 3;
constexpr int kSkinnyRows = 80;  // of a cluster of two blocks, where no cluster has more than that

// `p`: LinearRmsNorm or LinearRmsNormFp8.
template <Input kInput, Input kOperand, int kBlocks, class Params>
cudaError_t start_rms_norm(const Params& p, RowNormShape shape, cudaStream_t stream) {
  constexpr MapElement kElement = kOperand == Input::e4m3 ? MapElement::bits8 : MapElement::bits16;
  CUtensorMap map_a, map_w, map_residual, map_y;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128 / kBlocks, kElement);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, p.width, p.inner, 8, kElement);
  if (error == cudaSuccess) error = encode_column_chunks(map_residual, p.residual, p.rows, p.width, 64, 4);
  if (error == cudaSuccess) error = encode_column_chunks(map_y, p.y, p.rows, p.width, 64, 4);
  if (error != cudaSuccess) return error;
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>((p.inner * bytes_of(kElement) + 127) / 128);
  shape.eps = p.eps;
  const auto tiles = static_cast<int>((p.rows + 127) / 128);
  const int clusters = std::min(tiles, multiprocessors() / kBlocks);
  const auto run = [&](auto kernel) {
    return start(kernel, clusters * kBlocks, 384, row_norm_shared_bytes(kStages, kBlocks), kBlocks, stream, map_a,
                 map_w, map_residual, map_y, shape);
  };
  if constexpr (kOperand != Input::e4m3) {
    if (shape.addend != nullptr) return run(linear_rms_norm_kernel<kInput, kOperand, kBlocks, kStages, true>);
  }
  return run(linear_rms_norm_kernel<kInput, kOperand, kBlocks, kStages, false>);
}

template <Input kInput, Input kOperand, class Params>
cudaError_t start_few(const Params& p, RowNormShape shape, cudaStream_t stream) {
  constexpr MapElement kElement = kOperand == Input::e4m3 ? MapElement::bits8 : MapElement::bits16;
  CUtensorMap map_a, map_w, map_residual, map_y;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, kSkinnyRows / 2, kElement);
  if (error == cudaSuccess) error = encode_rows(map_w, p.weight, p.width, p.inner, 256, kElement);
  if (error == cudaSuccess) error = encode_column_chunks(map_residual, p.residual, p.rows, p.width, kSkinnyRows, 4);
  if (error == cudaSuccess) error = encode_column_chunks(map_y, p.y, p.rows, p.width, kSkinnyRows, 2);
  if (error != cudaSuccess) return error;
  shape.rows = p.rows;
  shape.blocks_k = static_cast<int>((p.inner * bytes_of(kElement) + 127) / 128);
  shape.eps = p.eps;
  const auto clusters = static_cast<int>((p.rows + kSkinnyRows - 1) / kSkinnyRows);
  return start(linear_rms_norm_few_kernel<kInput, kOperand, kSkinnyRows>, 2 * clusters, 384,
               SkinnyGemm<kSkinnyRows>::kBytes, 2, stream, map_a, map_w, map_residual, map_y, shape);
}

template <class Params>
bool few(const Params& p) {
  return p.width == 512 && p.rows <= int64_t{kSkinnyRows} * (multiprocessors() / 2);
}

template <Input kInput, Input kOperand, class Params>
cudaError_t start_by_width(const Params& p, const RowNormShape& shape, cudaStream_t stream) {
  if (few(p)) return start_few<kInput, kOperand>(p, shape, stream);
  return p.width == 256 ? start_rms_norm<kInput, kOperand, 1>(p, shape, stream)
                        : start_rms_norm<kInput, kOperand, 2>(p, shape, stream);
}

template <class Params>
bool shared_limits(const Params& p) {
  return is_hopper() && (p.width == 256 || p.width == 512) && p.inner > 0 && p.rows > 0 && p.rows <= INT32_MAX - 128 &&
         p.inner <= INT32_MAX / 2 && p.element != Element::f32;
}

}  // namespace

bool fits(const LinearRmsNorm& p) {
  return shared_limits(p) && p.inner % 64 == 0 && (p.addend == nullptr || !few(p));
}

cudaError_t launch(const LinearRmsNorm& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  RowNormShape shape{};
  shape.rstd = p.rstd;
  shape.addend = p.addend;
  return p.element == Element::f16 ? start_by_width<Input::f16, Input::f16>(p, shape, stream)
                                   : start_by_width<Input::bf16, Input::bf16>(p, shape, stream);
}

bool fits(const LinearRmsNormFp8& p) {
  return shared_limits(p) && p.inner % 16 == 0;
}

cudaError_t launch(const LinearRmsNormFp8& p, cudaStream_t stream) {
  if (!fits(p) || (p.y8 == nullptr) != (p.y_slot == nullptr)) return cudaErrorInvalidValue;
  RowNormShape shape{};
  shape.a_slot = p.x_slot;
  shape.w_slot = p.weight_slot;
  shape.y8 = static_cast<uint8_t*>(p.y8);
  shape.y_slot = p.y_slot;
  return p.element == Element::f16 ? start_by_width<Input::f16, Input::e4m3>(p, shape, stream)
                                   : start_by_width<Input::bf16, Input::e4m3>(p, shape, stream);
}

}  // namespace hrm::ops::cuda::sm90
