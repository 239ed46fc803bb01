// One block. The planes of a layer have no axis in common, so all its rotations run at once, one (plane, column) or
// (plane, row) at a time in a thread, and the block meets after each layer.

#include "ops/geometry/cuda/rotor.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostPairs = kMostRotorAxes / 2;

struct SharedRotor {
  float matrix[kMostRotorAxes][kMostRotorAxes + 1];  // one more column: walks along columns meet no bank twice
  float cos[kMostPairs], sin[kMostPairs];
};

struct Plane {
  int a, b;
};

__device__ inline Plane plane_of(int layer, int pair, int axes) {
  const int a = (2 * pair + layer) % axes;
  return {a, a + 1 == axes ? 0 : a + 1};
}

// The angles of a layer; those that the last one lacks are 0. The caller puts a barrier behind it.
__device__ inline void load_angles(SharedRotor& shared, const float* theta, int layer, int pairs, int angles) {
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
    const int index = layer * pairs + pair;
    float sin = 0, cos = 1;
    if (index < angles) sincosf(theta[index], &sin, &cos);
    shared.cos[pair] = cos;
    shared.sin[pair] = sin;
  }
}

__device__ inline void rotate(float& first, float& second, float cos, float sin) {
  const float a = first, b = second;
  first = cos * a - sin * b;
  second = sin * a + cos * b;
}

__global__ void __launch_bounds__(kThreads) rotor_matrix(RotorMatrix p) {
  __shared__ SharedRotor shared;
  const int n = p.axes, pairs = n / 2, layers = p.angles == 0 ? 0 : (p.angles + pairs - 1) / pairs;
  for (int i = static_cast<int>(threadIdx.x); i < n * n; i += kThreads) shared.matrix[i / n][i % n] = i / n == i % n;
  for (int layer = 0; layer < layers; ++layer) {
    load_angles(shared, p.theta, layer, pairs, p.angles);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < pairs * n; i += kThreads) {
      const int pair = i / n, column = i % n;
      const Plane plane = plane_of(layer, pair, n);
      rotate(shared.matrix[plane.a][column], shared.matrix[plane.b][column], shared.cos[pair], shared.sin[pair]);
    }
    __syncthreads();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n * n; i += kThreads) p.q[i] = shared.matrix[i / n][i % n];
}

__global__ void __launch_bounds__(kThreads) rotor_angle_gradient(RotorAngleGradient p) {
  __shared__ SharedRotor shared;
  const int n = p.axes, pairs = n / 2, layers = (p.angles + pairs - 1) / pairs;
  for (int i = static_cast<int>(threadIdx.x); i < n * n; i += kThreads) shared.matrix[i / n][i % n] = p.outer[i];
  for (int layer = layers - 1; layer >= 0; --layer) {
    load_angles(shared, p.theta, layer, pairs, p.angles);
    __syncthreads();
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
      const Plane plane = plane_of(layer, pair, n);
      const int index = layer * pairs + pair;
      if (index < p.angles) p.gradient[index] = shared.matrix[plane.b][plane.a] - shared.matrix[plane.a][plane.b];
    }
    if (layer == 0) return;
    __syncthreads();
    // By the transposed layer from both sides: rows, then columns.
    for (int i = static_cast<int>(threadIdx.x); i < pairs * n; i += kThreads) {
      const int pair = i / n, column = i % n;
      const Plane plane = plane_of(layer, pair, n);
      rotate(shared.matrix[plane.a][column], shared.matrix[plane.b][column], shared.cos[pair], -shared.sin[pair]);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < pairs * n; i += kThreads) {
      const int pair = i / n, row = i % n;
      const Plane plane = plane_of(layer, pair, n);
      rotate(shared.matrix[row][plane.a], shared.matrix[row][plane.b], shared.cos[pair], -shared.sin[pair]);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch(const RotorMatrix& params, cudaStream_t stream) {
  rotor_matrix<<<1, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch(const RotorAngleGradient& params, cudaStream_t stream) {
  rotor_angle_gradient<<<1, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
