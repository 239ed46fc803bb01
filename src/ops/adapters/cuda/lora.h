#pragma once
// Parameters of the kernels for products with low ranks. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kMostLoraSlices = 8;
constexpr int kLoraStrip = 32;     // columns of a warp: slices begin and end at multiples of them
constexpr int kMostLoraRank = 64;  // summands of LowRankGemm, ranks of LoraGradients
constexpr int kLoraColumns = 256;  // of a block

struct LoraColumns {
  int out, first, columns;  // of the wide factor; rows of B
};

// out += a b with few summands: all that takes time is to read and write `out` once. 16-bit elements, sums in float32
// with out's element first; pointers aligned to 16 bytes.
struct LowRankGemm {
  void* out;      // (rows, width)
  const void* a;  // (rows, slices * rank), slice i's summands from i * rank
  const void* b;  // upright: (rank, width), one slice; else B, (rows of the slices, rank), of which slice i's are b^T
  int64_t rows;
  int width, rank, slices;
  LoraColumns slice[kMostLoraSlices];
  bool upright;
  Element element;
};
bool fits(const LowRankGemm& p);
cudaError_t launch(const LowRankGemm& p, cudaStream_t stream);

// grad_v = scale grad_y_i B_i and grad_B += grad_y_i^T u_i of each slice; grad_y is read once. A first kernel writes
// sums over 256 columns, of grad_v, and over `chunk` rows, of grad_B; a second one adds them up, always in one order.
struct LoraGradients {
  const void* grad_y;  // (rows, width)
  const void* u;       // (rows, slices * rank)
  const void* B;       // (B_rows, rank)
  void* grad_v;        // (rows, slices * rank)
  float* grad_B;       // (B_rows, rank) or null
  float* v_parts;      // v_parts_size() floats
  float* B_parts;      // B_parts_size() floats; unused without grad_B
  int64_t rows;
  int width, rank, slices, B_rows;
  LoraColumns slice[kMostLoraSlices];
  float scale;
  Element element;
};
bool fits(const LoraGradients& p);
int64_t v_parts_size(const LoraGradients& p);
int64_t B_parts_size(const LoraGradients& p);
cudaError_t launch(const LoraGradients& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
