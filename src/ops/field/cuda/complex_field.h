#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "hrm/ops/field_potential.h"

namespace hrm::ops::cuda {

// A field (nx, ny, inner) of complex float32 values. Contiguous; pointers of fields are aligned to 8 bytes.
struct ComplexFieldShape {
  int nx, ny;
  int64_t inner;
  bool periodic;
};

struct ComplexFieldVerlet {
  float* field;
  float* momentum;
  const float* equilibrium;  // or null without a potential
  const float* nudge;        // or null
  const float* skip;         // or null
  ComplexFieldShape shape;
  int64_t steps;
  float kick;     // dt / 2
  float drift;    // dt / m
  float laplace;  // hbar^2 / (2 m)
  float stiffness;
  FieldPotential potential;
};

struct ComplexFieldDissipative {
  float* field;
  int64_t* history;
  const float* source;  // or null
  const float* skip;    // or null
  ComplexFieldShape shape;
  int64_t steps;
  float turn;      // dt / hbar
  double laplace;  // hbar / (2 m)
  double memory_gain;
  int64_t history_capacity;
  float* magnitude_parts;  // (steps, magnitude_parts_of(shape)), or null
  float* magnitudes;       // (steps): mean of |T| before each step, or null
};

constexpr int kFieldEnergyThreads = 256;
constexpr int kFieldEnergyValues = 4;  // of a thread
constexpr int64_t kFieldEnergyBlock = int64_t{kFieldEnergyThreads} * kFieldEnergyValues;

struct ComplexFieldEnergies {
  const float* field;
  const float* momentum;
  const float* equilibrium;
  double* partial;   // (blocks, 3)
  double* energies;  // (3)
  ComplexFieldShape shape;
  int64_t blocks;                       // of kFieldEnergyBlock complex values
  double kinetic, stiffness, gradient;  // factors of the three sums
  FieldPotential potential;
};

// Whether the shared memory of the current device's blocks holds all cells of one inner component.
bool fits(const ComplexFieldShape& shape);

// How many parts of a sum over the field the second kernel writes in a step.
int64_t magnitude_parts_of(const ComplexFieldShape& shape);

// Start the kernels on the stream and return the error of the launch. The first two need a shape that fits. The second
// takes two launches: every block of the first one reads the history that the other one writes. Magnitudes take a
// third.
cudaError_t launch(const ComplexFieldVerlet& params, cudaStream_t stream);
cudaError_t launch(const ComplexFieldDissipative& params, cudaStream_t stream);
cudaError_t launch(const ComplexFieldEnergies& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
