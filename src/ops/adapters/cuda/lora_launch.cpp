// The adapters' products on a GPU.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <vector>

#include "ops/adapters/cuda/lora.h"
#include "ops/adapters/cuda/lora_product.h"
#include "ops/adapters/lora_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace cuda {
namespace {

bool has_products(const at::Tensor& tensor) {
  return use_kernel(tensor) && at::cuda::getDeviceProperties(tensor.get_device())->major >= 8;
}

// The slices for a kernel; false where there are more than it has room for.
bool copy_slices(LoraColumns (&to)[kMostLoraSlices], const std::vector<LoraSlice>& slices) {
  if (slices.size() > kMostLoraSlices) return false;
  for (size_t i = 0; i < slices.size(); ++i) {
    to[i] = {.out = static_cast<int>(slices[i].out),
             .first = static_cast<int>(slices[i].first),
             .columns = static_cast<int>(slices[i].rows)};
  }
  return true;
}

bool has_int_sizes(const at::Tensor& y, const at::Tensor& B) {
  return y.size(1) <= INT32_MAX && B.numel() <= INT32_MAX;
}

}  // namespace

bool add_low_rank_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (!has_products(out) || !is_aligned(out) || !is_aligned(a) || !is_aligned(b) || !has_int_sizes(out, b))
    return false;
  LowRankGemm p{};
  p.out = out.mutable_data_ptr();
  p.a = a.const_data_ptr();
  p.b = b.const_data_ptr();
  p.rows = out.size(0);
  p.width = static_cast<int>(out.size(1));
  p.rank = static_cast<int>(b.size(0));
  p.slices = 1;
  p.slice[0] = {.out = 0, .first = 0, .columns = p.width};
  p.upright = true;
  p.element = element_of(out);
  if (!fits(p)) return false;
  const c10::cuda::CUDAGuard guard(out.device());
  C10_CUDA_CHECK(launch(p, c10::cuda::getCurrentCUDAStream()));
  return true;
}

}  // namespace cuda

namespace {

void lora_add_cuda_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, at::IntArrayRef flat) {
  const std::vector<LoraSlice> slices = lora_slices(flat);
  check_lora_add(y, u, B, slices);
  const c10::cuda::CUDAGuard guard(y.device());
  cuda::LowRankGemm p{};
  p.out = y.mutable_data_ptr();
  p.a = u.const_data_ptr();
  p.b = B.const_data_ptr();
  p.rows = y.size(0);
  p.rank = static_cast<int>(B.size(1));
  p.slices = static_cast<int>(slices.size());
  if (cuda::has_products(y) && cuda::is_aligned(y) && cuda::is_aligned(u) && cuda::is_aligned(B) &&
      cuda::has_int_sizes(y, B) && cuda::copy_slices(p.slice, slices)) {
    p.width = static_cast<int>(y.size(1));
    p.element = cuda::element_of(y);
    if (cuda::fits(p)) {
      C10_CUDA_CHECK(cuda::launch(p, c10::cuda::getCurrentCUDAStream()));
      return;
    }
  }
  const at::NoGradGuard no_grad;
  reference::lora_add_(y, u, B, slices);
}

at::Tensor lora_gradients_cuda(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                               const OptionalTensor& grad_B, at::IntArrayRef flat, double scale) {
  const std::vector<LoraSlice> slices = lora_slices(flat);
  check_lora_gradients(grad_y, u, B, grad_B, slices);
  const c10::cuda::CUDAGuard guard(grad_y.device());
  const at::NoGradGuard no_grad;
  const bool is_wide = !grad_B || (grad_B->scalar_type() == at::kFloat && cuda::is_aligned(*grad_B));
  cuda::LoraGradients p{};
  if (!is_wide || !cuda::has_products(grad_y) || !cuda::is_aligned(grad_y) || !cuda::is_aligned(u) ||
      !cuda::is_aligned(B) || !cuda::has_int_sizes(grad_y, B) || !cuda::copy_slices(p.slice, slices)) {
    return reference::lora_gradients(grad_y, u, B, grad_B, slices, scale);
  }
  p.rows = grad_y.size(0);
  p.width = static_cast<int>(grad_y.size(1));
  p.rank = static_cast<int>(B.size(1));
  p.slices = static_cast<int>(slices.size());
  p.B_rows = static_cast<int>(B.size(0));
  p.scale = static_cast<float>(scale);
  p.element = cuda::element_of(grad_y);
  if (!cuda::fits(p)) return reference::lora_gradients(grad_y, u, B, grad_B, slices, scale);
  at::Tensor grad_v = at::empty(u.sizes(), u.options());
  const at::TensorOptions floats = u.options().dtype(at::kFloat);
  const at::Tensor v_parts = at::empty({cuda::v_parts_size(p)}, floats);
  at::Tensor B_parts;
  p.grad_y = grad_y.const_data_ptr();
  p.u = u.const_data_ptr();
  p.B = B.const_data_ptr();
  p.grad_v = grad_v.mutable_data_ptr();
  p.v_parts = v_parts.mutable_data_ptr<float>();
  if (grad_B) {
    B_parts = at::empty({cuda::B_parts_size(p)}, floats);
    p.B_parts = B_parts.mutable_data_ptr<float>();
    p.grad_B = grad_B->mutable_data_ptr<float>();
  }
  C10_CUDA_CHECK(cuda::launch(p, c10::cuda::getCurrentCUDAStream()));
  return grad_v;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("lora_add_", &lora_add_cuda_);
  m.impl("lora_gradients", &lora_gradients_cuda);
}

}  // namespace hrm::ops
