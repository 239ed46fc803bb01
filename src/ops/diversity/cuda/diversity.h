#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct DiversityParams {
  const void* embeddings;          // (groups, vectors, dim), whose elements stand side by side
  int64_t group_pitch, row_pitch;  // in elements
  int64_t groups, vectors, dim;    // each at least 1
  Element element;
  const void* counts;  // (groups), or null: all vectors are valid
  bool long_counts;    // int64, otherwise int32
  float* totals;       // (groups)
  float* rows;         // (groups, vectors)
  float* loo;          // (groups, vectors)
};

// How the work is shared out.
struct DiversityPlan {
  int threads;
  int blocks;      // 0: the vectors are too long for the kernels
  int slices;      // 0: a block for each group; otherwise parts of a group, which meet in the scratch memory
  int tile;        // vectors that a block has in shared memory at one time
  bool kept;       // all vectors of a block, until the end
  int teams;       // sets of threads that add up other vectors of the tile
  int64_t shared;  // bytes of dynamic shared memory
};

// For a device with this many multiprocessors, whose blocks may have this many bytes of shared memory.
DiversityPlan plan(const DiversityParams& params, int processors, int64_t shared_limit);

// float64 numbers of scratch memory.
int64_t scratch_size(const DiversityParams& params, const DiversityPlan& plan);

// One kernel, cooperative where a group has slices.
cudaError_t launch(const DiversityParams& params, const DiversityPlan& plan, double* scratch, cudaStream_t stream);

}  // namespace hrm::ops::cuda
