#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "ops/cuda/launcher.h"
#include "ops/mixing/cuda/mlp_mix.h"
#include "ops/mixing/mlp_mix_impl.h"

namespace hrm::ops {
namespace {

std::atomic<bool> g_mix_takes_turns{false};

}  // namespace

void set_mix_takes_turns(bool always) {
  g_mix_takes_turns = always;
}

namespace {

// Samples whose hidden values exist at one time where the reference runs instead of a kernel (1 MiB each for L = 97, D
// = 512, F = 512 in 16 bits), and units of 64 channels in the scratch memory of the backward kernels that take turns
// (0.2 MiB each; 1,536 give the 132 processors of an H100 or H200 almost six full rounds).
constexpr int64_t kReferencePart = 64;
constexpr int64_t kScratchUnits = 1536;

bool use_fused(const at::Tensor& h, const at::Tensor& weight_down) {
  return cuda::use_kernel(h) && h.scalar_type() != at::kFloat &&
         cuda::mlp_mix_fits(h.size(1), h.size(2), weight_down.size(1));
}

at::Tensor bytes(int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kByte));
}

// y, and rstd where asked for.
std::tuple<at::Tensor, at::Tensor> run_mlp_mix_forward(const at::Tensor& h_any, const at::Tensor& weight_gate_up,
                                                       const at::Tensor& weight_down, double eps, bool save) {
  check_mlp_mix(h_any, weight_gate_up, weight_down, eps);
  const c10::cuda::CUDAGuard guard(h_any.device());
  const int64_t batch = h_any.size(0);
  if (!use_fused(h_any, weight_down)) {
    if (batch <= kReferencePart || !cuda::use_kernel(h_any)) {
      return reference::mlp_mix(h_any, weight_gate_up, weight_down, eps);
    }
    at::Tensor y = at::empty(h_any.sizes(), h_any.options());
    at::Tensor rstd = at::empty({batch, h_any.size(2)}, h_any.options().dtype(at::kFloat));
    for (int64_t first = 0; first < batch; first += kReferencePart) {
      const int64_t part = std::min(kReferencePart, batch - first);
      const auto [y_part, rstd_part] =
          reference::mlp_mix(h_any.narrow(0, first, part), weight_gate_up, weight_down, eps);
      y.narrow(0, first, part).copy_(y_part);
      rstd.narrow(0, first, part).copy_(rstd_part);
    }
    return {y, rstd};
  }
  const at::Tensor h = cuda::aligned_rows(h_any);
  const at::Tensor gate_up = weight_gate_up.contiguous(), down = weight_down.contiguous();
  at::Tensor y = at::empty(h.sizes(), h.options()), rstd;
  if (save) rstd = at::empty({batch, h.size(2)}, h.options().dtype(at::kFloat));
  if (h.numel() == 0) return {y, rstd};
  const at::Tensor packed = bytes(cuda::mlp_mix_packed_bytes(h.size(1), down.size(1)), h);
  cuda::MlpMixForward params{};
  params.h = h.const_data_ptr();
  params.weight_gate_up = gate_up.const_data_ptr();
  params.weight_down = down.const_data_ptr();
  params.packed = packed.mutable_data_ptr();
  params.y = y.mutable_data_ptr();
  params.rstd = save ? rstd.mutable_data_ptr<float>() : nullptr;
  params.batch = batch;
  params.length = h.size(1);
  params.width = h.size(2);
  params.inner = down.size(1);
  params.eps = static_cast<float>(eps);
  params.half = h.scalar_type() == at::kHalf;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {y, rstd};
}

at::Tensor mlp_mix_cuda(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                        double eps) {
  return std::get<0>(run_mlp_mix_forward(h, weight_gate_up, weight_down, eps, /*save=*/false));
}

std::tuple<at::Tensor, at::Tensor> mlp_mix_forward_cuda(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                                        const at::Tensor& weight_down, double eps) {
  return run_mlp_mix_forward(h, weight_gate_up, weight_down, eps, /*save=*/true);
}

at::Tensor mlp_mix_backward_cuda(const at::Tensor& grad_y_any, const at::Tensor& h_any, const at::Tensor& y_any,
                                 const at::Tensor& rstd_any, const at::Tensor& weight_gate_up,
                                 const at::Tensor& weight_down, const at::Tensor& grad_weight_gate_up,
                                 const at::Tensor& grad_weight_down) {
  check_mlp_mix_backward(grad_y_any, h_any, y_any, rstd_any, weight_gate_up, weight_down, grad_weight_gate_up,
                         grad_weight_down);
  const c10::cuda::CUDAGuard guard(h_any.device());
  const int64_t batch = h_any.size(0);
  if (!use_fused(h_any, weight_down)) {
    const auto run = [&](int64_t first, int64_t part) {
      return reference::mlp_mix_backward(grad_y_any.narrow(0, first, part), h_any.narrow(0, first, part),
                                         y_any.narrow(0, first, part), rstd_any.narrow(0, first, part), weight_gate_up,
                                         weight_down, grad_weight_gate_up, grad_weight_down);
    };
    if (batch <= kReferencePart || !cuda::use_kernel(h_any)) return run(0, batch);
    at::Tensor grad_h = at::empty(h_any.sizes(), h_any.options());
    for (int64_t first = 0; first < batch; first += kReferencePart) {
      const int64_t part = std::min(kReferencePart, batch - first);
      grad_h.narrow(0, first, part).copy_(run(first, part));
    }
    return grad_h;
  }
  const at::Tensor grad_y = cuda::aligned_rows(grad_y_any), h = cuda::aligned_rows(h_any),
                   y = cuda::aligned_rows(y_any);
  const at::Tensor rstd = rstd_any.contiguous();
  const at::Tensor gate_up = weight_gate_up.contiguous(), down = weight_down.contiguous();
  at::Tensor grad_h = at::empty(h.sizes(), h.options());
  if (h.numel() == 0) return grad_h;
  cuda::MlpMixBackward params{};
  params.batch = batch;
  params.length = h.size(1);
  params.width = h.size(2);
  params.inner = down.size(1);
  params.part = std::clamp<int64_t>(kScratchUnits * 64 / h.size(2), 1, batch);
  params.takes_turns = g_mix_takes_turns;
  const cuda::MlpMixScratch scratch = cuda::mlp_mix_scratch(params);
  const at::Tensor packed = bytes(scratch.packed, h), rows = bytes(scratch.rows, h), images = bytes(scratch.images, h);
  const at::Tensor partial = bytes(scratch.partial, h), flags = bytes(scratch.flags, h);
  params.grad_y = grad_y.const_data_ptr();
  params.h = h.const_data_ptr();
  params.y = y.const_data_ptr();
  params.rstd = rstd.const_data_ptr<float>();
  params.weight_gate_up = gate_up.const_data_ptr();
  params.weight_down = down.const_data_ptr();
  params.grad_h = grad_h.mutable_data_ptr();
  params.grad_gate_up = grad_weight_gate_up.mutable_data_ptr<float>();
  params.grad_down = grad_weight_down.mutable_data_ptr<float>();
  params.packed = packed.mutable_data_ptr();
  params.rows = rows.mutable_data_ptr();
  params.images = images.mutable_data_ptr();
  params.partial = reinterpret_cast<float*>(partial.mutable_data_ptr());
  params.flags = flags.mutable_data_ptr();
  params.half = h.scalar_type() == at::kHalf;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad_h;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("mlp_mix", &mlp_mix_cuda);
  m.impl("mlp_mix_forward", &mlp_mix_forward_cuda);
  m.impl("mlp_mix_backward", &mlp_mix_backward_cuda);
}

}  // namespace hrm::ops
