// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

using c10::IValue;

BenchCall swiglu(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.activations({s.batch, s.length(), 2 * s.inner})}};
}

BenchCall swiglu_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.inner}), random.activations({s.batch, s.length(), 2 * s.inner})}};
}

// Matrix products; the gate_up projection, the largest of a block.
BenchCall linear(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(2 * s.inner, s.width);
  // Without a gradient the master is not read, so the copy may stand for it.
  return {{random.activations({s.batch, s.length(), s.width}), weight, weight, IValue(), IValue(), IValue()},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// The projection behind attention.
BenchCall linear_add(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(s.width, s.width);
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), weight, weight, random.activations(sizes), IValue()},
          product_flops(s.rows(), s.width, s.width)};
}

BenchCall linear_accumulate(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.floats({2 * s.inner, s.width}), random.activations({s.rows(), 2 * s.inner}),
           random.activations({s.rows(), s.width})},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// The gradient of what the attention's output projection reads.
BenchCall linear_grad_x(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(s.width, s.width)},
          product_flops(s.rows(), s.width, s.width)};
}

// That of the gate_up projection's input, added to what goes past the MLP.
BenchCall linear_grad_x_add(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.activations({s.batch, s.length(), 2 * s.inner}),
           random.weight(2 * s.inner, s.width)},
          product_flops(s.rows(), 2 * s.inner, s.width)};
}

BenchCall linear_swiglu(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(2 * s.inner, s.width)},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

BenchCall linear_swiglu_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(s.width, s.inner),
           random.activations({s.batch, s.length(), 2 * s.inner})},
          product_flops(s.rows(), s.width, s.inner)};
}

// The down projection, the longer one of the two that end in a norm.
BenchCall linear_rms_norm(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.inner}), random.weight(s.width, s.inner),
           random.activations({s.batch, s.length(), s.width}), kBenchEps},
          product_flops(s.rows(), s.inner, s.width)};
}

BenchCall linear_rms_norm_add(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = linear_rms_norm(s, device, dtype);
  call.arguments.emplace_back(Random{device, dtype}.activations({s.batch, s.length(), s.width}));
  return call;
}

const KernelGroups kLinearGroups{
    {"LinearSwiglu", "matrix products with SwiGLU"},
    {"linear_swiglu", "matrix products with SwiGLU"},
    {"swiglu_registers", "matrix products with SwiGLU"},
    {"swiglu_gradient", "matrix products with SwiGLU"},
    {"LinearRmsNorm", "matrix products with RMSNorm"},
    {"linear_rms_norm", "matrix products with RMSNorm"},
    {"Swiglu", "SwiGLU"},
    {"swiglu", "SwiGLU"},
    {"SkinnyGemm", "matrix products"},
    {"LinearTile", "matrix products"},
    {"hrm::linear", "matrix products"},
};

}  // namespace

std::vector<BenchOp> linear_cases() {
  return {
      {"hrm::swiglu", swiglu},
      {"hrm::swiglu_backward", swiglu_backward},
      {"hrm::linear", linear},
      {"hrm::linear_add", linear_add},
      {"hrm::linear_accumulate_", linear_accumulate},
      {"hrm::linear_grad_x", linear_grad_x},
      {"hrm::linear_grad_x_add_", linear_grad_x_add},
      {"hrm::linear_swiglu", linear_swiglu},
      {"hrm::linear_swiglu_forward", linear_swiglu},
      {"hrm::linear_swiglu_backward", linear_swiglu_backward},
      {"hrm::linear_rms_norm", linear_rms_norm},
      {"hrm::linear_rms_norm_add", linear_rms_norm_add},
      {"hrm::linear_rms_norm_forward", linear_rms_norm},
  };
}

}  // namespace hrm::ops::bench
