#pragma once
// Initial values of weights: a truncated normal distribution whose draws depend only on (seed, parameter name).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "hrm/nn/cut.h"
#include "hrm/nn/outline.h"

namespace hrm::nn {

// A normal distribution truncated at +-2 sigma and rescaled so that its standard deviation is `std` (flax's
// variance_scaling with mode "truncated_normal"):
//    x = erfinv(u) * sqrt2 * c, clipped to +-2c, with c = 1.1368472343 * std and u uniform in (erf(-sqrt2),
//    erf(sqrt2)).
// `u`: float32 or float64, any shape, on the CPU; the result has its dtype and shape. std 0 gives zeros.
at::Tensor trunc_normal_from_uniform(const at::Tensor& u, double std);

// Overwrites `tensor` (float32, any device) with draws from CounterRng(seed, Stream::init, hash_name(name)), in C
// order.
void trunc_normal_(at::Tensor tensor, double std, uint64_t seed, std::string_view name);

// The rows that init_parameter() gives a matrix, (rows, columns), in float32.
RowSource initial_rows(const at::Tensor& parameter, uint64_t seed, std::string_view name, const ParameterCut& cut = {});

// Overwrites `parameter` as init_parameters() would for a parameter called `name`. Values are drawn in float32 and, for
// a frozen one of another dtype, rounded. A part gets the values that it has in the whole.
void init_parameter(at::Tensor parameter, uint64_t seed, std::string_view name, const ParameterCut& cut = {});

// A module that initialises its own parameters (not those of its children) differently from init_parameters().
class HasOwnInit {
 public:
  virtual ~HasOwnInit() = default;
  // Called by init_parameters() in no-grad mode, after all parameters have their default values. `name`: the module's
  // name, e.g. "layers.0.norm".
  virtual void init_own(uint64_t seed, const std::string& name) = 0;
};

// Initialises every parameter of `module`: matrices, (out, in) or (entries, width), with std 1/sqrt(last dimension);
// vectors (biases) with zeros. Then modules that are HasOwnInit overwrite theirs. Parameters on the meta device (NF4
// layers) are skipped; the module that knows their final values sets them. Outlines get their source (nn/outline.h).
// The same seed and names give the same weights on every device.
void init_parameters(torch::nn::Module& module, uint64_t seed);

}  // namespace hrm::nn
