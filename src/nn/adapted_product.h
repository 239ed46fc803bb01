#pragma once
// What a hand-written autograd function does for one product with a frozen weight, and for the adapter beside it:
//    y = x W^T (+ residual) + u B^T,  u = scale * dropout(x) A^T
// Rows that the function has in 8 bits already (hrm/ops/fp8_rows_block.h) are multiplied as they are.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/fp8_rows_block.h"
#include "hrm/ops/lora.h"

namespace hrm::nn {

class Linear;

// (..., width) as (rows, width).
inline at::Tensor matrix_of(const at::Tensor& t) {
  return t.reshape({-1, t.size(-1)});
}

// The forward half. In an autograd function, the masters are arguments so that the node exists.
struct AdaptedProduct {
  FrozenWeight weight;
  at::Tensor A, B;                // in the compute dtype; undefined without an adapter
  at::Tensor A_master, B_master;  // likewise
  std::vector<ops::LoraSlice> slices = {};
  double scale = 1, p = 0;  // p: dropout probability, 0 if dropout is off
  int64_t seed = 0;
  at::Tensor step = {};
  DropoutColumns columns = {};  // for masks that all parts of a layer share

  // The product of this layer as Linear::forward computes it now, without a bias. No DoRA.
  static AdaptedProduct of(const Linear& linear);

  bool is_adapted() const { return A.defined(); }

  // y, and u, which is undefined without an adapter.
  struct Result {
    at::Tensor y, u;
  };
  Result forward(const at::Tensor& x, const std::optional<at::Tensor>& residual = {}) const;
  // The same of rows in 8 bits. x.wide is read only with an adapter; then it may not be undefined.
  Result forward(const ops::Fp8RowsBeside& x, at::ScalarType dtype,
                 const std::optional<at::Tensor>& residual = {}) const;

  // The tensors that the backward half needs, for save_for_backward: always kSaved of them. x: as in forward().
  static constexpr size_t kSaved = 5;
  std::vector<at::Tensor> saved(const at::Tensor& x, const at::Tensor& u) const;
  // Keeps everything else. Gradient buffers are no saved variables, because each use of a weight adds to them in place.
  void keep(torch::autograd::AutogradContext* ctx, const std::string& name) const;

 private:
  at::Tensor adapter_input(const at::Tensor& x) const;
  at::Tensor add_adapter(const at::Tensor& x, const at::Tensor& y) const;
};

// The backward half.
struct AdaptedGradient {
  FrozenWeight weight;
  at::Tensor x, A, B, u, step;
  at::Tensor grad_A, grad_B;
  std::vector<ops::LoraSlice> slices;
  double scale = 1, p = 0;
  int64_t seed = 0;
  DropoutColumns columns = {};

  // saved: the kSaved tensors.
  static AdaptedGradient of(torch::autograd::AutogradContext* ctx, const std::string& name,
                            at::ArrayRef<at::Tensor> saved);

  bool is_adapted() const { return A.defined(); }

  // Adds to the gradients of A and B, given that of y. Returns the gradient of x; undefined unless `needs_x`.
  at::Tensor backward(const at::Tensor& grad, bool needs_x) const;
  // The same, where grad.values are multiplied by the weight's scales. grad.wide is read only with an adapter.
  at::Tensor backward(const ops::Fp8RowsBeside& grad, at::ScalarType dtype, bool needs_x) const;

 private:
  at::Tensor grad_u(const at::Tensor& grad) const;
  void add_grad_x(const at::Tensor& grad_x, const at::Tensor& grad_u) const;
};

}  // namespace hrm::nn
