#pragma once
// Collectives between GPUs by NCCL. Only where the program is built with CUDA.

#include <c10/core/Device.h>

#include <memory>

#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// The same ranks as `cpu`, which carries the rendezvous and all operations on CPU tensors. Operations on tensors of
// `device` use NCCL on a stream of its own. They begin when the work that the current stream holds at that moment is
// done. Pending::wait() makes the current stream wait, not the host; so does broadcast. All can be captured in a CUDA
// graph after a first call outside. barrier() is one of the hosts. Throws Error (rank_failed, environment) with NCCL's
// reason. NCCL's own variables (NCCL_DEBUG, NCCL_SOCKET_IFNAME, ...) apply.
std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Comm> cpu, at::Device device);

}  // namespace hrm::parallel
