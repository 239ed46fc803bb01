#include "commands/plan/plan.h"

#include <cmath>
#include <set>

#include "commands/plan/language.h"
#include "commands/plan/optimizer.h"
#include "commands/plan/puzzle.h"
#include "commands/plan/ranks.h"
#include "hrm/base/error.h"
#include "hrm/nn/block.h"
#include "hrm/nn/parameter.h"
#include "hrm/runtime/precision.h"
#include "hrm/tasks/language.h"
#include "hrm/train/batch_split.h"

namespace hrm::commands {
namespace {

PlannedMemory memory_of(const PlanInput& in, int64_t micro) {
  const config::Config& c = in.config;
  const auto n = static_cast<double>(in.parameters);
  const double size = element_size(c);
  PlannedMemory memory;
  memory.add("weights", 4 * (n + static_cast<double>(in.frozen_parameters)),
             cat(in.parameters + in.frozen_parameters, " values in fp32"));
  if (size < 4)
    memory.add("compute copies", size * static_cast<double>(in.copied_parameters), "what the products read");
  if (c.precision.recursions == "fp8") {
    memory.add("e4m3 copies", static_cast<double>(in.fp8_parameters), "what the products of the recursions read");
  }
  const PlannedOptimizer optimizer = planned_optimizer(in);
  if (in.ranks > 1 && c.parallel.zero > 0) {
    const auto ranks = static_cast<double>(in.ranks);
    memory.add("gradients", static_cast<double>(rehearsed_gradient_bytes(in)),
               "what travels and this rank's share, fp32 sums");
    memory.add("optimizer", optimizer.state / ranks, "this rank's share of " + optimizer.note);
    if (c.optim.ema > 0) memory.add("moving average", 4 * n / ranks, "this rank's share, fp32");
  } else {
    memory.add("gradients", 4 * n, "fp32");
    if (in.ranks > 1 && c.parallel.reduce == "bf16") memory.add("sent gradients", 2 * n, "what travels in bf16");
    memory.add("optimizer", optimizer.state, optimizer.note);
    memory.add("optimizer's buffers", optimizer.buffers, "of Muon's iteration over a stack of matrices");
    if (c.optim.ema > 0) memory.add("moving average", 4 * n, "fp32");
  }
  if (c.task == "language") {
    add_language_memory(in, micro, memory);
  } else {
    add_puzzle_memory(in, micro, memory);
  }
  memory.add("workspaces", kWorkspaces, "cuBLAS");
  for (const PlanItem& item : memory.items) memory.peak += item.value;
  return memory;
}

double in_use(double tensors) {
  return tensors * kReservedShare + kContext;
}

int64_t fitting_micro_batch(const PlanInput& in) {
  const int64_t own = in.config.train.global_batch_size / in.ranks;
  for (int64_t parts = 1; parts <= own; ++parts) {
    if (own % parts == 0 && in_use(memory_of(in, own / parts).peak) <= in.gpu.memory_bytes) return own / parts;
  }
  return 0;
}

// Tied tensors count once.
void count_parameters(torch::nn::Module& model, const optim::GroupDefaults& defaults, PlanInput& input) {
  std::set<const void*> seen, copied;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    (parameter.requires_grad() ? input.parameters : input.frozen_parameters) += parameter.numel();
    if (parameter.requires_grad()) add_muon_matrix(input, item.key(), parameter.sizes(), defaults);
  }
  for (const auto& module : model.modules()) {
    const auto* reader = dynamic_cast<const nn::HasComputeWeight*>(module.get());
    if (reader == nullptr || !copied.insert(reader->master_weight().unsafeGetTensorImpl()).second) continue;
    input.copied_parameters += reader->master_weight().numel();
  }
}

}  // namespace

PlanInput make_plan_input(const config::Config& config, const models::PuzzleModelDims& dims, const GpuFacts& gpu) {
  PlanInput input{.config = config, .dims = dims, .gpu = gpu};
  const auto model = models::make_puzzle_model_outline(config.model, dims);
  count_parameters(*model, {}, input);
  for (const auto& module : model->modules()) {
    if (const auto* level = dynamic_cast<const nn::ReasoningModule*>(module.get())) {
      for (const nn::Linear* weight : nn::fp8_weights(*level)) input.fp8_parameters += weight->weight().numel();
    }
  }
  input.flops_per_sample = model->flops_per_sample_step();
  return input;
}

PlanInput make_plan_input(const config::Config& config, const models::LanguageSizes& sizes, const GpuFacts& gpu) {
  PlanInput input{.config = config, .dims = {}, .sizes = sizes, .gpu = gpu};
  const auto model = models::make_language_model_outline(config, sizes);
  count_parameters(*model, tasks::language_group_defaults(models::mixtures_of(*model)), input);
  input.flops_per_sample = models::training_flops_per_row(config, sizes);
  return input;
}

double backward_done(const PlanInput& in, int64_t groups, int64_t count) {
  return in.config.task == "language" ? language_backward_done(in, groups, count)
                                      : puzzle_backward_done(in.config.model, groups, count);
}

Plan make_plan(const PlanInput& in) {
  const std::string no_fp8 = in.config.precision.recursions == "fp8" ? why_no_fp8(in.gpu.capability) : "";
  require(no_fp8.empty(), ExitCode::usage, "precision.recursions is 'fp8', which an ", in.gpu.name,
          " cannot do: ", no_fp8, "; set it to 'same', or choose another GPU by --gpu");
  PlannedMemory memory = memory_of(in, train::split_batch(in.config.train, in.ranks).micro);
  Plan plan;
  plan.memory = std::move(memory.items);
  plan.tensors_peak = memory.peak;
  plan.peak_moment = std::move(memory.moment);
  plan.reserved = plan.tensors_peak * kReservedShare;
  plan.device_used = in_use(plan.tensors_peak);
  plan.fitting_micro_batch = fitting_micro_batch(in);
  const bool language = in.config.task == "language";
  if (language) {
    add_language_times(in, plan);
  } else {
    add_puzzle_times(in, plan);
  }
  for (const PlanItem& item : plan.time) plan.step_ms += item.value;
  plan.assumptions = {
      cat("ops.backend=fused on an ", in.gpu.name, " (", in.gpu.flops / 1e12, " TFLOP/s, ", in.gpu.bytes_per_s / 1e12,
          " TB/s, ", std::lround(in.gpu.memory_bytes / 1e9), " GB by its data sheet)"),
      cat(language ? language_shares() : puzzle_shares(), ", memory ", percent(kMemoryShare),
          " of its bytes per second"),
      cat("the allocator reserves ", percent(kReservedShare - 1),
          " more than the tensors take; the CUDA context and the "
          "libraries' code ",
          std::lround(kContext / (1 << 20)), " MiB"),
      "evaluation with its own batch, of which the carry and the answers stay until the run ends, and other programs "
      "on the GPU are not counted",
  };
  return plan;
}

}  // namespace hrm::commands
