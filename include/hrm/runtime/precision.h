#pragma once
// Arithmetic of a process: what the switches of config.precision and config.runtime mean, in one place. Models are made
// for a compute dtype, their task enables fp8 recursions, and they contain no `if` on precision.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "hrm/config/config.h"

namespace hrm {

struct Precision {
  at::ScalarType compute_dtype = at::kFloat;  // of activations and of the weights' compute copies
  bool tf32 = false;                          // fp32 matrix products on a GPU round their inputs to TF32
  bool fp8_recursions = false;                // recursions without gradient run their matrix products in fp8
  bool fp8_blocks = false;                    // linear layers of token blocks train in fp8
  bool loss_scaling = false;                  // fp16: gradients need a scaled loss
  std::string name = "fp32";  // "bf16", "fp16", "tf32", "fp32", "bf16 with fp8 recursions", "bf16 with fp8 blocks"
};

// Empty, or why precision.recursions=fp8 is not possible on this device. The reference ops (ops.backend=reference) do
// it anywhere.
std::string why_no_fp8(at::Device device, bool reference_ops);

// The same for precision.blocks=fp8, which the CPU computes by the reference ops, too.
std::string why_no_fp8_blocks(at::Device device, bool reference_ops);

// The same for the kernels on a GPU of this compute capability (89 for 8.9).
std::string why_no_fp8(int capability);

// What the configuration means on this device; reference_ops: with ops.backend=reference. Error(environment) where the
// device cannot do it.
Precision choose_precision(const config::PrecisionConfig& config, at::Device device, bool reference_ops);

// Sets the process-wide switches of LibTorch: TF32, determinism, cuDNN's benchmark mode, SDPA backends. Call before the
// first tensor operation on the device.
void apply_arithmetic(const Precision& precision, const config::RuntimeConfig& config, at::Device device);

// The backend that at::scaled_dot_product_attention takes for (batch, heads, length, head_dim) in this dtype with a
// gradient: "cuDNN", "flash", "efficient", "math".
std::string sdpa_backend(at::Device device, at::ScalarType dtype, int64_t batch, int64_t heads, int64_t length,
                         int64_t head_dim);

}  // namespace hrm
