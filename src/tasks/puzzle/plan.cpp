#include "tasks/puzzle/plan.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/nn/block.h"
#include "hrm/nn/swiglu.h"
#include "hrm/objectives/act.h"
#include "hrm/tasks/puzzle_exchange.h"
#include "hrm/tasks/reduce_maxima.h"
#include "tasks/puzzle/depth_stages.h"

namespace hrm::tasks {
namespace {

at::Tensor meta_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::device(at::kMeta).dtype(dtype));
}

config::ModelConfig at_depth(config::ModelConfig m, const DepthStage& stage) {
  m.H_cycles = stage.H_cycles;
  m.L_cycles = stage.L_cycles;
  m.gradient_cycles = std::min(m.gradient_cycles, m.H_cycles);
  return m;
}

// Of a sample in a step of the run, on average.
double mean_flops(const config::ModelConfig& m, models::PuzzleModel& model) {
  if (!m.depth_curriculum) return model.flops_per_sample_step();
  double mean = 0, from = 0;
  for (const DepthStage& stage : depth_stages(m)) {
    model.set_cycles(stage.H_cycles, stage.L_cycles);
    mean += (stage.until - from) * model.flops_per_sample_step();
    from = stage.until;
  }
  return mean;
}

// At most two decimals: the stages of a curriculum make fractions of a pass.
std::string count_of(double passes) {
  const double rounded = std::round(100 * passes) / 100;
  return cat(rounded);
}

}  // namespace

BlockPasses block_passes(const config::ModelConfig& m, bool second_forward) {
  const auto d = [](int64_t n) { return static_cast<double>(n); };
  double all = 0, recorded = 0;
  const config::PuzzleArchFacts& arch = m.facts();
  if (arch.cycles && arch.one_state) {
    const double cycle = d(m.L_cycles) * d(m.L_layers);
    recorded = d(m.gradient_cycles) * cycle;
    all = d(m.H_cycles) * cycle;
  } else if (arch.cycles) {
    const double of_l = d(m.L_cycles) * d(m.L_layers), of_h = d(arch.h_module ? m.H_layers : m.L_layers);
    all = d(m.H_cycles) * (of_l + of_h);
    recorded = arch.one_step_gradient ? d(m.L_layers) + of_h : d(m.gradient_cycles) * (of_l + of_h);
  } else {
    all = recorded = d(m.L_layers);
  }
  // The Q target of a one-step gradient takes them up to the last block.
  const double of_target = arch.one_step_gradient ? all - 1 : all - recorded;
  return {.plain = all - recorded + (second_forward ? all : 0),
          .recorded = recorded,
          .recursions = all - recorded + (second_forward ? of_target : 0),
          .again = m.recompute ? recorded : 0};
}

BlockPasses mean_block_passes(const config::ModelConfig& m, bool second_forward) {
  if (!m.depth_curriculum) return block_passes(m, second_forward);
  BlockPasses mean;
  double from = 0;
  for (const DepthStage& stage : depth_stages(m)) {
    const BlockPasses passes = block_passes(at_depth(m, stage), second_forward);
    const double share = stage.until - from;
    mean.plain += share * passes.plain;
    mean.recorded += share * passes.recorded;
    mean.recursions += share * passes.recursions;
    mean.again += share * passes.again;
    from = stage.until;
  }
  return mean;
}

double losses_per_step(const config::ModelConfig& m) {
  return m.loss_every_cycle ? static_cast<double>(m.gradient_cycles) : 1;
}

bool has_second_forward(const config::ModelConfig& m) {
  return !m.no_ACT_continue && m.halt_max_steps > 1;
}

PuzzleSizes puzzle_sizes(const PlanInput& in, const models::PuzzleModelDims& dims, int64_t micro) {
  const config::ModelConfig& m = in.config.model;
  const auto B = static_cast<double>(micro), D = static_cast<double>(m.hidden_size);
  const auto L = static_cast<double>(dims.puzzle_emb_len + dims.seq_len);
  const auto F = static_cast<double>(nn::swiglu_width(m.hidden_size, m.expansion));
  const double size = element_size(in.config);
  const int64_t head = m.hidden_size / m.num_heads;
  const bool half = size == 2;
  PuzzleSizes s;
  s.rows = B * L;
  s.unit = B * L * D * size;
  s.gate_up = B * L * 2 * F * size;
  s.logits = B * L * static_cast<double>(dims.vocab_size) * size;
  s.rstd = B * L * 4;
  s.lse = B * L * static_cast<double>(m.num_heads) * 4;
  s.column_rstd = B * D * 4;
  s.mixes_by_mlp = m.mlp_t;
  s.short_attention = half && (head == 64 || head == 32) && L <= kShortSequence &&
                      in.config.ops.attention == config::AttentionChoice::automatic;
  // The sizes that our kernels take (ops/mixing, ops/linear); F is a multiple of 256.
  const bool hopper = half && in.gpu.capability == 90;
  s.fused_gate = hopper && m.hidden_size % 64 == 0 && !m.facts().convolution;
  s.fused_gate8 = hopper;
  s.fused_norm = hopper && (m.hidden_size == 256 || m.hidden_size == 512);
  s.fp8 = in.config.precision.recursions == config::RecursionPrecision::fp8;
  return s;
}

double gathered_bytes(const PlanInput& in, const models::PuzzleModelDims& dims) {
  if (in.ranks == 1 || dims.puzzle_emb_ndim == 0) return 0;
  return 4 * static_cast<double>((dims.puzzle_emb_ndim + 1) * in.config.train.global_batch_size);
}

void PuzzlePlan::add_times(const PlanInput& in, Plan& plan) const {
  const config::ModelConfig& m = in.config.model;
  const PuzzleSizes s =
      puzzle_sizes(in, dims_, in.config.train.global_batch_size / in.ranks);  // micro-batches add up to it
  const TimeModel clock(in.gpu);
  const double fp32 = product_slowdown(in.config);
  const auto D = static_cast<double>(m.hidden_size), L = static_cast<double>(dims_.puzzle_emb_len + dims_.seq_len);
  const double F = s.gate_up / s.unit * D / 2, act = s.gate_up / 2;
  const BlockPasses passes = mean_block_passes(m, has_second_forward(m));

  double products = clock.product(s.rows, D, 2 * F, s.unit + act) + clock.product(s.rows, F, D, act + 2 * s.unit);
  double mixing = 0;
  if (s.mixes_by_mlp) {
    const auto F_t = static_cast<double>(nn::swiglu_width(static_cast<int64_t>(L), m.expansion));
    mixing = clock.product(s.rows / L * D, L, 3 * F_t, 2 * s.unit) * 1.5;
  } else {
    products += clock.product(s.rows, D, 3 * D, 4 * s.unit) + clock.product(s.rows, D, D, 3 * s.unit);
    const double share = s.short_attention ? kAttentionShare : kLongAttentionShare;
    mixing = clock.slower(4 * s.rows * L * D, share, 4 * s.unit);
  }
  const double forwards = passes.plain + passes.recorded + passes.again;
  // Operands of 8 bits: twice the operations a second, and half the bytes of what is read and of what the next reads.
  const double recursions = s.fp8 ? passes.recursions : 0;
  double products8 =
      clock.product(s.rows, D, F, (s.unit + act) / 2) + clock.product(s.rows, F / 2, D, act / 2 + 2.5 * s.unit);
  if (!s.mixes_by_mlp) {
    products8 += clock.product(s.rows, D / 2, 3 * D, 3.5 * s.unit) + clock.product(s.rows, D / 2, D, 3 * s.unit);
  }
  // Backward: two products for each, and the gradients of norms and gates pass through memory.
  const double norms = clock.moved(6 * s.unit + 3 * s.gate_up);
  plan.time.push_back(
      {"matrix products", fp32 * products * (forwards - recursions + 2 * passes.recorded) + products8 * recursions,
       cat(count_of(forwards), " layer passes forward",
           recursions > 0 ? cat(", ", count_of(recursions), " of them in fp8") : "",
           passes.again > 0 ? cat(", ", count_of(passes.again), " of them in the backward pass") : "", ", ",
           count_of(passes.recorded), " backward", m.depth_curriculum ? ", on average over the stages" : "")});
  plan.time.push_back(
      {s.mixes_by_mlp ? "mixing of positions" : "attention", fp32 * mixing * (forwards + 2.5 * passes.recorded), ""});
  // What is not inside a product passes through memory between two kernels: the product before a norm, gate_up, and in
  // fp8 also what is quantised.
  const double normed = s.fused_norm ? 0 : clock.moved((s.mixes_by_mlp ? 1 : 2) * s.unit);
  const double gates = clock.moved(s.gate_up) *
                       ((s.fused_gate ? 0 : 1.5) * (forwards - recursions) + (s.fused_gate8 ? 0 : 2.5) * recursions);
  plan.time.push_back({"norms, gates", norms * passes.recorded + normed * (2 * forwards + recursions) + gates,
                       "what is not inside a product"});
  add_optimizer_times(in, plan);
  if (const double gathered = gathered_bytes(in, dims_); gathered > 0) {
    plan.time.push_back({"embedding rows", clock.moved(2 * gathered), "of all ranks, written and summed"});
  }
  plan.time.push_back({"everything else", kStepOverheadMs, "embedding, loss, ACT state, starts of kernels"});
  plan.backward_ms =
      (fp32 * (2 * products + 2.5 * mixing) + norms) * passes.recorded +
      (fp32 * (products + mixing) + 2 * normed + (s.fused_gate ? 0 : 1.5) * clock.moved(s.gate_up)) * passes.again;
}

std::string PuzzlePlan::shares() const {
  return cat("matrix products reach ", percent(kMatmulShare), " of its FLOP/s, attention ", percent(kAttentionShare),
             " (", percent(kLongAttentionShare), " beyond ", kShortSequence, " positions)");
}

double PuzzlePlan::backward_done(const PlanInput& in, int64_t groups, int64_t count) const {
  // The first uses of all blocks, after which nothing is added to their gradients, come last in a backward pass.
  const double recorded = block_passes(in.config.model, false).recorded;
  return groups == 0 ? 0 : (recorded - static_cast<double>(count - groups)) / recorded;
}

ModelOutline PuzzlePlan::outline(const config::Config& config) const {
  const auto model = models::make_puzzle_model_outline(config.model, dims_);
  ModelOutline out{.model = model,
                   .parameters = &model->parameter_set(),
                   .blocks_run_once = model->blocks_run_once(),
                   .flops_per_sample = mean_flops(config.model, *model),
                   .metric_sums = static_cast<int64_t>(objectives::act_metric_names().size())};
  for (const auto& module : model->modules()) {
    if (const auto* level = dynamic_cast<const nn::ReasoningModule*>(module.get())) {
      for (const nn::Linear* weight : nn::fp8_weights(*level)) out.fp8_parameters += weight->weight().numel();
    }
  }
  return out;
}

void PuzzlePlan::rehearse_begin(const PlanInput& in, StepRehearsal& step) const {
  if (in.config.data.reference_semantics) return;
  gather_taken(step.comm(), meta_tensor({1}, at::kLong));
  step.note("rows taken", StepExchange::Moment::before_forward);
}

void PuzzlePlan::rehearse_end(const PlanInput& in, const ModelOutline& outline, int64_t own,
                              StepRehearsal& step) const {
  if (in.config.precision.recursions == config::RecursionPrecision::fp8) {
    auto& model = dynamic_cast<models::PuzzleModel&>(*outline.model);
    model.enable_fp8(in.config.precision.fp8_amax_history, static_cast<double>(in.config.precision.fp8_margin));
    reduce_maxima(step.comm(), model.fp8()->slots().select(1, 2));
    step.note("fp8 maxima", StepExchange::Moment::after_backward);
  }
  if (dims_.puzzle_emb_ndim > 0) {
    gather_embedding_rows(step.comm(),
                          {meta_tensor({own}, at::kInt), meta_tensor({own, dims_.puzzle_emb_ndim}, at::kFloat)});
    step.note("puzzle embedding", StepExchange::Moment::after_backward);
  }
}

}  // namespace hrm::tasks
