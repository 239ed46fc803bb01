#include "hrm/ops/qkv_heads.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Checks tables and weights for an x with these rows, positions and head size.
void check_options(const at::Tensor& x, int64_t rows, int64_t positions, int64_t head_dim, const QkvHeadOptions& o) {
  TORCH_CHECK(o.cos.defined() == o.sin.defined() && o.q_weight.defined() == o.k_weight.defined(),
              "hrm::qkv_heads: cos and sin, q_weight and k_weight come in pairs (", x.sizes(), ")");
  if (o.cos.defined()) {
    const bool by_position = o.cos.dim() == 2 && o.cos.size(0) == positions,
               by_row =
                   positions == 1 && o.cos.dim() == 4 && o.cos.size(0) == rows && o.cos.numel() == rows * head_dim / 2;
    TORCH_CHECK(head_dim % 2 == 0 && o.cos.size(-1) == head_dim / 2 && (by_position || by_row) &&
                    o.sin.sizes() == o.cos.sizes(),
                "hrm::qkv_heads: cos and sin must be (T, hd / 2), or (B, 1, 1, hd / 2) where T is 1, with B ", rows,
                ", T ", positions, ", hd ", head_dim, ", got ", o.cos.sizes(), " and ", o.sin.sizes());
    TORCH_CHECK(o.cos.scalar_type() == at::kFloat && o.sin.scalar_type() == at::kFloat &&
                    o.cos.device() == x.device() && o.sin.device() == x.device(),
                "hrm::qkv_heads: cos and sin must be float32 on ", x.device(), ", got ", o.cos.scalar_type(), " on ",
                o.cos.device());
  }
  for (const at::Tensor& weight : {o.q_weight, o.k_weight}) {
    TORCH_CHECK(!weight.defined() || (weight.dim() == 1 && weight.size(0) == head_dim &&
                                      weight.scalar_type() == accumulate_type(x) && weight.device() == x.device()),
                "hrm::qkv_heads: the norms' weights must be (hd) = [", head_dim, "] ", accumulate_type(x), " on ",
                x.device(), ", got ", weight.sizes(), " ", weight.scalar_type(), " on ", weight.device());
  }
}

}  // namespace

QkvHeadOptions qkv_options(const OptionalTensor& cos, const OptionalTensor& sin, const OptionalTensor& q_weight,
                           const OptionalTensor& k_weight, double eps) {
  const auto plain = [](const OptionalTensor& t) { return t.value_or(at::Tensor()); };
  return {plain(cos), plain(sin), plain(q_weight), plain(k_weight), eps};
}

void check_qkv_heads(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o) {
  TORCH_CHECK(qkv.dim() == 3 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 &&
                  qkv.size(2) == (s.heads + 2 * s.kv_heads) * s.head_dim,
              "hrm::qkv_heads: qkv must be (B, T, (Hq + 2 Hkv) hd) with Hq ", s.heads, ", Hkv ", s.kv_heads, ", hd ",
              s.head_dim, ", got ", qkv.sizes());
  TORCH_CHECK(at::isFloatingType(qkv.scalar_type()) && qkv.is_contiguous(),
              "hrm::qkv_heads: qkv must be contiguous floating-point numbers, got ", qkv.scalar_type(), " ",
              qkv.sizes(), " with strides ", qkv.strides());
  check_options(qkv, qkv.size(0), qkv.size(1), s.head_dim, o);
}

void check_qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& s, const at::Tensor& cos,
                             const at::Tensor& sin) {
  TORCH_CHECK(x.dim() == 3 && weight.dim() == 2 && x.size(2) == weight.size(1) && s.heads > 0 && s.kv_heads > 0 &&
                  s.head_dim > 0 && weight.size(0) == (s.heads + 2 * s.kv_heads) * s.head_dim,
              "hrm::qkv_heads_product: x must be (B, T, in) and weight ((Hq + 2 Hkv) hd, in) with Hq ", s.heads,
              ", Hkv ", s.kv_heads, ", hd ", s.head_dim, ", got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(at::isFloatingType(x.scalar_type()) && weight.scalar_type() == x.scalar_type() &&
                  weight.device() == x.device() && cos.defined(),
              "hrm::qkv_heads_product: x ", x.sizes(), " and weight must have one floating-point dtype and device, ",
              "and cos and sin be given, got ", x.scalar_type(), " on ", x.device(), " and ", weight.scalar_type(),
              " on ", weight.device());
  check_options(x, x.size(0), x.size(1), s.head_dim, {cos, sin});
}

void check_qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                              const at::Tensor& qkv, const QkvHeadOptions& o) {
  TORCH_CHECK(grad_q.dim() == 4 && grad_k.dim() == 4 && grad_v.sizes() == grad_k.sizes() &&
                  grad_q.size(0) == grad_k.size(0) && grad_q.size(1) == grad_k.size(1) &&
                  grad_q.size(3) == grad_k.size(3),
              "hrm::qkv_heads_backward: gradients must be (B, T, Hq, hd) and twice (B, T, Hkv, hd), got ",
              grad_q.sizes(), ", ", grad_k.sizes(), " and ", grad_v.sizes());
  TORCH_CHECK(grad_q.scalar_type() == grad_k.scalar_type() && grad_q.scalar_type() == grad_v.scalar_type() &&
                  grad_q.device() == grad_k.device() && grad_q.device() == grad_v.device(),
              "hrm::qkv_heads_backward: gradients must have one dtype and device, got ", grad_q.scalar_type(), ", ",
              grad_k.scalar_type(), " and ", grad_v.scalar_type());
  check_options(grad_q, grad_q.size(0), grad_q.size(1), grad_q.size(3), o);
  if (!o.q_weight.defined()) return;
  TORCH_CHECK(qkv.defined() && qkv.scalar_type() == grad_q.scalar_type(),
              "hrm::qkv_heads_backward: with the norms' weights qkv of the gradients' dtype is needed");
  check_qkv_heads(qkv, {grad_q.size(2), grad_k.size(2), grad_q.size(3)}, o);
}

at::Tensor qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& s, const at::Tensor& cos,
                             const at::Tensor& sin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t, const at::Tensor&,
                             const at::Tensor&)>
      op("hrm::qkv_heads_product");
  return op(x, weight, s.heads, s.kv_heads, s.head_dim, cos, sin);
}

at::Tensor composed::qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& s,
                                       const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor qkv = linear(x, weight, weight, {}, {}, {});
  qkv_heads_rotate_(qkv, s, cos, sin);
  return qkv;
}

void qkv_heads_rotate_(const at::Tensor& qkv, const QkvSizes& s, const at::Tensor& cos, const at::Tensor& sin) {
  static const Op<void(const at::Tensor&, int64_t, int64_t, int64_t, const at::Tensor&, const at::Tensor&)> op(
      "hrm::qkv_heads_rotate_");
  op(qkv, s.heads, s.kv_heads, s.head_dim, cos, sin);
}

at::Tensor qkv_heads_norm(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o) {
  static const Op<at::Tensor(const at::Tensor&, int64_t, int64_t, int64_t, const OptionalTensor&, const OptionalTensor&,
                             const at::Tensor&, const at::Tensor&, double)>
      op("hrm::qkv_heads_norm");
  return op(qkv, s.heads, s.kv_heads, s.head_dim, optional_tensor(o.cos), optional_tensor(o.sin), o.q_weight,
            o.k_weight, o.eps);
}

Gradients qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                             const at::Tensor& qkv, const QkvHeadOptions& o, bool needs_weights) {
  static const Op<Gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                            const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                            double, bool)>
      op("hrm::qkv_heads_backward");
  return op(grad_q, grad_k, grad_v, optional_tensor(qkv), optional_tensor(o.cos), optional_tensor(o.sin),
            optional_tensor(o.q_weight), optional_tensor(o.k_weight), o.eps, needs_weights);
}

namespace {

at::Tensor product_cpu(const at::Tensor& x, const at::Tensor& weight, int64_t heads, int64_t kv_heads, int64_t head_dim,
                       const at::Tensor& cos, const at::Tensor& sin) {
  check_qkv_heads_product(x, weight, {heads, kv_heads, head_dim}, cos, sin);
  return composed::qkv_heads_product(x, weight, {heads, kv_heads, head_dim}, cos, sin);
}

void qkv_heads_rotate_cpu(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                          const at::Tensor& cos, const at::Tensor& sin) {
  check_qkv_heads(qkv, {heads, kv_heads, head_dim}, {cos, sin});
  reference::qkv_heads_rotate_(qkv, {heads, kv_heads, head_dim}, cos, sin);
}

at::Tensor norm_cpu(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim, const OptionalTensor& cos,
                    const OptionalTensor& sin, const at::Tensor& q_weight, const at::Tensor& k_weight, double eps) {
  const QkvHeadOptions options = qkv_options(cos, sin, q_weight, k_weight, eps);
  check_qkv_heads(qkv, {heads, kv_heads, head_dim}, options);
  return reference::qkv_heads_norm(qkv, {heads, kv_heads, head_dim}, options);
}

Gradients qkv_heads_backward_cpu(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                 const OptionalTensor& qkv, const OptionalTensor& cos, const OptionalTensor& sin,
                                 const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                                 bool needs_weights) {
  const QkvHeadOptions options = qkv_options(cos, sin, q_weight, k_weight, eps);
  check_qkv_heads_backward(grad_q, grad_k, grad_v, qkv.value_or(at::Tensor()), options);
  return reference::qkv_heads_backward(grad_q, grad_k, grad_v, qkv.value_or(at::Tensor()), options, needs_weights);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "qkv_heads_product(Tensor x, Tensor weight, int heads, int kv_heads, int head_dim, Tensor cos, Tensor sin) -> "
      "Tensor");
  m.def("qkv_heads_rotate_(Tensor(a!) qkv, int heads, int kv_heads, int head_dim, Tensor cos, Tensor sin) -> ()");
  m.def(
      "qkv_heads_norm(Tensor qkv, int heads, int kv_heads, int head_dim, Tensor? cos, Tensor? sin, Tensor q_weight, "
      "Tensor k_weight, float eps) -> Tensor");
  m.def(
      "qkv_heads_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor? qkv, Tensor? cos, Tensor? sin, "
      "Tensor? q_weight, Tensor? k_weight, float eps, bool needs_weights=True) -> (Tensor grad_qkv, "
      "Tensor grad_q_weight, Tensor grad_k_weight)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("qkv_heads_product", &product_cpu);
  m.impl("qkv_heads_rotate_", &qkv_heads_rotate_cpu);
  m.impl("qkv_heads_norm", &norm_cpu);
  m.impl("qkv_heads_backward", &qkv_heads_backward_cpu);
}

}  // namespace hrm::ops
