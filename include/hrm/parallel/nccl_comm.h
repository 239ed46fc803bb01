#pragma once
// Collectives between GPUs by NCCL. Only where the program is built with CUDA.

#include <c10/core/Device.h>

#include <memory>

#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// The same ranks as `cpu`, which carries the meeting and all operations on CPU tensors; those on tensors of `device`
// go by NCCL, on a stream of its own: what is started begins when what the current stream holds at that moment is
// done, and Pending::wait() makes the current stream wait, not the host. So does broadcast. All can be captured
// in a CUDA graph after a first call outside. barrier() is one of the hosts. Throws Error (rank_failed,
// environment) with NCCL's reason. NCCL's own variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, ...) hold.
std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Comm> cpu, at::Device device);

}  // namespace hrm::parallel
