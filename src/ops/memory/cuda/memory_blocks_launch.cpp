#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/memory/cuda/memory_blocks.h"
#include "ops/memory/memory_blocks_impl.h"

namespace hrm::ops {
namespace {

bool one_kernel(const at::Tensor& state, const std::vector<MemoryBlockWeights>& blocks, int64_t heads) {
  return cuda::use_kernel(state) && state.scalar_type() != at::kFloat && state.size(0) <= INT32_MAX / 64 / 8 &&
         std::all_of(blocks.begin(), blocks.end(), [&](const MemoryBlockWeights& w) {
           return cuda::memory_blocks_fits(state.size(1), state.size(2), w.down.size(1), heads,
                                           static_cast<int64_t>(blocks.size()));
         });
}

std::vector<at::Tensor> run_memory_blocks(const at::Tensor& state_any, const at::Tensor& extra_any,
                                          const at::Tensor& pos_any, const std::vector<MemoryBlockWeights>& blocks,
                                          const at::Tensor& norm_any, const MemoryBlocksOptions& options, bool save) {
  std::vector<at::Tensor> alive;  // copies, until the launch
  const auto pointer = [&](const at::Tensor& t) { return alive.emplace_back(cuda::aligned_rows(t)).const_data_ptr(); };
  const auto floats = [&](const at::Tensor& t) {
    return t.defined() ? static_cast<const float*>(pointer(t)) : nullptr;
  };
  const int64_t B = state_any.size(0), T = state_any.size(1), D = state_any.size(2), F = blocks[0].down.size(1);
  std::vector<at::Tensor> out{at::empty(state_any.sizes(), state_any.options().memory_format(c10::nullopt))};
  const auto saved = [&](at::IntArrayRef sizes, bool wide = false) -> void* {
    if (!save) return nullptr;
    return out.emplace_back(at::empty(sizes, state_any.options().dtype(wide ? at::kFloat : state_any.scalar_type())))
        .mutable_data_ptr();
  };
  cuda::MemoryBlocks p{};
  p.state = pointer(state_any);
  p.extra = pointer(extra_any);
  p.pos = pointer(pos_any);
  p.norm = floats(norm_any);
  p.out = out[0].mutable_data_ptr();
  p.saved_last = saved({options.steps, B, T, D});
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemoryBlockWeights& w = blocks[i];
    cuda::MemoryBlock& block = p.blocks[i];
    block.attention_norm = floats(w.attention_norm);
    block.mlp_norm = floats(w.mlp_norm);
    block.q_norm = floats(w.q_norm);
    block.k_norm = floats(w.k_norm);
    block.qkv = pointer(w.qkv);
    block.o = pointer(w.o);
    block.gate_up = pointer(w.gate_up);
    block.down = pointer(w.down);
    block.saved_x = saved({options.steps, B, T, D});
    block.saved_qkv = saved({options.steps, B, T, 3 * D});
    block.saved_mixed = saved({options.steps, B, T, D});
    block.saved_lse = static_cast<float*>(saved({options.steps, B, options.heads, T}, /*wide=*/true));
    block.saved_h = saved({options.steps, B, T, D});
    block.saved_gate_up = saved({options.steps, B, T, 2 * F});
  }
  p.batch = B;
  p.inner = F;
  p.length = static_cast<int>(T);
  p.width = static_cast<int>(D);
  p.count = static_cast<int>(blocks.size());
  p.steps = static_cast<int>(options.steps);
  p.eps = static_cast<float>(options.eps);
  p.element = cuda::element_of(state_any);
  C10_CUDA_CHECK(cuda::launch(p, c10::cuda::getCurrentCUDAStream()));
  return out;
}

std::vector<at::Tensor> run_memory_blocks_cuda(const at::Tensor& state, const at::Tensor& extra, const at::Tensor& pos,
                                               const std::vector<MemoryBlockWeights>& blocks, const at::Tensor& norm,
                                               const MemoryBlocksOptions& options, bool save) {
  const c10::cuda::CUDAGuard guard(state.device());
  if (one_kernel(state, blocks, options.heads))
    return run_memory_blocks(state, extra, pos, blocks, norm, options, save);
  const auto other = backend() == Backend::reference ? &reference::memory_blocks : &memory_blocks_by_layers;
  return other(state, extra, pos, blocks, norm, options, save);
}

using CudaKernels = MemoryBlocksKernels<&run_memory_blocks_cuda>;

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("memory_blocks", &CudaKernels::last_state);
  m.impl("memory_blocks_forward", &CudaKernels::saving);
}

}  // namespace hrm::ops
