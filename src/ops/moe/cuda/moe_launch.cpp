#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "hrm/ops/swiglu.h"
#include "ops/cuda/launcher.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/moe/cuda/moe.h"
#include "ops/moe/cuda/sm90/moe_experts.h"
#include "ops/moe/moe_impl.h"

namespace hrm::ops {
namespace {

// Rows of whole 16 bytes.
bool whole_packs(const at::Tensor& tensor) {
  return tensor.size(1) * tensor.element_size() % 16 == 0;
}

cuda::sm90::ExpertTiles tiles_of(const at::Tensor& tile_experts, const at::Tensor& starts) {
  return {tile_experts.const_data_ptr<int>(), starts.const_data_ptr<int>(), tile_experts.size(0) * kMoeTile,
          starts.size(0) - 1};
}

// Whether float32 products may round their factors to TF32.
bool tf32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

at::Tensor moe_linear_portable_cuda(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                                    const at::Tensor& starts, bool transposed) {
  check_moe_linear(rows, weight, tile_experts, starts, transposed);
  const c10::cuda::CUDAGuard guard(rows.device());
  if (!cuda::use_kernel(rows)) {
    return composed::moe_linear(rows, weight, tile_experts, starts, transposed, /*may_group=*/false);
  }
  const at::Tensor from = rows.contiguous(), by = weight.contiguous();
  at::Tensor out = at::empty({rows.size(0), weight.size(transposed ? 2 : 1)}, from.options());
  cuda::MoeProduct params{};
  params.rows = from.const_data_ptr();
  params.weight = by.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.tile_experts = tile_experts.const_data_ptr<int>();
  params.end = starts.const_data_ptr<int>() + starts.size(0) - 1;
  params.tiles = tile_experts.size(0);
  params.n = out.size(1);
  params.k = rows.size(1);
  params.element = cuda::element_of(rows);
  params.transposed = transposed;
  params.tf32 = tf32_allowed();
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return out;
}

// Products that the tiles of a Hopper GPU do not take. at::_grouped_mm is faster where it needs no answer from the
// device: see composed::moe_linear.
at::Tensor linear_without_tiles(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                                const at::Tensor& starts, bool transposed) {
  const int major = cuda::sm90::current_device_attribute(cudaDevAttrComputeCapabilityMajor);
  if ((major == 9 || major == 10) && rows.size(0) > 0 && composed::can_group(rows, weight)) {
    return composed::moe_linear(rows, weight, tile_experts, starts, transposed, /*may_group=*/true);
  }
  return moe_linear_portable_cuda(rows, weight, tile_experts, starts, transposed);
}

GateResult moe_gate_cuda(const at::Tensor& logits, int64_t top_k, bool sigmoid, bool normalize,
                         const OptionalTensor& bias) {
  check_moe_gate(logits, top_k, bias);
  const c10::cuda::CUDAGuard guard(logits.device());
  if (!cuda::use_kernel(logits)) {
    const MoeGate gate =
        reference::moe_gate(logits, top_k, sigmoid ? MoeScore::sigmoid : MoeScore::softmax, normalize, bias);
    return {gate.ids, gate.weights, gate.scores};
  }
  const at::Tensor from = logits.contiguous();
  const OptionalTensor added = bias ? OptionalTensor(bias->contiguous()) : std::nullopt;
  at::Tensor ids = at::empty({from.size(0), top_k}, from.options().dtype(at::kInt));
  at::Tensor weights = at::empty({from.size(0), top_k}, from.options()), scores = at::empty_like(from);
  cuda::MoeGateForward params{};
  params.logits = from.const_data_ptr<float>();
  params.bias = cuda::optional_floats(added);
  params.ids = ids.mutable_data_ptr<int>();
  params.weights = weights.mutable_data_ptr<float>();
  params.scores = scores.mutable_data_ptr<float>();
  params.tokens = from.size(0);
  params.experts = static_cast<int>(from.size(1));
  params.top_k = static_cast<int>(top_k);
  params.sigmoid = sigmoid;
  params.normalize = normalize;
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {ids, weights, scores};
}

at::Tensor moe_gate_backward_cuda(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                                  const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize) {
  const c10::cuda::CUDAGuard guard(scores.device());
  if (!cuda::use_kernel(scores)) {
    return composed::moe_gate_backward(grad_weights, grad_scores, ids, scores, sigmoid, normalize);
  }
  const auto whole = [](const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(tensor->contiguous()) : std::nullopt;
  };
  const OptionalTensor of_weights = whole(grad_weights), of_scores = whole(grad_scores);
  at::Tensor grad = at::empty_like(scores);
  cuda::MoeGateBackward params{};
  params.grad_weights = cuda::optional_floats(of_weights);
  params.grad_scores = cuda::optional_floats(of_scores);
  params.ids = ids.const_data_ptr<int>();
  params.scores = scores.const_data_ptr<float>();
  params.grad_logits = grad.mutable_data_ptr<float>();
  params.tokens = scores.size(0);
  params.experts = static_cast<int>(scores.size(1));
  params.top_k = static_cast<int>(ids.size(1));
  params.sigmoid = sigmoid;
  params.normalize = normalize;
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return grad;
}

at::Tensor moe_jitter_cuda(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed) {
  check_moe_jitter(x, step, amount);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::moe_jitter(x, step, amount, seed);
  const at::Tensor from = x.contiguous();
  at::Tensor out = at::empty_like(from);
  cuda::MoeJitter params{};
  params.x = from.const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.step = step.const_data_ptr<int64_t>();
  params.count = from.numel();
  params.amount = static_cast<float>(amount);
  params.seed = static_cast<uint64_t>(seed);
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> moe_load_loss_cuda(const at::Tensor& scores_any, const at::Tensor& kept,
                                                      const OptionalTensor& wanted, const at::Tensor& totals) {
  check_moe_load_loss(scores_any, kept, wanted, totals);
  const c10::cuda::CUDAGuard guard(scores_any.device());
  if (!cuda::use_kernel(scores_any)) return reference::moe_load_loss_(scores_any, kept, wanted, totals);
  const at::Tensor scores = scores_any.contiguous();
  const int64_t experts = scores.size(1), blocks = (scores.size(0) + cuda::kMoeLossTokens - 1) / cuda::kMoeLossTokens;
  const at::Tensor loss = at::empty({}, scores.options()), slope = at::empty({experts}, scores.options()),
                   partial = at::empty({blocks, experts}, scores.options());
  cuda::MoeLoadLoss params{};
  params.scores = scores.const_data_ptr<float>();
  params.kept = kept.const_data_ptr<int>();
  params.wanted = (wanted ? *wanted : kept).const_data_ptr<int>();
  params.totals = totals.mutable_data_ptr<double>();
  params.partial = partial.mutable_data_ptr<float>();
  params.loss = loss.mutable_data_ptr<float>();
  params.slope = slope.mutable_data_ptr<float>();
  params.tokens = scores.size(0);
  params.experts = static_cast<int>(experts);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {loss, slope};
}

void moe_loads_cuda(const at::Tensor& loads, at::TensorList counts) {
  check_moe_loads(loads, counts);
  const c10::cuda::CUDAGuard guard(loads.device());
  if (backend() != Backend::fused) return reference::moe_loads_(loads, counts);
  for (size_t first = 0; first < counts.size(); first += cuda::kMoeLayers) {
    std::vector<at::Tensor> from;  // of this launch, until it is queued
    cuda::MoeLoads params{};
    params.layers = static_cast<int>(std::min<size_t>(counts.size() - first, cuda::kMoeLayers));
    for (int i = 0; i < params.layers; ++i) {
      from.push_back(counts[first + static_cast<size_t>(i)].contiguous());
      params.counts[i] = from.back().const_data_ptr<double>();
    }
    params.loads = loads.mutable_data_ptr<double>() + 3 * first;
    params.experts = static_cast<int>(counts[first].size(0) - 1);
    C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  }
}

PlanResult moe_plan_cuda(const at::Tensor& ids, int64_t experts) {
  check_moe_plan(ids, experts);
  const c10::cuda::CUDAGuard guard(ids.device());
  if (backend() != Backend::fused) return composed::moe_plan(ids, experts);
  const at::Tensor from = ids.contiguous();
  const int64_t rows = moe_rows(ids.size(0), ids.size(1), experts);
  const int64_t blocks = (ids.numel() + cuda::kMoeBlockPicks - 1) / cuda::kMoeBlockPicks;
  at::Tensor row_of = at::empty(from.sizes(), from.options()), picks = at::empty({rows}, from.options()),
             tile_experts = at::empty({rows / kMoeTile}, from.options()),
             starts = at::empty({experts + 1}, from.options()), counts = at::empty({experts}, from.options()),
             scratch = at::empty({experts * blocks}, from.options());
  cuda::MoePlanParams params{};
  params.ids = from.const_data_ptr<int>();
  params.rows = row_of.mutable_data_ptr<int>();
  params.row_picks = picks.mutable_data_ptr<int>();
  params.tile_experts = tile_experts.mutable_data_ptr<int>();
  params.starts = starts.mutable_data_ptr<int>();
  params.counts = counts.mutable_data_ptr<int>();
  params.block_counts = scratch.mutable_data_ptr<int>();
  params.picks = from.numel();
  params.all_rows = rows;
  params.experts = static_cast<int>(experts);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {row_of, picks, tile_experts, starts, counts};
}

at::Tensor moe_gather_cuda(const at::Tensor& x, const at::Tensor& picks, const at::Tensor& starts, int64_t top_k) {
  check_moe_gather(x, picks, top_k);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x) || !whole_packs(x)) return composed::moe_gather(x, picks, top_k);
  const at::Tensor from = cuda::aligned_rows(x);
  at::Tensor out = at::empty({picks.size(0), x.size(1)}, from.options());
  cuda::MoeGather params{};
  params.x = from.const_data_ptr();
  params.picks = picks.const_data_ptr<int>();
  params.end = starts.const_data_ptr<int>() + starts.size(0) - 1;
  params.out = out.mutable_data_ptr();
  params.rows = picks.size(0);
  params.dim = x.size(1);
  params.top_k = static_cast<int>(top_k);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return out;
}

at::Tensor moe_linear_cuda(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                           const at::Tensor& starts, bool transposed) {
  check_moe_linear(rows, weight, tile_experts, starts, transposed);
  const c10::cuda::CUDAGuard guard(rows.device());
  const auto compose = [&] { return linear_without_tiles(rows, weight, tile_experts, starts, transposed); };
  if (!cuda::use_kernel(rows)) return compose();
  cuda::sm90::ExpertLinear params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.width = weight.size(transposed ? 2 : 1);
  params.inner = rows.size(1);
  params.transposed = transposed;
  params.element = cuda::element_of(rows);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor from = cuda::aligned_rows(rows), by = cuda::aligned_rows(weight);
  at::Tensor out = at::empty({rows.size(0), params.width}, from.options());
  params.x = from.const_data_ptr();
  params.weight = by.const_data_ptr();
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> moe_up_cuda(const at::Tensor& xp, const at::Tensor& up,
                                               const at::Tensor& tile_experts, const at::Tensor& starts) {
  check_moe_linear(xp, up, tile_experts, starts, /*transposed=*/false);
  const c10::cuda::CUDAGuard guard(xp.device());
  const auto compose = [&]() -> std::tuple<at::Tensor, at::Tensor> {
    return composed::gelu_and_slope(linear_without_tiles(xp, up, tile_experts, starts, /*transposed=*/false));
  };
  if (!cuda::use_kernel(xp)) return compose();
  cuda::sm90::ExpertUp params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.width = up.size(1);
  params.inner = up.size(2);
  params.element = cuda::element_of(xp);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor from = cuda::aligned_rows(xp), by = cuda::aligned_rows(up);
  at::Tensor act = at::empty({xp.size(0), params.width}, from.options()), slope = at::empty_like(act);
  params.x = from.const_data_ptr();
  params.up = by.const_data_ptr();
  params.act = act.mutable_data_ptr();
  params.slope = slope.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
  return {act, slope};
}

at::Tensor moe_up_backward_cuda(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& slope,
                                const at::Tensor& tile_experts, const at::Tensor& starts) {
  check_moe_linear(grad_y, down, tile_experts, starts, /*transposed=*/true);
  const c10::cuda::CUDAGuard guard(grad_y.device());
  const auto compose = [&] {
    return linear_without_tiles(grad_y, down, tile_experts, starts, /*transposed=*/true) * slope;
  };
  if (!cuda::use_kernel(grad_y)) return compose();
  cuda::sm90::ExpertUpBackward params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.width = down.size(2);
  params.inner = down.size(1);
  params.element = cuda::element_of(grad_y);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor from = cuda::aligned_rows(grad_y), by = cuda::aligned_rows(down), of = cuda::aligned_rows(slope);
  at::Tensor grad_pre = at::empty(of.sizes(), of.options());
  params.grad_y = from.const_data_ptr();
  params.down = by.const_data_ptr();
  params.slope = of.const_data_ptr();
  params.grad_pre = grad_pre.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
  return grad_pre;
}

std::tuple<at::Tensor, at::Tensor> moe_up_swiglu_cuda(const at::Tensor& xp, const at::Tensor& gate_up,
                                                      const at::Tensor& tile_experts, const at::Tensor& starts,
                                                      bool keep) {
  check_moe_up_swiglu(xp, gate_up, tile_experts, starts);
  const c10::cuda::CUDAGuard guard(xp.device());
  const auto compose = [&]() -> std::tuple<at::Tensor, at::Tensor> {
    const at::Tensor kept = linear_without_tiles(xp, gate_up, tile_experts, starts, /*transposed=*/false);
    return {swiglu(kept), keep ? kept : at::Tensor()};
  };
  if (!cuda::use_kernel(xp)) return compose();
  cuda::sm90::ExpertSwiglu params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.rows = xp.size(0);
  params.width = gate_up.size(1) / 2;
  params.inner = gate_up.size(2);
  params.element = cuda::element_of(xp);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor from = cuda::aligned_rows(xp), by = cuda::aligned_rows(gate_up);
  at::Tensor act = at::empty({params.rows, params.width}, from.options());
  at::Tensor kept = keep ? at::empty({params.rows, 2 * params.width}, from.options()) : at::Tensor();
  params.x = from.const_data_ptr();
  params.weight = by.const_data_ptr();
  params.act = act.mutable_data_ptr();
  params.gate_up = keep ? kept.mutable_data_ptr() : nullptr;
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
  return {act, kept};
}

at::Tensor moe_up_swiglu_backward_cuda(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                       const at::Tensor& tile_experts, const at::Tensor& starts) {
  check_moe_up_swiglu_backward(grad_y, down, kept, tile_experts, starts);
  const c10::cuda::CUDAGuard guard(grad_y.device());
  const auto compose = [&] {
    return swiglu_backward(linear_without_tiles(grad_y, down, tile_experts, starts, /*transposed=*/true), kept);
  };
  if (!cuda::use_kernel(grad_y)) return compose();
  cuda::sm90::ExpertSwigluBackward params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.rows = grad_y.size(0);
  params.width = down.size(2);
  params.inner = down.size(1);
  params.element = cuda::element_of(grad_y);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor from = cuda::aligned_rows(grad_y), by = cuda::aligned_rows(down), of = cuda::aligned_rows(kept);
  at::Tensor grad = at::empty(of.sizes(), of.options());
  params.grad_out = from.const_data_ptr();
  params.weight_down = by.const_data_ptr();
  params.gate_up = of.const_data_ptr();
  params.grad_gate_up = grad.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
  return grad;
}

void moe_accumulate_portable_cuda(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                                  const at::Tensor& tile_experts, const at::Tensor& starts, bool overwrite) {
  check_moe_accumulate(grad, a, b, starts);
  const c10::cuda::CUDAGuard guard(grad.device());
  if (!cuda::use_kernel(a) || grad.scalar_type() != at::kFloat) {
    composed::moe_accumulate_(grad, a, b, tile_experts, starts, overwrite);
    return;
  }
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  cuda::MoeGradient params{};
  params.a = left.const_data_ptr();
  params.b = right.const_data_ptr();
  params.starts = starts.const_data_ptr<int>();
  params.grad = grad.mutable_data_ptr<float>();
  params.m = a.size(1);
  params.n = b.size(1);
  params.experts = static_cast<int>(grad.size(0));
  params.element = cuda::element_of(a);
  params.tf32 = tf32_allowed();
  params.overwrite = overwrite;
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
}

void moe_accumulate_cuda(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                         const at::Tensor& tile_experts, const at::Tensor& starts, bool overwrite) {
  check_moe_accumulate(grad, a, b, starts);
  const c10::cuda::CUDAGuard guard(grad.device());
  cuda::sm90::ExpertGradient params{};
  params.tiles = tiles_of(tile_experts, starts);
  params.m = a.size(1);
  params.n = b.size(1);
  params.overwrite = overwrite;
  if (cuda::has_element(a.scalar_type())) params.element = cuda::element_of(a);
  if (grad.scalar_type() == at::kFloat) params.grad = grad.mutable_data_ptr<float>();
  if (!cuda::use_kernel(a) || params.grad == nullptr || !cuda::sm90::fits(params)) {
    moe_accumulate_portable_cuda(grad, a, b, tile_experts, starts, overwrite);
    return;
  }
  const at::Tensor left = cuda::aligned_rows(a), right = cuda::aligned_rows(b);
  params.a = left.const_data_ptr();
  params.b = right.const_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, cuda::current_stream()));
}

at::Tensor moe_combine_cuda(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights) {
  check_moe_combine(y, rows, weights);
  const c10::cuda::CUDAGuard guard(y.device());
  if (!cuda::use_kernel(y) || !whole_packs(y) || rows.size(1) > 32) return composed::moe_combine(y, rows, weights);
  const at::Tensor from = cuda::aligned_rows(y);
  const OptionalTensor share = weights ? OptionalTensor(weights->contiguous()) : std::nullopt;
  at::Tensor out = at::empty({rows.size(0), y.size(1)}, from.options());
  cuda::MoeCombine params{};
  params.y = from.const_data_ptr();
  params.rows = rows.const_data_ptr<int>();
  params.weights = cuda::optional_floats(share);
  params.out = out.mutable_data_ptr();
  params.tokens = rows.size(0);
  params.dim = y.size(1);
  params.top_k = static_cast<int>(rows.size(1));
  params.element = cuda::element_of(y);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> moe_combine_backward_cuda(const at::Tensor& grad_out, const at::Tensor& y,
                                                             const at::Tensor& picks, const at::Tensor& starts,
                                                             const at::Tensor& weights) {
  const c10::cuda::CUDAGuard guard(y.device());
  if (!cuda::use_kernel(y) || !whole_packs(y)) {
    return composed::moe_combine_backward(grad_out, y, picks, weights);
  }
  const at::Tensor from = cuda::aligned_rows(grad_out), of = cuda::aligned_rows(y), share = weights.contiguous();
  at::Tensor grad_y = at::empty(of.sizes(), of.options()), grad_weights = at::zeros(share.sizes(), share.options());
  cuda::MoeCombineBackward params{};
  params.grad_out = from.const_data_ptr();
  params.y = of.const_data_ptr();
  params.picks = picks.const_data_ptr<int>();
  params.end = starts.const_data_ptr<int>() + starts.size(0) - 1;
  params.weights = share.const_data_ptr<float>();
  params.grad_y = grad_y.mutable_data_ptr();
  params.grad_weights = grad_weights.mutable_data_ptr<float>();
  params.rows = of.size(0);
  params.dim = of.size(1);
  params.top_k = static_cast<int>(weights.size(1));
  params.element = cuda::element_of(of);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return {grad_y, grad_weights};
}

}  // namespace

bool cuda::moe_has_tiles(at::Device device, at::ScalarType dtype, int64_t dim, int64_t inner) {
  const c10::cuda::CUDAGuard guard(device);
  return sm90::is_hopper() && (dtype == at::kBFloat16 || dtype == at::kHalf) && dim % 256 == 0 && inner % 256 == 0;
}

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("moe_gate", &moe_gate_cuda);
  m.impl("moe_gate_backward", &moe_gate_backward_cuda);
  m.impl("moe_plan", &moe_plan_cuda);
  m.impl("moe_jitter", &moe_jitter_cuda);
  m.impl("moe_loads_", &moe_loads_cuda);
  m.impl("moe_load_loss_", &moe_load_loss_cuda);
  m.impl("moe_gather", &moe_gather_cuda);
  m.impl("moe_up", &moe_up_cuda);
  m.impl("moe_up_backward", &moe_up_backward_cuda);
  m.impl("moe_up_swiglu", &moe_up_swiglu_cuda);
  m.impl("moe_up_swiglu_backward", &moe_up_swiglu_backward_cuda);
  m.impl("moe_linear", &moe_linear_cuda);
  m.impl("moe_linear_portable", &moe_linear_portable_cuda);
  m.impl("moe_accumulate_", &moe_accumulate_cuda);
  m.impl("moe_accumulate_portable_", &moe_accumulate_portable_cuda);
  m.impl("moe_combine", &moe_combine_cuda);
  m.impl("moe_combine_backward", &moe_combine_backward_cuda);
  m.impl("moe_router", &moe_router_forward);
  m.impl("moe_experts", &moe_experts_forward);
}

}  // namespace hrm::ops
