#include "hrm/tasks/reduce_maxima.h"

namespace hrm::tasks {

void reduce_maxima(parallel::Comm& comm, const at::Tensor& maxima) {
  const at::Tensor largest = maxima.contiguous();
  comm.all_reduce_in_step(largest, parallel::Reduction::max);
  maxima.copy_(largest);
}

}  // namespace hrm::tasks
