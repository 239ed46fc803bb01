#pragma once
// The complex field of the contrastive trainer: its steps and its energies.
//
// A field T is a real tensor [Nx, Ny, ..., 2]. The first two axes are space. The last axis holds (re, im). Any number
// of inner axes lies between. Fields are contiguous, float32 or (for tests) float64.
//
// Lap is the five-point Laplacian over the first two axes, with unit spacing. If `periodic`, opposite edges are
// neighbours. Otherwise the field is zero outside.
//
// All ops run on the current stream. They do not synchronise with the host and can be captured in a CUDA graph. They
// are deterministic and not differentiable. They throw c10::Error that names the op and what does not fit.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "hrm/ops/field_potential.h"

namespace hrm::ops {

// Lap T, in plain ATen on any device. Differentiable.
at::Tensor complex_field_laplacian(const at::Tensor& field, bool periodic);

struct FieldVerlet {
  double dt = 0.005;  // any sign: a negative one runs backwards
  double mass = 1;    // > 0
  double hbar = 0.1;
  double stiffness = 0.01;  // k >= 0
  FieldPotential potential = FieldPotential::harmonic;
  bool periodic = true;
};

// `steps` steps of velocity Verlet, in place:
//
//   F = hbar^2 / (2 m) Lap T - dV/dT + nudge
//   P += dt/2 F(T);  T += dt P / m;  P += dt/2 F(T)
//
// V is the potential around the equilibrium T_eq (hrm/ops/field_potential.h). The nudge is a constant force.
//
// field (T), momentum (P), equilibrium (T_eq) and nudge have one shape, dtype and device. field and momentum must not
// overlap each other or an input. skip: 0-dim float32 on that device. A non-zero or NaN skip leaves field and momentum
// unchanged. steps >= 0. A call of n steps has the same bits as n calls of one step.
//
// On a GPU, float32 takes one launch for all steps. A block holds all Nx Ny cells of a few inner components in shared
// memory, 16 bytes per complex value. An H100 has room for 14,000 cells. Larger fields, float64 and
// ops.backend=reference run the plain ATen formulas. On a CPU, float32 is one parallel loop.
//
// Source: Swope et al. 1982, doi:10.1063/1.442716. The scheme is symplectic. Without nudge, the sum of the energies
// below stays near its start value. The condition is |dt| < 2 / sqrt((4 hbar^2 / m + k) / m).
void complex_field_verlet_(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                           const std::optional<at::Tensor>& nudge, const std::optional<at::Tensor>& skip, int64_t steps,
                           const FieldVerlet& settings);

struct FieldDissipative {
  double dt = 0.005;
  double mass = 1;             // > 0
  double hbar = 0.1;           // not 0
  double memory_gain = 0.025;  // how fast a long history slows the field
  double collapse_rate = 0.3;
  double evidence_width = 0.5;    // > 0; of squared distance
  int64_t history_capacity = 20;  // >= 0
  bool periodic = true;
};

// `steps` explicit Euler steps of Schroedinger's equation with memory, in place:
//
//   w = clamp(memory_gain ln(1 + history), 0, 1)
//   T += dt / (i hbar) ((1 - w) hbar / (2 m) Lap T + Lambda + J)
//   history += 1 while it is below history_capacity
//
// J is the source; without one it is zero. Lambda is zero without `previous`. Otherwise, for each complex value of
// T' = previous and E = evidence, with the sum over all values:
//
//   Lambda = collapse_rate (B - T'),  B = b T' / sum(b |T'|^2),  b = exp(-|T' - E|^2 / evidence_width)
//
// The explicit step is not unitary: the norm of T grows slowly.
//
// field (T), source, previous and evidence have one shape, dtype and device. field must not overlap an input. previous
// and evidence come together. With them, steps is at most 1. history: 0-dim int64 on that device, the number of past
// states, not negative. skip: as above; it also leaves the history unchanged. steps >= 0. A call of n steps has the
// same bits as n calls of one step.
//
// magnitudes (steps), dtype and device of field, gets the mean of |T| before each step. It cannot come with a skip.
//
// On a GPU, float32 without `previous` takes one launch for all steps and one or two small ones that count and sum. The
// limits are those of complex_field_verlet_. All else runs the plain ATen formulas.
void complex_field_dissipative_(const at::Tensor& field, const at::Tensor& history,
                                const std::optional<at::Tensor>& source, const std::optional<at::Tensor>& previous,
                                const std::optional<at::Tensor>& evidence, const std::optional<at::Tensor>& skip,
                                int64_t steps, const FieldDissipative& settings,
                                const std::optional<at::Tensor>& magnitudes = std::nullopt);

// Returns the energies of a field, (3) float64:
//
//   kinetic    KE = sum |P|^2 / (2 m)
//   potential  PE = sum V(T - T_eq)
//   gradient   GE = hbar^2 / (4 m) sum over both axes of |T(x + 1) - T(x)|^2
//
// If `periodic`, GE includes the pair across the edge. Otherwise it includes the pairs with the zeros at both ends. In
// both cases -dGE/dT is the force hbar^2 / (2 m) Lap T. Verlet without nudge conserves KE + PE + GE.
//
// field, momentum and equilibrium are as above. settings.dt is not read. Sums are float64, in a fixed order. On a GPU,
// float32 takes two launches, and float64 runs the plain ATen formulas.
at::Tensor complex_field_energies(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                  const FieldVerlet& settings);

}  // namespace hrm::ops
