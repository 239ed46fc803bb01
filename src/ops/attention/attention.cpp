#include "hrm/ops/attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <atomic>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_impl.h"
#include "ops/attention/rotary_cpu.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"

namespace hrm::ops {
namespace {

std::atomic<AttentionBackend> g_attention_backend{AttentionBackend::auto_};

void check_table(const char* op, const at::Tensor& like, int64_t length, int64_t head_dim, const OptionalTensor& cos,
                 const OptionalTensor& sin) {
  TORCH_CHECK(cos.has_value() == sin.has_value(), op, ": cos and sin must both be given or both be left out (qkv ",
              like.sizes(), ")");
  if (!cos) return;
  TORCH_CHECK(head_dim % 2 == 0, op, ": a rotation pairs dimensions, head_dim ", head_dim, " is odd (shape ",
              like.sizes(), ")");
  const std::vector<int64_t> sizes = {length, head_dim / 2};
  const at::IntArrayRef expected(sizes);
  TORCH_CHECK(cos->sizes() == expected && sin->sizes() == expected, op, ": cos and sin must be ", expected, ", got ",
              cos->sizes(), " and ", sin->sizes());
  TORCH_CHECK(cos->scalar_type() == at::kFloat && sin->scalar_type() == at::kFloat && cos->is_contiguous() &&
                  sin->is_contiguous(),
              op, ": cos and sin must be float32 and contiguous, got ", cos->scalar_type(), " and ", sin->scalar_type(),
              " with strides ", cos->strides(), " and ", sin->strides());
  TORCH_CHECK(cos->device() == like.device() && sin->device() == like.device(), op, ": qkv is on ", like.device(),
              ", cos on ", cos->device(), ", sin on ", sin->device(), " (shape ", like.sizes(), ")");
}

}  // namespace

void set_attention_backend(AttentionBackend backend) {
  g_attention_backend = backend;
}

AttentionBackend attention_backend() {
  return g_attention_backend;
}

void check_attention(const char* op, const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                     const OptionalTensor& sin) {
  TORCH_CHECK(qkv.dim() == 3 && heads >= 1 && qkv.size(2) > 0 && qkv.size(2) % (3 * heads) == 0, op,
              ": qkv must be (B, L, 3 * heads * head_dim), got ", qkv.sizes(), " with ", heads, " heads");
  TORCH_CHECK(at::isFloatingType(qkv.scalar_type()), op, ": qkv must have a floating-point dtype, got ",
              qkv.scalar_type(), " (shape ", qkv.sizes(), ")");
  check_table(op, qkv, qkv.size(1), qkv.size(2) / (3 * heads), cos, sin);
}

void check_attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                               const OptionalTensor& sin) {
  constexpr const char* kOp = "hrm::attention_projected";
  TORCH_CHECK(h.dim() == 3 && weight.dim() == 2 && h.size(2) == weight.size(1) && heads >= 1 && weight.size(0) > 0 &&
                  weight.size(0) % (3 * heads) == 0,
              kOp, ": h (B, L, D) and weight (3 * heads * head_dim, D) do not fit, got ", h.sizes(), " and ",
              weight.sizes(), " with ", heads, " heads");
  TORCH_CHECK(
      h.scalar_type() == weight.scalar_type() && at::isFloatingType(h.scalar_type()) && h.device() == weight.device(),
      kOp, ": h and weight must have one floating-point dtype and device, got ", h.scalar_type(), " and ",
      weight.scalar_type(), " on ", h.device(), " and ", weight.device(), " (shapes ", h.sizes(), " and ",
      weight.sizes(), ")");
  check_table(kOp, h, h.size(1), weight.size(0) / (3 * heads), cos, sin);
}

void check_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin) {
  constexpr const char* kOp = "hrm::attention_backward";
  check_attention(kOp, qkv, heads, cos, sin);
  const std::vector<int64_t> out_expected = {qkv.size(0), qkv.size(1), qkv.size(2) / 3};
  const std::vector<int64_t> lse_expected = {qkv.size(0), heads, qkv.size(1)};
  const at::IntArrayRef out_sizes(out_expected), lse_sizes(lse_expected);
  TORCH_CHECK(grad_out.sizes() == out_sizes && out.sizes() == out_sizes && lse.sizes() == lse_sizes, kOp, ": for qkv ",
              qkv.sizes(), " and ", heads, " heads grad_out and out must be ", out_sizes, " and lse ", lse_sizes,
              ", got ", grad_out.sizes(), ", ", out.sizes(), " and ", lse.sizes());
  TORCH_CHECK(grad_out.scalar_type() == qkv.scalar_type() && out.scalar_type() == qkv.scalar_type() &&
                  lse.scalar_type() == accumulate_type(qkv),
              kOp, ": qkv is ", qkv.scalar_type(), ", grad_out ", grad_out.scalar_type(), ", out ", out.scalar_type(),
              ", lse ", lse.scalar_type(), " (shape ", qkv.sizes(), ")");
  TORCH_CHECK(grad_out.device() == qkv.device() && out.device() == qkv.device() && lse.device() == qkv.device(), kOp,
              ": qkv is on ", qkv.device(), ", grad_out on ", grad_out.device(), ", out on ", out.device(), ", lse on ",
              lse.device(), " (shape ", qkv.sizes(), ")");
}

void check_rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin) {
  constexpr const char* kOp = "hrm::rotate_qkv_backward";
  TORCH_CHECK(grad_q.dim() == 4 && grad_q.sizes() == grad_k.sizes() && grad_q.sizes() == grad_v.sizes(), kOp,
              ": the gradients must have one shape (B, heads, L, head_dim), got ", grad_q.sizes(), ", ", grad_k.sizes(),
              " and ", grad_v.sizes());
  TORCH_CHECK(grad_q.scalar_type() == grad_k.scalar_type() && grad_q.scalar_type() == grad_v.scalar_type() &&
                  grad_q.device() == grad_k.device() && grad_q.device() == grad_v.device(),
              kOp, ": the gradients must have one dtype and device, got ", grad_q.scalar_type(), ", ",
              grad_k.scalar_type(), " and ", grad_v.scalar_type(), " on ", grad_q.device(), ", ", grad_k.device(),
              " and ", grad_v.device(), " (shape ", grad_q.sizes(), ")");
  check_table(kOp, grad_q, grad_q.size(2), grad_q.size(3), cos, sin);
}

bool attention_fits(const at::Tensor& qkv, int64_t heads) {
#if HRM_WITH_CUDA
  if (!qkv.is_cuda() || backend() != Backend::fused || attention_backend() != AttentionBackend::auto_) return false;
  if (qkv.scalar_type() != at::kBFloat16 && qkv.scalar_type() != at::kHalf) return false;
  if (qkv.dim() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) return false;
  const int64_t head_dim = qkv.size(2) / (3 * heads);
  return (head_dim == 64 || head_dim == 32) && qkv.size(1) >= 1 && qkv.size(1) <= 128 &&
         qkv.size(0) <= INT32_MAX / heads && attention_device_fits(qkv);
#else
  (void)qkv, (void)heads;
  return false;
#endif
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> split_heads(const at::Tensor& qkv, int64_t heads) {
  const at::Tensor parts = qkv.view({qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / (3 * heads)});
  return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2), parts.select(2, 2).transpose(1, 2)};
}

at::Tensor merge_heads(const at::Tensor& mixed) {
  return mixed.transpose(1, 2).contiguous().view({mixed.size(0), mixed.size(2), mixed.size(1) * mixed.size(3)});
}

namespace {

// Longer sequences do not fit into the CPU's cache.
constexpr int64_t kLongestOnCpu = 512;

bool cpu_kernel_fits(const at::Tensor& qkv) {
  return qkv.is_cpu() && qkv.scalar_type() == at::kFloat && backend() == Backend::fused &&
         attention_backend() == AttentionBackend::auto_ && qkv.size(1) <= kLongestOnCpu;
}

bool records_gradient(const at::Tensor& qkv) {
  return at::GradMode::is_enabled() && qkv.requires_grad();
}

at::Tensor attention_by_cpu_kernel(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                   const OptionalTensor& sin, bool overwrite) {
  at::Tensor rotated = qkv.contiguous();
  if (cos && overwrite && rotated.is_same(qkv)) {
    rotate_qkv_(rotated, heads, *cos, *sin);
  } else if (cos) {
    rotated = rotate_qkv(rotated, heads, *cos, *sin);
  }
  return cpu::attention(rotated, heads);
}

}  // namespace

bool attention_fits_without_gradient(const at::Tensor& qkv, int64_t heads) {
  return attention_fits(qkv, heads) || cpu_kernel_fits(qkv);
}

at::Tensor attention(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, int64_t, const OptionalTensor&, const OptionalTensor&)> op(
      "hrm::attention");
  return op(qkv, heads, optional_tensor(cos), optional_tensor(sin));
}

at::Tensor attention_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  if (attention_fits(qkv, heads)) return attention(qkv, heads, cos, sin);
  check_attention("hrm::attention_", qkv, heads, optional_tensor(cos), optional_tensor(sin));
  if (cpu_kernel_fits(qkv) && !records_gradient(qkv))
    return attention_by_cpu_kernel(qkv, heads, optional_tensor(cos), optional_tensor(sin), true);
  return attention_by_sdpa(qkv, heads, optional_tensor(cos), optional_tensor(sin), /*overwrite=*/true);
}

at::Tensor attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const at::Tensor& cos,
                               const at::Tensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, const OptionalTensor&,
                             const OptionalTensor&)>
      op("hrm::attention_projected");
  return op(h, weight, heads, optional_tensor(cos), optional_tensor(sin));
}

namespace composed {

at::Tensor attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                               const OptionalTensor& sin) {
  return attention_(linear(h, weight, weight), heads, cos.value_or(at::Tensor()), sin.value_or(at::Tensor()));
}

}  // namespace composed

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                                     const OptionalTensor& sin) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, int64_t, const OptionalTensor&,
                                                     const OptionalTensor&)>
      op("hrm::attention_forward");
  return op(qkv, heads, cos, sin);
}

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos,
                                                     const at::Tensor& sin) {
  return attention_forward(qkv, heads, optional_tensor(cos), optional_tensor(sin));
}

at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                             const OptionalTensor&, const OptionalTensor&)>
      op("hrm::attention_backward");
  return op(grad_out, qkv, out, lse, heads, cos, sin);
}

at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  return attention_backward(grad_out, qkv, out, lse, heads, optional_tensor(cos), optional_tensor(sin));
}

at::Tensor rotate_qkv(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&, const at::Tensor&)> op("hrm::rotate_qkv");
  return op(qkv, heads, cos, sin);
}

void rotate_qkv_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  static const Op<void(const at::Tensor&, int64_t, const at::Tensor&, const at::Tensor&)> op("hrm::rotate_qkv_");
  op(qkv, heads, cos, sin);
}

at::Tensor rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                             const OptionalTensor&)>
      op("hrm::rotate_qkv_backward");
  return op(grad_q, grad_k, grad_v, cos, sin);
}

namespace {

at::Tensor attention_cpu(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin) {
  check_attention("hrm::attention", qkv, heads, cos, sin);
  if (cpu_kernel_fits(qkv) && !records_gradient(qkv))
    return attention_by_cpu_kernel(qkv, heads, cos, sin, /*overwrite=*/false);
  return attention_by_sdpa(qkv, heads, cos, sin, /*overwrite=*/false);
}

at::Tensor projected_cpu(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                         const OptionalTensor& sin) {
  check_attention_projected(h, weight, heads, cos, sin);
  return composed::attention_projected(h, weight, heads, cos, sin);
}

std::tuple<at::Tensor, at::Tensor> attention_forward_cpu(const at::Tensor& qkv, int64_t heads,
                                                         const OptionalTensor& cos, const OptionalTensor& sin) {
  check_attention("hrm::attention_forward", qkv, heads, cos, sin);
  return reference::attention_forward(qkv, heads, cos, sin);
}

at::Tensor attention_backward_cpu(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                                  const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                                  const OptionalTensor& sin) {
  check_attention_backward(grad_out, qkv, out, lse, heads, cos, sin);
  return reference::attention_backward(grad_out, qkv, out, lse, heads, cos, sin);
}

void rotate_on_cpu(const at::Tensor& qkv, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                   const at::Tensor& sin) {
  if (backend() == Backend::fused && cpu::rotate_qkv(qkv, to, heads, cos, sin)) return;
  reference::rotate_qkv(qkv, to, heads, cos, sin);
}

at::Tensor attention_rotate_cpu(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  check_attention("hrm::rotate_qkv", qkv, heads, cos, sin);
  const at::Tensor to = at::empty(qkv.sizes(), qkv.options());
  rotate_on_cpu(qkv.contiguous(), to, heads, cos, sin);
  return to;
}

void rotate_cpu_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin) {
  check_attention("hrm::rotate_qkv_", qkv, heads, cos, sin);
  TORCH_CHECK(qkv.is_contiguous(), "hrm::rotate_qkv_: qkv must be contiguous, got ", qkv.sizes(), " with strides ",
              qkv.strides());
  rotate_on_cpu(qkv, qkv, heads, cos, sin);
}

at::Tensor rotate_backward_cpu(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin) {
  check_rotate_qkv_backward(grad_q, grad_k, grad_v, cos, sin);
  if (backend() == Backend::fused) {
    if (auto grad = cpu::rotate_qkv_backward(grad_q, grad_k, grad_v, cos, sin)) return *grad;
  }
  return reference::rotate_qkv_backward(grad_q, grad_k, grad_v, cos, sin);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("attention(Tensor qkv, int heads, Tensor? cos, Tensor? sin) -> Tensor");
  m.def("attention_projected(Tensor h, Tensor weight, int heads, Tensor? cos, Tensor? sin) -> Tensor");
  m.def("attention_forward(Tensor qkv, int heads, Tensor? cos, Tensor? sin) -> (Tensor out, Tensor lse)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor qkv, Tensor out, Tensor lse, int heads, Tensor? cos, Tensor? sin) -> "
      "Tensor");
  m.def("rotate_qkv(Tensor qkv, int heads, Tensor cos, Tensor sin) -> Tensor");
  m.def("rotate_qkv_(Tensor(a!) qkv, int heads, Tensor cos, Tensor sin) -> ()");
  m.def("rotate_qkv_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor? cos, Tensor? sin) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("attention", &attention_cpu);
  m.impl("attention_projected", &projected_cpu);
  m.impl("attention_forward", &attention_forward_cpu);
  m.impl("attention_backward", &attention_backward_cpu);
  m.impl("rotate_qkv", &attention_rotate_cpu);
  m.impl("rotate_qkv_", &rotate_cpu_);
  m.impl("rotate_qkv_backward", &rotate_backward_cpu);
}

}  // namespace hrm::ops
