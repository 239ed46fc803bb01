#pragma once
// `plan` for several ranks: what they send each other in a step, how long that takes and how much of it is waited for.

#include <map>
#include <string>
#include <vector>

#include "commands/plan/link_model.h"
#include "commands/plan/plan.h"
#include "commands/plan/timeline.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/parameter_shards.h"

namespace hrm::commands {

using tasks::StepExchange;

// Of a rank that computes while something travels: NCCL takes multiprocessors and bandwidth. Fitted to a decoder
// of 1.26 billion parameters on two H200s with parallel.tensor=2, whose exchanges take 30 of 156 ms, and with
// parallel.zero=3, 22 of 275 ms (docs/measurements/log.md).
inline constexpr double kRateBesideExchange = 0.5;

// Rehearses the exchanges of one step of rank 0 of in.ranks with fake Comms, one for each axis, and tensors without
// memory. Gradients go through the training's GradientReducer, split from the configured model. Of parallel.tensor, the
// part of the model runs a pass. Everything else goes through the functions that the task calls
// (ModelPlan::rehearse_begin). In the order of a step; none for one rank.
std::vector<StepExchange> rehearse_step(const PlanInput& in);

// Bytes on one of in.ranks, with parallel.zero of at least 1 and several ranks that read different rows.
struct ShardedBytes {
  int64_t gradients = 0;  // GradientReducer::gradient_bytes()
  parallel::ParameterShards::WeightMemory weights;
};
ShardedBytes rehearsed_bytes(const PlanInput& in);

struct RanksInput {
  PlanInput one;         // with the batch of the configuration; its `ranks` is not read
  int64_t per_node = 8;  // ranks of a node
  bool weak = false;     // every rank has that batch; otherwise all have it together
  Links links;
};

// Where the ranks of each axis lie, by CommOperation::axis. Error(usage) where a node would not be full, and where
// groups of parallel.tensor do not lie alike on nodes.
using AxisLayouts = std::map<std::string, RankLayout>;
AxisLayouts axis_layouts(const parallel::MeshPlace& place, int64_t per_node);

// What one of these ranks has and does: rank 0, whose part of the model is the largest. Error(usage) where the ranks
// cannot split the batch, and as MeshPlace and ModelPlan::outline_part.
PlanInput input_of_rank(const RanksInput& in, int64_t ranks);

struct RanksPlan {
  RankLayout layout;
  PlanInput input;                      // of one of the ranks
  Plan own;                             // its memory, and its time without the others
  std::vector<StepExchange> exchanges;  // of a step
  StepTimeline timeline;
  LinkBytes sent;  // by one GPU in a step; it receives as much
  double step_ms = 0;
  double samples_per_s = 0;
  double efficiency = 0;  // samples per second of a rank, by those of one rank with the configured batch
  std::string advice;     // for the reader; empty: none
};

// Error(usage) as input_of_rank, make_plan and axis_layouts.
RanksPlan make_ranks_plan(const RanksInput& in, int64_t ranks);

// A sentence with both times, if as many ranks are as fast with parallel.tensor=1, and that fits; else empty.
std::string why_tensor_does_not_pay(const RanksInput& in, const RanksPlan& plan);

}  // namespace hrm::commands
