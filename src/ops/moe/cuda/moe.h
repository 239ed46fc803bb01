#pragma once
// Kernels of hrm/ops/moe.h for every GPU: the gate, the plan, the rows' way to the experts and back, their products,
// and the gradient of the experts' weights. See there for the letters.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

constexpr int kMoeBlockPicks = 128;  // of a block of the plan

struct MoeGateForward {
  const float* logits;  // (tokens, experts)
  const float* bias;    // (experts), or null
  int* ids;             // (tokens, top_k)
  float* weights;
  float* scores;  // (tokens, experts)
  int64_t tokens;
  int experts, top_k;  // experts <= 1024, top_k <= 32
  bool sigmoid, normalize;
};

struct MoeGateBackward {
  const float* grad_weights;  // (tokens, top_k), or null
  const float* grad_scores;   // (tokens, experts), or null
  const int* ids;
  const float* scores;
  float* grad_logits;
  int64_t tokens;
  int experts, top_k;
  bool sigmoid, normalize;
};

struct MoeJitter {
  const void* x;  // (count)
  void* out;
  const int64_t* step;
  int64_t count;
  float amount;
  uint64_t seed;
  Element element;
};

struct MoePlanParams {
  const int* ids;     // (picks)
  int* rows;          // (picks)
  int* row_picks;     // (all_rows), filled with -1
  int* tile_experts;  // (all_rows / 128), filled with 0
  int* starts;        // (experts + 1)
  int* counts;        // (experts)
  int* block_counts;  // (experts, blocks of kMoeBlockPicks picks): scratch
  int64_t picks;
  int64_t all_rows;
  int experts;
};

struct MoeGather {
  const void* x;      // (tokens, dim)
  const int* picks;   // (rows)
  const int* end;     // how many rows there are
  void* out;          // (rows, dim)
  int64_t rows, dim;  // dim * size of an element: a multiple of 16 bytes
  int top_k;
  Element element;
};

struct MoeCombine {
  const void* y;         // (rows, dim)
  const int* rows;       // (tokens, top_k)
  const float* weights;  // (tokens, top_k), or null
  void* out;             // (tokens, dim)
  int64_t tokens, dim;
  int top_k;
  Element element;
};

constexpr int kMoeLossTokens = 128;  // of a block

struct MoeLoadLoss {
  const float* scores;  // (tokens, experts)
  const int* kept;      // (experts)
  const int* wanted;    // (experts)
  double* totals;       // (experts + 1)
  float* partial;       // (blocks, experts), blocks of kMoeLossTokens
  float* loss;
  float* slope;  // (experts)
  int64_t tokens;
  int experts;
};

cudaError_t launch(const MoeLoadLoss& p, cudaStream_t stream);

constexpr int kMoeLayers = 64;  // of one launch

struct MoeLoads {
  const double* counts[kMoeLayers];  // each (experts + 1)
  double* loads;                     // (layers, 3)
  int layers, experts;
};

struct MoeCombineBackward {
  const void* grad_out;  // (tokens, dim)
  const void* y;         // (rows, dim)
  const int* picks;      // (rows)
  const int* end;
  const float* weights;  // (tokens, top_k)
  void* grad_y;          // (rows, dim)
  float* grad_weights;   // (tokens, top_k), zeroed
  int64_t rows, dim;
  int top_k;
  Element element;
};

// out (., n) = rows (., k) @ weight[e]^T of the expert e that owns them; transposed: @ weight[e]. Rows behind all
// experts are not written.
struct MoeProduct {
  const void* rows;
  const void* weight;  // (experts, n, k); transposed: (experts, k, n)
  void* out;
  const int* tile_experts;  // (tiles): of each 128 rows
  const int* end;           // behind the last expert's rows
  int64_t tiles, n, k;
  Element element;
  bool transposed;
  bool tf32;  // float32 elements may be rounded to TF32
};

// grad[e] (m, n) += a[rows of e] (., m)^T @ b[rows of e] (., n), in float32.
struct MoeGradient {
  const void* a;
  const void* b;
  const int* starts;  // (experts + 1), multiples of 128
  float* grad;        // (experts, m, n)
  int64_t m, n;
  int experts;
  Element element;
  bool tf32;       // float32 elements may be rounded to TF32
  bool overwrite;  // grad = instead of +=
};

cudaError_t launch(const MoeProduct& p, cudaStream_t stream);
cudaError_t launch(const MoeGradient& p, cudaStream_t stream);
cudaError_t launch(const MoeGateForward& p, cudaStream_t stream);
cudaError_t launch(const MoeGateBackward& p, cudaStream_t stream);
cudaError_t launch(const MoePlanParams& p, cudaStream_t stream);
cudaError_t launch(const MoeLoads& p, cudaStream_t stream);
cudaError_t launch(const MoeJitter& p, cudaStream_t stream);
cudaError_t launch(const MoeGather& p, cudaStream_t stream);
cudaError_t launch(const MoeCombine& p, cudaStream_t stream);
cudaError_t launch(const MoeCombineBackward& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
