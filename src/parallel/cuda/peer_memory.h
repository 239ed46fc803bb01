#pragma once
// Memory of the GPUs of several ranks on one host, which the kernels of all of them write (hrm/ops/peer_sums.h).

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hrm/ops/peer_sums.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

class PeerMemory {
 public:
  // A collective operation of all ranks of `cpu`, each with its GPU. Null on every rank where the ranks are on several
  // hosts or more than ops::kMostPeers, or where a GPU does not reach the memory of another one, which is tried. Rank 0
  // logs which, and why.
  static std::unique_ptr<PeerMemory> make(Comm& cpu, at::Device device);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const ops::PeerRooms& rooms() const { return rooms_; }

 private:
  PeerMemory() = default;
  // Each returns what went wrong; empty: nothing.
  std::string allocate();
  std::string map(const std::vector<std::string>& tickets);
  std::string write_to_peers() const;
  std::string read_own() const;
  std::string ticket() const;

  void* own_ = nullptr;
  std::vector<void*> mapped_;  // to be unmapped
  ops::PeerRooms rooms_;
};

}  // namespace hrm::parallel
