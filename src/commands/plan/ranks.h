#pragma once
// `plan` for several ranks: what they send each other in a step, how long that takes and how much of it is waited for.

#include <string>
#include <vector>

#include "commands/plan/link_model.h"
#include "commands/plan/plan.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/parameter_shards.h"

namespace hrm::commands {

using tasks::StepExchange;

// Rehearses the exchanges of one step of rank 0 of in.ranks with a fake Comm (parallel::make_fake_comm) and tensors
// without memory. Gradients go through the training's GradientReducer, split from the configured model; everything else
// through the functions that the task calls (ModelPlan::rehearse_begin). In the order of a step; none for one rank.
std::vector<StepExchange> rehearse_step(const PlanInput& in);

// Bytes on one of in.ranks, with parallel.zero of at least 1.
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

struct RanksPlan {
  RankLayout layout;
  PlanInput input;                      // of one of the ranks
  Plan own;                             // its memory, and its time without the others
  std::vector<StepExchange> exchanges;  // of a step
  std::vector<double> exchange_ms;      // of each of them
  LinkBytes sent;                       // by one GPU in a step; it receives as much
  double comm_ms = 0;                   // all exchanges
  double exposed_ms = 0;                // of them, while nothing is computed
  double step_ms = 0;
  double samples_per_s = 0;
  double efficiency = 0;  // samples per second of a rank, by those of one rank with the configured batch
};

// Gradient buckets, and weights that take turns, go one after the other, each when it can start and the previous one
// has arrived. What is left when the forward or the backward pass of the last micro-batch ends is exposed, as are all
// other exchanges. Error(usage) as make_plan and
// layout_of.
RanksPlan make_ranks_plan(const RanksInput& in, int64_t ranks);

}  // namespace hrm::commands
