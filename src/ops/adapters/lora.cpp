#include "hrm/ops/lora.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/linear.h"
#include "ops/adapters/lora_impl.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

std::vector<int64_t> flat_slices(const std::vector<LoraSlice>& slices) {
  std::vector<int64_t> flat;
  for (const LoraSlice& s : slices) flat.insert(flat.end(), {s.out, s.first, s.rows});
  return flat;
}

std::vector<LoraSlice> lora_slices(at::IntArrayRef flat) {
  TORCH_CHECK(flat.size() % 3 == 0, "hrm::lora: slices are out, first and rows in turn, got ", flat.size(), " numbers");
  std::vector<LoraSlice> slices(flat.size() / 3);
  for (size_t i = 0; i < slices.size(); ++i) {
    slices[i] = {.out = flat[3 * i], .first = flat[3 * i + 1], .rows = flat[3 * i + 2]};
  }
  return slices;
}

namespace {

void check_slices(const char* op, const at::Tensor& y, const at::Tensor& u, const at::Tensor& B,
                  const std::vector<LoraSlice>& slices) {
  const auto count = static_cast<int64_t>(slices.size());
  TORCH_CHECK(y.dim() == 2 && u.dim() == 2 && B.dim() == 2 && y.size(0) == u.size(0) && u.size(1) == count * B.size(1),
              op, ": y (N, out), u (N, slices * rank) and B (rows, rank) do not fit, got ", y.sizes(), ", ", u.sizes(),
              " and ", B.sizes(), " with ", count, " slices");
  TORCH_CHECK(at::isFloatingType(y.scalar_type()) && u.scalar_type() == y.scalar_type() &&
                  B.scalar_type() == y.scalar_type() && u.device() == y.device() && B.device() == y.device(),
              op, ": y, u and B must have one floating-point dtype and device, got ", y.scalar_type(), " on ",
              y.device(), ", ", u.scalar_type(), " on ", u.device(), " and ", B.scalar_type(), " on ", B.device());
  for (const LoraSlice& s : slices) {
    TORCH_CHECK(
        s.out >= 0 && s.first >= 0 && s.rows >= 1 && s.out + s.rows <= y.size(1) && s.first + s.rows <= B.size(0), op,
        ": a slice has columns ", s.out, " to ", s.out + s.rows, " of y, ", y.sizes(), ", and rows ", s.first, " to ",
        s.first + s.rows, " of B, ", B.sizes());
  }
}

}  // namespace

void check_lora_add(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B,
                    const std::vector<LoraSlice>& slices) {
  check_slices("hrm::lora_add_", y, u, B, slices);
  TORCH_CHECK(y.is_contiguous(), "hrm::lora_add_: y must be contiguous, got strides ", y.strides());
}

void check_lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                          const OptionalTensor& grad_B, const std::vector<LoraSlice>& slices) {
  check_slices("hrm::lora_gradients", grad_y, u, B, slices);
  if (!grad_B) return;
  const bool is_wide = grad_B->scalar_type() == accumulate_type(u);
  TORCH_CHECK(grad_B->sizes() == B.sizes() && (is_wide || grad_B->scalar_type() == B.scalar_type()) &&
                  grad_B->is_contiguous() && grad_B->device() == B.device(),
              "hrm::lora_gradients: grad_B must be contiguous and like B, ", B.sizes(), " on ", B.device(),
              ", in float32 or ", B.scalar_type(), ", got ", grad_B->sizes(), ", ", grad_B->scalar_type(), " on ",
              grad_B->device());
}

void lora_add_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, const std::vector<LoraSlice>& slices) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef)> op("hrm::lora_add_");
  op(y, u, B, flat_slices(slices));
}

at::Tensor lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B, const at::Tensor& grad_B,
                          const std::vector<LoraSlice>& slices, double scale) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                             at::IntArrayRef, double)>
      op("hrm::lora_gradients");
  return op(grad_y, u, B, optional_tensor(grad_B), flat_slices(slices), scale);
}

namespace reference {
namespace {

at::Tensor part_of_rank(const at::Tensor& u, size_t slice, int64_t rank) {
  return u.narrow(1, static_cast<int64_t>(slice) * rank, rank);
}

}  // namespace

void lora_add_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, const std::vector<LoraSlice>& slices) {
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto& [out, first, rows] = slices[i];
    y.narrow(1, out, rows).addmm_(part_of_rank(u, i, B.size(1)), B.narrow(0, first, rows).t());
  }
}

at::Tensor lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                          const OptionalTensor& grad_B, const std::vector<LoraSlice>& slices, double scale) {
  const int64_t rank = B.size(1);
  at::Tensor grad_v = at::empty(u.sizes(), u.options());
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto& [out, first, rows] = slices[i];
    const at::Tensor part = grad_y.narrow(1, out, rows);
    at::Tensor to = part_of_rank(grad_v, i, rank);
    at::mm_out(to, part, B.narrow(0, first, rows));
    if (grad_B) linear_accumulate_(grad_B->narrow(0, first, rows), part, part_of_rank(u, i, rank));
  }
  if (scale != 1) grad_v.mul_(scale);
  return grad_v;
}

}  // namespace reference

namespace {

void lora_add_cpu_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, at::IntArrayRef flat) {
  const std::vector<LoraSlice> slices = lora_slices(flat);
  check_lora_add(y, u, B, slices);
  const at::NoGradGuard no_grad;
  reference::lora_add_(y, u, B, slices);
}

at::Tensor lora_gradients_cpu(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                              const OptionalTensor& grad_B, at::IntArrayRef flat, double scale) {
  const std::vector<LoraSlice> slices = lora_slices(flat);
  check_lora_gradients(grad_y, u, B, grad_B, slices);
  const at::NoGradGuard no_grad;
  return reference::lora_gradients(grad_y, u, B, grad_B, slices, scale);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("lora_add_(Tensor(a!) y, Tensor u, Tensor B, int[] slices) -> ()");
  m.def("lora_gradients(Tensor grad_y, Tensor u, Tensor B, Tensor(a!)? grad_B, int[] slices, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("lora_add_", &lora_add_cpu_);
  m.impl("lora_gradients", &lora_gradients_cpu);
}

// Parts of a pass whose backward is written by hand.
TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("lora_add_", torch::autograd::autogradNotImplementedFallback());
  m.impl("lora_gradients", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
