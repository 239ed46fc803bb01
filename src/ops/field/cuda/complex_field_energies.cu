// Three sums in two stages: a block adds its values, one block adds the blocks. The order never changes.
#include "ops/cuda/common.cuh"
#include "ops/field/cuda/complex_field.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = kFieldEnergyThreads;

struct Sums {
  double kinetic = 0, potential = 0, gradient = 0;
};

__device__ inline void add(Sums& sum, const Sums& more) {
  sum.kinetic += more.kinetic;
  sum.potential += more.potential;
  sum.gradient += more.gradient;
}

// In thread 0.
__device__ inline Sums add_block(const Sums& sum) {
  __shared__ Sums shared[kThreads];
  shared[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) add(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  return shared[0];
}

__device__ inline double squared(double re, double im) {
  return re * re + im * im;
}

__device__ inline double squared_distance(float2 a, float2 b) {
  return squared(double{a.x} - double{b.x}, double{a.y} - double{b.y});
}

// |T(x + 1) - T(x)|^2 along one axis, for the value at `place`. The edge cells of a field that is zero outside add the
// pair with that zero.
__device__ inline double pairs(const float2* field, bool periodic, int64_t place, int64_t at, int64_t count,
                               int64_t stride) {
  const float2 value = field[place], zero{0, 0};
  if (at < count - 1) {
    const double pair = squared_distance(field[place + stride], value);
    return !periodic && at == 0 ? pair + squared_distance(value, zero) : pair;
  }
  if (periodic) return squared_distance(field[place - (count - 1) * stride], value);
  const double edge = squared_distance(value, zero);
  return count == 1 ? 2 * edge : edge;
}

__device__ inline Sums energies_of(const ComplexFieldEnergies& p, int64_t place) {
  const auto* field = reinterpret_cast<const float2*>(p.field);
  const float2 momentum = reinterpret_cast<const float2*>(p.momentum)[place];
  const int64_t cell = place / p.shape.inner, x = cell / p.shape.ny, y = cell % p.shape.ny;
  Sums sum;
  sum.kinetic = squared(momentum.x, momentum.y);
  if (p.potential != FieldPotential::zero) {
    const double d = squared_distance(field[place], reinterpret_cast<const float2*>(p.equilibrium)[place]);
    sum.potential = p.potential == FieldPotential::gaussian_well ? -expm1(-0.5 * d) : 0.5 * d;
  }
  sum.gradient = pairs(field, p.shape.periodic, place, x, p.shape.nx, p.shape.ny * p.shape.inner) +
                 pairs(field, p.shape.periodic, place, y, p.shape.ny, p.shape.inner);
  return sum;
}

__global__ void __launch_bounds__(kThreads) complex_field_energies(ComplexFieldEnergies p) {
  const int64_t total = int64_t{p.shape.nx} * p.shape.ny * p.shape.inner;
  Sums sum;
  for (int i = 0; i < kFieldEnergyValues; ++i) {
    const int64_t place = blockIdx.x * kFieldEnergyBlock + i * kThreads + threadIdx.x;
    if (place < total) add(sum, energies_of(p, place));
  }
  sum = add_block(sum);
  if (threadIdx.x != 0) return;
  double* const to = p.partial + 3 * int64_t{blockIdx.x};
  to[0] = sum.kinetic;
  to[1] = sum.potential;
  to[2] = sum.gradient;
}

__global__ void __launch_bounds__(kThreads) complex_field_energies_finish(ComplexFieldEnergies p) {
  Sums sum;
  for (int64_t block = threadIdx.x; block < p.blocks; block += kThreads) {
    const double* const from = p.partial + 3 * block;
    add(sum, {from[0], from[1], from[2]});
  }
  sum = add_block(sum);
  if (threadIdx.x != 0) return;
  p.energies[0] = sum.kinetic * p.kinetic;
  p.energies[1] = sum.potential * p.stiffness;
  p.energies[2] = sum.gradient * p.gradient;
}

}  // namespace

cudaError_t launch(const ComplexFieldEnergies& params, cudaStream_t stream) {
  if (params.blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (params.blocks > 0) {
    complex_field_energies<<<static_cast<unsigned>(params.blocks), kThreads, 0, stream>>>(params);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  complex_field_energies_finish<<<1, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
