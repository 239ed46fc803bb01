#pragma once
// The potentials that hold a complex field at its equilibrium. No torch headers, because kernels include this file too.

namespace hrm::ops {

// V of one complex value, with d = T - T_eq and |d|^2 = re^2 + im^2. k is the stiffness. The harmonic potential and the
// well have the same curvature at d = 0.
// - zero:          V(d) = 0
// - harmonic:      V(d) = k/2 |d|^2,                force -k d
// - gaussian_well: V(d) = k (1 - exp(-|d|^2 / 2)),  force -k d exp(-|d|^2 / 2); 0 <= V < k, width 1
enum class FieldPotential { zero, harmonic, gaussian_well };
constexpr int kFieldPotentials = 3;

}  // namespace hrm::ops
