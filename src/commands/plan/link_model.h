#pragma once
// How long collective operations take between this many GPUs: from data sheets, or from results of `bench comm`.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "commands/plan/plan.h"
#include "hrm/parallel/comm.h"

namespace hrm::commands {

// Ranks side by side, each with a GPU of its own; every node holds as many.
struct RankLayout {
  int64_t ranks = 1;
  int64_t nodes = 1;
  int64_t per_node() const { return ranks / nodes; }
};
// This many ranks on nodes with up to `per_node` each. Error(usage) if the last node would not be full.
RankLayout layout_of(int64_t ranks, int64_t per_node);

// What one GPU sends in a collective, and receives.
struct LinkBytes {
  double node = 0;     // to GPUs of its own node
  double network = 0;  // to other nodes
};

// For R ranks on M nodes of G = R / M and a result of S bytes: f S (G - 1) / G in the node, f S (M - 1) / R over the
// network. f = 2 for an all-reduce, which is a reduce-scatter and an all-gather, and 1 for all others. This is the
// minimum: in a ring of the node's GPUs each passes on all parts but one; over the network G rings, one for each GPU of
// a node, carry a G-th each (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009). With one node it is what NCCL's tests call bus bandwidth times time.
LinkBytes link_bytes(const parallel::CommOperation& operation, const RankLayout& layout);

// One link of a GPU.
struct Link {
  double bytes_per_s = 0;  // of one GPU, in one direction
  double hop_s = 0;        // of a message without content from one GPU to the next
  // Measured: bytes over this link against the seconds that they take beyond those of a message without content;
  // ascending in both, from (0, 0). Between two the time is on the line through both, beyond the last at bytes_per_s.
  // Empty: bytes_per_s for all.
  struct Point {
    double bytes, seconds;
  };
  std::vector<Point> measured = {};
  std::string origin;  // of the numbers, for the reader
};

struct Links {
  Link node, network;
  double start_s = 0;  // of any operation, before the first hop
};

// What the user said instead of the data sheets; 0: nothing.
struct LinkOptions {
  double node_gbs = 0, network_gbs = 0;              // 1e9 bytes per second of a GPU, in one direction
  double node_hop_us = 0, network_hop_us = 0;        // microseconds
  std::vector<std::filesystem::path> measured = {};  // results of `bench comm`: one of a node, one between nodes
};

// Error(usage) for a file that cannot be read or is no such result, for one of CPUs, and where two say the same.
Links make_links(const GpuFacts& gpu, const LinkOptions& options);

// start_s, the hops, and the time of the slower link; traffic over both is sent in pieces at the same time. Hops are
// those of NCCL's own model (its src/graph/tuning.cc). An all-reduce goes up and down a tree, 2 (G - 1) hops in the
// nodes and 2 log2 M between them. All others go around a ring, R - M and M - 1.
double collective_seconds(const Links& links, const parallel::CommOperation& operation, const RankLayout& layout);

}  // namespace hrm::commands
