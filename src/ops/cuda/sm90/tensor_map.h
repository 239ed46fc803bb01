#pragma once
// Descriptions of tensors for the TMA, made on the host. No torch headers.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

namespace hrm::ops::cuda::sm90 {

// One dimension of a tensor map, innermost first.
struct MapDim {
  int64_t size;    // elements in the tensor; what lies beyond reads as zero and is not written
  int64_t stride;  // bytes from one index to the next, a multiple of 16; unused for the innermost dimension
  int box;         // elements that one copy moves, at most 256
};

enum class MapElement { bits16, bits8, float32 };
enum class MapSwizzle { none, bytes128 };

// Encodes `map` for `base`, aligned to 16 bytes. 1 to 5 dimensions; with bytes128 the innermost box is 128 bytes. The
// map is a kernel argument (`const __grid_constant__ CUtensorMap`): nothing on the host or the device outlives the
// call, so a captured launch keeps it. cudaErrorNotSupported where the driver has no such call, cudaErrorInvalidValue
// where it refuses the sizes.
cudaError_t encode_map(CUtensorMap& map, const void* base, MapElement element, MapSwizzle swizzle,
                       std::initializer_list<MapDim> dims);

// Whether the kernels of this folder run on the current device: it is a Hopper GPU, compute capability 9.0, whose
// driver encodes tensor maps, and this build is for architecture 90a among others.
bool is_hopper();

// Of the current device; 0 where it cannot be asked.
int current_device_attribute(cudaDeviceAttr attribute);

// Multiprocessors of the current device that the persistent kernels may use, one block or more on each.
int multiprocessors();

// They leave this many to others: a fixed list of tiles takes twice as long where NCCL's blocks hold a multiprocessor
// and a kernel's last blocks wait for the first ones to end. For all threads; of effect on what starts, or is captured,
// afterwards. 0 at the start.
void leave_multiprocessors(int count);

}  // namespace hrm::ops::cuda::sm90
