#pragma once
// What `plan` asks of a task: memory, time and exchanges of a training step, estimated from shapes alone.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/nn/across.h"
#include "hrm/nn/parameter.h"
#include "hrm/optim/groups.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/mesh.h"

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
  int64_t copied_embeddings = 0;           // with one where the optimizer keeps shards (ParameterSet::copy_embeddings)
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
  // With parallel.tensor, the counts above are those of rank 0's part of the model, which is the largest. Of them:
  int64_t uncut_parameters = 0;  // values of trained parameters that every part holds whole

  // Ranks that read different rows.
  int64_t data_ranks() const { return ranks / config.parallel.tensor; }
  // Samples of this rank in a step.
  int64_t own_samples() const { return config.train.global_batch_size / data_ranks(); }
  int64_t micro_samples() const {
    return config.train.micro_batch_size > 0 ? config.train.micro_batch_size : own_samples();
  }
  // What the mesh of the ranks is made of. Throws as parallel::MeshPlace.
  parallel::MeshPlace place() const { return {0, static_cast<int>(ranks), parallel::mesh_shape(config.parallel)}; }
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
  double nccl = 0;                  // bytes of NCCL's communicators
  double device_used = 0;           // reserved, nccl, and what the CUDA context and the libraries take
  int64_t fitting_micro_batch = 0;  // largest divisor of the rank's batch that fits; 0: none
  std::vector<PlanItem> time;       // add up to step_ms
  double step_ms = 0;               // of several ranks: without what they send each other (plan_ranks.h)
  double forward_ms = 0;            // of it, the forward passes and losses of all micro-batches; 0: not known
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

// How far a rank is in a training step.
struct StepPlace {
  enum class Moment { before_forward, in_forward, in_backward, after_backward };
  Moment moment = Moment::after_backward;
  double ready = 1;                // the share of that pass that is computed
  int64_t micro_batches_left = 0;  // after that of the pass; of those that are listed
  int64_t order = -1;              // among all that starts or is waited for in the step
};

// One collective operation of a training step, and where it starts.
struct StepExchange : StepPlace {
  std::string what;  // "gradients"
  parallel::CommOperation operation;
  StepPlace wait;     // where the rank waits for its result
  int64_t times = 1;  // in that many micro-batches, one after the other, of which one is listed
};

// Records what one rank of a mesh starts and waits for in a step, and where. No other rank is there: the Comms are fake
// (parallel::make_fake_comm).
class StepRehearsal {
 public:
  using Moment = StepPlace::Moment;

  // Rank 0 of this many. Throws as parallel::MeshPlace.
  StepRehearsal(int64_t ranks, const parallel::MeshShape& shape);
  ~StepRehearsal();
  StepRehearsal(const StepRehearsal&) = delete;
  StepRehearsal& operator=(const StepRehearsal&) = delete;

  const parallel::Mesh& mesh() const { return *mesh_; }
  // Of the ranks that read different rows.
  parallel::Comm& comm() const { return mesh_->axis(parallel::Axis::data); }

  // Gives a name and a place to what happened since the last call.
  void note(const std::string& what, Moment moment, double ready = 1, int64_t micro_batches_left = 0);
  // The same for what is gathered, and for all else.
  void note_by_kind(const std::string& gathered, const std::string& others, Moment moment);
  // Of a part of a model that runs on tensors without memory: the same from one share of a pass to another. Where each
  // is between them follows from the matrix products that were called by then. Operations of the tensor axis get this
  // name.
  void note_work(const std::string& what, Moment moment, double from, double to, int64_t micro_batches_left);

  // Events so far, all of which must be noted.
  size_t mark() const { return events_.size(); }
  // As if what happened between two marks, one micro-batch, happened in `times` micro-batches more. At most
  // kMostListed of them are listed, the last for all others.
  static constexpr int64_t kMostListed = 6;
  void repeat(size_t from, size_t to, int64_t times);

  std::vector<StepExchange> take() { return std::move(exchanges_); }

 private:
  class Recorder;
  class LoggedPending;
  class WorkCounter;
  // A start, or a wait for what was started.
  struct Event {
    size_t exchange = 0;
    bool wait = false;
  };

  void note_next(const std::string& what, const StepPlace& place);
  void add(const Event& event, StepPlace place);
  std::vector<size_t> waited_later(size_t mark) const;

  // Operations in the order of their starts, each with the multiply-adds that were called before. Each is there twice
  // if it was waited for.
  struct Logged {
    size_t operation = 0;
    double work = 0;
  };
  std::shared_ptr<std::vector<Logged>> log_;
  double noted_work_ = 0;
  std::unique_ptr<WorkCounter> work_;
  std::shared_ptr<parallel::CountingComm> world_;
  std::unique_ptr<parallel::Mesh> mesh_;
  std::vector<StepExchange> exchanges_;
  std::vector<Event> events_;
  std::vector<size_t> exchange_of_;  // by operation
  size_t noted_ = 0;                 // entries of the log
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
  // One part of the model (parallel.tensor). By default Error(usage): the model stays whole.
  virtual ModelOutline outline_part(const config::Config& config,
                                    const std::shared_ptr<const nn::TensorAcross>& across) const;

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

  // Of outline_part(): the forward and the backward pass of one micro-batch, on tensors without memory
  // (ops::WithoutMemory) and by the functions that the task calls. Notes both.
  virtual void rehearse_pass(const PlanInput& in, const ModelOutline& outline, int64_t micro_batches_left,
                             StepRehearsal& step) const;
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
