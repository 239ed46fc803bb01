#pragma once
// Sums over parts of a model on GPUs of one host, which write into each other's memory (parallel/cuda/peer_rooms.h).

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "hrm/ops/decode_linear.h"

namespace hrm::ops {

// Memory of every part's GPU that all of them write: peer_room_bytes() each, all zero before the first use.
struct PeerRooms {
  int part = 0;
  std::vector<void*> rooms = {};  // by parts, as this GPU has them mapped

  int parts() const { return static_cast<int>(rooms.size()); }
};
inline constexpr int kMostPeers = 8;
size_t peer_room_bytes();
// Of a room's bytes the place of four that part `part` may write before the first use, to try the way there.
size_t peer_check_place(int part);

// Whether add_peer_sums() takes sums like these: float32, bfloat16 or float16, contiguous and of at most 1 MiB, a
// multiple of 16 bytes, with ops.backend=fused.
bool takes_peer_sums(const at::Tensor& sums, const PeerRooms& rooms);

// What add_pieces_ahead() gives of the sums (n, D) of all parts, with the same bits, in one kernel. All parts call it
// with sums of the same size, in the same order. Waits on the GPU for the other parts, without a time limit. No
// gradient. Deterministic. Runs on the current stream; can be captured. Only in builds with CUDA.
DecodedAhead add_peer_sums(const at::Tensor& residual, const at::Tensor& sums, const at::Tensor& next_norm,
                           const PeerRooms& rooms);

}  // namespace hrm::ops
