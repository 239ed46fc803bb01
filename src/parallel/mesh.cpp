#include "hrm/parallel/mesh.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::parallel {

const char* axis_name(Axis axis) {
  switch (axis) {
    case Axis::tensor:
      return "tensor";
    case Axis::shard:
      return "shard";
    case Axis::replica:
      return "replica";
    case Axis::data:
      break;
  }
  return "data";
}

MeshShape mesh_shape(const config::ParallelConfig& config) {
  return {.tensor = static_cast<int>(config.tensor), .replicas = static_cast<int>(config.replicas)};
}

void check_groups(const MeshPlace& place, const config::ParallelConfig& config) {
  require(config.replicas == 1 || place.size(Axis::shard) > 1, ExitCode::usage, "parallel.replicas = ", config.replicas,
          " leaves each of the ", place.size(Axis::data),
          " data ranks alone in its group, so that parallel.zero = ", config.zero,
          " has nothing to split; start more ranks, lower parallel.replicas, or set parallel.replicas to 1 and "
          "parallel.zero to 0");
}

std::string idle_zero_text(const MeshPlace& place, const config::ParallelConfig& config) {
  if (config.zero == 0 || place.size(Axis::shard) > 1) return {};
  const std::string zero = cat("parallel.zero = ", config.zero);
  if (place.ranks() == 1) {
    return cat(zero,
               " has nothing to split: this is the only rank, and holds all state; start several (torchrun, "
               "srun, mpirun), or set parallel.zero to 0");
  }
  return cat(zero, " has nothing to split: all ", place.ranks(),
             " ranks read the same rows (parallel.tensor = ", config.tensor,
             "), and each holds all state of its part of the model; start more ranks, lower "
             "parallel.tensor, or set parallel.zero to 0");
}

MeshPlace::MeshPlace(int rank, int ranks, const MeshShape& shape)
    : rank_(rank), ranks_(ranks), tensor_(shape.tensor), replicas_(shape.replicas) {
  require(tensor_ >= 1 && replicas_ >= 1 && rank >= 0 && rank < ranks, ExitCode::unexpected, "rank ", rank, " of ",
          ranks, " in a mesh of ", tensor_, " x ", replicas_);
  require(ranks % tensor_ == 0, ExitCode::usage, ranks,
          " ranks cannot be divided into groups of parallel.tensor = ", tensor_, "; start a multiple of ", tensor_,
          " ranks, or lower parallel.tensor");
  const int data = ranks / tensor_;
  require(data % replicas_ == 0, ExitCode::usage, data, " data ranks (", ranks, " ranks, parallel.tensor = ", tensor_,
          ") cannot be divided into parallel.replicas = ", replicas_, " groups; choose a divisor of ", data,
          ", or start a multiple of ", tensor_ * replicas_, " ranks");
  shards_ = data / replicas_;
}

int MeshPlace::size(Axis axis) const {
  switch (axis) {
    case Axis::tensor:
      return tensor_;
    case Axis::shard:
      return shards_;
    case Axis::replica:
      return replicas_;
    case Axis::data:
      break;
  }
  return shards_ * replicas_;
}

int MeshPlace::coordinate(Axis axis) const {
  const int data = rank_ / tensor_;
  switch (axis) {
    case Axis::tensor:
      return rank_ % tensor_;
    case Axis::shard:
      return data % shards_;
    case Axis::replica:
      return data / shards_;
    case Axis::data:
      break;
  }
  return data;
}

std::vector<int> MeshPlace::members(Axis axis) const {
  const int stride = axis == Axis::tensor ? 1 : axis == Axis::replica ? tensor_ * shards_ : tensor_;
  const int first = rank_ - coordinate(axis) * stride;
  std::vector<int> ranks;
  for (int i = 0; i < size(axis); ++i) ranks.push_back(first + i * stride);
  return ranks;
}

int MeshPlace::comms() const {
  if (ranks_ == 1) return 0;
  const bool both = shards_ > 1 && replicas_ > 1;
  // Beside the world: the urgent tensor axis, and the data axis, unless it is the world.
  const int split = tensor_ == 1 ? 0 : shards_ * replicas_ > 1 ? 2 : 1;
  return 1 + split + (both ? 2 : 0);
}

std::string MeshPlace::describe() const {
  std::string text;
  const auto add = [&](Axis axis) {
    if (size(axis) == 1) return;
    text += cat(text.empty() ? "" : ", ", axis_name(axis), " ", coordinate(axis), " of ", size(axis));
  };
  if (replicas_ > 1) {
    add(Axis::replica);
    add(Axis::shard);
  } else {
    add(Axis::data);
  }
  add(Axis::tensor);
  return text.empty() ? "the only rank" : text;
}

Mesh::Mesh(std::shared_ptr<Comm> world, const MeshShape& shape)
    : world_(std::move(world)), place_(world_->rank(), world_->ranks(), shape) {
  for (const Axis axis : kAllAxes) {
    std::shared_ptr<Comm>& comm = axes_[static_cast<size_t>(axis)];
    const int size = place_.size(axis);
    if (size == 1) {
      comm = world_->alone() ? world_ : make_single_comm();
    } else if (size == world_->ranks() && axis != Axis::tensor) {  // the tensor axis is urgent
      comm = world_;
    } else if (axis == Axis::data && place_.size(Axis::replica) == 1) {
      comm = axes_[static_cast<size_t>(Axis::shard)];
    } else if (axis == Axis::data && place_.size(Axis::shard) == 1) {
      comm = axes_[static_cast<size_t>(Axis::replica)];
    } else {
      const bool is_data = axis == Axis::shard && place_.size(Axis::replica) == 1;
      comm = world_->split({.name = axis_name(is_data ? Axis::data : axis),
                            .members = place_.members(axis),
                            .priority = axis == Axis::tensor ? Priority::urgent : Priority::background});
    }
  }
}

// Each Comm once: axes share them.
std::string Mesh::place_on(const Comm& comm) const {
  const bool is_world = &comm == world_.get();
  if (!is_world) return comm.place();
  if (place_.size(Axis::data) < comm.ranks()) return cat("all ranks, ", comm.place());
  return place_text(axis_name(Axis::data), comm.rank(), comm.ranks(), comm.rank());
}

std::string Mesh::waiting() const {
  std::vector<const Comm*> comms{world_.get()};
  for (const auto& axis : axes_) comms.push_back(axis.get());
  for (const Comm* comm : comms) {
    if (const std::string inside = comm->waiting(); !inside.empty()) return cat(inside, ": ", place_on(*comm));
  }
  return {};
}

std::string Mesh::progress() const {
  std::string text;
  std::vector<const Comm*> told;
  const auto tell = [&](const Comm* comm) {
    if (std::count(told.begin(), told.end(), comm) > 0) return;
    told.push_back(comm);
    const std::string progress = comm->progress();
    if (!progress.empty()) text += cat(text.empty() ? "" : "; ", place_on(*comm), ": ", progress);
  };
  tell(world_.get());
  for (const auto& axis : axes_) tell(axis.get());
  return text;
}

}  // namespace hrm::parallel
