#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>

#include "hrm/ops/attention.h"
#include "ops/attention/attention_impl.h"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/sm90/attention.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {

namespace {

std::atomic<bool> g_attention_portable{false};

}  // namespace

void set_portable_attention(bool portable) {
  g_attention_portable = portable;
}

bool attention_device_fits(const at::Tensor& qkv) {
  return at::cuda::getDeviceProperties(qkv.get_device())->major >= 8;  // asynchronous copies, bfloat16 tensor cores
}

namespace {

// Launches the kernel of the device's generation; returns false if there is none.
template <class Params>
bool launch_own(const Params& params) {
  if (g_attention_portable || !cuda::sm90::fits(params)) return false;
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return true;
}

// Launches that kernel, or the portable one.
template <class Params>
void launch_attention(const Params& params) {
  if (launch_own(params)) return;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

const float* table_of(const OptionalTensor& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

// Arguments of a forward kernel; owns the tensors behind its pointers.
struct ForwardArguments {
  at::Tensor rows;
  OptionalTensor cos, sin;
  cuda::AttentionForward params{};

  // `out`: (B, L, heads * head_dim).
  ForwardArguments(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos_any, const OptionalTensor& sin_any,
                   const at::Tensor& out)
      : rows(cuda::aligned_rows(qkv)),
        cos(cos_any ? OptionalTensor(cuda::aligned_rows(*cos_any)) : std::nullopt),
        sin(sin_any ? OptionalTensor(cuda::aligned_rows(*sin_any)) : std::nullopt) {
    const int64_t head_dim = qkv.size(2) / (3 * heads);
    params.qkv = rows.const_data_ptr();
    params.cos = table_of(cos);
    params.sin = table_of(sin);
    params.out = out.mutable_data_ptr();
    params.batch = qkv.size(0);
    params.heads = static_cast<int>(heads);
    params.length = static_cast<int>(qkv.size(1));
    params.head_dim = static_cast<int>(head_dim);
    params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
    params.element = cuda::element_of(qkv);
  }
};

std::tuple<at::Tensor, at::Tensor> run_attention_forward(const at::Tensor& qkv, int64_t heads,
                                                         const OptionalTensor& cos, const OptionalTensor& sin,
                                                         bool save) {
  at::Tensor out = at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options());
  at::Tensor lse;
  if (save) lse = at::empty({qkv.size(0), heads, qkv.size(1)}, qkv.options().dtype(at::kFloat));
  if (qkv.numel() == 0) return {out, lse};
  ForwardArguments arguments(qkv, heads, cos, sin, out);
  if (save) arguments.params.lse = lse.mutable_data_ptr<float>();
  launch_attention(arguments.params);
  return {out, lse};
}

at::Tensor attention_cuda(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin) {
  check_attention("hrm::attention", qkv, heads, cos, sin);
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!attention_fits(qkv, heads)) return attention_by_sdpa(qkv, heads, cos, sin, /*overwrite=*/false);
  return std::get<0>(run_attention_forward(qkv, heads, cos, sin, /*save=*/false));
}

std::tuple<at::Tensor, at::Tensor> attention_forward_cuda(const at::Tensor& qkv, int64_t heads,
                                                          const OptionalTensor& cos, const OptionalTensor& sin) {
  check_attention("hrm::attention_forward", qkv, heads, cos, sin);
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!attention_fits(qkv, heads)) return reference::attention_forward(qkv, heads, cos, sin);
  return run_attention_forward(qkv, heads, cos, sin, /*save=*/true);
}

at::Tensor attention_backward_cuda(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                                   const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                                   const OptionalTensor& sin) {
  check_attention_backward(grad_out, qkv, out, lse, heads, cos, sin);
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!attention_fits(qkv, heads)) return reference::attention_backward(grad_out, qkv, out, lse, heads, cos, sin);
  const at::Tensor rows = cuda::aligned_rows(qkv), grad_rows = cuda::aligned_rows(grad_out),
                   out_rows = cuda::aligned_rows(out);
  const at::Tensor lse_rows = cuda::aligned_rows(lse);
  const OptionalTensor cos_rows = cos ? OptionalTensor(cuda::aligned_rows(*cos)) : std::nullopt;
  const OptionalTensor sin_rows = sin ? OptionalTensor(cuda::aligned_rows(*sin)) : std::nullopt;
  at::Tensor grad_qkv = at::empty(qkv.sizes(), rows.options());
  if (qkv.numel() == 0) return grad_qkv;
  cuda::AttentionBackward params{};
  params.grad_out = grad_rows.const_data_ptr();
  params.qkv = rows.const_data_ptr();
  params.out = out_rows.const_data_ptr();
  params.lse = lse_rows.const_data_ptr<float>();
  params.cos = table_of(cos_rows);
  params.sin = table_of(sin_rows);
  params.grad_qkv = grad_qkv.mutable_data_ptr();
  params.batch = qkv.size(0);
  params.heads = static_cast<int>(heads);
  params.length = static_cast<int>(qkv.size(1));
  params.head_dim = static_cast<int>(qkv.size(2) / (3 * heads));
  params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(params.head_dim)));
  params.element = cuda::element_of(qkv);
  launch_attention(params);
  return grad_qkv;
}

void run_rotate(const at::Tensor& from, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                const at::Tensor& sin) {
  if (!cuda::use_kernel(from)) return reference::rotate_qkv(from, to, heads, cos, sin);
  if (from.numel() == 0) return;
  cuda::RotateQkv params{};
  params.from = from.const_data_ptr();
  params.to = to.mutable_data_ptr();
  params.cos = cos.const_data_ptr<float>();
  params.sin = sin.const_data_ptr<float>();
  params.batch = from.size(0);
  params.length = from.size(1);
  params.heads = static_cast<int>(heads);
  params.head_dim = static_cast<int>(from.size(2) / (3 * heads));
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor attention_rotate_cuda(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  check_attention("hrm::rotate_qkv", qkv, heads, cos, sin);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const at::Tensor rows = qkv.contiguous();
  at::Tensor to = at::empty(qkv.sizes(), rows.options());
  run_rotate(rows, to, heads, cos, sin);
  return to;
}

void rotate_cuda_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  check_attention("hrm::rotate_qkv_", qkv, heads, cos, sin);
  TORCH_CHECK(qkv.is_contiguous(), "hrm::rotate_qkv_: qkv must be contiguous, got ", qkv.sizes(), " with strides ",
              qkv.strides());
  const c10::cuda::CUDAGuard guard(qkv.device());
  run_rotate(qkv, qkv, heads, cos, sin);
}

at::Tensor rotate_backward_cuda(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                const OptionalTensor& cos, const OptionalTensor& sin) {
  check_rotate_qkv_backward(grad_q, grad_k, grad_v, cos, sin);
  const c10::cuda::CUDAGuard guard(grad_q.device());
  const int64_t B = grad_q.size(0), heads = grad_q.size(1), L = grad_q.size(2), head_dim = grad_q.size(3);
  if (!cuda::use_kernel(grad_q) || head_dim % 2 != 0) {
    return reference::rotate_qkv_backward(grad_q, grad_k, grad_v, cos, sin);
  }
  at::Tensor grad_qkv = at::empty({B, L, 3 * heads * head_dim}, grad_q.options());
  if (grad_qkv.numel() == 0) return grad_qkv;
  cuda::RotateQkvBackward params{};
  at::Tensor grads[3] = {grad_q, grad_k, grad_v};
  for (int part = 0; part < 3; ++part) {
    if (grads[part].stride(3) != 1) grads[part] = grads[part].contiguous();
    params.grads[part] = grads[part].const_data_ptr();
    params.batch_stride[part] = grads[part].stride(0);
    params.head_stride[part] = grads[part].stride(1);
    params.row_stride[part] = grads[part].stride(2);
  }
  params.grad_qkv = grad_qkv.mutable_data_ptr();
  params.cos = table_of(cos);
  params.sin = table_of(sin);
  params.batch = B;
  params.length = L;
  params.heads = static_cast<int>(heads);
  params.head_dim = static_cast<int>(head_dim);
  params.element = cuda::element_of(grad_q);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad_qkv;
}

}  // namespace

at::Tensor attention_fp8_by_kernel(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                   const OptionalTensor& sin, const at::Tensor& slot) {
  at::Tensor out = at::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.options().dtype(at::kFloat8_e4m3fn));
  if (qkv.numel() == 0) return out;
  if (!attention_fits(qkv, heads)) return {};
  ForwardArguments arguments(qkv, heads, cos, sin, out);
  arguments.params.out_slot = slot.mutable_data_ptr<float>();
  return launch_own(arguments.params) ? out : at::Tensor();
}

at::Tensor attention_projected_by_kernel(const at::Tensor& h, const at::Tensor& weight, int64_t heads,
                                         const OptionalTensor& cos, const OptionalTensor& sin) {
  if (g_attention_portable || !cuda::use_kernel(h) || attention_backend() != AttentionBackend::auto_ ||
      h.numel() == 0 || weight.size(0) != 3 * 64 * heads) {
    return {};
  }
  const auto usable = [](const at::Tensor& tensor) {
    return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  };
  if (!usable(h) || !usable(weight) || (cos && !(usable(*cos) && usable(*sin)))) return {};
  cuda::sm90::AttentionProjected params{};
  params.batch = h.size(0);
  params.inner = h.size(2);
  params.heads = static_cast<int>(heads);
  params.length = static_cast<int>(h.size(1));
  params.scale = static_cast<float>(1 / std::sqrt(64.0));
  params.element = cuda::element_of(h);
  if (!cuda::sm90::fits(params) || !cuda::sm90::pays(params)) return {};
  at::Tensor out = at::empty({h.size(0), h.size(1), 64 * heads}, h.options());
  params.h = h.const_data_ptr();
  params.weight = weight.const_data_ptr();
  params.cos = table_of(cos);
  params.sin = table_of(sin);
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

namespace {

at::Tensor projected_cuda(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                          const OptionalTensor& sin) {
  check_attention_projected(h, weight, heads, cos, sin);
  const c10::cuda::CUDAGuard guard(h.device());
  const at::Tensor out = attention_projected_by_kernel(h, weight, heads, cos, sin);
  return out.defined() ? out : composed::attention_projected(h, weight, heads, cos, sin);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("attention", &attention_cuda);
  m.impl("attention_projected", &projected_cuda);
  m.impl("attention_forward", &attention_forward_cuda);
  m.impl("attention_backward", &attention_backward_cuda);
  m.impl("rotate_qkv", &attention_rotate_cuda);
  m.impl("rotate_qkv_", &rotate_cuda_);
  m.impl("rotate_qkv_backward", &rotate_backward_cuda);
}

}  // namespace hrm::ops
