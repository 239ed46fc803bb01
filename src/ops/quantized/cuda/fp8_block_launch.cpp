// Parts of a block that write 8 bits, on a GPU: the kernels, or the ops one by one where sizes or addresses do not fit.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/sm90/linear_fp8.h"
#include "ops/quantized/cuda/fp8_block.h"
#include "ops/quantized/cuda/fp8_scale.h"
#include "ops/quantized/fp8_block_impl.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

bool fits(const at::Tensor& t) {
  return t.is_contiguous() && t.size(0) % 16 == 0 && t.size(1) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

at::Tensor empty8(const at::Tensor& like, int64_t rows, int64_t columns, bool e5m2 = false, bool wanted = true) {
  if (!wanted) return {};
  return at::empty({rows, columns}, like.options().dtype(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn));
}

void* data_of(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr() : nullptr;
}

Fp8Three norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot, bool transposed) {
  check_weighted_rms_norm_fp8(x, weight, eps, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor from = x.contiguous(), factors = cuda::aligned_rows(weight);
  if (!cuda::use_kernel(x) || !fits(from)) return composed::weighted_rms_norm_fp8(x, weight, eps, slot, transposed);
  const at::Tensor values = empty8(x, x.size(0), x.size(1)),
                   across = empty8(x, x.size(1), x.size(0), false, transposed);
  const at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  cuda::RmsNormFp8 params{};
  params.x = from.const_data_ptr();
  params.weight = factors.const_data_ptr<float>();
  params.values = data_of(values);
  params.transposed = data_of(across);
  params.rstd = rstd.mutable_data_ptr<float>();
  params.slot = slot.mutable_data_ptr<float>();
  params.rows = x.size(0);
  params.width = x.size(1);
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {values, across, rstd};
}

at::Tensor norm_transposed_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                const at::Tensor& slot) {
  check_weighted_rms_norm_transposed_fp8(x, weight, rstd, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor from = x.contiguous(), factors = cuda::aligned_rows(weight);
  if (!cuda::use_kernel(x) || !fits(from)) return composed::weighted_rms_norm_transposed_fp8(x, weight, rstd, slot);
  at::Tensor across = empty8(x, x.size(1), x.size(0));
  cuda::RmsNormTransposedFp8 params{};
  params.x = from.const_data_ptr();
  params.weight = factors.const_data_ptr<float>();
  params.rstd = rstd.const_data_ptr<float>();
  params.transposed = data_of(across);
  params.slot = slot.const_data_ptr<float>();
  params.rows = x.size(0);
  params.width = x.size(1);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return across;
}

Fp8Two linear_swiglu_cuda_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                              const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  check_fp8_linear_swiglu(x, weight, x_slot, weight_slot, act_slot, dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto compose = [&] { return composed::fp8_linear_swiglu(x, weight, x_slot, weight_slot, act_slot, dtype); };
  // The kernel leaves its sums in the tensor cores.
  if (backend() != Backend::fused || dtype == at::kFloat || x.numel() == 0 || x.size(1) > kFp8FastTerms) {
    return compose();
  }
  const at::Tensor rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight);
  cuda::sm90::LinearSwigluFp8 params{};
  params.x = rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.x_slot = x_slot.const_data_ptr<float>();
  params.weight_slot = weight_slot.const_data_ptr<float>();
  params.act_slot = act_slot.mutable_data_ptr<float>();
  params.rows = x.size(0);
  params.width = weight.size(0) / 2;
  params.inner = x.size(1);
  params.element = cuda::element_of(dtype);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor act = empty8(x, params.rows, params.width);
  const at::Tensor gate_up = at::empty({params.rows, 2 * params.width}, x.options().dtype(dtype));
  params.act = data_of(act);
  params.gate_up = data_of(gate_up);
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {act, gate_up};
}

at::Tensor swiglu_cuda_fp8(const at::Tensor& gate_up, const at::Tensor& slot) {
  check_swiglu_fp8(gate_up, slot);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const at::Tensor from = gate_up.contiguous();
  const int64_t rows = from.size(0), width = from.size(1) / 2;
  if (!cuda::use_kernel(gate_up) || !fits(from) || width % 16 != 0) return composed::swiglu_fp8(gate_up, slot);
  at::Tensor values = empty8(from, rows, width);
  cuda::SwigluFp8 params{};
  params.gate_up = from.const_data_ptr();
  params.values = data_of(values);
  params.slot = slot.mutable_data_ptr<float>();
  params.rows = rows;
  params.width = width;
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return values;
}

Fp8Three swiglu_backward_cuda_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                  bool e5m2, const at::Tensor& act_slot, bool trains_gate_up, bool trains_down) {
  check_swiglu_backward_fp8(grad_act, gate_up, slot, act_slot);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const at::Tensor from = gate_up.contiguous(), grads = grad_act.contiguous();
  const int64_t rows = from.size(0), width = from.size(1) / 2;
  if (!cuda::use_kernel(gate_up) || !fits(from) || !fits(grads)) {
    return composed::swiglu_backward_fp8(grad_act, gate_up, slot, e5m2, act_slot, trains_gate_up, trains_down);
  }
  const at::Tensor values = empty8(from, rows, 2 * width, e5m2),
                   across = empty8(from, 2 * width, rows, e5m2, trains_gate_up),
                   act = empty8(from, width, rows, false, trains_down);
  cuda::SwigluGradientFp8 params{};
  params.gate_up = from.const_data_ptr();
  params.grad_act = grads.const_data_ptr();
  params.values = data_of(values);
  params.transposed = data_of(across);
  params.act_transposed = data_of(act);
  params.slot = slot.mutable_data_ptr<float>();
  params.act_slot = act_slot.const_data_ptr<float>();
  params.rows = rows;
  params.width = width;
  params.element = cuda::element_of(from);
  params.e5m2 = e5m2;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {values, across, act};
}

// A pass that only finds the maximum, then the pass above: both read the operands, so that the gradient need not be
// written in the compute dtype, which takes more bytes.
at::Tensor swiglu_backward_scale_now_cuda(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                          double margin) {
  check_swiglu_backward_fp8_scale_now(grad_act, gate_up, slot, margin);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const at::Tensor from = gate_up.contiguous(), grads = grad_act.contiguous();
  if (!cuda::use_kernel(gate_up) || !fits(from) || !fits(grads)) {
    return composed::swiglu_backward_fp8_scale_now(grad_act, gate_up, slot, margin);
  }
  const at::Tensor now = at::zeros({kFp8WideSlot}, slot.options());
  cuda::SwigluGradientFp8 params{};
  params.gate_up = from.const_data_ptr();
  params.grad_act = grads.const_data_ptr();
  params.slot = now.mutable_data_ptr<float>();
  params.act_slot = params.slot;
  params.rows = from.size(0);
  params.width = from.size(1) / 2;
  params.element = cuda::element_of(from);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(cuda::launch(params, stream));
  cuda::ScaleFp8Now scale{};
  scale.now = params.slot;
  scale.slot = slot.mutable_data_ptr<float>();
  scale.margin = static_cast<float>(margin);
  C10_CUDA_CHECK(cuda::launch(scale, stream));
  return now;
}

// Heads at any distance that is a multiple of 16 bytes, with contiguous elements.
bool heads_fit(const at::Tensor& grad) {
  const int64_t n = 16 / static_cast<int64_t>(grad.element_size());
  return grad.stride(3) == 1 && reinterpret_cast<uintptr_t>(grad.const_data_ptr()) % 16 == 0 &&
         grad.stride(0) % n == 0 && grad.stride(1) % n == 0 && grad.stride(2) % n == 0;
}

Fp8Two qkv_backward_cuda_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                             const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot, bool e5m2,
                             bool transposed) {
  check_qkv_heads_backward_fp8(grad_q, grad_k, grad_v, cos, sin, slot);
  const c10::cuda::CUDAGuard guard(grad_q.device());
  const int64_t batch = grad_q.size(0), length = grad_q.size(1), head_dim = grad_q.size(3), rows = batch * length;
  const int64_t columns = (grad_q.size(2) + 2 * grad_k.size(2)) * head_dim;
  if (!cuda::use_kernel(grad_q) || rows % 16 != 0 || head_dim % 16 != 0 || std::max(rows, columns) > INT32_MAX ||
      !heads_fit(grad_q) || !heads_fit(grad_k) || !heads_fit(grad_v)) {
    return composed::qkv_heads_backward_fp8(grad_q, grad_k, grad_v, cos, sin, slot, e5m2, transposed);
  }
  const at::Tensor values = empty8(grad_q, rows, columns, e5m2),
                   across = empty8(grad_q, columns, rows, e5m2, transposed);
  cuda::QkvGradientFp8 params{};
  const at::Tensor* const grads[] = {&grad_q, &grad_k, &grad_v};
  for (int part = 0; part < 3; ++part) {
    params.grads[part] = grads[part]->const_data_ptr();
    params.batch_stride[part] = grads[part]->stride(0);
    params.row_stride[part] = grads[part]->stride(1);
    params.head_stride[part] = grads[part]->stride(2);
  }
  const at::Tensor table_cos = cos ? cuda::aligned_rows(*cos) : at::Tensor(),
                   table_sin = sin ? cuda::aligned_rows(*sin) : at::Tensor();
  params.table_rows = 1;
  if (cos) {
    params.cos = table_cos.const_data_ptr<float>();
    params.sin = table_sin.const_data_ptr<float>();
    params.table_rows = table_cos.size(0);
  }
  params.values = data_of(values);
  params.transposed = data_of(across);
  params.slot = slot.mutable_data_ptr<float>();
  params.rows = rows;
  params.length = length;
  params.heads = static_cast<int>(grad_q.size(2));
  params.kv_heads = static_cast<int>(grad_k.size(2));
  params.head_dim = static_cast<int>(head_dim);
  params.element = cuda::element_of(grad_q);
  params.e5m2 = e5m2;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {values, across};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("weighted_rms_norm_fp8", &norm_cuda);
  m.impl("weighted_rms_norm_transposed_fp8", &norm_transposed_cuda);
  m.impl("fp8_linear_swiglu", &linear_swiglu_cuda_fp8);
  m.impl("swiglu_fp8", &swiglu_cuda_fp8);
  m.impl("swiglu_backward_fp8", &swiglu_backward_cuda_fp8);
  m.impl("swiglu_backward_fp8_scale_now", &swiglu_backward_scale_now_cuda);
  m.impl("qkv_heads_backward_fp8", &qkv_backward_cuda_fp8);
}

}  // namespace hrm::ops
