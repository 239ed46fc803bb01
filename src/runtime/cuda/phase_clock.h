#pragma once
// The kernel of PhaseClock: one thread.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hrm::cuda {

// state[1 + phase] += now - state[0], not for phase -1; state[0] = now. Nanoseconds.
void mark_phase(int64_t* state, int64_t phase, cudaStream_t stream);

}  // namespace hrm::cuda
