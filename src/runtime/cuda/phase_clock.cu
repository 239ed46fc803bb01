#include "runtime/cuda/phase_clock.h"

#include "hrm/runtime/phase.h"

namespace hrm::cuda {
namespace phases {

#define HRM_PHASE_TAG(identifier, name) struct identifier;
HRM_PHASES(HRM_PHASE_TAG)
#undef HRM_PHASE_TAG

}  // namespace phases

namespace {

__device__ int64_t now() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace

__global__ void phase_begin(int64_t* state) {
  state[0] = now();
}

template <class Name>
__global__ void phase_end(int64_t* state, int phase) {
  const int64_t end = now();
  state[1 + phase] += end - state[0];
  state[0] = end;
}

void mark_phase(int64_t* state, int phase, cudaStream_t stream) {
  switch (phase) {
#define HRM_PHASE_CASE(identifier, name)                              \
  case static_cast<int>(Phase::identifier):                           \
    phase_end<phases::identifier><<<1, 1, 0, stream>>>(state, phase); \
    break;
    HRM_PHASES(HRM_PHASE_CASE)
#undef HRM_PHASE_CASE
    default:
      phase_begin<<<1, 1, 0, stream>>>(state);
  }
}

}  // namespace hrm::cuda
