#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/contrastive/cuda/contrastive_statistics.h"
#include "ops/contrastive/cuda/geometric_relax.h"
#include "ops/contrastive/geometric_relax_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

int as_int(int64_t value) {
  TORCH_CHECK(value <= INT32_MAX, "hrm: a size of ", value, " is larger than the kernel counts");
  return static_cast<int>(value);
}

const int64_t* filled_of(const GeometricSlots& slots) {
  return slots.filled.defined() ? slots.filled.const_data_ptr<int64_t>() : nullptr;
}

RelaxResult geometric_relax_cuda(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                                 at::TensorList slot_list, const std::optional<at::Tensor>& filled,
                                 const at::Tensor& metric, const at::Tensor& rates, at::TensorList nudge,
                                 at::TensorList hidden, int64_t steps, at::ArrayRef<double> constants,
                                 double momentum) {
  const RelaxArguments a =
      relax_arguments(drive, offset, o, slot_list, filled, metric, rates, nudge, hidden, steps, constants, momentum);
  const c10::cuda::CUDAGuard guard(drive.device());
  const GeometricSlots& slots = a.slots;
  const bool plain =
      cuda::use_kernel(drive) && slots.values.scalar_type() == at::kHalf && !a.hidden.state.defined() && momentum == 0;
  const at::Tensor from_drive = drive.contiguous(), from_offset = offset.contiguous(), from_o = o.contiguous();
  const at::Tensor keys = slots.keys.contiguous(), norms = slots.key_norms.contiguous();
  const at::Tensor resilience = slots.resilience.contiguous(), values = slots.values.contiguous();
  const at::Tensor matrix = metric.contiguous(), speeds = rates.contiguous();
  at::Tensor readout, bias, targets, signs;
  if (a.nudge.readout.defined()) {
    readout = a.nudge.readout.detach().to(at::kHalf).contiguous();
    bias = a.nudge.bias.contiguous();
    targets = a.nudge.targets.contiguous();
    signs = a.nudge.signs.contiguous();
  }
  cuda::GeometricRelax params{};
  if (plain) {
    params.drive = from_drive.const_data_ptr<float>();
    params.offset = from_offset.const_data_ptr<float>();
    params.o = from_o.const_data_ptr<float>();
    params.keys = keys.const_data_ptr<float>();
    params.key_norms = norms.const_data_ptr<float>();
    params.resilience = resilience.const_data_ptr<float>();
    params.values = values.const_data_ptr();
    params.filled = filled_of(slots);
    params.metric = matrix.const_data_ptr<float>();
    params.rates = speeds.const_data_ptr<float>();
    params.rows = as_int(drive.size(0));
    params.slots = as_int(keys.size(0));
    params.coords = as_int(drive.size(1));
    params.width = as_int(o.size(1));
    params.steps = as_int(steps);
    params.kappa = static_cast<float>(a.constants.kappa);
    params.gamma = static_cast<float>(a.constants.gamma);
    params.retrieval_beta = static_cast<float>(a.constants.retrieval_beta);
    params.cost_eps = static_cast<float>(a.constants.cost_eps);
    if (readout.defined()) {
      params.readout = readout.const_data_ptr();
      params.bias = bias.const_data_ptr<float>();
      params.targets = targets.const_data_ptr<int64_t>();
      params.signs = signs.const_data_ptr<float>();
      params.classes = as_int(readout.size(0));
    }
  }
  if (!plain || !cuda::fits(params)) {
    GeometricState state = reference::geometric_relax(drive, offset, o, slots, metric, rates, a.nudge, a.hidden, steps,
                                                      a.constants, momentum);
    if (state.offset.is_same(offset)) state.offset = offset.clone();
    if (state.o.is_same(o)) state.o = o.clone();
    if (state.h.defined() && state.h.is_same(a.hidden.state)) state.h = state.h.clone();
    if (state.residual.is_same(state.speed)) state.residual = state.speed.clone();
    return as_result(state);
  }
  GeometricState next{.offset = at::empty_like(from_offset),
                      .o = at::empty_like(from_o),
                      .h = {},
                      .log_sum = at::empty({drive.size(0)}, drive.options()),
                      .speed = at::empty({drive.size(0)}, drive.options()),
                      .residual = at::empty({drive.size(0)}, drive.options())};
  params.next_offset = next.offset.mutable_data_ptr<float>();
  params.next_o = next.o.mutable_data_ptr<float>();
  params.log_sum = next.log_sum.mutable_data_ptr<float>();
  params.speed = next.speed.mutable_data_ptr<float>();
  params.residual = next.residual.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return as_result(next);
}

StatisticsResult contrastive_statistics_cuda(const at::Tensor& x, const at::Tensor& o, const at::Tensor& log_sum,
                                             const at::Tensor& scales, at::TensorList slot_list,
                                             const std::optional<at::Tensor>& filled, at::ArrayRef<double> numbers) {
  const GeometricSlots slots = slots_of(slot_list, filled);
  check_statistics(x, o, log_sum, scales, slots);
  const GeometricConstants constants = constants_of(numbers);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor from_x = x.contiguous(), from_o = o.contiguous(), sums = log_sum.contiguous();
  const at::Tensor factors = scales.contiguous(), keys = slots.keys.contiguous();
  const at::Tensor norms = slots.key_norms.contiguous(), resilience = slots.resilience.contiguous();
  const at::Tensor values = slots.values.contiguous();
  cuda::ContrastiveStatistics params{};
  params.rows = as_int(x.size(0));
  params.slots = as_int(keys.size(0));
  params.coords = as_int(x.size(1));
  params.width = as_int(o.size(1));
  params.gamma = static_cast<float>(constants.gamma);
  params.retrieval_beta = static_cast<float>(constants.retrieval_beta);
  params.cost_eps = static_cast<float>(constants.cost_eps);
  if (!cuda::use_kernel(x) || !cuda::fits(params)) {
    const ContrastiveStatistics plain = reference::contrastive_statistics(x, o, log_sum, scales, slots, constants);
    return {plain.values, plain.pulls, plain.pulled, plain.costs, plain.row_pulls};
  }
  params.parts = cuda::row_parts(params.rows, params.slots);
  const int64_t count = params.slots, columns = params.columns();
  const at::Tensor slot_parts = at::empty({params.parts, count, columns}, x.options());
  const at::Tensor row_parts = at::empty({params.slot_tiles(), params.rows}, x.options());
  const at::Tensor slot_sums = at::empty({count, columns}, x.options());
  const at::Tensor row_sums = at::empty({params.rows}, x.options());
  params.x = from_x.const_data_ptr<float>();
  params.o = from_o.const_data_ptr<float>();
  params.log_sum = sums.const_data_ptr<float>();
  params.scales = factors.const_data_ptr<float>();
  params.keys = keys.const_data_ptr<float>();
  params.key_norms = norms.const_data_ptr<float>();
  params.resilience = resilience.const_data_ptr<float>();
  params.values = values.const_data_ptr();
  params.filled = filled_of(slots);
  params.slot_parts = slot_parts.mutable_data_ptr<float>();
  params.row_parts = row_parts.mutable_data_ptr<float>();
  params.slot_sums = slot_sums.mutable_data_ptr<float>();
  params.row_sums = row_sums.mutable_data_ptr<float>();
  params.element = cuda::element_of(values);
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  // Views of one table would share its memory with each other, which the schema denies.
  const auto columns_of = [&](int64_t first, int64_t size) { return slot_sums.narrow(1, first, size).contiguous(); };
  return {columns_of(2 + params.coords, params.width), columns_of(1, 1).view({count}), columns_of(2, params.coords),
          columns_of(0, 1).view({count}), row_sums};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("geometric_relax", &geometric_relax_cuda);
  m.impl("contrastive_statistics", &contrastive_statistics_cuda);
}

}  // namespace hrm::ops
