#pragma once
// The kernels of StepClock: one thread each.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::parallel::cuda {

void step_clock_begin(int64_t* state, double* own_ms, double* waited_ms, int waits, cudaStream_t stream);
void step_clock_wait(int64_t* state, bool begins, int axis, cudaStream_t stream);

}  // namespace hrm::parallel::cuda
