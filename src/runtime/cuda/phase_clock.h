#pragma once
// The kernels of PhaseClock: one thread.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::cuda {

// state[1 + phase] += now - state[0], not for phase -1; state[0] = now. Nanoseconds. `phase` is one of hrm::Phase, and
// a kernel of its own, so that every profiler shows by the kernel's name which phase ended: phase_end<phases::forward>.
void mark_phase(int64_t* state, int phase, cudaStream_t stream);

}  // namespace hrm::cuda
