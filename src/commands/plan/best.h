#pragma once
// `plan --best`: which mesh of a number of ranks makes the fastest step that fits.

#include <functional>
#include <string>
#include <vector>

#include "commands/plan/ranks.h"

namespace hrm::commands {

// The settings that make a mesh; the rest of the ranks read different rows.
struct MeshSettings {
  int64_t tensor = 1, zero = 0, replicas = 1;

  std::vector<std::string> overrides() const;
};

struct MeshPlan {
  MeshSettings mesh;
  RanksPlan plan;
  bool fits() const { return plan.own.device_used <= plan.input.gpu.memory_bytes; }
};

struct BestMeshes {
  std::vector<MeshPlan> fitting;    // the fastest first
  std::vector<MeshPlan> too_large;  // the least memory first
  // Meshes that cannot be, with what is said of the first. Reasons that differ in numbers alone are one.
  struct Refused {
    std::string why;
    std::vector<MeshSettings> meshes;
  };
  std::vector<Refused> refused;
};

// Tries all divisors of `ranks` as parallel.tensor with parallel.zero from 0 to 3, which needs ranks that read
// different rows. From 1 on, all of these split the state, or groups of them (parallel.replicas) whose GPUs are a node
// of `per_node` or a divisor of it. `with`: the input of the configuration with these settings; an Error(usage) refuses
// the mesh, and so do those of make_ranks_plan.
BestMeshes find_best_meshes(int64_t ranks, int64_t per_node,
                            const std::function<RanksInput(const MeshSettings&)>& with);

}  // namespace hrm::commands
