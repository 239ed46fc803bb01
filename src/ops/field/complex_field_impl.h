#pragma once
// What the files of the complex field share: signatures, input checks, the CPU loops and the plain ATen reference.

#include "hrm/ops/complex_field.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// The ops' signatures, in the order of their schemas.
using FieldVerletSignature = void(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                  const OptionalTensor& nudge, const OptionalTensor& skip, int64_t steps, double dt,
                                  double mass, double hbar, double stiffness, int64_t potential, bool periodic);
using FieldDissipativeSignature = void(const at::Tensor& field, const at::Tensor& history, const OptionalTensor& source,
                                       const OptionalTensor& previous, const OptionalTensor& evidence,
                                       const OptionalTensor& skip, int64_t steps, double dt, double mass, double hbar,
                                       double memory_gain, double collapse_rate, double evidence_width,
                                       int64_t history_capacity, bool periodic, const OptionalTensor& magnitudes);
using FieldEnergiesSignature = at::Tensor(const at::Tensor& field, const at::Tensor& momentum,
                                          const at::Tensor& equilibrium, double mass, double hbar, double stiffness,
                                          int64_t potential, bool periodic);

// The tensors of a call.
struct FieldVerletCall {
  const at::Tensor& field;
  const at::Tensor& momentum;
  const at::Tensor& equilibrium;
  const OptionalTensor& nudge;
  const OptionalTensor& skip;
  int64_t steps;
  FieldVerlet settings;
};

struct FieldDissipativeCall {
  const at::Tensor& field;
  const at::Tensor& history;
  const OptionalTensor& source;
  const OptionalTensor& previous;
  const OptionalTensor& evidence;
  const OptionalTensor& skip;
  int64_t steps;
  FieldDissipative settings;
  const OptionalTensor& magnitudes;
};

struct FieldEnergiesCall {
  const at::Tensor& field;
  const at::Tensor& momentum;
  const at::Tensor& equilibrium;
  FieldVerlet settings;
};

// Throw c10::Error with the op's name and the shapes.
void check_field_verlet(const FieldVerletCall& call);
void check_field_dissipative(const FieldDissipativeCall& call);
void check_field_energies(const FieldEnergiesCall& call);

// Kernels of those signatures from functions of a call, which they check.
template <void (*run)(const FieldVerletCall&)>
void field_verlet_kernel(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                         const OptionalTensor& nudge, const OptionalTensor& skip, int64_t steps, double dt, double mass,
                         double hbar, double stiffness, int64_t potential, bool periodic) {
  const FieldVerletCall call{field,
                             momentum,
                             equilibrium,
                             nudge,
                             skip,
                             steps,
                             {dt, mass, hbar, stiffness, static_cast<FieldPotential>(potential), periodic}};
  check_field_verlet(call);
  run(call);
}

template <void (*run)(const FieldDissipativeCall&)>
void field_dissipative_kernel(const at::Tensor& field, const at::Tensor& history, const OptionalTensor& source,
                              const OptionalTensor& previous, const OptionalTensor& evidence,
                              const OptionalTensor& skip, int64_t steps, double dt, double mass, double hbar,
                              double memory_gain, double collapse_rate, double evidence_width, int64_t history_capacity,
                              bool periodic, const OptionalTensor& magnitudes) {
  const FieldDissipativeCall call{
      field,     history,
      source,    previous,
      evidence,  skip,
      steps,     {dt, mass, hbar, memory_gain, collapse_rate, evidence_width, history_capacity, periodic},
      magnitudes};
  check_field_dissipative(call);
  run(call);
}

template <at::Tensor (*run)(const FieldEnergiesCall&)>
at::Tensor field_energies_kernel(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                 double mass, double hbar, double stiffness, int64_t potential, bool periodic) {
  const FieldEnergiesCall call{field,
                               momentum,
                               equilibrium,
                               {.mass = mass,
                                .hbar = hbar,
                                .stiffness = stiffness,
                                .potential = static_cast<FieldPotential>(potential),
                                .periodic = periodic}};
  check_field_energies(call);
  return run(call);
}

namespace cpu {

// float32, several threads; the dissipative steps without `previous`.
void complex_field_verlet_(const FieldVerletCall& call);
void complex_field_dissipative_(const FieldDissipativeCall& call);

}  // namespace cpu

namespace reference {

// Any device, without host synchronisation on a GPU.
void complex_field_verlet_(const FieldVerletCall& call);
void complex_field_dissipative_(const FieldDissipativeCall& call);
at::Tensor complex_field_energies(const FieldEnergiesCall& call);
// Mean of |T|, 0-dim.
at::Tensor mean_magnitude(const at::Tensor& field);

}  // namespace reference
}  // namespace hrm::ops
