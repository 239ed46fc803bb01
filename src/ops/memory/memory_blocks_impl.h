#pragma once
// What the files of memory_blocks share. The ops take the weights in one list:
//
//   hrm::memory_blocks          the last state
//   hrm::memory_blocks_forward  the last state, `last`, and of each block x, qkv, mixed, lse, h, gate_up

#include <ATen/core/Tensor.h>

#include <vector>

#include "hrm/ops/memory_blocks.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_memory_blocks(const char* op, const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                         const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                         const MemoryBlocksOptions& options);

// attention_norm, mlp_norm, qkv, o, gate_up, down, and q_norm and k_norm where there are any.
std::vector<at::Tensor> pack_weights(const std::vector<MemoryBlockWeights>& blocks);
std::vector<MemoryBlockWeights> unpack_weights(at::TensorList weights, bool qk_norm);

// By the ops of single layers, as memory_blocks_forward; without `save` the last state alone.
std::vector<at::Tensor> memory_blocks_by_layers(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                                const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                                const MemoryBlocksOptions& options, bool save);

// The kernels of both ops for one device, over what runs the blocks there: a function as memory_blocks_by_layers, which
// gets checked arguments.
template <auto run>
struct MemoryBlocksKernels {
  static at::Tensor last_state(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                               at::TensorList weights, const at::Tensor& norm, bool qk_norm, int64_t heads,
                               int64_t steps, double eps) {
    const std::vector<MemoryBlockWeights> blocks = unpack_weights(weights, qk_norm);
    const MemoryBlocksOptions options{heads, steps, eps};
    check_memory_blocks("hrm::memory_blocks", state, extra, pos, blocks, norm, options);
    return run(state, extra, pos, blocks, norm, options, /*save=*/false)[0];
  }
  static std::vector<at::Tensor> saving(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                        at::TensorList weights, const at::Tensor& norm, bool qk_norm, int64_t heads,
                                        int64_t steps, double eps) {
    const std::vector<MemoryBlockWeights> blocks = unpack_weights(weights, qk_norm);
    const MemoryBlocksOptions options{heads, steps, eps};
    check_memory_blocks("hrm::memory_blocks_forward", state, extra, pos, blocks, norm, options);
    return run(state, extra, pos, blocks, norm, options, /*save=*/true);
  }
};

// q and k of each head normalised, v as it is: qkv (B, T, 3D) -> the same.
at::Tensor normalised_qkv(const at::Tensor& qkv, const MemoryBlockWeights& weights, int64_t heads, double eps);

namespace reference {

// In plain ATen, differentiable by autograd.
std::vector<at::Tensor> memory_blocks(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                      const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                      const MemoryBlocksOptions& options, bool save);

}  // namespace reference
}  // namespace hrm::ops
