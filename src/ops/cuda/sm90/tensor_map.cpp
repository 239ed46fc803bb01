#include "ops/cuda/sm90/tensor_map.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "hrm/base/build_info.h"

namespace hrm::ops::cuda::sm90 {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Asked of the runtime, so that no program links the driver library, which a machine without a GPU lacks. Null where
// the driver has no such call.
Encode encode_call() {
  static const Encode encode = []() -> Encode {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      return nullptr;
    }
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

// This may be the thread's first CUDA call (autograd has threads of its own): unlike the runtime, the driver does not
// make the device's context current by itself.
cudaError_t make_context_current() {
  static thread_local bool done = false;
  if (done) return cudaSuccess;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaSetDevice(device);
  done = error == cudaSuccess;
  return error;
}

CUtensorMapDataType type_of(MapElement element) {
  if (element == MapElement::float32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return element == MapElement::bits16 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

cudaError_t encode_map(CUtensorMap& map, const void* base, MapElement element, MapSwizzle swizzle,
                       std::initializer_list<MapDim> dims) {
  const Encode encode = encode_call();
  if (encode == nullptr) return cudaErrorNotSupported;  // is_hopper() is false
  if (dims.size() < 1 || dims.size() > 5) return cudaErrorInvalidValue;
  cuuint64_t sizes[5] = {}, strides[5] = {};
  cuuint32_t boxes[5] = {};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  int rank = 0;
  for (const MapDim& dim : dims) {
    sizes[rank] = static_cast<cuuint64_t>(dim.size);
    boxes[rank] = static_cast<cuuint32_t>(dim.box);
    if (rank > 0) strides[rank - 1] = static_cast<cuuint64_t>(dim.stride);
    ++rank;
  }
  if (const cudaError_t error = make_context_current(); error != cudaSuccess) return error;
  const CUresult result =
      encode(&map, type_of(element), static_cast<cuuint32_t>(rank), const_cast<void*>(base), sizes, strides, boxes,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle == MapSwizzle::bytes128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

int current_device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}

bool is_hopper() {
  // Compiled for another architecture, sm_90 without the "a" included, the kernels' bodies are empty.
  static const bool compiled = build_info("cuda_archs").find("90a") != std::string::npos;
  return compiled && current_device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         current_device_attribute(cudaDevAttrComputeCapabilityMinor) == 0 && encode_call() != nullptr;
}

namespace {
std::atomic<int> left_multiprocessors{0};
}  // namespace

int multiprocessors() {
  return std::max(current_device_attribute(cudaDevAttrMultiProcessorCount) - left_multiprocessors.load(), 1);
}

void leave_multiprocessors(int count) {
  left_multiprocessors.store(count);
}

}  // namespace hrm::ops::cuda::sm90
