#pragma once
// What the files of selective_scan share: the input checks and the plain ATen forms.

#include "hrm/ops/selective_scan.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_ssd_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A, const at::Tensor& B,
                    const at::Tensor& C, const at::Tensor& D, int64_t chunk, const std::optional<at::Tensor>& initial);
void check_ssd_scan_backward(const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_final, const at::Tensor& x,
                             const at::Tensor& dt);

namespace reference {

// The recurrence as it is written in the header, position by position. Differentiable by ATen.
std::tuple<at::Tensor, at::Tensor> ssd_scan_sequential(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                       const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                       const std::optional<at::Tensor>& initial);

// The chunked form, and its derivative by hand.
std::tuple<at::Tensor, at::Tensor> ssd_scan_chunked(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                    const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                    int64_t chunk, const std::optional<at::Tensor>& initial);
SsdScanGradients ssd_scan_chunked_backward(const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_final,
                                           const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                           const at::Tensor& B, const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                           const std::optional<at::Tensor>& initial);

}  // namespace reference
}  // namespace hrm::ops
