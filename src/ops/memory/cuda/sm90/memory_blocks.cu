#include "ops/memory/cuda/sm90/memory_blocks.cuh"

namespace hrm::ops::cuda {

bool memory_blocks_fits(int64_t length, int64_t width, int64_t inner, int64_t heads, int64_t count) {
  return sm90::is_hopper() && length >= 1 && length <= 64 && (width == 256 || width == 512) && heads * 64 == width &&
         inner == 3 * width && count >= 1 && count <= kMaxMemoryBlocks;
}

cudaError_t launch(const MemoryBlocks& p, cudaStream_t stream) {
  using sm90::Input;
  using sm90::start_memory_blocks;
  if (p.element == Element::bf16) {
    return p.width == 512 ? start_memory_blocks<Input::bf16, 8>(p, stream)
                          : start_memory_blocks<Input::bf16, 4>(p, stream);
  }
  return p.width == 512 ? start_memory_blocks<Input::f16, 8>(p, stream) : start_memory_blocks<Input::f16, 4>(p, stream);
}

}  // namespace hrm::ops::cuda
