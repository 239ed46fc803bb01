#include "parallel/cuda/step_clock.h"

namespace hrm::parallel::cuda {
namespace {

__device__ inline int64_t now_ns() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void begin(int64_t* state, double* own_ms, double* waited_ms) {
  const int64_t now = now_ns();
  *own_ms = state[0] > 0 ? static_cast<double>(now - state[0] - state[1]) * 1e-6 : 0;
  *waited_ms = state[0] > 0 ? static_cast<double>(state[1]) * 1e-6 : 0;
  state[0] = now;
  state[1] = 0;
}

__global__ void wait(int64_t* state, bool begins) {
  state[1] += begins ? -now_ns() : now_ns();
}

}  // namespace

void step_clock_begin(int64_t* state, double* own_ms, double* waited_ms, cudaStream_t stream) {
  begin<<<1, 1, 0, stream>>>(state, own_ms, waited_ms);
}

void step_clock_wait(int64_t* state, bool begins, cudaStream_t stream) {
  wait<<<1, 1, 0, stream>>>(state, begins);
}

}  // namespace hrm::parallel::cuda
