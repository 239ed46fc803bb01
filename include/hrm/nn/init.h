#pragma once
// Initial values of weights: a truncated normal distribution whose draws depend on (seed, parameter name) alone.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hrm::nn {

// The standard normal cut at +-2 and widened so that its standard deviation is `std` (flax's variance_scaling with
// mode "truncated_normal"): x = erfinv(u) * sqrt2 * c, clipped to +-2c, c = 1.1368472343 * std, for u uniform in
// (erf(-sqrt2), erf(sqrt2)). `u` float32 or float64, any shape, on the CPU; the result has its type and shape. std 0
// gives zeros.
at::Tensor trunc_normal_from_uniform(const at::Tensor& u, double std);

// Overwrites `tensor` (float32, any device) with draws of CounterRng(seed, Stream::init, hash_name(name)), in C order.
void trunc_normal_(at::Tensor tensor, double std, uint64_t seed, std::string_view name);

// Overwrites `parameter`, float32, by init_parameters()'s rule for what is called `name`.
void init_parameter(at::Tensor parameter, uint64_t seed, std::string_view name);

// A module whose own parameters (not those of its children) start at other values than init_parameters() gives.
class HasOwnInit {
 public:
  virtual ~HasOwnInit() = default;
  // Called by init_parameters() in no-grad mode, after all have their usual values. `name`: the module's,
  // "layers.0.norm".
  virtual void init_own(uint64_t seed, const std::string& name) = 0;
};

// Fills every parameter of `module`: matrices, (out, in) or (entries, width), with std 1/sqrt(last dimension);
// vectors (biases) with zeros; then modules that are HasOwnInit overwrite theirs. What is on the meta device, a layer
// that is held as NF4, is left to the module that knows its last values. The same seed and names give the same
// weights on every device.
void init_parameters(torch::nn::Module& module, uint64_t seed);

}  // namespace hrm::nn
