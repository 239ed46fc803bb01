#pragma once
// Trainable parameters: fp32 master weights, their low-precision copies for the matrix products, and fp32 gradient
// buffers that live as long as the parameters.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace hrm::nn {

// One trainable tensor. `master` is the autograd leaf (float32, requires_grad, and its .grad() is a view into the
// set's flat gradient buffer, so gradients always accumulate in place). `compute` is what the matrix products read: the
// same tensor as `master` when computing in float32, else a copy that refresh_compute() renews.
struct Parameter {
  std::string name;
  at::Tensor master;
  at::Tensor compute;
};

// All parameters of a model. Built once, after the module tree is complete and on its device.
class ParameterSet {
 public:
  // Takes every parameter of `module` (all must be float32), allocates the flat gradient buffer and the compute copies.
  void build(torch::nn::Module& module, at::ScalarType compute_dtype);

  std::vector<Parameter>& all() { return parameters_; }
  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<at::Tensor> masters() const;
  std::vector<at::Tensor> grads() const;
  int64_t count() const { return count_; }

  at::Tensor& flat_grad() { return flat_grad_; }  // (count) float32
  void zero_grad();

  // Copies the masters into the compute copies (one fused cast). Call after anything that writes masters.
  void refresh_compute();

  at::ScalarType compute_dtype() const { return compute_dtype_; }

 private:
  std::vector<Parameter> parameters_;
  at::Tensor flat_grad_;
  int64_t count_ = 0;
  at::ScalarType compute_dtype_ = at::kFloat;
};

}  // namespace hrm::nn
