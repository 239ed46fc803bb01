#include "hrm/ops/leave_multiprocessors.h"

#include <atomic>

#include "hrm/build_config.h"
#if HRM_WITH_CUDA
#include "ops/cuda/sm90/tensor_map.h"
#endif

namespace hrm::ops {
namespace {

std::atomic<int> left{0};

int leave(int count) {
#if HRM_WITH_CUDA
  cuda::sm90::leave_multiprocessors(count);
#endif
  return left.exchange(count);
}

}  // namespace

LeaveMultiprocessors::LeaveMultiprocessors(int count) : before_(leave(count)) {}

LeaveMultiprocessors::~LeaveMultiprocessors() {
  leave(before_);
}

int multiprocessors_left() {
  return left;
}

}  // namespace hrm::ops
