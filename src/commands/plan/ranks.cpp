#include "commands/plan/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "hrm/base/error.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/without_memory.h"
#include "hrm/optim/optimizer.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/tensor_gradients.h"
#include "hrm/train/batch_split.h"
#include "hrm/train/trainer.h"
#include "tasks/plan/step.h"

namespace hrm::commands {
namespace {

using tasks::StepRehearsal;
using Moment = StepExchange::Moment;

// The model, or of parallel.tensor this rank's part of it, with a fake Comm for each axis.
tasks::ModelOutline built_outline(const PlanInput& in, const parallel::Mesh& mesh) {
  const auto across = parallel::across_of(mesh.shared_axis(parallel::Axis::tensor));
  tasks::ModelOutline outline = across ? in.model->outline_part(in.config, across) : in.model->outline(in.config);
  // Fake-quantised weights, and those that fp8 blocks cast where they are read, travel as float32 masters.
  const bool casts = in.config.precision.blocks == config::BlockPrecision::fp8 && !outline.fp8_copies;
  const bool wide = casts || in.config.precision.fake_quantize != config::FakeQuantization::none;
  const bool spread = (in.data_ranks() > 1 && in.config.parallel.zero > 0 && !wide) || across;
  const at::ScalarType dtype = spread ? tasks::planned_compute_dtype(in.config) : at::kFloat;
  nn::keep_frozen_as(*outline.model, dtype);
  outline.parameters->build(*outline.model, dtype, outline.blocks_run_once);
  return outline;
}

// The ranks that split the state between them.
parallel::Comm& sharing_ranks(const PlanInput& in, const StepRehearsal& step) {
  return in.config.parallel.zero > 0 ? step.mesh().axis(parallel::Axis::shard) : step.comm();
}

// Updates nothing.
class NoOptimizer : public optim::Optimizer {
 public:
  void step(const at::Tensor& /*lr*/, const at::Tensor& /*grad_scale*/, const at::Tensor& /*skip*/,
            const at::Tensor& /*update_ratio*/) override {}
  void visit_state(StateVisitor& /*visitor*/) override {}
};

// The passes of one micro-batch over the groups, in the order of training.
class GroupPasses {
 public:
  explicit GroupPasses(const tasks::ModelOutline& outline)
      : set_(*outline.parameters), groups_(static_cast<int>(outline.parameters->gradient_ready()->groups().size())) {
    forward_ = outline.block_uses;
    for (int group = groups_; group-- > 0 && outline.block_uses.empty();) {
      if (set_.reports_use(group)) forward_.push_back(group);
    }
    // The block of the last group that is not marked has a gradient itself.
    const auto unmarked = static_cast<int>(outline.unmarked_groups);
    first_recorded_ = groups_ - std::max(unmarked - 1, 0);
    first_unmarked_ = groups_ - unmarked;
  }

  const std::vector<int>& forward() const { return forward_; }

  // use(group): the pass reaches a block; complete(group): its gradients are.
  template <class Use, class Complete>
  void backward(const Use& use, const Complete& complete) const {
    std::vector<int> left(static_cast<size_t>(groups_), 1);
    for (const int group : forward_) left[static_cast<size_t>(group)] = 0;
    for (const int group : forward_) ++left[static_cast<size_t>(group)];
    const auto done = [&](int group) {
      if (--left[static_cast<size_t>(group)] == 0 && group < first_unmarked_) complete(group);
    };
    int next = 0;  // of those that do not report
    const auto others_before = [&](int end) {
      for (; next < end; ++next) {
        if (!set_.reports_use(next)) done(next);
      }
    };
    for (size_t i = forward_.size(); i-- > 0;) {
      const int group = forward_[i];
      others_before(group);
      if (group < first_recorded_) use(group);
      done(group);
    }
    others_before(groups_);
  }

 private:
  const nn::ParameterSet& set_;
  int groups_, first_recorded_ = 0, first_unmarked_ = 0;
  std::vector<int> forward_;
};

// rehearse(micro-batches that are left after it): of `all` micro-batches, or of the last.
template <class Rehearse>
void rehearse_micro_batches(const PlanInput& in, bool all, StepRehearsal& step, const Rehearse& rehearse) {
  int64_t left = all ? train::split_batch(in.config.train, in.data_ranks()).accumulation - 1 : 0;
  if (left > 2) {
    // From the second one on, all but the last are alike.
    rehearse(left--);
    const size_t from = step.mark();
    rehearse(left--);
    step.repeat(from, step.mark(), left);
    left = 0;
  }
  for (; left >= 0; --left) rehearse(left);
}

// The micro-batches of a whole model, of which the gradient groups tell when what is complete.
void rehearse_groups(const PlanInput& in, const tasks::ModelOutline& outline, parallel::GradientReducer& reducer,
                     parallel::WeightGather* weights, StepRehearsal& step) {
  const GroupPasses passes(outline);
  const auto groups = static_cast<int64_t>(outline.parameters->gradient_ready()->groups().size());
  const bool all = reducer.every_micro_batch() || weights != nullptr;
  rehearse_micro_batches(in, all, step, [&](int64_t left) {
    reducer.begin(/*last_micro_batch=*/left == 0);
    step.note("gradients", Moment::in_backward, 1, left + 1);  // what the pass before has left
    for (size_t i = 0; i < passes.forward().size() && weights != nullptr; ++i) {
      weights->before_forward(passes.forward()[i]);
      step.note("weights", Moment::in_forward, static_cast<double>(i) / static_cast<double>(passes.forward().size()),
                left);
    }
    int64_t completed = 0;
    const auto done = [&] { return in.model->backward_done(in, completed, groups); };
    passes.backward(
        [&](int group) {
          if (weights == nullptr) return;
          weights->before_backward(group);
          step.note("weights", Moment::in_backward, done(), left);
        },
        [&](int group) {
          completed = group + 1;
          if (left > 0 && !reducer.every_micro_batch()) return;
          reducer.ready(group);
          step.note("gradients", Moment::in_backward, done(), left);
        });
  });
}

// The micro-batches of a part of a model, which runs on tensors without memory.
void rehearse_part(const PlanInput& in, const tasks::ModelOutline& outline, parallel::GradientReducer& reducer,
                   StepRehearsal& step) {
  rehearse_micro_batches(in, /*all=*/true, step, [&](int64_t left) {
    reducer.begin(/*last_micro_batch=*/left == 0);
    step.note("gradients", Moment::in_backward, 1, left + 1);
    const at::AutoGradMode with_gradients(true);
    in.model->rehearse_pass(in, outline, left, step);
  });
}

}  // namespace

// In the order of Trainer::device_step and of the tasks.
std::vector<StepExchange> rehearse_step(const PlanInput& in) {
  if (in.ranks == 1) return {};
  const ops::WithoutMemory without;
  const at::NoGradGuard no_grad;
  const auto values = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
  };
  const at::Tensor number = values({}, at::kFloat), ratio = values({}, at::kDouble);
  StepRehearsal step(in.ranks, parallel::mesh_shape(in.config.parallel));
  parallel::Comm &shard = sharing_ranks(in, step), &tensor = step.mesh().axis(parallel::Axis::tensor);
  const tasks::ModelOutline outline = built_outline(in, step.mesh());
  nn::ParameterSet& parameters = *outline.parameters;
  parallel::GradientReducer reducer(parameters, shard, parallel::reducer_options(in.config.parallel),
                                    &step.mesh().axis(parallel::Axis::replica));
  std::unique_ptr<parallel::TensorGradients> cut;
  std::unique_ptr<parallel::ParameterShards> shards;
  if (reducer.layout() != nullptr) {
    shards = std::make_unique<parallel::ParameterShards>(parameters, shard, reducer, in.config.optim.ema,
                                                         optim::moment_names(in.config.optim.name));
    if (!tensor.alone()) {
      cut = std::make_unique<parallel::TensorGradients>(shards->gradients(), shards->held_alike(), tensor);
    }
  } else if (!tensor.alone()) {
    cut = std::make_unique<parallel::TensorGradients>(parameters, tensor);
  }
  NoOptimizer optimizer;

  in.model->rehearse_begin(in, step);
  if (!tensor.alone()) {
    rehearse_part(in, outline, reducer, step);
  } else {
    rehearse_groups(in, outline, reducer, shards ? shards->weights() : nullptr, step);
  }
  const auto sums = step.mesh().world().start_all_reduce(
      values({train::summed_values(in.ranks, outline.metric_sums)}, at::kDouble), parallel::Reduction::sum);
  step.note("metrics", Moment::after_backward);
  reducer.finish();
  step.note("gradients", Moment::in_backward);
  if (cut) cut->sum();
  step.note("shared gradients", Moment::after_backward);
  sums->wait();
  step.note("metrics", Moment::after_backward);
  if (shards) {
    shards->global_norm(/*max_norm=*/1, {}, cut.get());
  } else if (cut) {
    cut->global_norm(/*max_norm=*/1, {});
  }
  step.note("gradient norm", Moment::after_backward);
  if (shards) {
    shards->step(optimizer, number, number, number, ratio, cut.get());
  } else if (cut) {
    cut->step(optimizer, number, number, number, ratio);
  }
  step.note_by_kind("weights", "update ratio", Moment::after_backward);
  in.model->rehearse_end(in, outline, in.own_samples(), step);
  return step.take();
}

ShardedBytes rehearsed_bytes(const PlanInput& in) {
  const ops::WithoutMemory without;
  const at::NoGradGuard no_grad;
  const StepRehearsal step(in.ranks, parallel::mesh_shape(in.config.parallel));
  const tasks::ModelOutline outline = built_outline(in, step.mesh());
  parallel::Comm& shard = sharing_ranks(in, step);
  const parallel::GradientReducer reducer(*outline.parameters, shard, parallel::reducer_options(in.config.parallel),
                                          &step.mesh().axis(parallel::Axis::replica));
  const parallel::ParameterShards shards(*outline.parameters, shard, reducer, in.config.optim.ema,
                                         optim::moment_names(in.config.optim.name));
  return {.gradients = reducer.gradient_bytes(), .weights = shards.weight_memory()};
}

AxisLayouts axis_layouts(const parallel::MeshPlace& place, int64_t per_node) {
  AxisLayouts layouts{{"", layout_of(place.ranks(), per_node)}};
  const int64_t of_node = layouts.at("").per_node();
  using parallel::Axis;
  for (const Axis axis : {Axis::tensor, Axis::shard, Axis::replica, Axis::data}) {
    std::set<int64_t> nodes;
    for (const int rank : place.members(axis)) nodes.insert(rank / of_node);
    layouts[axis_name(axis)] = {place.size(axis), static_cast<int64_t>(nodes.size())};
  }
  const int64_t tensor = place.size(Axis::tensor);
  require(of_node % tensor == 0 || tensor % of_node == 0, ExitCode::usage, "groups of parallel.tensor = ", tensor,
          " ranks lie unevenly on nodes of ", of_node, "; choose a divisor or a multiple of ", of_node,
          ", or other --ranks-per-node");
  return layouts;
}

PlanInput input_of_rank(const RanksInput& in, int64_t ranks) {
  PlanInput input = in.one;
  input.ranks = ranks;
  parallel::check_groups(input.place(), input.config.parallel);
  const int64_t data = input.place().size(parallel::Axis::data), tensor = input.config.parallel.tensor;
  int64_t& batch = input.config.train.global_batch_size;
  require(in.weak || batch % data == 0, ExitCode::usage, "train.global_batch_size = ", batch, " cannot be split over ",
          data, tensor > 1 ? cat(" groups of parallel.tensor = ", tensor, " ranks") : std::string(" ranks"),
          ": choose a multiple of them, or with --weak that batch for each ", tensor > 1 ? "group" : "rank");
  if (in.weak) batch *= data;
  if (tensor > 1) {
    const StepRehearsal step(ranks, parallel::mesh_shape(input.config.parallel));
    const auto across = parallel::across_of(step.mesh().shared_axis(parallel::Axis::tensor));
    count_parameters(input.model->outline_part(input.config, across), input);
  }
  return input;
}

RanksPlan make_ranks_plan(const RanksInput& in, int64_t ranks) {
  RanksPlan plan;
  plan.input = input_of_rank(in, ranks);
  const AxisLayouts layouts = axis_layouts(plan.input.place(), in.per_node);
  plan.layout = layouts.at("");
  plan.own = make_plan(plan.input);
  plan.exchanges = rehearse_step(plan.input);

  const config::TrainConfig& train = plan.input.config.train;
  const int64_t micro_batches = train::split_batch(train, plan.input.data_ranks()).accumulation;
  // Where the forward pass is not known: its products are half as many.
  const double forward = plan.own.forward_ms > 0 ? plan.own.forward_ms : plan.own.backward_ms / 2;
  const PassTimes times{.forward_ms = forward / static_cast<double>(micro_batches),
                        .backward_ms = plan.own.backward_ms / static_cast<double>(micro_batches),
                        .micro_batches = micro_batches,
                        .rate_beside = kRateBesideExchange};
  plan.timeline = simulate(plan.exchanges, times, [&](const parallel::CommOperation& operation) {
    return 1e3 * collective_seconds(in.links, operation, layouts.at(operation.axis));
  });
  for (const StepExchange& exchange : plan.exchanges) {
    const LinkBytes sent = link_bytes(exchange.operation, layouts.at(exchange.operation.axis));
    plan.sent.node += static_cast<double>(exchange.times) * sent.node;
    plan.sent.network += static_cast<double>(exchange.times) * sent.network;
  }
  plan.step_ms = plan.own.step_ms + plan.timeline.exposed_ms + plan.timeline.slowed_ms;
  const auto rate = [](int64_t samples, double ms) { return static_cast<double>(samples) / (1e-3 * ms); };
  plan.samples_per_s = rate(train.global_batch_size, plan.step_ms);
  PlanInput alone = in.one;
  alone.ranks = 1;
  alone.config.parallel.tensor = alone.config.parallel.replicas = 1;
  plan.efficiency = plan.samples_per_s / static_cast<double>(ranks) /
                    rate(alone.config.train.global_batch_size, planned_step_ms(alone));
  return plan;
}

std::string why_tensor_does_not_pay(const RanksInput& in, const RanksPlan& plan) {
  const int64_t tensor = plan.input.config.parallel.tensor;
  if (tensor == 1) return "";
  RanksInput whole = in;
  whole.one.config.parallel.tensor = 1;
  RanksPlan other;
  try {
    other = make_ranks_plan(whole, plan.layout.ranks);
  } catch (const Error& error) {
    if (error.code() != ExitCode::usage) throw;
    return "";  // that many ranks cannot split the batch
  }
  if (other.own.device_used > other.input.gpu.memory_bytes || other.samples_per_s < plan.samples_per_s) return "";
  const auto rate = [](double samples_per_s) { return metrics::fixed(samples_per_s, 1); };
  return cat("parallel.tensor=", tensor, " does not pay: ", rate(plan.samples_per_s), " samples/s, and ",
             rate(other.samples_per_s), " with parallel.tensor=1, which fits");
}

}  // namespace hrm::commands
