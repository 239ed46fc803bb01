#pragma once
// The streams that work beside each other on a GPU. Only for builds with CUDA.

#include <c10/cuda/CUDAStream.h>

namespace hrm {

// Of the highest priority: warm-ups and captures of all graphs of the process, which never run at the same time.
// Kernels of a graph keep the priority of the stream that they were captured on.
c10::cuda::CUDAStream compute_stream(c10::DeviceIndex device);

// Of the default priority, the lowest: where both could start, the GPU starts blocks of compute kernels first.
c10::cuda::CUDAStream communication_stream(c10::DeviceIndex device);

// Of the device's highest priority, for operations that the compute kernels wait for: their blocks start before those
// of all other kernels. One stream of the process for each device.
c10::cuda::CUDAStream urgent_communication_stream(c10::DeviceIndex device);

}  // namespace hrm
