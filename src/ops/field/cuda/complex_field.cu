// All steps in one launch. The Laplacian couples cells, never inner components: a block holds all cells of a group of
// components in shared memory, and no block needs another.
//
// Roundings are explicit (__fmaf_rn and the like). Otherwise the compiler could contract the steps of a long call
// differently from those of a short one.
#include "ops/field/cuda/complex_field.h"

#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

// Values of a block where cells are few. 8 x 8 cells of 256 components make 128 blocks.
constexpr int kGroupValues = 128;

// Of one value, in shared memory: places of its four neighbours. Those outside are the place behind all values, which
// holds zero.
struct Neighbours {
  int west, east, south, north;
};

// The values of a block in shared memory, for two steps: one is read while the other is written, so a step has one
// barrier. The order is that of global memory: cells, then the components of the group.
struct Tile {
  float2* now;
  float2* next;
  int64_t first;  // component
  int components;
  int values;  // cells times components

  __device__ Tile(const ComplexFieldShape& shape, int group, float2* shared) {
    first = int64_t{blockIdx.x} * group;
    const int64_t left = shape.inner - first;
    components = left < group ? static_cast<int>(left) : group;
    values = shape.nx * shape.ny * components;
    now = shared;
    next = shared + values + 1;
    if (threadIdx.x == 0) now[values] = next[values] = make_float2(0, 0);
  }

  __device__ int64_t place_in_field(const ComplexFieldShape& shape, int value) const {
    return (value / components) * shape.inner + first + value % components;
  }

  __device__ Neighbours neighbours(const ComplexFieldShape& shape, int value) const {
    const int cell = value / components, x = cell / shape.ny, y = cell % shape.ny;
    const int row = shape.ny * components;
    const auto before = [&](int at, int count, int stride) {
      return at > 0 ? value - stride : shape.periodic ? value + (count - 1) * stride : values;
    };
    const auto behind = [&](int at, int count, int stride) {
      return at < count - 1 ? value + stride : shape.periodic ? value - (count - 1) * stride : values;
    };
    return {before(x, shape.nx, row), behind(x, shape.nx, row), before(y, shape.ny, components),
            behind(y, shape.ny, components)};
  }

  // Behind it, all threads see what they wrote to `next`; it is `now`.
  __device__ void turn() {
    __syncthreads();
    float2* const written = next;
    next = now;
    now = written;
  }
};

__device__ inline float laplacian(float value, float west, float east, float south, float north) {
  return __fmaf_rn(-4.0f, value, __fadd_rn(__fadd_rn(west, east), __fadd_rn(south, north)));
}

__device__ inline float2 laplacian(const float2* now, const Neighbours& n, float2 value) {
  const float2 west = now[n.west], east = now[n.east], south = now[n.south], north = now[n.north];
  return {laplacian(value.x, west.x, east.x, south.x, north.x), laplacian(value.y, west.y, east.y, south.y, north.y)};
}

// sum + factor * value.
__device__ inline float2 add_scaled(float2 sum, float factor, float2 value) {
  return {__fmaf_rn(factor, value.x, sum.x), __fmaf_rn(factor, value.y, sum.y)};
}

__device__ inline float2 load(const float* from, int64_t place) {
  return from == nullptr ? make_float2(0, 0) : reinterpret_cast<const float2*>(from)[place];
}

__device__ inline bool skips(const float* skip) {
  return skip != nullptr && *skip != 0;
}

__device__ inline float2 force(const ComplexFieldVerlet& p, float2 laplace, float2 value, float2 rest, float2 nudge) {
  float2 sum = add_scaled(nudge, p.laplace, laplace);
  if (p.potential == FieldPotential::zero) return sum;
  const float2 d{__fsub_rn(value.x, rest.x), __fsub_rn(value.y, rest.y)};
  float pull = p.stiffness;
  if (p.potential == FieldPotential::gaussian_well) {
    pull = __fmul_rn(pull, expf(__fmul_rn(-0.5f, __fmaf_rn(d.x, d.x, __fmul_rn(d.y, d.y)))));
  }
  return add_scaled(sum, -pull, d);
}

// The i-th value of this thread.
__device__ inline int own_value(int i) {
  return static_cast<int>(threadIdx.x + i * blockDim.x);
}

// A thread has up to kValues values.
template <int kValues, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) verlet(ComplexFieldVerlet p, int group) {
  extern __shared__ float2 shared[];
  if (skips(p.skip)) return;
  Tile tile(p.shape, group, shared);
  Neighbours neighbours[kValues];
  float2 value[kValues], momentum[kValues], rest[kValues], nudge[kValues], now[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int v = own_value(i);
    if (v >= tile.values) continue;
    const int64_t place = tile.place_in_field(p.shape, v);
    neighbours[i] = tile.neighbours(p.shape, v);
    value[i] = load(p.field, place);
    momentum[i] = load(p.momentum, place);
    rest[i] = load(p.equilibrium, place);
    nudge[i] = load(p.nudge, place);
    tile.next[v] = value[i];
  }
  tile.turn();
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (own_value(i) >= tile.values) continue;
    now[i] = force(p, laplacian(tile.now, neighbours[i], value[i]), value[i], rest[i], nudge[i]);
  }
  for (int64_t step = 0; step < p.steps; ++step) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int v = own_value(i);
      if (v >= tile.values) continue;
      momentum[i] = add_scaled(momentum[i], p.kick, now[i]);
      value[i] = add_scaled(value[i], p.drift, momentum[i]);
      tile.next[v] = value[i];
    }
    tile.turn();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (own_value(i) >= tile.values) continue;
      now[i] = force(p, laplacian(tile.now, neighbours[i], value[i]), value[i], rest[i], nudge[i]);
      momentum[i] = add_scaled(momentum[i], p.kick, now[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int v = own_value(i);
    if (v >= tile.values) continue;
    const int64_t place = tile.place_in_field(p.shape, v);
    reinterpret_cast<float2*>(p.field)[place] = value[i];
    reinterpret_cast<float2*>(p.momentum)[place] = momentum[i];
  }
}

// The factor of the Laplacian for a history of this length.
__device__ inline float diffusion(const ComplexFieldDissipative& p, int64_t length) {
  const double weight = fmin(fmax(log1p(static_cast<double>(length)) * p.memory_gain, 0.0), 1.0);
  return static_cast<float>((1 - weight) * p.laplace);
}

template <int kValues, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) dissipative(ComplexFieldDissipative p, int group) {
  extern __shared__ float2 shared[];
  if (skips(p.skip)) return;
  Tile tile(p.shape, group, shared);
  Neighbours neighbours[kValues];
  float2 value[kValues], source[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int v = own_value(i);
    if (v >= tile.values) continue;
    const int64_t place = tile.place_in_field(p.shape, v);
    neighbours[i] = tile.neighbours(p.shape, v);
    value[i] = load(p.field, place);
    source[i] = load(p.source, place);
    tile.next[v] = value[i];
  }
  int64_t length = *p.history;
  float factor = diffusion(p, length);
  for (int64_t step = 0; step < p.steps; ++step) {
    if (p.magnitude_parts != nullptr) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (own_value(i) < tile.values)
          sum += sqrtf(__fmaf_rn(value[i].x, value[i].x, __fmul_rn(value[i].y, value[i].y)));
      }
      sum = warp_sum(sum);
      const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
      if (threadIdx.x % 32 == 0) p.magnitude_parts[(step * gridDim.x + blockIdx.x) * warps + warp] = sum;
    }
    tile.turn();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int v = own_value(i);
      if (v >= tile.values) continue;
      const float2 rate = add_scaled(source[i], factor, laplacian(tile.now, neighbours[i], value[i]));
      // Divided by i: (re, im) becomes (im, -re).
      value[i] = add_scaled(value[i], p.turn, make_float2(rate.y, -rate.x));
      tile.next[v] = value[i];
    }
    if (length < p.history_capacity) factor = diffusion(p, ++length);
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int v = own_value(i);
    if (v < tile.values) reinterpret_cast<float2*>(p.field)[tile.place_in_field(p.shape, v)] = value[i];
  }
}

__global__ void complex_field_count(int64_t* history, const float* skip, int64_t steps, int64_t capacity) {
  if (skips(skip)) return;
  const int64_t length = *history;
  if (length < capacity) *history = steps < capacity - length ? length + steps : capacity;
}

constexpr int kSumWarps = 8;

// A block sums a step's parts.
__global__ void __launch_bounds__(kSumWarps * 32)
    complex_field_magnitudes(const float* parts, float* magnitudes, int64_t count, float values) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += parts[blockIdx.x * count + i];
  sum = block_sum<kSumWarps>(sum);
  if (threadIdx.x == 0) magnitudes[blockIdx.x] = sum / values;
}

// Of `components` components of all cells, for two steps, each with the zero outside.
int64_t tile_bytes(int64_t cells, int64_t components) {
  return 2 * (cells * components + 1) * static_cast<int64_t>(sizeof(float2));
}

constexpr int64_t kPlainShared = 48 * 1024;  // bytes; above, a kernel must ask

template <class Params>
cudaError_t start(void (*kernel)(Params, int), const Params& params, int group, int threads, cudaStream_t stream) {
  const int64_t cells = int64_t{params.shape.nx} * params.shape.ny, bytes = tile_bytes(cells, group);
  const int64_t blocks = (params.shape.inner + group - 1) / group;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (bytes > kPlainShared) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(bytes), stream>>>(params, group);
  return cudaGetLastError();
}

// How many components a block takes, and how many threads.
struct Split {
  int group;
  int64_t values;
};

Split split(const ComplexFieldShape& shape) {
  const int64_t cells = int64_t{shape.nx} * shape.ny;
  int64_t group = cells < kGroupValues ? kGroupValues / cells : 1;
  if (group > shape.inner) group = shape.inner;
  return {static_cast<int>(group), cells * group};
}

// Threads of a block with this many values: up to 1024 have a thread each, up to 2048 stay in registers. Of more, the
// compiler keeps a part in local memory.
int threads_for(int64_t values) {
  if (values <= 1024) return static_cast<int>(values + 31) / 32 * 32;
  return values <= 2048 ? 512 : 1024;
}

}  // namespace

int64_t magnitude_parts_of(const ComplexFieldShape& shape) {
  const Split parts = split(shape);
  return (shape.inner + parts.group - 1) / parts.group * (threads_for(parts.values) / 32);
}

bool fits(const ComplexFieldShape& shape) {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return false;
  // The first bound keeps the product small; the last kernel below has 16 values a thread.
  return shape.nx <= 16384 && shape.ny <= 16384 && int64_t{shape.nx} * shape.ny <= 16384 &&
         tile_bytes(int64_t{shape.nx} * shape.ny, 1) <= bytes;
}

cudaError_t launch(const ComplexFieldVerlet& params, cudaStream_t stream) {
  const Split parts = split(params.shape);
  const int threads = threads_for(parts.values);
  if (parts.values <= 1024) return start(verlet<1, 1024>, params, parts.group, threads, stream);
  if (parts.values <= 2048) return start(verlet<4, 512>, params, parts.group, threads, stream);
  return start(verlet<16, 1024>, params, parts.group, threads, stream);
}

cudaError_t launch(const ComplexFieldDissipative& params, cudaStream_t stream) {
  const Split parts = split(params.shape);
  cudaError_t error;
  const int threads = threads_for(parts.values);
  if (parts.values <= 1024) {
    error = start(dissipative<1, 1024>, params, parts.group, threads, stream);
  } else if (parts.values <= 2048) {
    error = start(dissipative<4, 512>, params, parts.group, threads, stream);
  } else {
    error = start(dissipative<16, 1024>, params, parts.group, threads, stream);
  }
  if (error != cudaSuccess) return error;
  if (params.magnitudes != nullptr && params.steps > 0) {
    const int64_t values = int64_t{params.shape.nx} * params.shape.ny * params.shape.inner;
    complex_field_magnitudes<<<static_cast<unsigned>(params.steps), kSumWarps * 32, 0, stream>>>(
        params.magnitude_parts, params.magnitudes, magnitude_parts_of(params.shape), static_cast<float>(values));
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  complex_field_count<<<1, 1, 0, stream>>>(params.history, params.skip, params.steps, params.history_capacity);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
