// One pass over each row, instead of the reference's six over the whole tensor. Rows are independent and a row is
// summed in one fixed order, so the number of threads does not change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "ops/common/lanes.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops::cpu {
namespace {

float sum(const Lanes& lanes) {
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Calls vector(i) for groups of lanes and scalar(i) for what is left of the row. Two groups at a time hide the latency
// of the addition; which of the two is the argument `half`.
template <class Vector, class Scalar>
void for_row(int64_t dim, const Vector& vector, const Scalar& scalar) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    vector(i, 0);
    vector(i + kLanes, 1);
  }
  for (; i < dim; ++i) scalar(i);
}

// h = x + residual; returns the sum of h^2.
float add_row(const float* x, const float* residual, float* h, int64_t dim) {
  Lanes squares[2] = {};
  float rest = 0;
  for_row(
      dim,
      [&](int64_t i, int half) {
        const Lanes value = load(x + i) + load(residual + i);
        store(h + i, value);
        squares[half] += value * value;
      },
      [&](int64_t i) {
        h[i] = x[i] + residual[i];
        rest += h[i] * h[i];
      });
  return sum(squares[0] + squares[1]) + rest;
}

void scale_row(float* row, float scale, int64_t dim) {
  for_row(
      dim, [&](int64_t i, int) { store(row + i, load(row + i) * scale); }, [&](int64_t i) { row[i] *= scale; });
}

float dot_row(const float* a, const float* b, int64_t dim) {
  Lanes products[2] = {};
  float rest = 0;
  for_row(
      dim, [&](int64_t i, int half) { products[half] += load(a + i) * load(b + i); },
      [&](int64_t i) { rest += a[i] * b[i]; });
  return sum(products[0] + products[1]) + rest;
}

void rms_norm_backward_row(const float* grad_y, const float* y, float rstd, float* grad, int64_t dim) {
  const float along = dot_row(grad_y, y, dim) / static_cast<float>(dim);
  for_row(
      dim, [&](int64_t i, int) { store(grad + i, (load(grad_y + i) - load(y + i) * along) * rstd); },
      [&](int64_t i) { grad[i] = (grad_y[i] - y[i] * along) * rstd; });
}

// Rows for each task: about 32k elements, otherwise starting a thread costs more than the work.
int64_t rms_norm_grain(int64_t dim) {
  return std::max<int64_t>(1, 32768 / dim);
}

}  // namespace

RmsNormSaved rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps, bool save) {
  const int64_t dim = x.size(-1);
  const int64_t rows = x.numel() / dim;
  RmsNormSaved out;
  out.y = at::empty(x.sizes(), x.options());
  if (save) out.rstd = at::empty(x.sizes().slice(0, x.dim() - 1), x.options());
  const auto* x_data = x.const_data_ptr<float>();
  const auto* residual_data = residual.const_data_ptr<float>();
  auto* y_data = out.y.mutable_data_ptr<float>();
  auto* rstd_data = save ? out.rstd.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, rms_norm_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* y = y_data + row * dim;  // holds x + residual first
      const float squares = add_row(x_data + row * dim, residual_data + row * dim, y, dim);
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(dim) + static_cast<float>(eps));
      scale_row(y, rstd, dim);
      if (rstd_data != nullptr) rstd_data[row] = rstd;
    }
  });
  return out;
}

at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd) {
  const int64_t dim = y.size(-1);
  const int64_t rows = y.numel() / dim;
  at::Tensor grad = at::empty(y.sizes(), y.options());
  const auto* grad_y_data = grad_y.const_data_ptr<float>();
  const auto* y_data = y.const_data_ptr<float>();
  const auto* rstd_data = rstd.const_data_ptr<float>();
  auto* grad_data = grad.mutable_data_ptr<float>();
  at::parallel_for(0, rows, rms_norm_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      rms_norm_backward_row(grad_y_data + row * dim, y_data + row * dim, rstd_data[row], grad_data + row * dim, dim);
    }
  });
  return grad;
}

}  // namespace hrm::ops::cpu
