#include "hrm/ops/complex_field.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cmath>
#include <string>

#include "hrm/ops/backend.h"
#include "ops/common/op.h"
#include "ops/field/complex_field_impl.h"

namespace hrm::ops {
namespace {

void check_field(const std::string& op, const at::Tensor& field) {
  TORCH_CHECK(field.dim() >= 3 && field.size(-1) == 2 && field.size(0) >= 1 && field.size(1) >= 1, op,
              ": field must have the shape [Nx, Ny, ..., 2] with at least one cell, got ", field.sizes());
  TORCH_CHECK((field.scalar_type() == at::kFloat || field.scalar_type() == at::kDouble) && field.is_contiguous(), op,
              ": field must be contiguous float32 or float64, got ", field.scalar_type(), " of shape ", field.sizes(),
              " with strides ", field.strides());
}

void check_like_field(const std::string& op, const char* name, const at::Tensor& tensor, const at::Tensor& field) {
  TORCH_CHECK(tensor.sizes() == field.sizes() && tensor.scalar_type() == field.scalar_type() &&
                  tensor.device() == field.device() && tensor.is_contiguous(),
              op, ": ", name, " must be contiguous, with the shape, dtype and device of field, ", field.sizes(), " ",
              field.scalar_type(), " on ", field.device(), ", got ", tensor.sizes(), " ", tensor.scalar_type(), " on ",
              tensor.device(), " with strides ", tensor.strides());
}

void check_apart(const std::string& op, const char* name, const at::Tensor& tensor, const char* written_name,
                 const at::Tensor& written) {
  TORCH_CHECK(at::get_overlap_status(tensor, written) == at::MemOverlapStatus::No, op, ": ", name, " of shape ",
              tensor.sizes(), " overlaps ", written_name, " of shape ", written.sizes(), ", which is written");
}

void check_field_scalar(const std::string& op, const char* name, const at::Tensor& tensor, at::ScalarType type,
                        at::Device device) {
  TORCH_CHECK(tensor.dim() == 0 && tensor.scalar_type() == type && tensor.device() == device, op, ": ", name,
              " must be a 0-dim ", type, " tensor on ", device, ", got shape ", tensor.sizes(), ", ",
              tensor.scalar_type(), " on ", tensor.device());
}

void check_units(const std::string& op, double dt, double mass, double hbar) {
  TORCH_CHECK(std::isfinite(dt) && std::isfinite(hbar) && std::isfinite(mass) && mass > 0, op,
              ": dt and hbar must be finite and mass positive, got ", dt, ", ", hbar, " and ", mass);
}

void check_potential(const std::string& op, const FieldVerlet& settings) {
  const auto potential = static_cast<int64_t>(settings.potential);
  TORCH_CHECK(potential >= 0 && potential < kFieldPotentials, op,
              ": potential must be 0 (zero), 1 (harmonic) or 2 (gaussian_well), got ", potential);
  TORCH_CHECK(std::isfinite(settings.stiffness) && settings.stiffness >= 0, op,
              ": stiffness must be finite and not negative, got ", settings.stiffness);
}

void check_steps(const std::string& op, int64_t steps) {
  TORCH_CHECK(steps >= 0, op, ": steps must not be negative, got ", steps);
}

}  // namespace

void check_field_verlet(const FieldVerletCall& call) {
  const std::string op = "hrm::complex_field_verlet_";
  check_field(op, call.field);
  check_like_field(op, "momentum", call.momentum, call.field);
  check_like_field(op, "equilibrium", call.equilibrium, call.field);
  if (call.nudge) check_like_field(op, "nudge", *call.nudge, call.field);
  if (call.skip) check_field_scalar(op, "skip", *call.skip, at::kFloat, call.field.device());
  check_steps(op, call.steps);
  check_units(op, call.settings.dt, call.settings.mass, call.settings.hbar);
  check_potential(op, call.settings);
  if (call.field.numel() == 0) return;
  check_apart(op, "momentum", call.momentum, "field", call.field);
  for (const auto& [name, written] : {std::pair("field", &call.field), std::pair("momentum", &call.momentum)}) {
    check_apart(op, "equilibrium", call.equilibrium, name, *written);
    if (call.nudge) check_apart(op, "nudge", *call.nudge, name, *written);
  }
}

void check_field_dissipative(const FieldDissipativeCall& call) {
  const std::string op = "hrm::complex_field_dissipative_";
  const FieldDissipative& s = call.settings;
  check_field(op, call.field);
  check_field_scalar(op, "history", call.history, at::kLong, call.field.device());
  TORCH_CHECK(call.previous.has_value() == call.evidence.has_value(), op,
              ": previous and evidence must come together, got ", call.previous ? "previous" : "evidence",
              " without the other");
  TORCH_CHECK(!call.previous || call.steps <= 1, op, ": with previous, steps must be at most 1, got ", call.steps);
  if (call.skip) check_field_scalar(op, "skip", *call.skip, at::kFloat, call.field.device());
  check_steps(op, call.steps);
  check_units(op, s.dt, s.mass, s.hbar);
  TORCH_CHECK(s.hbar != 0, op, ": hbar must not be 0");
  TORCH_CHECK(
      std::isfinite(s.memory_gain) && std::isfinite(s.collapse_rate) && s.evidence_width > 0 && s.history_capacity >= 0,
      op, ": memory_gain and collapse_rate must be finite, evidence_width positive, history_capacity not ",
      "negative, got ", s.memory_gain, ", ", s.collapse_rate, ", ", s.evidence_width, " and ", s.history_capacity);
  const auto check_other = [&](const char* name, const OptionalTensor& tensor) {
    if (!tensor) return;
    check_like_field(op, name, *tensor, call.field);
    if (call.field.numel() > 0) check_apart(op, name, *tensor, "field", call.field);
  };
  check_other("source", call.source);
  check_other("previous", call.previous);
  check_other("evidence", call.evidence);
  if (!call.magnitudes) return;
  TORCH_CHECK(!call.skip && call.magnitudes->dim() == 1 && call.magnitudes->size(0) == call.steps &&
                  call.magnitudes->scalar_type() == call.field.scalar_type() &&
                  call.magnitudes->device() == call.field.device() && call.magnitudes->is_contiguous() &&
                  call.field.numel() > 0,
              op, ": magnitudes must be contiguous, (", call.steps, ") ", call.field.scalar_type(), " on ",
              call.field.device(), ", of a field with values and without skip, got ", call.magnitudes->sizes(), " ",
              call.magnitudes->scalar_type(), " on ", call.magnitudes->device(), call.skip ? " and a skip" : "");
}

void check_field_energies(const FieldEnergiesCall& call) {
  const std::string op = "hrm::complex_field_energies";
  check_field(op, call.field);
  check_like_field(op, "momentum", call.momentum, call.field);
  check_like_field(op, "equilibrium", call.equilibrium, call.field);
  check_units(op, 0, call.settings.mass, call.settings.hbar);
  check_potential(op, call.settings);
}

void complex_field_verlet_(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                           const OptionalTensor& nudge, const OptionalTensor& skip, int64_t steps,
                           const FieldVerlet& settings) {
  static const Op<FieldVerletSignature> op("hrm::complex_field_verlet_");
  op(field, momentum, equilibrium, nudge, skip, steps, settings.dt, settings.mass, settings.hbar, settings.stiffness,
     static_cast<int64_t>(settings.potential), settings.periodic);
}

void complex_field_dissipative_(const at::Tensor& field, const at::Tensor& history, const OptionalTensor& source,
                                const OptionalTensor& previous, const OptionalTensor& evidence,
                                const OptionalTensor& skip, int64_t steps, const FieldDissipative& settings,
                                const OptionalTensor& magnitudes) {
  static const Op<FieldDissipativeSignature> op("hrm::complex_field_dissipative_");
  op(field, history, source, previous, evidence, skip, steps, settings.dt, settings.mass, settings.hbar,
     settings.memory_gain, settings.collapse_rate, settings.evidence_width, settings.history_capacity,
     settings.periodic, magnitudes);
}

at::Tensor complex_field_energies(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                  const FieldVerlet& settings) {
  static const Op<FieldEnergiesSignature> op("hrm::complex_field_energies");
  return op(field, momentum, equilibrium, settings.mass, settings.hbar, settings.stiffness,
            static_cast<int64_t>(settings.potential), settings.periodic);
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "complex_field_verlet_(Tensor(a!) field, Tensor(b!) momentum, Tensor equilibrium, Tensor? nudge, Tensor? skip, "
      "int steps, float dt, float mass, float hbar, float stiffness, int potential, bool periodic) -> ()");
  m.def(
      "complex_field_dissipative_(Tensor(a!) field, Tensor(b!) history, Tensor? source, Tensor? previous, Tensor? "
      "evidence, Tensor? skip, int steps, float dt, float mass, float hbar, float memory_gain, float collapse_rate, "
      "float evidence_width, int history_capacity, bool periodic, Tensor(c!)? magnitudes=None) -> ()");
  m.def(
      "complex_field_energies(Tensor field, Tensor momentum, Tensor equilibrium, float mass, float hbar, float "
      "stiffness, int potential, bool periodic) -> Tensor");
}

namespace {

bool has_loop(const at::Tensor& field) {
  return backend() == Backend::fused && field.scalar_type() == at::kFloat;
}

void verlet_cpu(const FieldVerletCall& call) {
  if (!has_loop(call.field)) return reference::complex_field_verlet_(call);
  cpu::complex_field_verlet_(call);
}

void dissipative_cpu(const FieldDissipativeCall& call) {
  if (!has_loop(call.field) || call.previous) return reference::complex_field_dissipative_(call);
  if (!call.magnitudes) return cpu::complex_field_dissipative_(call);
  FieldDissipativeCall step{call.field, call.history, call.source,   call.previous, call.evidence,
                            call.skip,  /*steps=*/1,  call.settings, std::nullopt};
  for (int64_t i = 0; i < call.steps; ++i) {
    call.magnitudes->select(0, i).copy_(reference::mean_magnitude(call.field));
    cpu::complex_field_dissipative_(step);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("complex_field_verlet_", &field_verlet_kernel<verlet_cpu>);
  m.impl("complex_field_dissipative_", &field_dissipative_kernel<dissipative_cpu>);
  m.impl("complex_field_energies", &field_energies_kernel<reference::complex_field_energies>);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("complex_field_verlet_", torch::autograd::autogradNotImplementedFallback());
  m.impl("complex_field_dissipative_", torch::autograd::autogradNotImplementedFallback());
  m.impl("complex_field_energies", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
