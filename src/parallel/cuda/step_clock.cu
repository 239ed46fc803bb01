#include "parallel/cuda/step_clock.h"

namespace hrm::parallel::cuda {
namespace {

__device__ inline int64_t now_ns() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void begin(int64_t* state, double* own_ms, double* waited_ms, int waits) {
  const int64_t now = now_ns();
  *own_ms = state[0] > 0 ? static_cast<double>(now - state[0] - state[1]) * 1e-6 : 0;
  for (int i = 0; i < waits; ++i) {
    waited_ms[i] = state[0] > 0 ? static_cast<double>(state[1 + i]) * 1e-6 : 0;
    state[1 + i] = 0;
  }
  state[0] = now;
}

__global__ void wait(int64_t* state, bool begins, int axis) {
  const int64_t time = begins ? -now_ns() : now_ns();
  state[1] += time;
  if (axis >= 0) state[2 + axis] += time;
}

}  // namespace

void step_clock_begin(int64_t* state, double* own_ms, double* waited_ms, int waits, cudaStream_t stream) {
  begin<<<1, 1, 0, stream>>>(state, own_ms, waited_ms, waits);
}

void step_clock_wait(int64_t* state, bool begins, int axis, cudaStream_t stream) {
  wait<<<1, 1, 0, stream>>>(state, begins, axis);
}

}  // namespace hrm::parallel::cuda
