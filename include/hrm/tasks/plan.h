#pragma once
// What `plan` asks of a task: memory, time and exchanges of a training step, estimated from shapes alone.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/nn/parameter.h"
#include "hrm/optim/groups.h"
#include "hrm/parallel/comm.h"

namespace hrm::tasks {

// What a GPU's data sheet says.
struct GpuFacts {
  std::string name;             // part of the name that the driver gives
  double flops = 0;             // dense bf16 matrix products, FLOP/s
  double bytes_per_s = 0;       // memory
  double memory_bytes = 0;      // in tensors, caches, context and all
  int capability = 0;           // compute capability, 90 for 9.0
  double link_bytes_per_s = 0;  // to any other GPU of its node, in one direction
  bool nvlink = false;          // what links them; else PCI Express, as where NVLink bridges join pairs only
};
const std::vector<GpuFacts>& known_gpus();
// The first known GPU whose name is part of this one, in any case; null: none.
const GpuFacts* find_gpu(const std::string& name);

class ModelPlan;

struct PlanInput {
  config::Config config;
  std::shared_ptr<const ModelPlan> model;  // the configured one
  int64_t parameters = 0;                  // trainable values
  int64_t frozen_parameters = 0;           // values beside them
  double frozen_bytes = 0;                 // of these, in the dtype or format that they are kept in
  int64_t copied_parameters = 0;           // of all, values with a copy in the compute dtype
  int64_t fp8_parameters = 0;              // values of the weights that fp8 recursions or blocks read
  double fp8_share = 0;                    // of the values of all linear layers that fp8 blocks could read
  int64_t fp8_transposed = 0;              // of fp8_parameters, of blocks: those that are kept transposed, too
  int64_t largest_fp8 = 0;                 // values of the largest weight that fp8 blocks read
  bool fp8_copies = false;                 // fp8 blocks keep their copies in the compute dtype (tasks::Fp8Blocks)
  // Values of weights in the compute dtype that are made where they are read.
  int64_t cast_parameters() const {
    return config.precision.blocks == config::BlockPrecision::fp8 && !fp8_copies ? fp8_parameters : 0;
  }
  std::vector<std::pair<int64_t, int64_t>> muon_matrices = {};  // rows and columns of what Muon iterates over
  int64_t train_examples = 0;   // of a table on the device; 0: the rows come from the host
  double flops_per_sample = 0;  // of the matrix products of a step, as Task::flops_per_step
  GpuFacts gpu;
  int64_t ranks = 1;  // that train together; what is planned is one of them
};

struct PlanItem {
  std::string name;
  double value = 0;  // bytes, or milliseconds
  std::string note;
};

struct Plan {
  std::vector<PlanItem> memory;     // add up to tensors_peak
  double tensors_peak = 0;          // bytes: the allocator's peak of allocated memory
  std::string peak_moment;          // when in a step
  double reserved = 0;              // bytes that the allocator takes from the driver
  double device_used = 0;           // reserved, and what the CUDA context and the libraries take
  int64_t fitting_micro_batch = 0;  // largest divisor of the rank's batch that fits; 0: none
  std::vector<PlanItem> time;       // add up to step_ms
  double step_ms = 0;               // of several ranks: without what they send each other (plan_ranks.h)
  double backward_ms = 0;           // of it, the backward passes of all micro-batches
  std::vector<std::string> assumptions;
};

// Lines of a plan's memory, and what is most of it.
struct PlannedMemory {
  std::vector<PlanItem> items;
  double peak = 0;
  std::string moment;

  // Nothing is no line.
  void add(std::string name, double bytes, std::string note) {
    if (bytes > 0) items.push_back({std::move(name), bytes, std::move(note)});
  }
};

// One collective operation of a training step.
struct StepExchange {
  enum class Moment { before_forward, in_forward, in_backward, after_backward };
  std::string what;  // "gradients"
  parallel::CommOperation operation;
  Moment moment = Moment::after_backward;
  // In the forward or the backward pass of the last micro-batch: the share of it that is done before this can start.
  // Less than 0: in the pass of a micro-batch before.
  double ready = 1;
};

// Gives a name and a moment to the operations that a Comm without peers has counted.
class StepRehearsal {
 public:
  explicit StepRehearsal(const std::shared_ptr<parallel::CountingComm>& comm) : comm_(comm) {}

  parallel::CountingComm& comm() { return *comm_; }
  // Of the operations since the last call.
  void note(const std::string& what, StepExchange::Moment moment, double ready = 1);
  std::vector<StepExchange> take() { return std::move(exchanges_); }

 private:
  std::shared_ptr<parallel::CountingComm> comm_;
  std::vector<StepExchange> exchanges_;
};

// The model without memory: tensors of the meta device, which give names and shapes.
struct ModelOutline {
  std::shared_ptr<torch::nn::Module> model;
  nn::ParameterSet* parameters = nullptr;  // of the model, not built yet
  bool blocks_run_once = false;            // nn::ParameterSet::build
  // Gradient groups (nn/gradient_ready.h), the last ones, that no backward pass marks, since the input of their blocks
  // needs no gradient. They travel when the pass is over.
  int64_t unmarked_groups = 0;
  // Which groups a forward pass uses, in order, of those that report their uses (nn/block_use.h). The backward pass
  // goes the other way. Empty: each once, the last group first.
  std::vector<int> block_uses = {};
  optim::GroupDefaults group_defaults = {};
  double flops_per_sample = 0;  // PlanInput::flops_per_sample
  int64_t fp8_parameters = 0;   // PlanInput::fp8_parameters
  double fp8_share = 0;         // PlanInput::fp8_share
  int64_t fp8_transposed = 0;   // PlanInput::fp8_transposed
  int64_t largest_fp8 = 0;      // PlanInput::largest_fp8
  bool fp8_copies = false;      // PlanInput::fp8_copies
  int64_t metric_sums = 0;      // of Task::metric_names
};

// One configured model of a task.
class ModelPlan {
 public:
  virtual ~ModelPlan() = default;

  virtual std::string name() const = 0;
  // Of a sample: cells with their puzzle's embedding, or tokens.
  virtual int64_t positions() const = 0;
  virtual ModelOutline outline(const config::Config& config) const = 0;

  // What the device holds of a micro-batch of `micro` samples besides the dense parameters and what the optimizer keeps
  // of them; without workspaces. Sets memory.moment.
  virtual void add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const = 0;
  // Appends the times of a step, the optimizer's (add_optimizer_times) included, and sets plan.backward_ms.
  virtual void add_times(const PlanInput& in, Plan& plan) const = 0;
  // The shares of the data sheet that the times assume, in words.
  virtual std::string shares() const = 0;
  // The fraction of the backward pass that is done when the gradients of the first `groups` of `count` gradient groups
  // (nn/gradient_ready.h) are complete, if all blocks take the same time.
  virtual double backward_done(const PlanInput& in, int64_t groups, int64_t count) const = 0;

  // What the task exchanges with the other ranks, besides gradients and metrics: before the forward pass, and after the
  // optimizer's exchanges. `own`: samples of this rank.
  virtual void rehearse_begin(const PlanInput& /*in*/, StepRehearsal& /*step*/) const {}
  virtual void rehearse_end(const PlanInput& /*in*/, const ModelOutline& /*outline*/, int64_t /*own*/,
                            StepRehearsal& /*step*/) const {}

  // Bytes of the workspaces of matrix products, which come from the allocator: 32 MiB each of cuBLAS and cuBLASLt.
  virtual double workspaces() const { return 64 << 20; }
};

// The optimizer's passes over memory, and Muon's products: for ModelPlan::add_times.
void add_optimizer_times(const PlanInput& input, Plan& plan);

}  // namespace hrm::tasks
