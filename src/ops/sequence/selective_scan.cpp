#include "hrm/ops/selective_scan.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/sequence/selective_scan_impl.h"

namespace hrm::ops {
void check_ssd_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A, const at::Tensor& B,
                    const at::Tensor& C, const at::Tensor& D, int64_t chunk, const OptionalTensor& initial) {
  TORCH_CHECK(x.dim() == 4 && dt.dim() == 3 && dt.sizes() == x.sizes().slice(0, 3) && x.size(1) > 0,
              "hrm::ssd_scan: x (B, T, H, P) and dt (B, T, H) do not fit, got ", x.sizes(), " and ", dt.sizes());
  TORCH_CHECK(B.dim() == 4 && B.sizes() == C.sizes() && B.size(0) == x.size(0) && B.size(1) == x.size(1) &&
                  B.size(2) > 0 && x.size(2) % B.size(2) == 0,
              "hrm::ssd_scan: B and C must be (B, T, G, N) with G a divisor of the heads, got ", B.sizes(), " and ",
              C.sizes(), " for x ", x.sizes());
  TORCH_CHECK(A.dim() == 1 && D.dim() == 1 && A.size(0) == x.size(2) && D.size(0) == x.size(2),
              "hrm::ssd_scan: A and D must have one number for each head, got ", A.sizes(), " and ", D.sizes(),
              " for x ", x.sizes());
  TORCH_CHECK(chunk > 0, "hrm::ssd_scan: chunk must be positive, got ", chunk);
  TORCH_CHECK(
      at::isFloatingType(x.scalar_type()) && B.scalar_type() == x.scalar_type() && C.scalar_type() == x.scalar_type(),
      "hrm::ssd_scan: x, B and C must have one floating-point dtype, got ", x.scalar_type(), ", ", B.scalar_type(),
      " and ", C.scalar_type());
  const at::ScalarType wide = accumulate_type(x);
  TORCH_CHECK(dt.scalar_type() == wide && A.scalar_type() == wide && D.scalar_type() == wide,
              "hrm::ssd_scan: dt, A and D must be ", wide, ", got ", dt.scalar_type(), ", ", A.scalar_type(), " and ",
              D.scalar_type());
  const std::vector<int64_t> state{x.size(0), x.size(2), x.size(3), B.size(3)};
  TORCH_CHECK(!initial || (initial->sizes() == at::IntArrayRef(state) && initial->scalar_type() == wide),
              "hrm::ssd_scan: initial_state must be ", wide, " of shape ", at::IntArrayRef(state), ", got ",
              initial->scalar_type(), " of ", initial->sizes());
}

void check_ssd_scan_backward(const at::Tensor& grad_y, const OptionalTensor& grad_final, const at::Tensor& x,
                             const at::Tensor& dt) {
  TORCH_CHECK(grad_y.sizes() == x.sizes() && (!grad_final || grad_final->scalar_type() == dt.scalar_type()),
              "hrm::ssd_scan_backward: grad_y must be like x, got ", grad_y.sizes(), " and ", x.sizes());
}

std::tuple<at::Tensor, at::Tensor> ssd_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                            const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                            int64_t chunk, const OptionalTensor& initial_state) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                     const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                                                     const OptionalTensor&)>
      op("hrm::ssd_scan");
  return op(x, dt, A, B, C, D, chunk, initial_state);
}

SsdScanGradients ssd_scan_backward(const at::Tensor& grad_y, const OptionalTensor& grad_final_state,
                                   const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A, const at::Tensor& B,
                                   const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                   const OptionalTensor& initial_state) {
  static const Op<SsdScanGradients(const at::Tensor&, const OptionalTensor&, const at::Tensor&, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                                   const OptionalTensor&)>
      op("hrm::ssd_scan_backward");
  return op(grad_y, grad_final_state, x, dt, A, B, C, D, chunk, initial_state);
}

namespace {

// On the CPU.
std::tuple<at::Tensor, at::Tensor> ssd_scan_any(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                int64_t chunk, const OptionalTensor& initial_state) {
  check_ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
  if (backend() == Backend::reference) return reference::ssd_scan_sequential(x, dt, A, B, C, D, initial_state);
  return reference::ssd_scan_chunked(x, dt, A, B, C, D, chunk, initial_state);
}

SsdScanGradients ssd_scan_backward_any(const at::Tensor& grad_y, const OptionalTensor& grad_final_state,
                                       const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                       const at::Tensor& B, const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                       const OptionalTensor& initial_state) {
  check_ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
  check_ssd_scan_backward(grad_y, grad_final_state, x, dt);
  return reference::ssd_scan_chunked_backward(grad_y, grad_final_state, x, dt, A, B, C, D, chunk, initial_state);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "ssd_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor D, int chunk, Tensor? initial_state=None) -> "
      "(Tensor y, Tensor final_state)");
  m.def(
      "ssd_scan_backward(Tensor grad_y, Tensor? grad_final_state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, "
      "Tensor D, int chunk, Tensor? initial_state=None) -> (Tensor grad_x, Tensor grad_dt, Tensor grad_A, "
      "Tensor grad_B, Tensor grad_C, Tensor grad_D, Tensor grad_initial_state)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("ssd_scan", &ssd_scan_any);
  m.impl("ssd_scan_backward", &ssd_scan_backward_any);
}

}  // namespace hrm::ops
