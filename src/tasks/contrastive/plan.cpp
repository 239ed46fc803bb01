#include "tasks/contrastive/plan.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/tasks/contrastive.h"
#include "tasks/plan/step.h"

namespace hrm::tasks {
namespace {

using config::ContrastiveRuleName;
using objectives::ContrastiveRule;

// Measured with `bench step` on one H200 (docs/contrastive.md): 1,024 rows and 2,048 slots, and a few rows and slots,
// where a step waits for the exchange between blocks.
constexpr double kRelaxShare = 0.052;          // of the data sheet's FLOP/s in the relaxation kernel
constexpr double kRelaxFloorMs = 0.007;        // of a relaxation step
constexpr double kBackpropFloorMs = 0.27;      // of a step with autograd, forward and backward, in a CUDA graph
constexpr double kBackpropEagerFloorMs = 1.5;  // the same, kernel by kernel
constexpr double kBackpropPasses = 84;         // of the same over rows x slots in float32, forward
// Measured on one H100: the same equations in plain ATen in one CUDA graph.
constexpr double kPlainFloorMs = 0.085;
constexpr double kPlainPasses = 40;  // over rows x slots in float32

double number(int64_t value) {
  return static_cast<double>(value);
}

// Numbers of values of a step.
struct Widths {
  Widths(const config::ContrastiveConfig& c, const ContrastiveSizes& sizes)
      : slots(number(c.learned_slots + c.sdm_capacity)),
        scaled(number(c.coord_dim_n + c.lowrank_r)),
        width(number(c.state_dim)),
        classes(number(sizes.classes)),
        features(number(sizes.features)),
        hidden(number(c.hidden)),
        row(2 * scaled + width + hidden + 4) {}

  double slots, scaled, width, classes, features, hidden;
  double row;  // of a row's state and drive
};

// Rows of the nudged phases for each row of the batch.
double nudged_rows(ContrastiveRule rule) {
  if (rule == ContrastiveRule::symmetric) return 2;
  return rule == ContrastiveRule::one_sided || rule == ContrastiveRule::scalar ? 1 : 0;
}

// Rows whose statistics are taken together: of both phases.
double statistics_rows(ContrastiveRule rule) {
  return rule == ContrastiveRule::symmetric || rule == ContrastiveRule::one_sided ? 2 : 0;
}

}  // namespace

// What geometric_relax does in one kernel (hrm/ops/geometric_relax.h), on a GPU.
bool ContrastivePlan::one_kernel() const {
  return config_.bank_dtype != config::BankDtype::float32 && config_.coord_dim_n + config_.lowrank_r <= 32 &&
         config_.state_dim <= 64 && sizes_.classes <= 1024 && config_.hidden == 0 && config_.momentum == 0 &&
         config_.rule != ContrastiveRuleName::backprop;
}

ModelOutline ContrastivePlan::outline(const config::Config& config) const {
  const auto memory = std::make_shared<models::GeometricMemory>(
      memory_options(config_, sizes_.features, sizes_.classes), /*seed=*/0, at::kMeta);
  return {.model = memory,
          .parameters = &memory->parameter_set(),
          .group_defaults = contrastive_group_defaults(),
          .flops_per_sample = contrastive_flops_per_sample(config.contrastive, sizes_.classes),
          .metric_sums = static_cast<int64_t>(contrastive_metric_names(config_, sizes_.is_text).size())};
}

void ContrastivePlan::add_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory) const {
  const config::ContrastiveConfig& c = config_;
  const Widths w(c, sizes_);
  const ContrastiveRule rule = contrastive_options(c).rule;
  const double own = number(in.config.train.global_batch_size / in.ranks), rows = number(micro);
  const double field = 4 * 2 * number(c.spatial_rows * c.spatial_cols * c.field_dim);
  const double values = c.bank_dtype == config::BankDtype::float32 ? 4 : 2;

  memory.add("field", 3 * field, "momentum, equilibrium and the window's start, fp32");
  memory.add("episodes", 4 * number(c.sdm_capacity) * number(c.coord_dim_n + c.state_dim), "keys and values, fp32");
  memory.add("data", number(sizes_.data_bytes) + own * (4 * w.features + 8), "both splits, and the rows of the batch");
  // The one of the step before is there until the next one is made.
  const double window = w.slots * (4 * (w.scaled + 2) + values * w.width) +
                        (c.sdm_capacity > 0 ? 4 * w.slots * (number(c.coord_dim_n) + w.width) : 0);
  memory.add("slots of a window", 2 * window, "scaled keys, norms, resiliences, values; of two windows");
  memory.add("last result", 4 * number(in.parameters) + 4 * rows * w.row, "gradients and states of the step before");

  // Beside them: the drives and the states of both phases.
  const double nudged = nudged_rows(rule), together = statistics_rows(rule);
  const double free_states = 4 * rows * (w.row + 2 * w.classes);
  const double states = 4 * rows * nudged * (2 * w.row + w.classes);
  // What retrieval keeps of each row and slot where it is not one kernel.
  const bool backprop = rule == ContrastiveRule::backprop;
  const double kept =
      one_kernel()
          ? 0
          : 4 * w.slots * rows * (backprop ? 7 * number(c.tbptt_window_steps) : 6 * std::max({nudged, together, 1.0}));
  const double statistics = 4 * (number(in.parameters) + w.slots * (2 * w.scaled + w.width + 4));
  // The statistics kernel sums parts of 16 rows or more, of 64 slots a block, two blocks a processor (132 are assumed).
  const bool sums_parts = one_kernel() && together > 0;
  const double parts =
      sums_parts ? 4 * (w.scaled + w.width + 2) * std::min(2 * 132 * 64.0, together * rows / 16 * w.slots) : 0;
  const double spsa = c.rule == ContrastiveRuleName::spsa ? 4 * 3 * number(in.parameters) : 0;
  memory.add("free phase", free_states, "drive, states, logits");
  memory.add("rows and slots", kept, backprop ? "of all steps, for autograd" : "costs and weights, in plain ATen");
  if (states + statistics + parts >= spsa) {
    memory.add("nudged phases", states, "drives and states of both signs");
    memory.add("statistics", statistics, "sums over rows, and the gradients");
    memory.add("partial sums", parts, "of the statistics kernel");
    memory.moment = nudged > 0 ? "statistics" : backprop ? "backward pass" : "free phase";
  } else {
    memory.add("perturbations", spsa, "weights, signs and gradients");
    memory.moment = "perturbations";
  }
}

void ContrastivePlan::add_times(const PlanInput& in, Plan& plan) const {
  const config::ContrastiveConfig& c = config_;
  const Widths w(c, sizes_);
  const objectives::ContrastiveOptions options = contrastive_options(c);
  const double rows = number(in.config.train.global_batch_size / in.ranks);  // micro-batches add up to it
  const TimeModel clock(in.gpu);
  const auto phase = [&](double of_rows, int64_t steps) {
    const double pairs = of_rows * w.slots;
    const double step = one_kernel()
                            ? std::max(clock.slower(4 * pairs * (w.scaled + w.width), kRelaxShare, 0), kRelaxFloorMs)
                            : std::max(clock.moved(4 * kPlainPasses * pairs), kPlainFloorMs);
    return number(steps) * step;
  };
  if (options.rule == ContrastiveRule::backprop) {
    // Forward, and twice as much back.
    const double floor = in.config.runtime.cuda_graphs ? kBackpropFloorMs : kBackpropEagerFloorMs;
    plan.backward_ms = number(options.steps) * std::max(3 * clock.moved(4 * kBackpropPasses * rows * w.slots), floor);
    plan.time.push_back({"autograd", plan.backward_ms, cat(options.steps, " steps, forward and backward")});
  } else {
    const double free = c.rule == ContrastiveRuleName::spsa ? 1 + 2 * number(c.spsa_directions) : 1;
    plan.time.push_back({"free phase", free * phase(rows, options.steps), cat(options.steps, " steps")});
    const double nudged = nudged_rows(options.rule);
    if (nudged > 0) {
      plan.time.push_back({"nudged phases", phase(nudged * rows, options.nudge_steps) / number(c.nudge_every_windows),
                           cat(options.nudge_steps, " steps of ", nudged, " phases")});
      // As much as a relaxation step over the rows of both phases, and the encoder's product.
      const double both = statistics_rows(options.rule) * rows;
      plan.time.push_back(
          {"statistics",
           phase(both, 1) + product_slowdown(in.config) *
                                clock.product(rows, w.features, number(c.coord_dim_n), 4 * rows * w.features),
           "sums over rows"});
    }
  }
  // Written, and read by two products.
  plan.time.push_back({"inputs", clock.moved(4 * 3 * rows * w.features), "written, and multiplied twice"});
  add_optimizer_times(in, plan);
  plan.time.push_back({"everything else", kStepOverheadMs, "preparation, losses, projections, starts of kernels"});
}

std::string ContrastivePlan::shares() const {
  if (!one_kernel()) return cat("relaxation in plain ATen, ", kPlainPasses, " passes over rows and slots a step");
  return cat("the relaxation kernel reaches ", percent(kRelaxShare), " of its FLOP/s in 16 bits, and takes at least ",
             kRelaxFloorMs, " ms a step");
}

// Gradients are complete together, at the end.
double ContrastivePlan::backward_done(const PlanInput&, int64_t groups, int64_t) const {
  return groups == 0 ? 0 : 1;
}

void ContrastivePlan::rehearse_end(const PlanInput& in, const ModelOutline&, int64_t own, StepRehearsal& step) const {
  if (config_.sdm_capacity == 0) return;
  const auto values = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  const int64_t micro = in.config.train.micro_batch_size > 0 ? in.config.train.micro_batch_size : own;
  const int64_t scaled = config_.coord_dim_n + config_.lowrank_r;
  step.comm().all_gather(values({in.ranks * micro, scaled}, at::kFloat), values({micro, scaled}, at::kFloat));
  step.comm().all_gather(values({in.ranks * micro}, at::kLong), values({micro}, at::kLong));
  step.note("episodes", StepExchange::Moment::after_backward);
}

}  // namespace hrm::tasks
