#pragma once
// Clusters of blocks in kernels that are compiled for every GPU: below compute capability 9.0 a cluster is one block.
// The compiler's own functions, because <cooperative_groups.h> adds 1.6 s for each file and architecture.

#include <cuda_runtime.h>

namespace hrm::ops::cuda {

// False in code for GPUs without clusters. No kernel is started there that needs them, so its body can be left out.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

__device__ inline int rank_in_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return static_cast<int>(__clusterRelativeBlockRank());
#else
  return 0;
#endif
}

// Waits for all threads of all blocks; what they wrote before is visible to all after.
__device__ inline void sync_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#else
  __syncthreads();
#endif
}

// The same variable of shared memory in block `rank`.
template <typename V>
__device__ inline V* in_block_of_cluster(V* shared, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return static_cast<V*>(__cluster_map_shared_rank(shared, static_cast<unsigned>(rank)));
#else
  return shared;
#endif
}

}  // namespace hrm::ops::cuda
