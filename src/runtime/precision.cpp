#include "hrm/runtime/precision.h"

#include <ATen/Context.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>

#include <cstdlib>

#include "hrm/base/error.h"
#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm {
namespace {

int compute_capability(at::Device device) {
#if HRM_WITH_CUDA
  if (device.is_cuda()) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index());
    return major * 10 + minor;
  }
#endif
  (void)device;
  return 0;
}

std::string gpu_name(at::Device device) {
#if HRM_WITH_CUDA
  cudaDeviceProp properties{};
  if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess) return properties.name;
#endif
  (void)device;
  return "GPU";
}

std::string why_no_fp8(const std::string& gpu, int capability) {
  if (capability >= 89) return "";
  return cat("the ", gpu, " has compute capability ", capability / 10, ".", capability % 10,
             " and fp8 products need 8.9 or later");
}

}  // namespace

std::string why_no_fp8(at::Device device, bool reference_ops) {
  if (reference_ops) return "";
  if (!device.is_cuda()) return "the kernels for it need a GPU";
  return why_no_fp8(gpu_name(device), compute_capability(device));
}

std::string why_no_fp8_blocks(at::Device device, bool reference_ops) {
  return device.is_cpu() ? "" : why_no_fp8(device, reference_ops);
}

std::string why_no_fp8(int capability) {
  return why_no_fp8("GPU", capability);
}

Precision choose_precision(const config::PrecisionConfig& config, at::Device device, bool reference_ops) {
  using config::ComputePrecision;
  Precision precision;
  ComputePrecision compute = config.compute;
  if (compute == ComputePrecision::automatic) {
    compute = device.is_cuda() ? ComputePrecision::bf16 : ComputePrecision::fp32;
  }
  // A CPU rounds no inputs.
  if (compute == ComputePrecision::tf32 && !device.is_cuda()) compute = ComputePrecision::fp32;
  precision.name = name_of(compute);
  if (compute == ComputePrecision::bf16) precision.compute_dtype = at::kBFloat16;
  if (compute == ComputePrecision::fp16) precision.compute_dtype = at::kHalf;
  precision.loss_scaling = precision.compute_dtype == at::kHalf;
  // Values of bf16 and fp16 fit into TF32 without loss, so that what is left of fp32 products there is exact anyway.
  precision.tf32 = compute != ComputePrecision::fp32;
  if (config.recursions == config::RecursionPrecision::fp8) {
    const std::string reason = why_no_fp8(device, reference_ops);
    require(reason.empty(), ExitCode::environment, "precision.recursions is 'fp8', but ", reason,
            "; set it to 'same', or ops.backend to reference (slow: for tests)");
    precision.fp8_recursions = true;
    precision.name += " with fp8 recursions";
  }
  if (config.blocks == config::BlockPrecision::fp8) {
    const std::string reason = why_no_fp8_blocks(device, reference_ops);
    require(reason.empty(), ExitCode::environment, "precision.blocks is 'fp8', but ", reason,
            "; set it to 'same', or ops.backend to reference (slow: for tests)");
    precision.fp8_blocks = true;
    precision.name += " with fp8 blocks";
  }
  return precision;
}

void apply_arithmetic(const Precision& precision, const config::RuntimeConfig& config, at::Device device) {
  at::Context& context = at::globalContext();
  if (device.is_cuda()) {
    context.setAllowTF32CuBLAS(precision.tf32);
    context.setAllowTF32CuDNN(precision.tf32);
    context.setBenchmarkCuDNN(config.cudnn_benchmark);
  }
  // One backend alone, with the plain one behind it for shapes that it does not do.
  const bool all = config.sdpa == config::SdpaBackend::automatic;
  context.setSDPUseFlash(all || config.sdpa == config::SdpaBackend::flash);
  context.setSDPUseMemEfficient(all || config.sdpa == config::SdpaBackend::efficient);
  context.setSDPUseCuDNN(all || config.sdpa == config::SdpaBackend::cudnn);
  context.setSDPUseMath(true);
  // Both ways: a process may run one configuration after another.
  context.setDeterministicAlgorithms(config.deterministic, /*warn_only=*/false);
  context.setDeterministicCuDNN(config.deterministic);
  if (config.deterministic) {
    // cuBLAS reads it when its first handle is made; without a fixed workspace its split-K choices vary.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    context.setDeterministicFillUninitializedMemory(false);
    // Flash attention has a deterministic backward; the memory-efficient and cuDNN ones have not.
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
  }
}

std::string sdpa_backend(at::Device device, at::ScalarType dtype, int64_t batch, int64_t heads, int64_t length,
                         int64_t head_dim) {
  // Shape, dtype and device decide, the values do not; a batch of few rows is enough and costs no memory.
  const at::Tensor qkv =
      at::empty({std::min<int64_t>(batch, 2), heads, length, head_dim}, at::TensorOptions(device).dtype(dtype));
  const at::Tensor leaf = qkv.set_requires_grad(true);
  switch (static_cast<at::SDPBackend>(at::_fused_sdp_choice(leaf, leaf, leaf))) {
    case at::SDPBackend::flash_attention:
      return "flash";
    case at::SDPBackend::efficient_attention:
      return "efficient";
    case at::SDPBackend::cudnn_attention:
      return "cuDNN";
    default:
      return "math";
  }
}

}  // namespace hrm
