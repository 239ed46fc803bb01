#include "hrm/ops/geometric_relax.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/contrastive/geometric_relax_impl.h"

namespace hrm::ops {

GeometricState geometric_relax(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                               const GeometricSlots& slots, const at::Tensor& metric, const at::Tensor& rates,
                               const GeometricNudge& nudge, const GeometricHidden& hidden, int64_t steps,
                               const GeometricConstants& c, double momentum) {
  static const Op<RelaxResult(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList,
                              const std::optional<at::Tensor>&, const at::Tensor&, const at::Tensor&, at::TensorList,
                              at::TensorList, int64_t, at::ArrayRef<double>, double)>
      op("hrm::geometric_relax");
  std::vector<at::Tensor> nudges, hiddens;
  if (nudge.readout.defined()) nudges = {nudge.readout, nudge.bias, nudge.targets, nudge.signs};
  if (hidden.state.defined()) hiddens = {hidden.state, hidden.drive, hidden.up, hidden.down};
  const std::array constants{c.kappa, c.gamma, c.retrieval_beta, c.cost_eps};
  auto [next_offset, next_o, next_h, log_sum, speed, residual] =
      op(drive, offset, o, {slots.keys, slots.key_norms, slots.resilience, slots.values}, optional_tensor(slots.filled),
         metric, rates, nudges, hiddens, steps, constants, momentum);
  return {next_offset, next_o, hidden.state.defined() ? next_h : at::Tensor(), log_sum, speed, residual};
}

GeometricSlots slots_of(at::TensorList slots, const std::optional<at::Tensor>& filled) {
  TORCH_CHECK(slots.size() == 4, "hrm: slots are keys, key norms, resilience and values, got ", slots.size(),
              " tensors");
  return {slots[0], slots[1], slots[2], slots[3], filled.value_or(at::Tensor())};
}

GeometricConstants constants_of(at::ArrayRef<double> constants) {
  TORCH_CHECK(constants.size() == 4, "hrm: constants are kappa, gamma, retrieval_beta and cost_eps, got ",
              constants.size(), " numbers");
  return {constants[0], constants[1], constants[2], constants[3]};
}

RelaxArguments relax_arguments(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                               at::TensorList slots, const std::optional<at::Tensor>& filled, const at::Tensor& metric,
                               const at::Tensor& rates, at::TensorList nudge, at::TensorList hidden, int64_t steps,
                               at::ArrayRef<double> constants, double momentum) {
  RelaxArguments a{.drive = drive,
                   .offset = offset,
                   .o = o,
                   .slots = slots_of(slots, filled),
                   .metric = metric,
                   .rates = rates,
                   .nudge = {},
                   .hidden = {},
                   .steps = steps,
                   .constants = constants_of(constants),
                   .momentum = momentum};
  TORCH_CHECK(nudge.empty() || nudge.size() == 4,
              "hrm::geometric_relax: nudge must be readout, bias, targets and signs, got ", nudge.size(), " tensors");
  TORCH_CHECK(hidden.empty() || hidden.size() == 4,
              "hrm::geometric_relax: hidden must be state, drive, up and down, got ", hidden.size(), " tensors");
  if (!nudge.empty()) a.nudge = {nudge[0], nudge[1], nudge[2], nudge[3]};
  if (!hidden.empty()) a.hidden = {hidden[0], hidden[1], hidden[2], hidden[3]};
  check_relax(a);
  return a;
}

namespace {

void check_tensor(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef sizes,
                  at::ScalarType dtype, at::Device device) {
  TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == dtype && tensor.device() == device, "hrm::", op, ": ",
              name, " must be ", sizes, " ", dtype, " on ", device, ", got ", tensor.sizes(), " ", tensor.scalar_type(),
              " on ", tensor.device());
}

}  // namespace

void check_slots(const char* op, const at::Tensor& x, const at::Tensor& o, const GeometricSlots& slots) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK(x.dim() == 2 && o.dim() == 2 && slots.keys.dim() == 2 &&
                  (dtype == at::kFloat || (dtype == at::kDouble && x.device().is_cpu())),
              "hrm::", op,
              ": x or drive (R, m), o (R, d) and keys (S, m) must be matrices of float32, or of float64 on the CPU, ",
              "got ", x.sizes(), " ", dtype, ", ", o.sizes(), " and ", slots.keys.sizes(), " on ", x.device());
  const int64_t count = slots.keys.size(0);
  check_tensor(op, "o", o, {x.size(0), o.size(1)}, dtype, x.device());
  check_tensor(op, "keys", slots.keys, {count, x.size(1)}, dtype, x.device());
  check_tensor(op, "key_norms", slots.key_norms, {count}, dtype, x.device());
  check_tensor(op, "resilience", slots.resilience, {count}, dtype, x.device());
  check_tensor(op, "values", slots.values, {count, o.size(1)},
               slots.values.scalar_type() == at::kHalf ? at::kHalf : dtype, x.device());
  if (slots.filled.defined()) check_tensor(op, "filled", slots.filled, {}, at::kLong, x.device());
}

void check_relax(const RelaxArguments& a) {
  constexpr const char* kOp = "geometric_relax";
  check_slots(kOp, a.drive, a.o, a.slots);
  const int64_t rows = a.drive.size(0), width = a.drive.size(1);
  const at::ScalarType dtype = a.drive.scalar_type();
  const auto check = [&](const char* name, const at::Tensor& tensor, at::IntArrayRef sizes) {
    check_tensor(kOp, name, tensor, sizes, dtype, a.drive.device());
  };
  check("offset", a.offset, {rows, width});
  check("metric", a.metric, {width, width});
  check("rates", a.rates, {4});
  if (a.nudge.readout.defined()) {
    TORCH_CHECK(a.nudge.readout.dim() == 2, "hrm::geometric_relax: readout must be a matrix (C, d), got ",
                a.nudge.readout.sizes());
    const int64_t classes = a.nudge.readout.size(0);
    check("readout", a.nudge.readout, {classes, a.o.size(1)});
    check("bias", a.nudge.bias, {classes});
    check("signs", a.nudge.signs, {rows});
    check_tensor(kOp, "targets", a.nudge.targets, {rows}, at::kLong, a.drive.device());
  }
  if (a.hidden.state.defined()) {
    TORCH_CHECK(a.hidden.state.dim() == 2, "hrm::geometric_relax: the hidden state must be a matrix (R, H), got ",
                a.hidden.state.sizes());
    const int64_t units = a.hidden.state.size(1);
    check("hidden state", a.hidden.state, {rows, units});
    check("hidden drive", a.hidden.drive, {rows, units});
    check("up", a.hidden.up, {width, units});
    check("down", a.hidden.down, {units, width});
  }
  TORCH_CHECK(a.steps >= 0 && a.constants.cost_eps > 0, "hrm::geometric_relax: steps must be at least 0 and cost_eps ",
              "above 0, got ", a.steps, " and ", a.constants.cost_eps);
}

RelaxResult as_result(const GeometricState& state) {
  return {state.offset,  state.o,     state.h.defined() ? state.h : at::empty({0}, state.o.options()),
          state.log_sum, state.speed, state.residual};
}

namespace {

// A state of the caller's is never returned: an op's results are its own.
at::Tensor own(const at::Tensor& result, const at::Tensor& argument) {
  return result.is_same(argument) ? result.clone() : result;
}

RelaxResult geometric_relax_cpu(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                                at::TensorList slots, const std::optional<at::Tensor>& filled, const at::Tensor& metric,
                                const at::Tensor& rates, at::TensorList nudge, at::TensorList hidden, int64_t steps,
                                at::ArrayRef<double> constants, double momentum) {
  const RelaxArguments a =
      relax_arguments(drive, offset, o, slots, filled, metric, rates, nudge, hidden, steps, constants, momentum);
  GeometricState state = reference::geometric_relax(a.drive, a.offset, a.o, a.slots, a.metric, a.rates, a.nudge,
                                                    a.hidden, a.steps, a.constants, a.momentum);
  state.offset = own(state.offset, offset);
  state.o = own(state.o, o);
  if (state.h.defined()) state.h = own(state.h, a.hidden.state);
  if (state.residual.is_same(state.speed)) state.residual = state.speed.clone();
  return as_result(state);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "geometric_relax(Tensor drive, Tensor offset, Tensor o, Tensor[] slots, Tensor? filled, Tensor metric, Tensor "
      "rates, "
      "Tensor[] nudge, Tensor[] hidden, int steps, float[] constants, float momentum) -> (Tensor offset, Tensor o, "
      "Tensor "
      "h, Tensor log_sum, Tensor speed, Tensor residual)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("geometric_relax", &geometric_relax_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("geometric_relax", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
