#pragma once
// The ranks of a training as a grid with named axes.
//
// Rank order, fastest first: tensor, shard, replica. So the ranks of a tensor axis are neighbours, on one node where
// its size divides the node's. The data axis is shard and replica together: its ranks read different rows.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

enum class Axis {
  tensor,   // the parts of each layer: these ranks read the same rows
  shard,    // ranks that share out the optimizer's state and the weights (ZeRO)
  replica,  // groups of shards with the same state
  data,     // shard x replica
};
constexpr int kAxes = 4;
constexpr std::array<Axis, kAxes> kAllAxes{Axis::tensor, Axis::shard, Axis::replica, Axis::data};

// "tensor", "shard", "replica", "data".
const char* axis_name(Axis axis);

struct MeshShape {
  int tensor = 1;
  int replicas = 1;  // the rest of the ranks are shards
};
MeshShape mesh_shape(const config::ParallelConfig& config);
class MeshPlace;
// Throws Error(usage) where parallel.replicas leaves each rank alone in its group.
void check_groups(const MeshPlace& place, const config::ParallelConfig& config);
// A sentence for users if parallel.zero is set and has nothing to split in this mesh; else empty. No error: a run may
// be resumed, or tried, with fewer ranks than its settings are for.
std::string idle_zero_text(const MeshPlace& place, const config::ParallelConfig& config);

// The coordinates of a rank, without communication.
class MeshPlace {
 public:
  // Throws Error(usage), naming parallel.tensor and parallel.replicas, if the ranks do not divide.
  MeshPlace(int rank, int ranks, const MeshShape& shape);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int size(Axis axis) const;
  int coordinate(Axis axis) const;
  // Ascending ranks that differ from this one along the axis alone, and this one.
  std::vector<int> members(Axis axis) const;
  // The place of another rank in the same mesh.
  MeshPlace of(int rank) const { return {rank, ranks_, {.tensor = tensor_, .replicas = replicas_}}; }
  // Whether all ranks read other rows and hold the same, or shares of it: one axis.
  bool plain() const { return tensor_ == 1 && replicas_ == 1; }
  // "data 2 of 4, tensor 1 of 2"; the axes that have more than one rank, or "the only rank".
  std::string describe() const;
  // How many Comms of several ranks this rank has in a Mesh, the world included.
  int comms() const;
  // Whether the sums of this rank count: one rank of each tensor axis.
  bool speaks() const { return coordinate(Axis::tensor) == 0; }

 private:
  int rank_, ranks_, tensor_, shards_, replicas_;
};

// A Comm for each axis. Along an axis of one rank every rank is alone. A shard, replica or data axis of all ranks is
// the world itself; the tensor axis has a Comm of its own, which is urgent. Subgroup::name is axis_name(); where there
// is one group of shards, they are the data axis, and their Comm has its name.
class Mesh {
 public:
  // A collective operation of all ranks: splits `world`, which lives as long as this.
  Mesh(std::shared_ptr<Comm> world, const MeshShape& shape);

  const MeshPlace& place() const { return place_; }
  Comm& world() const { return *world_; }
  const std::shared_ptr<Comm>& shared_world() const { return world_; }
  Comm& axis(Axis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  const std::shared_ptr<Comm>& shared_axis(Axis axis) const { return axes_[static_cast<size_t>(axis)]; }
  int size(Axis axis) const { return place_.size(axis); }
  int coordinate(Axis axis) const { return place_.coordinate(axis); }
  bool speaks() const { return place_.speaks(); }
  // In which operation this rank waits on the CPU: "an all-reduce: tensor axis, rank 1 of 2 (global rank 3)"; empty: in
  // none. From any thread, without waiting.
  std::string waiting() const;
  // Comm::progress() of every axis that tells it.
  std::string progress() const;

 private:
  std::string place_on(const Comm& comm) const;

  std::shared_ptr<Comm> world_;
  MeshPlace place_;
  std::array<std::shared_ptr<Comm>, kAxes> axes_;
};

}  // namespace hrm::parallel
