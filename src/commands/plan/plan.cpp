#include "commands/plan/plan.h"

#include <cmath>
#include <set>
#include <utility>

#include "commands/plan/ranks.h"
#include "hrm/base/error.h"
#include "hrm/nn/cut.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/linear.h"
#include "hrm/runtime/precision.h"
#include "hrm/train/batch_split.h"
#include "tasks/plan/optimizer.h"
#include "tasks/plan/step.h"

namespace hrm::commands {
namespace {

bool is_sharded(const PlanInput& in) {
  return in.data_ranks() > 1 && in.config.parallel.zero > 0;
}

// own: rehearsed_bytes(in) where it is sharded.
tasks::PlannedMemory memory_of(const PlanInput& in, int64_t micro, const ShardedBytes& own) {
  const config::Config& c = in.config;
  const auto n = static_cast<double>(in.parameters);
  const double size = tasks::element_size(c);
  tasks::PlannedMemory memory;
  const int64_t data = in.data_ranks();
  const bool sharded = is_sharded(in);
  const auto turning = static_cast<double>(own.weights.turning);
  const double frozen = in.frozen_bytes - static_cast<double>(own.weights.frozen - own.weights.frozen_shares);
  const bool all_wide = in.frozen_bytes == 4 * static_cast<double>(in.frozen_parameters) && own.weights.frozen == 0;
  if (sharded) {
    memory.add("weights", static_cast<double>(own.weights.masters) + (all_wide ? frozen : 0),
               "fp32, this rank's share where copies or turns are read");
    memory.add("blocks in turn", static_cast<double>(own.weights.buffers), "gathered when a pass needs them");
  } else {
    memory.add("weights", 4 * n + (all_wide ? frozen : 0),
               cat(in.parameters + (all_wide ? in.frozen_parameters : 0), " values in fp32"));
  }
  if (!all_wide) {
    memory.add("frozen weights", frozen,
               own.weights.frozen > 0 ? "this rank's share of the blocks', as they are read"
                                      : cat(in.frozen_parameters, " values, as they are read"));
  }
  const bool fp8_blocks = c.precision.blocks == config::BlockPrecision::fp8;
  if (size < 4) {
    const int64_t copied = in.copied_parameters - in.cast_parameters() + (sharded ? in.copied_embeddings : 0);
    memory.add("compute copies", size * (static_cast<double>(copied) - turning),
               in.cast_parameters() > 0 ? "what the products outside of 8 bits read" : "what the products read");
  }
  if (c.precision.recursions == config::RecursionPrecision::fp8) {
    memory.add("e4m3 copies", static_cast<double>(in.fp8_parameters), "what the products of the recursions read");
  }
  if (fp8_blocks) {
    const bool rows = c.precision.fp8_scaling == config::Fp8Scaling::rows;
    memory.add("8-bit copies", static_cast<double>(in.fp8_parameters + (rows ? in.fp8_parameters : in.fp8_transposed)),
               rows ? "of the blocks' weights, by scales of rows and of columns"
                    : "of the blocks' weights; narrow ones also transposed");
  }
  const tasks::PlannedOptimizer optimizer = tasks::planned_optimizer(in);
  if (sharded) {
    const auto ranks = static_cast<double>(in.place().size(parallel::Axis::shard));
    memory.add("gradients", static_cast<double>(own.gradients), "what travels and this rank's share, fp32 sums");
    memory.add("optimizer", optimizer.state / ranks, "this rank's share of " + optimizer.note);
    if (c.optim.ema > 0) memory.add("moving average", 4 * n / ranks, "this rank's share, fp32");
  } else {
    memory.add("gradients", 4 * n, "fp32");
    if (data > 1 && c.parallel.reduce == config::ReduceDtype::bf16)
      memory.add("sent gradients", 2 * n, "what travels in bf16");
    memory.add("optimizer", optimizer.state, optimizer.note);
    memory.add("optimizer's buffers", optimizer.buffers, "of Muon's iteration over a stack of matrices");
    if (c.optim.ema > 0) memory.add("moving average", 4 * n, "fp32");
  }
  if (c.parallel.tensor > 1) {
    // With their masters before a step, and how far these moved (TensorGradients), of parts other than the first.
    const int shards = sharded ? in.place().size(parallel::Axis::shard) : 1;
    memory.add("joined gradients", 12.0 * static_cast<double>(in.uncut_parameters) / shards,
               "of weights that all parts hold, and their change");
  }
  in.model->add_memory(in, micro, memory);
  memory.add("workspaces", in.model->workspaces(), "cuBLAS");
  for (const PlanItem& item : memory.items) memory.peak += item.value;
  return memory;
}

double nccl_bytes(const PlanInput& in) {
  return in.place().comms() * tasks::kCommBytes;
}

double in_use(const PlanInput& in, double tensors) {
  return tasks::reserved_bytes(tensors) + tasks::kContext + nccl_bytes(in);
}

int64_t fitting_micro_batch(const PlanInput& in, const ShardedBytes& sharded) {
  const int64_t own = in.own_samples();
  for (int64_t parts = 1; parts <= own; ++parts) {
    if (own % parts == 0 && in_use(in, memory_of(in, own / parts, sharded).peak) <= in.gpu.memory_bytes)
      return own / parts;
  }
  return 0;
}

}  // namespace

PlanInput make_plan_input(const config::Config& config, std::shared_ptr<const tasks::ModelPlan> model,
                          const GpuFacts& gpu) {
  PlanInput input{.config = config, .model = std::move(model), .gpu = gpu};
  count_parameters(input.model->outline(config), input);
  return input;
}

// Tied tensors count once. What is kept in the compute dtype has no copy.
void count_parameters(const tasks::ModelOutline& outline, PlanInput& input) {
  torch::nn::Module& model = *outline.model;
  input.parameters = input.frozen_parameters = input.copied_parameters = input.uncut_parameters = 0;
  input.copied_embeddings = 0;
  input.frozen_bytes = 0;
  input.muon_matrices.clear();
  input.fp8_parameters = outline.fp8_parameters;
  input.fp8_share = outline.fp8_share;
  input.fp8_transposed = outline.fp8_transposed;
  input.largest_fp8 = outline.largest_fp8;
  input.fp8_copies = outline.fp8_copies;
  input.flops_per_sample = outline.flops_per_sample;
  const nn::ParameterCuts cuts(model);
  std::set<const void*> seen, copied;
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(model)) {
    const at::Tensor& weight = layer.linear->weight();
    copied.insert(weight.unsafeGetTensorImpl());
    const int64_t bytes = nn::stored_bytes(layer.linear->format(), weight.size(0), weight.size(1));
    input.frozen_bytes += static_cast<double>(bytes - 4 * weight.numel());
  }
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.requires_grad()) {
      input.parameters += parameter.numel();
      if (cuts.of(parameter).whole()) input.uncut_parameters += parameter.numel();
      tasks::add_muon_matrix(input, item.key(), parameter.sizes(), outline.group_defaults);
    } else {
      input.frozen_parameters += parameter.numel();
      input.frozen_bytes += static_cast<double>(parameter.nbytes());
    }
  }
  for (const auto& module : model.modules()) {
    const auto* reader = dynamic_cast<const nn::HasComputeWeight*>(module.get());
    if (reader == nullptr || reader->master_weight().scalar_type() != at::kFloat) continue;
    if (!copied.insert(reader->master_weight().unsafeGetTensorImpl()).second) continue;
    input.copied_parameters += reader->master_weight().numel();
  }
  for (const auto& module : model.modules()) {
    const auto* embedding = dynamic_cast<const nn::Embedding*>(module.get());
    if (embedding == nullptr || !embedding->can_read_copy() || !embedding->weight().requires_grad()) continue;
    if (!copied.insert(embedding->weight().unsafeGetTensorImpl()).second) continue;
    input.copied_embeddings += embedding->weight().numel();
  }
}

double planned_step_ms(const PlanInput& in) {
  Plan plan;
  in.model->add_times(in, plan);
  for (const PlanItem& item : plan.time) plan.step_ms += item.value;
  return plan.step_ms;
}

Plan make_plan(const PlanInput& in) {
  const config::PrecisionConfig& precision = in.config.precision;
  for (const auto& [key, fp8] : {std::pair{"recursions", precision.recursions == config::RecursionPrecision::fp8},
                                 std::pair{"blocks", precision.blocks == config::BlockPrecision::fp8}}) {
    const std::string no_fp8 = fp8 ? why_no_fp8(in.gpu.capability) : "";
    require(no_fp8.empty(), ExitCode::usage, "precision.", key, " is 'fp8', which an ", in.gpu.name,
            " cannot do: ", no_fp8, "; set it to 'same', or choose another GPU by --gpu");
  }
  const ShardedBytes sharded = is_sharded(in) ? rehearsed_bytes(in) : ShardedBytes();
  tasks::PlannedMemory memory = memory_of(in, train::split_batch(in.config.train, in.data_ranks()).micro, sharded);
  Plan plan;
  plan.memory = std::move(memory.items);
  plan.tensors_peak = memory.peak;
  plan.peak_moment = std::move(memory.moment);
  plan.reserved = tasks::reserved_bytes(plan.tensors_peak);
  plan.nccl = nccl_bytes(in);
  plan.device_used = in_use(in, plan.tensors_peak);
  plan.fitting_micro_batch = fitting_micro_batch(in, sharded);
  in.model->add_times(in, plan);
  for (const PlanItem& item : plan.time) plan.step_ms += item.value;
  plan.assumptions = {
      cat("ops.backend=fused on an ", in.gpu.name, " (", in.gpu.flops / 1e12, " TFLOP/s, ", in.gpu.bytes_per_s / 1e12,
          " TB/s, ", std::lround(in.gpu.memory_bytes / 1e9), " GB by its data sheet)"),
      cat(in.model->shares(), ", memory ", tasks::percent(tasks::kMemoryShare), " of its bytes per second"),
      cat("the allocator reserves 0.5 % and 100 MiB more than the tensors take; the CUDA context and the code of "
          "libraries take ",
          std::lround(tasks::kContext / (1 << 20)), " MiB"),
      "evaluation with its own batch, of which the carry and the answers stay until the run ends, and other programs "
      "on the GPU are not counted",
  };
  return plan;
}

}  // namespace hrm::commands
