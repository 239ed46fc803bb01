#pragma once
// Normalisation layers with weights. They compute in float32 for every activation dtype.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "hrm/nn/init.h"
#include "hrm/ops/weighted_rms_norm.h"

namespace hrm::nn {

class Norm : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) const = 0;  // (..., width) -> same shape and dtype
};

// (x - mean) / sqrt(var + eps) * weight + bias over the last dimension. Parameters: `weight` (initially 1) and `bias`.
class LayerNorm : public Norm, public HasOwnInit {
 public:
  LayerNorm(int64_t width, double eps, at::Device device);

  at::Tensor forward(const at::Tensor& x) const override;
  void init_own(uint64_t seed, const std::string& name) override;

 private:
  double eps_;
  at::Tensor weight_, bias_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, arXiv 1910.07467). Parameter:
// `weight`, initially 1. A centred norm multiplies by 1 + weight, initially 0.
class RmsNorm : public Norm, public HasOwnInit {
 public:
  // `groups`: normalises each of this many equal parts of a row separately.
  RmsNorm(int64_t width, double eps, at::Device device, int64_t groups = 1, bool centred = false);

  at::Tensor forward(const at::Tensor& x) const override;
  // y and x from ops::weighted_rms_norm_stream, for the start of a sub-block. Not with groups.
  ops::NormedStream forward_stream(const at::Tensor& x) const;
  // As forward(x), with the result in another dtype, rounded once.
  at::Tensor forward(const at::Tensor& x, at::ScalarType dtype) const;
  void init_own(uint64_t seed, const std::string& name) override;

  const at::Tensor& weight() const { return weight_; }
  // What rows are multiplied by: the weight, or 1 + weight.
  at::Tensor scale() const { return centred_ ? weight_ + 1 : weight_; }
  double eps() const { return eps_; }

 private:
  double eps_;
  int64_t groups_;
  bool centred_;
  at::Tensor weight_;
};

// RmsNorm as a function. weight (width) is float32 (float64 for float64 x). Saves x and one number per group and row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType dtype,
                    int64_t groups = 1);

}  // namespace hrm::nn
