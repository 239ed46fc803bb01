#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/cuda/sm90/swiglu_gradient.cuh"
#include "ops/linear/cuda/sm90/swiglu_registers.cuh"
#include "ops/linear/cuda/sm90/tile_ops.cuh"

namespace hrm::ops::cuda::sm90 {
namespace {

template <Input kInput, bool kSave>
cudaError_t start_by_tiles(const LinearSwigluForward& p, cudaStream_t stream) {
  using Op = LinearSwigluTile<kInput, kSave>;
  constexpr int kStages = 3;
  constexpr int kColumns = 128;  // gates of a slice; its ups are as many
  CUtensorMap map_a, map_w;
  cudaError_t error = encode_rows(map_a, p.x, p.rows, p.inner, 128);
  if (error == cudaSuccess) error = encode_permuted_rows(map_w, p.weight, 2 * p.width, p.inner, kColumns / 32);
  if (error != cudaSuccess) return error;
  Op op{};
  op.act = p.act;
  op.gate_up = p.gate_up;
  op.rows = p.rows;
  op.width = p.width;
  return start_tiles<kStages>(map_a, map_w, p.rows, p.inner, p.width / kColumns, p.width / 32, op, stream, {}, p.draws);
}

// Setting a counter to 0 costs some 4 us, because the kernel cannot begin early behind it: of those that take at least
// 0.4 ms less than 1 %. They have many tiles for each block.
bool long_enough_for_draws(int64_t rows, int64_t width, int64_t inner) {
  constexpr double kOperations = double{1u << 18} * double{1u << 20};
  return 2.0 * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(inner) >= kOperations;
}

template <Input kInput>
cudaError_t start_forward(const LinearSwigluForward& p, cudaStream_t stream) {
  if (p.gate_up != nullptr) return start_by_tiles<kInput, true>(p, stream);
  // Both give the same bits. `bench ops` on an H200, inner 512 and width 1536: 26.8 and 28.4 us for 5,248 rows, 150 and
  // 148 us for 31,488, 350 and 343 us for 74,496.
  const int64_t tiles = (p.rows + 127) / 128 * (p.width / 128);
  return tiles <= 16 * multiprocessors()
             ? start_swiglu_registers<kInput, kInput>(p, nullptr, nullptr, nullptr, stream, {}, 1, nullptr, p.draws)
             : start_by_tiles<kInput, false>(p, stream);
}

}  // namespace

bool fits(const LinearSwigluForward& p) {
  return is_hopper() && p.width % 128 == 0 && p.width > 0 && p.inner % 64 == 0 && p.inner > 0 && p.rows > 0 &&
         p.rows * (p.width / 64) <= INT32_MAX - 128 && p.element != Element::f32;
}

bool worth_draws(const LinearSwigluForward& p) {
  return long_enough_for_draws(p.rows, 2 * p.width, p.inner);
}

cudaError_t launch(const LinearSwigluForward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_forward<Input::f16>(p, stream) : start_forward<Input::bf16>(p, stream);
}

bool fits(const LinearSwigluBackward& p) {
  return is_hopper() && p.width % 256 == 0 && p.width > 0 && p.inner % 64 == 0 && p.inner > 0 && p.rows > 0 &&
         p.rows * (p.width / 256) <= INT32_MAX - 128 && p.element != Element::f32;
}

bool worth_draws(const LinearSwigluBackward& p) {
  return long_enough_for_draws(p.rows, p.width, p.inner);
}

cudaError_t launch(const LinearSwigluBackward& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_swiglu_gradient<Input::f16>(p, stream, {}, 1, p.draws)
                                   : start_swiglu_gradient<Input::bf16>(p, stream, {}, 1, p.draws);
}

}  // namespace hrm::ops::cuda::sm90
