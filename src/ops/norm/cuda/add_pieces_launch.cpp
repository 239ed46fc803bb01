#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/norm/add_rms_norm_impl.h"
#include "ops/norm/cuda/add_pieces.h"

namespace hrm::ops {
namespace {

at::Tensor add_pieces_cuda(const OptionalTensor& residual, const at::Tensor& pieces) {
  check_add_pieces(residual, pieces);
  const c10::cuda::CUDAGuard guard(pieces.device());
  if (!cuda::use_kernel(pieces)) return reference::add_pieces(residual, pieces);
  const at::Tensor from = pieces[0].is_contiguous() && pieces.stride(0) >= 0 ? pieces : pieces.contiguous();
  const at::Tensor first = residual ? residual->contiguous() : at::Tensor();
  at::Tensor out = at::empty(pieces.sizes().slice(1), pieces.options());
  if (out.numel() == 0) return out;
  C10_CUDA_CHECK(cuda::launch(cuda::AddPieces{.residual = residual ? first.const_data_ptr() : nullptr,
                                              .pieces = from.const_data_ptr(),
                                              .out = out.mutable_data_ptr(),
                                              .count = out.numel(),
                                              .distance = from.stride(0),
                                              .parts = static_cast<int>(from.size(0)),
                                              .element = cuda::element_of(pieces)},
                              c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("add_pieces", &add_pieces_cuda);
}

}  // namespace hrm::ops
