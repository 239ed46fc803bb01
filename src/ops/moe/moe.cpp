#include "hrm/ops/moe.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/swiglu.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/moe/moe_impl.h"

namespace hrm::ops {

int64_t moe_rows(int64_t tokens, int64_t top_k, int64_t experts) {
  // Only experts with a pick have rows.
  const int64_t picks = tokens * top_k;
  return (picks + std::min(experts, picks) * (kMoeTile - 1)) / kMoeTile * kMoeTile;
}

// ---- Checks ----

void check_moe_gate(const at::Tensor& logits, int64_t top_k, const OptionalTensor& bias) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) >= 1 && logits.size(1) <= 1024 &&
                  (logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble),
              "hrm::moe_gate: logits must be (T, E) float32 with 1 to 1024 experts, got ", logits.sizes(), ", ",
              logits.scalar_type());
  TORCH_CHECK(top_k >= 1 && top_k <= logits.size(1) && top_k <= 32, "hrm::moe_gate: top_k must be 1 to ",
              std::min<int64_t>(logits.size(1), 32), ", got ", top_k);
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == logits.size(1) && bias->device() == logits.device() &&
                        bias->scalar_type() == logits.scalar_type()),
              "hrm::moe_gate: bias must be (", logits.size(1), ") ", logits.scalar_type(), " on ", logits.device());
}

void check_moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount) {
  TORCH_CHECK(step.dim() == 0 && step.scalar_type() == at::kLong && step.device() == x.device(),
              "hrm::moe_jitter: step must be one int64 on ", x.device(), ", got ", step.sizes(), ", ",
              step.scalar_type(), " on ", step.device());
  TORCH_CHECK(at::isFloatingType(x.scalar_type()) && amount >= 0 && amount < 1,
              "hrm::moe_jitter: x must be of floating type and amount in 0..1, got ", x.scalar_type(), " and ", amount);
}

void check_moe_plan(const at::Tensor& ids, int64_t experts) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kInt, "hrm::moe_plan: ids must be (T, K) int32, got ",
              ids.sizes(), ", ", ids.scalar_type());
  TORCH_CHECK(experts >= 1 && experts <= 1024, "hrm::moe_plan: 1 to 1024 experts, got ", experts);
  TORCH_CHECK(ids.numel() <= INT32_MAX - experts * kMoeTile, "hrm::moe_plan: too many picks: ", ids.sizes());
}

void check_moe_gather(const at::Tensor& x, const at::Tensor& picks, int64_t top_k) {
  TORCH_CHECK(x.dim() == 2 && picks.dim() == 1 && picks.size(0) % kMoeTile == 0 && top_k >= 1,
              "hrm::moe_gather: x (T, D) and picks (R) do not fit, got ", x.sizes(), " and ", picks.sizes());
}

void check_moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed) {
  TORCH_CHECK(rows.dim() == 2 && weight.dim() == 3 && rows.size(1) == weight.size(transposed ? 1 : 2) &&
                  rows.size(0) == tile_experts.size(0) * kMoeTile && starts.size(0) == weight.size(0) + 1,
              "hrm::moe_linear: rows (R, K), weight (E, N, K), or (E, K, N) transposed, tile_experts and starts do not "
              "fit, got ",
              rows.sizes(), ", ", weight.sizes(), ", ", tile_experts.sizes(), " and ", starts.sizes());
  TORCH_CHECK(rows.scalar_type() == weight.scalar_type() && rows.device() == weight.device(),
              "hrm::moe_linear: rows and weight must have one dtype and device, got ", rows.scalar_type(), " and ",
              weight.scalar_type(), " on ", rows.device(), " and ", weight.device());
}

void check_moe_up_swiglu(const at::Tensor& xp, const at::Tensor& gate_up, const at::Tensor& tile_experts,
                         const at::Tensor& starts) {
  check_moe_linear(xp, gate_up, tile_experts, starts, /*transposed=*/false);
  TORCH_CHECK(gate_up.size(1) % 2 == 0, "hrm::moe_up_swiglu: gate_up must be (E, 2F, D), got ", gate_up.sizes());
}

void check_moe_up_swiglu_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                  const at::Tensor& tile_experts, const at::Tensor& starts) {
  check_moe_linear(grad_y, down, tile_experts, starts, /*transposed=*/true);
  TORCH_CHECK(kept.dim() == 2 && kept.size(0) == grad_y.size(0) && kept.size(1) == 2 * down.size(2) &&
                  kept.scalar_type() == grad_y.scalar_type() && kept.device() == grad_y.device(),
              "hrm::moe_up_swiglu_backward: kept must be (R, 2F) ", grad_y.scalar_type(),
              " where grad_y is (R, D) and ", "down (E, D, F), got ", kept.sizes(), " ", kept.scalar_type(), ", ",
              grad_y.sizes(), " and ", down.sizes());
}

void check_moe_accumulate(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts) {
  TORCH_CHECK(grad.dim() == 3 && a.dim() == 2 && b.dim() == 2 && grad.size(1) == a.size(1) &&
                  grad.size(2) == b.size(1) && a.size(0) == b.size(0) && starts.size(0) == grad.size(0) + 1,
              "hrm::moe_accumulate_: grad (E, M, N), a (R, M), b (R, N) and starts (E + 1) do not fit, got ",
              grad.sizes(), ", ", a.sizes(), ", ", b.sizes(), " and ", starts.sizes());
  TORCH_CHECK(grad.is_contiguous(), "hrm::moe_accumulate_: grad of shape ", grad.sizes(), " must be contiguous");
}

void check_moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights) {
  TORCH_CHECK(y.dim() == 2 && rows.dim() == 2 && (!weights || weights->sizes() == rows.sizes()),
              "hrm::moe_combine: y (R, D), rows (T, K) and weights (T, K) do not fit, got ", y.sizes(), ", ",
              rows.sizes(), weights ? " and " : "", weights ? weights->sizes() : at::IntArrayRef());
}

void check_moe_load_loss(const at::Tensor& scores, const at::Tensor& kept, const OptionalTensor& wanted,
                         const at::Tensor& totals) {
  TORCH_CHECK(scores.dim() == 2 && scores.numel() > 0 && scores.size(1) <= 1024 &&
                  (scores.scalar_type() == at::kFloat || scores.scalar_type() == at::kDouble),
              "hrm::moe_load_loss_: scores must be (T, E) float32 with tokens and 1 to 1024 experts, got ",
              scores.sizes(), " ", scores.scalar_type());
  const auto fits = [&](const at::Tensor& t, at::ScalarType type, int64_t more) {
    return t.dim() == 1 && t.size(0) == scores.size(1) + more && t.scalar_type() == type && t.is_contiguous() &&
           t.device() == scores.device();
  };
  TORCH_CHECK(fits(kept, at::kInt, 0) && (!wanted || fits(*wanted, at::kInt, 0)) && fits(totals, at::kDouble, 1),
              "hrm::moe_load_loss_: for scores ", scores.sizes(), " on ", scores.device(),
              " kept and wanted must be (E) int32, totals (E + 1) float64, contiguous there, got ", kept.sizes(), " ",
              kept.scalar_type(), wanted ? " and " : "", wanted ? wanted->sizes() : at::IntArrayRef(), " and ",
              totals.sizes(), " ", totals.scalar_type());
}

void check_moe_loads(const at::Tensor& loads, at::TensorList counts) {
  TORCH_CHECK(loads.sizes() == at::IntArrayRef({static_cast<int64_t>(counts.size()), 3}) && loads.is_contiguous() &&
                  loads.scalar_type() == at::kDouble,
              "hrm::moe_loads_: loads must be contiguous float64 of shape (", counts.size(), ", 3), got ",
              loads.sizes(), " ", loads.scalar_type());
  for (const at::Tensor& layer : counts) {
    TORCH_CHECK(layer.dim() == 1 && layer.size(0) >= 2 && layer.sizes() == counts[0].sizes() &&
                    layer.scalar_type() == at::kDouble && layer.device() == loads.device(),
                "hrm::moe_loads_: counts must be (E + 1) float64 of one size on ", loads.device(), ", got ",
                layer.sizes(), " ", layer.scalar_type(), " on ", layer.device(), " beside ", counts[0].sizes());
  }
}

// ---- Calls through the dispatcher ----

namespace {

using Gather = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t);
using Up = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                              const at::Tensor&);
using UpBackward = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&);
using UpSwiglu = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                    const at::Tensor&, bool);
using MoeProduct = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);
using Accumulate = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        bool);
using Combine = at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&);
using CombineBackward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                           const at::Tensor&, const at::Tensor&);
using GateOp = GateResult(const at::Tensor&, int64_t, bool, bool, const OptionalTensor&);
using GateBackward = at::Tensor(const OptionalTensor&, const OptionalTensor&, const at::Tensor&, const at::Tensor&,
                                bool, bool);
using JitterOp = at::Tensor(const at::Tensor&, const at::Tensor&, double, int64_t);
using RouterOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&);
using Plan = PlanResult(const at::Tensor&, int64_t);
using Loads = void(const at::Tensor&, at::TensorList);
using LoadLossOp = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                                      const at::Tensor&);
using ExpertsOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor&, bool);

}  // namespace

at::Tensor moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed) {
  static const Op<JitterOp> op("hrm::moe_jitter");
  return op(x, step, amount, seed);
}

std::tuple<at::Tensor, at::Tensor> moe_load_loss_forward_(const at::Tensor& scores, const at::Tensor& kept,
                                                          const OptionalTensor& wanted, const at::Tensor& totals) {
  static const Op<LoadLossOp> op("hrm::moe_load_loss_");
  return op(scores, kept, wanted, totals);
}

at::Tensor moe_load_loss_(const at::Tensor& scores, const at::Tensor& kept, const at::Tensor& wanted,
                          const at::Tensor& totals) {
  const OptionalTensor before = optional_tensor(wanted);
  return std::get<0>(moe_load_loss_forward_(scores, kept, before, totals));
}

void moe_loads_(const at::Tensor& loads, at::TensorList counts) {
  static const Op<Loads> op("hrm::moe_loads_");
  op(loads, counts);
}

at::Tensor moe_gather(const at::Tensor& x, const at::Tensor& picks, const at::Tensor& starts, int64_t top_k) {
  static const Op<Gather> op("hrm::moe_gather");
  return op(x, picks, starts, top_k);
}

std::tuple<at::Tensor, at::Tensor> moe_up(const at::Tensor& xp, const at::Tensor& up, const at::Tensor& tile_experts,
                                          const at::Tensor& starts) {
  static const Op<Up> op("hrm::moe_up");
  return op(xp, up, tile_experts, starts);
}

at::Tensor moe_up_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& slope,
                           const at::Tensor& tile_experts, const at::Tensor& starts) {
  static const Op<UpBackward> op("hrm::moe_up_backward");
  return op(grad_y, down, slope, tile_experts, starts);
}

std::tuple<at::Tensor, at::Tensor> moe_up_swiglu(const at::Tensor& xp, const at::Tensor& gate_up,
                                                 const at::Tensor& tile_experts, const at::Tensor& starts, bool keep) {
  static const Op<UpSwiglu> op("hrm::moe_up_swiglu");
  return op(xp, gate_up, tile_experts, starts, keep);
}

at::Tensor moe_up_swiglu_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                  const at::Tensor& tile_experts, const at::Tensor& starts) {
  static const Op<UpBackward> op("hrm::moe_up_swiglu_backward");
  return op(grad_y, down, kept, tile_experts, starts);
}

at::Tensor moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed) {
  static const Op<MoeProduct> op("hrm::moe_linear");
  return op(rows, weight, tile_experts, starts, transposed);
}

at::Tensor moe_linear_portable(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                               const at::Tensor& starts, bool transposed) {
  static const Op<MoeProduct> op("hrm::moe_linear_portable");
  return op(rows, weight, tile_experts, starts, transposed);
}

void moe_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& tile_experts,
                     const at::Tensor& starts, bool overwrite) {
  static const Op<Accumulate> op("hrm::moe_accumulate_");
  op(grad, a, b, tile_experts, starts, overwrite);
}

void moe_accumulate_portable_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                              const at::Tensor& tile_experts, const at::Tensor& starts, bool overwrite) {
  static const Op<Accumulate> op("hrm::moe_accumulate_portable_");
  op(grad, a, b, tile_experts, starts, overwrite);
}

at::Tensor moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights) {
  static const Op<Combine> op("hrm::moe_combine");
  return op(y, rows, weights);
}

std::tuple<at::Tensor, at::Tensor> moe_combine_backward(const at::Tensor& grad_out, const at::Tensor& y,
                                                        const at::Tensor& picks, const at::Tensor& starts,
                                                        const at::Tensor& weights) {
  static const Op<CombineBackward> op("hrm::moe_combine_backward");
  return op(grad_out, y, picks, starts, weights);
}

GateResult moe_gate_forward(const at::Tensor& logits, int64_t top_k, bool sigmoid, bool normalize,
                            const OptionalTensor& bias) {
  static const Op<GateOp> op("hrm::moe_gate");
  return op(logits, top_k, sigmoid, normalize, bias);
}

at::Tensor moe_gate_backward(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                             const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize) {
  static const Op<GateBackward> op("hrm::moe_gate_backward");
  return op(grad_weights, grad_scores, ids, scores, sigmoid, normalize);
}

at::Tensor moe_router(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master,
                      const OptionalTensor& grad_weight) {
  static const Op<RouterOp> op("hrm::moe_router");
  return op(x, weight, master, grad_weight);
}

at::Tensor moe_router(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master) {
  const at::Tensor grad = gradient_buffer(master);
  return moe_router(x, weight, master, optional_tensor(grad));
}

MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize, const OptionalTensor& bias) {
  const auto [ids, weights, scores] = moe_gate_forward(logits, top_k, score == MoeScore::sigmoid, normalize, bias);
  return {ids, weights, scores};
}

MoePlan moe_plan(const at::Tensor& ids, int64_t experts) {
  static const Op<Plan> op("hrm::moe_plan");
  const auto [rows, picks, tile_experts, starts, counts] = op(ids, experts);
  return {rows, picks, tile_experts, starts, counts};
}

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master,
                       const OptionalTensor& grad_up, const OptionalTensor& grad_down, const OptionalTensor& stale,
                       ExpertActivation activation) {
  TORCH_CHECK(
      !stale || (stale->is_cpu() && stale->scalar_type() == at::kBool && stale->numel() == 2 && stale->is_contiguous()),
      "hrm::moe_experts: stale must be two bools on the CPU, got ", stale ? stale->toString() : "", " of ",
      stale ? stale->sizes() : at::IntArrayRef());
  static const Op<ExpertsOp> op("hrm::moe_experts");
  return op(x, weights, plan.rows, plan.picks, plan.tile_experts, plan.starts, up, up_master, down, down_master,
            grad_up, grad_down, stale, activation == ExpertActivation::swiglu);
}

at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master,
                       ExpertActivation activation) {
  const auto buffer = [](const at::Tensor& leaf) {
    const at::Tensor grad = gradient_buffer(leaf);
    return optional_tensor(grad);
  };
  return moe_experts(x, weights, plan, up, up_master, down, down_master, buffer(up_master), buffer(down_master), {},
                     activation);
}

std::string moe_experts_way(at::Device device, at::ScalarType dtype, int64_t dim, int64_t inner) {
  if (backend() != Backend::fused) return "plain ATen";
#if HRM_WITH_CUDA
  if (device.is_cuda()) {
    return cuda::moe_has_tiles(device, dtype, dim, inner) ? "tiles of a Hopper GPU" : "portable kernels";
  }
#endif
  (void)dtype, (void)dim, (void)inner;
  return device.is_cpu() ? "a product for each expert" : "plain ATen";
}

at::Tensor moe_drop(const at::Tensor& ids, const at::Tensor& weights, int64_t experts, int64_t capacity) {
  const at::Tensor expert = ids.reshape({-1}).to(at::kLong), weight = weights.detach().reshape({-1});
  // By weight, then, stably, by expert: the place within an expert's run is the rank by weight.
  const at::Tensor by_weight = std::get<1>(weight.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  const auto [sorted, order] = expert.index_select(0, by_weight).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor begins = at::searchsorted(sorted, at::arange(experts, sorted.options()));
  const at::Tensor rank = at::arange(sorted.size(0), sorted.options()) - begins.index_select(0, sorted.clamp_min(0));
  const at::Tensor kept = at::where(rank.lt(capacity), sorted, -1).to(at::kInt);
  return at::empty_like(kept).index_copy_(0, by_weight.index_select(0, order), kept).view(ids.sizes());
}

// ---- CPU: each expert's rows are a slice, whose ends can be read ----

namespace {

template <class Each>
void for_experts(const at::Tensor& starts, const Each& each) {
  const int* start = starts.const_data_ptr<int>();
  for (int64_t expert = 0; expert + 1 < starts.size(0); ++expert) {
    if (const int64_t rows = start[expert + 1] - start[expert]; rows > 0) each(expert, start[expert], rows);
  }
}

at::Tensor moe_gather_cpu(const at::Tensor& x, const at::Tensor& picks, const at::Tensor&, int64_t top_k) {
  check_moe_gather(x, picks, top_k);
  return composed::moe_gather(x, picks, top_k);
}

at::Tensor moe_linear_cpu(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                          const at::Tensor& starts, bool transposed) {
  check_moe_linear(rows, weight, tile_experts, starts, transposed);
  at::Tensor out = at::empty({rows.size(0), weight.size(transposed ? 2 : 1)}, rows.options());
  for_experts(starts, [&](int64_t expert, int64_t first, int64_t count) {
    at::Tensor to = out.narrow(0, first, count);
    at::mm_out(to, rows.narrow(0, first, count), transposed ? weight[expert] : weight[expert].t());
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> moe_up_cpu(const at::Tensor& xp, const at::Tensor& up,
                                              const at::Tensor& tile_experts, const at::Tensor& starts) {
  return composed::gelu_and_slope(moe_linear_cpu(xp, up, tile_experts, starts, /*transposed=*/false));
}

at::Tensor moe_up_backward_cpu(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& slope,
                               const at::Tensor& tile_experts, const at::Tensor& starts) {
  return moe_linear_cpu(grad_y, down, tile_experts, starts, /*transposed=*/true).mul_(slope);
}

std::tuple<at::Tensor, at::Tensor> moe_up_swiglu_cpu(const at::Tensor& xp, const at::Tensor& gate_up,
                                                     const at::Tensor& tile_experts, const at::Tensor& starts,
                                                     bool keep) {
  check_moe_up_swiglu(xp, gate_up, tile_experts, starts);
  const at::Tensor kept = moe_linear_cpu(xp, gate_up, tile_experts, starts, /*transposed=*/false);
  return {swiglu(kept), keep ? kept : at::Tensor()};
}

at::Tensor moe_up_swiglu_backward_cpu(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                      const at::Tensor& tile_experts, const at::Tensor& starts) {
  check_moe_up_swiglu_backward(grad_y, down, kept, tile_experts, starts);
  return swiglu_backward(moe_linear_cpu(grad_y, down, tile_experts, starts, /*transposed=*/true), kept);
}

void moe_accumulate_cpu(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor&,
                        const at::Tensor& starts, bool overwrite) {
  check_moe_accumulate(grad, a, b, starts);
  if (overwrite) grad.zero_();
  for_experts(starts, [&](int64_t expert, int64_t first, int64_t count) {
    linear_accumulate_(grad[expert], a.narrow(0, first, count), b.narrow(0, first, count));
  });
}

at::Tensor moe_combine_cpu(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights) {
  check_moe_combine(y, rows, weights);
  return composed::moe_combine(y, rows, weights);
}

std::tuple<at::Tensor, at::Tensor> moe_combine_backward_cpu(const at::Tensor& grad_out, const at::Tensor& y,
                                                            const at::Tensor& picks, const at::Tensor&,
                                                            const at::Tensor& weights) {
  return composed::moe_combine_backward(grad_out, y, picks, weights);
}

GateResult moe_gate_cpu(const at::Tensor& logits, int64_t top_k, bool sigmoid, bool normalize,
                        const OptionalTensor& bias) {
  check_moe_gate(logits, top_k, bias);
  const MoeGate gate =
      reference::moe_gate(logits, top_k, sigmoid ? MoeScore::sigmoid : MoeScore::softmax, normalize, bias);
  return {gate.ids, gate.weights, gate.scores};
}

at::Tensor moe_gate_backward_cpu(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                                 const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize) {
  return composed::moe_gate_backward(grad_weights, grad_scores, ids, scores, sigmoid, normalize);
}

at::Tensor moe_jitter_cpu(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed) {
  check_moe_jitter(x, step, amount);
  return reference::moe_jitter(x, step, amount, seed);
}

std::tuple<at::Tensor, at::Tensor> moe_load_loss_cpu(const at::Tensor& scores, const at::Tensor& kept,
                                                     const OptionalTensor& wanted, const at::Tensor& totals) {
  check_moe_load_loss(scores, kept, wanted, totals);
  return reference::moe_load_loss_(scores, kept, wanted, totals);
}

void moe_loads_cpu(const at::Tensor& loads, at::TensorList counts) {
  check_moe_loads(loads, counts);
  reference::moe_loads_(loads, counts);
}

PlanResult moe_plan_cpu(const at::Tensor& ids, int64_t experts) {
  check_moe_plan(ids, experts);
  return composed::moe_plan(ids, experts);
}

}  // namespace

// On every device.
at::Tensor moe_router_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master,
                              const OptionalTensor&) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && weight.sizes() == master.sizes() &&
                  x.scalar_type() == weight.scalar_type(),
              "hrm::moe_router: x (T, D), weight and master (E, D) do not fit, got ", x.sizes(), " ", x.scalar_type(),
              ", ", weight.sizes(), " ", weight.scalar_type(), " and ", master.sizes());
  if (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble) return at::mm(x, weight.t());
  if (x.is_cuda()) return at::mm(x, weight.t(), at::kFloat);
  return at::mm(x.to(at::kFloat), weight.t().to(at::kFloat));
}

// Made of the ops above, on every device.
at::Tensor moe_experts_forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& rows,
                               const at::Tensor& picks, const at::Tensor& tile_experts, const at::Tensor& starts,
                               const at::Tensor& up, const at::Tensor&, const at::Tensor& down, const at::Tensor&,
                               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool swiglu) {
  const at::Tensor xp = moe_gather(x, picks, starts, rows.size(1));
  const at::Tensor act = std::get<0>(swiglu ? moe_up_swiglu(xp, up, tile_experts, starts, /*keep=*/false)
                                            : moe_up(xp, up, tile_experts, starts));
  return moe_combine(moe_linear(act, down, tile_experts, starts, /*transposed=*/false), rows, weights);
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("moe_router(Tensor x, Tensor weight, Tensor master, Tensor? grad_weight) -> Tensor");
  m.def(
      "moe_gate(Tensor logits, int top_k, bool sigmoid, bool normalize, Tensor? bias) -> "
      "(Tensor ids, Tensor weights, Tensor scores)");
  m.def(
      "moe_gate_backward(Tensor? grad_weights, Tensor? grad_scores, Tensor ids, Tensor scores, bool sigmoid, "
      "bool normalize) -> Tensor");
  m.def(
      "moe_plan(Tensor ids, int experts) -> "
      "(Tensor rows, Tensor picks, Tensor tile_experts, Tensor starts, Tensor counts)");
  m.def("moe_loads_(Tensor(a!) loads, Tensor[] counts) -> ()");
  m.def("moe_load_loss_(Tensor scores, Tensor kept, Tensor? wanted, Tensor(a!) totals) -> (Tensor loss, Tensor slope)");
  m.def("moe_jitter(Tensor x, Tensor step, float amount, int seed) -> Tensor");
  m.def("moe_gather(Tensor x, Tensor picks, Tensor starts, int top_k) -> Tensor");
  m.def("moe_up(Tensor xp, Tensor up, Tensor tile_experts, Tensor starts) -> (Tensor act, Tensor slope)");
  m.def("moe_up_backward(Tensor grad_y, Tensor down, Tensor slope, Tensor tile_experts, Tensor starts) -> Tensor");
  m.def(
      "moe_up_swiglu(Tensor xp, Tensor gate_up, Tensor tile_experts, Tensor starts, bool keep=True) -> "
      "(Tensor act, Tensor kept)");
  m.def(
      "moe_up_swiglu_backward(Tensor grad_y, Tensor down, Tensor kept, Tensor tile_experts, Tensor starts) -> "
      "Tensor grad");
  m.def("moe_linear(Tensor rows, Tensor weight, Tensor tile_experts, Tensor starts, bool transposed) -> Tensor");
  m.def(
      "moe_linear_portable(Tensor rows, Tensor weight, Tensor tile_experts, Tensor starts, bool transposed) -> Tensor");
  m.def(
      "moe_accumulate_(Tensor(a!) grad, Tensor a, Tensor b, Tensor tile_experts, Tensor starts, "
      "bool overwrite=False) -> ()");
  m.def(
      "moe_accumulate_portable_(Tensor(a!) grad, Tensor a, Tensor b, Tensor tile_experts, Tensor starts, "
      "bool overwrite=False) -> ()");
  m.def("moe_combine(Tensor y, Tensor rows, Tensor? weights) -> Tensor");
  m.def(
      "moe_combine_backward(Tensor grad_out, Tensor y, Tensor picks, Tensor starts, Tensor weights) -> "
      "(Tensor grad_y, Tensor grad_weights)");
  m.def(
      "moe_experts(Tensor x, Tensor weights, Tensor rows, Tensor picks, Tensor tile_experts, Tensor starts, Tensor up, "
      "Tensor up_master, Tensor down, Tensor down_master, Tensor? grad_up, Tensor? grad_down, Tensor? stale=None, "
      "bool swiglu=False) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("moe_router", &moe_router_forward);
  m.impl("moe_gate", &moe_gate_cpu);
  m.impl("moe_gate_backward", &moe_gate_backward_cpu);
  m.impl("moe_plan", &moe_plan_cpu);
  m.impl("moe_jitter", &moe_jitter_cpu);
  m.impl("moe_loads_", &moe_loads_cpu);
  m.impl("moe_load_loss_", &moe_load_loss_cpu);
  m.impl("moe_gather", &moe_gather_cpu);
  m.impl("moe_up", &moe_up_cpu);
  m.impl("moe_up_backward", &moe_up_backward_cpu);
  m.impl("moe_up_swiglu", &moe_up_swiglu_cpu);
  m.impl("moe_up_swiglu_backward", &moe_up_swiglu_backward_cpu);
  m.impl("moe_linear", &moe_linear_cpu);
  m.impl("moe_linear_portable", &moe_linear_cpu);
  m.impl("moe_accumulate_", &moe_accumulate_cpu);
  m.impl("moe_accumulate_portable_", &moe_accumulate_cpu);
  m.impl("moe_combine", &moe_combine_cpu);
  m.impl("moe_combine_backward", &moe_combine_backward_cpu);
  m.impl("moe_experts", &moe_experts_forward);
}

}  // namespace hrm::ops
