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
//
// Unless the environment has them, NCCL_GRAPH_MIXING_SUPPORT is set to 0, which makes small captured operations three
// times as fast: an operation outside of graphs then makes the host wait for graphs that were launched before. With
// runtime.allocator=expandable NCCL_GRAPH_REGISTER is set to 0, because replays hang otherwise.
//
// peer_memory: whether it and what it is split into have Comm::peer_rooms(), where the GPUs can.
std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Comm> cpu, at::Device device, bool peer_memory = true);

}  // namespace hrm::parallel
