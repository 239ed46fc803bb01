// With the unit vectors e_i, their mean m and q_i = |e_i - m|^2, 1 - cos_ij = |e_i - e_j|^2 / 2, so that
//   D = sum(q) / (n - 1),   r_i = (n q_i + sum(q)) / (2 (n - 1)),   D_-i = (n D - 2 r_i) / (n - 2):
// means of squared distances, which have no cancellation, where n^2 - |sum(e)|^2 has. An error of m enters sum(q)
// by its square alone. A vector with a clamped norm has a length below 1: with z_i = 1 - |e_i|^2 (else 0) there is
// (z_i + z_j) / 2 more in 1 - cos_ij.
//
// by_block has a block for each group. by_slices gives a group to many blocks of a cooperative launch, which meet
// twice: partial sums are written; a mean is made of them. Their vectors wait in shared memory meanwhile, if they fit.

#include "ops/diversity/cuda/diversity.h"

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kMostThreads = 512;
constexpr int kSmallGroup = 64;              // vectors that a block does alone
constexpr int kLeastSlice = 16;              // vectors of a slice, where there are as many
constexpr int kStaticShared = 1024;          // bytes, at least those of the kernels
constexpr int64_t kSharedOfAll = 47 * 1024;  // bytes of dynamic shared memory that no kernel has to ask for
constexpr int kMeetColumns = 2;              // columns of which a warp adds up the slices
constexpr float kLeastNorm = 1e-8f, kMostScale = 1 / kLeastNorm;

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ inline int warp_id() {
  return static_cast<int>(threadIdx.x) / 32;
}
__device__ inline int warp_count() {
  return static_cast<int>(blockDim.x) / 32;
}

__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// In every thread, always in the same order.
__device__ inline double block_sum(double value) {
  __shared__ double partial[kMostThreads / 32];
  value = warp_sum(value);
  if (lane_id() == 0) partial[warp_id()] = value;
  __syncthreads();
  double total = 0;
  for (int warp = 0; warp < warp_count(); ++warp) total += partial[warp];
  __syncthreads();
  return total;
}

__device__ inline int count_of(const DiversityParams& p, int64_t group) {
  int64_t count = p.vectors;
  if (p.counts != nullptr) {
    count = p.long_counts ? static_cast<const int64_t*>(p.counts)[group] : static_cast<const int*>(p.counts)[group];
  }
  return static_cast<int>(min(max(count, int64_t{0}), p.vectors));
}

// What a vector is multiplied with to have length 1; not a number where float32 does not hold its squares.
__device__ inline float scale_of(float squares) {
  return isinf(squares) ? NAN : 1 / fmaxf(sqrtf(squares), kLeastNorm);
}

// What a block has in dynamic shared memory. Sum: of columns.
template <typename T, typename Sum>
struct Shared {
  Sum* sums;  // (teams, dim)
  T* tile;    // (tile, dim)
  float* scales;

  static __host__ __device__ int64_t sum_bytes(int64_t teams, int64_t dim) {
    return (teams * dim * static_cast<int64_t>(sizeof(Sum)) + 15) / 16 * 16;
  }
  static __host__ __device__ int64_t tile_bytes(int64_t tile, int64_t dim) {
    return (tile * dim * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
  }
  __device__ Shared(char* memory, const DiversityPlan& plan, int64_t dim)
      : sums(reinterpret_cast<Sum*>(memory)),
        tile(reinterpret_cast<T*>(memory + sum_bytes(plan.teams, dim))),
        scales(reinterpret_cast<float*>(memory + sum_bytes(plan.teams, dim) + tile_bytes(plan.tile, dim))) {}
};

// N elements at a time: 16 bytes, or one. Each warp fetches the rows that it measures.
template <typename T, int N>
__device__ inline void fetch(T* tile, const T* from, int64_t pitch, int rows, int dim) {
  for (int row = warp_id(); row < rows; row += warp_count()) {
    for (int column = lane_id() * N; column < dim; column += 32 * N) {
      if constexpr (N > 1) {
        __pipeline_memcpy_async(tile + int64_t{row} * dim + column, from + row * pitch + column, 16);
      } else {
        tile[int64_t{row} * dim + column] = from[row * pitch + column];
      }
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
}

template <typename T, int N>
__device__ inline float squares_of(const T* row, int dim) {
  float sum = 0;
#pragma unroll 4
  for (int column = lane_id() * N; column < dim; column += 32 * N) {
    const Pack<T, N> pack = load_pack<T, N>(row + column);
#pragma unroll
    for (int k = 0; k < N; ++k) sum = fmaf(to_float(pack.value[k]), to_float(pack.value[k]), sum);
  }
  return hrm::ops::cuda::warp_sum(sum);
}

struct Added {
  double squares;  // of all elements of the unit vectors that this thread has seen; 0 with sums in float32
  double clamped;  // z of the vectors that this lane stands for
};

// Adds up vectors tile by tile. Their factors go to `scales`, and the sum of every column to give(column, sum), in the
// thread that has s.sums[column] for itself.
template <typename T, int N, typename Sum, class Give>
__device__ inline Added add_units(const Shared<T, Sum>& s, float* scales, const T* from, int64_t pitch, int rows,
                                  int dim, const DiversityPlan& plan, const Give& give) {
  Added added{};
  const int packs = dim / N;
  for (int first = 0; first == 0 || first < rows; first += plan.tile) {
    const int here = min(plan.tile, rows - first);
    __syncthreads();  // the tile before is done with
    fetch<T, N>(s.tile, from + first * pitch, pitch, here, dim);
    for (int row = warp_id(); row < here; row += warp_count()) {
      const float squares = squares_of<T, N>(s.tile + int64_t{row} * dim, dim);
      const float scale = scale_of(squares);
      if (lane_id() == 0) {
        scales[first + row] = scale;
        if (scale >= kMostScale) added.clamped += 1 - static_cast<double>(squares) * kMostScale * kMostScale;
      }
    }
    __syncthreads();
    for (int unit = static_cast<int>(threadIdx.x); unit < packs * plan.teams; unit += static_cast<int>(blockDim.x)) {
      const int team = unit / packs, column = (unit - team * packs) * N;
      Sum sum[N] = {};
#pragma unroll 4
      for (int row = team; row < here; row += plan.teams) {
        const float scale = scales[first + row];
        const Pack<T, N> pack = load_pack<T, N>(s.tile + int64_t{row} * dim + column);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const Sum e = to_float(pack.value[k]) * scale;
          sum[k] += e;
          if constexpr (sizeof(Sum) == sizeof(double)) added.squares = fma(e, e, added.squares);
        }
      }
      Sum* to = s.sums + int64_t{team} * dim + column;
#pragma unroll
      for (int k = 0; k < N; ++k) to[k] = first == 0 ? sum[k] : to[k] + sum[k];
    }
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < dim; column += static_cast<int>(blockDim.x)) {
    Sum sum = s.sums[column];
    for (int team = 1; team < plan.teams; ++team) sum += s.sums[int64_t{team} * dim + column];
    give(column, sum);
  }
  return added;
}

struct Distance {
  float squares;  // q_i
  float clamped;  // z_i
};

// Of a vector from the mean, in every lane.
template <typename T, int N>
__device__ inline Distance distance_of(const T* row, float scale, const float* mean, int dim) {
  constexpr int kMeans = N > 1 ? 4 : 1;
  float squares = 0, own = 0;
#pragma unroll 4
  for (int column = lane_id() * N; column < dim; column += 32 * N) {
    const Pack<T, N> pack = load_pack<T, N>(row + column);
#pragma unroll
    for (int k = 0; k < N; k += kMeans) {
      const Pack<float, kMeans> means = load_pack<float, kMeans>(mean + column + k);
#pragma unroll
      for (int j = 0; j < kMeans; ++j) {
        const float x = to_float(pack.value[k + j]);
        const float away = fmaf(x, scale, -means.value[j]), e = x * scale;
        squares = fmaf(away, away, squares);
        own = fmaf(e, e, own);
      }
    }
  }
  own = hrm::ops::cuda::warp_sum(own);
  return {hrm::ops::cuda::warp_sum(squares), scale >= kMostScale ? 1 - own : 0};
}

// A group's n, sum(q) and sum(z), and what follows. Rounding may bring a sum below zero; a NaN stays.
struct Group {
  double count, squares, clamped;

  static __device__ float positive(double value) { return value < 0 ? 0.0f : static_cast<float>(value); }
  __device__ double total() const { return squares / (count - 1) + clamped / count; }
  __device__ double row(const Distance& d) const {
    return (count * d.squares + squares + (count - 2) * d.clamped + clamped) / (2 * (count - 1));
  }
  __device__ void write(const DiversityParams& p, int64_t place, const Distance& d) const {
    const double score = row(d);
    p.rows[place] = positive(score);
    p.loo[place] = count > 2 ? positive((count * total() - 2 * score) / (count - 2)) : 0;
  }
};

extern __shared__ __align__(16) char dynamic_shared[];

template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads) by_block(DiversityParams p, DiversityPlan plan) {
  __shared__ float scales[kSmallGroup];
  __shared__ Distance distances[kSmallGroup];
  wait_for_earlier();
  const Shared<T, float> s(dynamic_shared, plan, p.dim);
  const int64_t group = blockIdx.x;
  const int dim = static_cast<int>(p.dim), vectors = static_cast<int>(p.vectors), count = count_of(p, group);
  const int used = count < 2 ? 0 : count;  // the others' results are zero
  for (int i = used + static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    p.rows[group * vectors + i] = 0;
    p.loo[group * vectors + i] = 0;
  }
  if (used == 0) {
    if (threadIdx.x == 0) p.totals[group] = 0;
    return;
  }
  const T* from = static_cast<const T*>(p.embeddings) + group * p.group_pitch;
  float* const mean = s.sums;
  add_units<T, N>(s, scales, from, p.row_pitch, count, dim, plan,
                  [&](int column, float sum) { mean[column] = sum / static_cast<float>(count); });
  __syncthreads();
  for (int row = warp_id(); row < count; row += warp_count()) {
    const T* vector = plan.kept ? s.tile + int64_t{row} * dim : from + row * p.row_pitch;
    const Distance distance = distance_of<T, N>(vector, scales[row], mean, dim);
    if (lane_id() == 0) distances[row] = distance;
  }
  __syncthreads();
  Group all{static_cast<double>(count), 0, 0};
  for (int i = lane_id(); i < count; i += 32) {
    all.squares += distances[i].squares;
    all.clamped += distances[i].clamped;
  }
  all.squares = warp_sum(all.squares);
  all.clamped = warp_sum(all.clamped);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    all.write(p, group * vectors + i, distances[i]);
  }
  if (threadIdx.x == 0) p.totals[group] = Group::positive(all.total());
}

// A block's part of a group.
struct Slice {
  int64_t group;
  int number, count, first, rows;  // count: valid vectors of the group

  __device__ Slice(const DiversityParams& p, const DiversityPlan& plan, int64_t unit)
      : group(unit / plan.slices), number(static_cast<int>(unit % plan.slices)), count(count_of(p, group)) {
    const int each = (count + plan.slices - 1) / plan.slices;
    first = min(number * each, count);
    rows = min(each, count - first);
  }
};

// Sums of float64 vectors of dim + 2: columns, squares of all elements, z. What every slice has, and then the groups'.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads, 1) by_slices(DiversityParams p, DiversityPlan plan, double* scratch) {
  const Shared<T, double> s(dynamic_shared, plan, p.dim);
  const auto grid = cooperative_groups::this_grid();
  const int dim = static_cast<int>(p.dim), width = dim + 2;
  const int64_t units = p.groups * plan.slices;
  double* const sums = scratch + units * width;
  const auto vectors_of = [&](const Slice& slice) {
    return static_cast<const T*>(p.embeddings) + slice.group * p.group_pitch + slice.first * p.row_pitch;
  };
  // Factors that shared memory does not hold stand where their vectors' scores will.
  const auto scales_of = [&](const Slice& slice) {
    return plan.kept ? s.scales : p.rows + slice.group * p.vectors + slice.first;
  };

  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Slice slice(p, plan, unit);
    double* const to = scratch + unit * width;
    const Added added = add_units<T, N>(s, scales_of(slice), vectors_of(slice), p.row_pitch, slice.rows, dim, plan,
                                        [&](int column, double sum) { to[column] = sum; });
    const double squares = block_sum(added.squares), clamped = block_sum(added.clamped);
    if (threadIdx.x == 0) {
      to[dim] = squares;
      to[dim + 1] = clamped;
    }
  }
  grid.sync();

  const int64_t chunks = (width + kMeetColumns - 1) / kMeetColumns;
  for (int64_t place = int64_t{warp_id()} * gridDim.x + blockIdx.x; place < p.groups * chunks;
       place += int64_t{warp_count()} * gridDim.x) {
    const int64_t group = place / chunks;
    const int column = static_cast<int>(place % chunks) * kMeetColumns + lane_id() % kMeetColumns;
    double sum = 0;
    if (column < width) {
      const double* from = scratch + group * plan.slices * width + column;
#pragma unroll 8
      for (int slice = lane_id() / kMeetColumns; slice < plan.slices; slice += 32 / kMeetColumns) {
        sum += from[int64_t{slice} * width];
      }
    }
#pragma unroll
    for (int offset = 16; offset >= kMeetColumns; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane_id() < kMeetColumns && column < width) sums[group * width + column] = sum;
  }
  grid.sync();

  float* const mean = reinterpret_cast<float*>(s.sums);
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const Slice slice(p, plan, unit);
    const double* from = sums + slice.group * width;
    const int used = slice.count < 2 ? 0 : slice.count;
    const auto results = slice.group * p.vectors;
    __syncthreads();  // the mean before is done with
    double length = 0;
    for (int column = static_cast<int>(threadIdx.x); column < dim; column += static_cast<int>(blockDim.x)) {
      const double sum = from[column];
      length = fma(sum, sum, length);
      mean[column] = static_cast<float>(sum / slice.count);
    }
    length = block_sum(length);
    // In float64 the difference is exact enough, for vectors of float32.
    const auto count = static_cast<double>(slice.count);
    const Group all{count, from[dim] - length / count, from[dim + 1]};
    if (used > 0) {
      const T* vectors = plan.kept ? s.tile : vectors_of(slice);
      const int64_t pitch = plan.kept ? dim : p.row_pitch;
      const float* scales = scales_of(slice);
      for (int row = warp_id(); row < slice.rows; row += warp_count()) {
        const Distance distance = distance_of<T, N>(vectors + row * pitch, scales[row], mean, dim);
        __syncwarp();  // all have read the factor where lane 0 writes the score
        if (lane_id() == 0) all.write(p, results + slice.first + row, distance);
      }
    }
    for (int64_t i = used + slice.number * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < p.vectors;
         i += static_cast<int64_t>(plan.slices) * blockDim.x) {
      p.rows[results + i] = 0;
      p.loo[results + i] = 0;
    }
    if (slice.number == 0 && threadIdx.x == 0) p.totals[slice.group] = used > 0 ? Group::positive(all.total()) : 0;
  }
}

template <class Run>
cudaError_t by_width(const DiversityParams& p, const Run& run) {
  return by_element(p.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    constexpr int N = 16 / sizeof(T);
    const bool wide = p.dim % N == 0 && p.row_pitch % N == 0 && p.group_pitch % N == 0 && aligned16(p.embeddings);
    return wide ? run(type, std::integral_constant<int, N>{}) : run(type, std::integral_constant<int, 1>{});
  });
}

// Elements of 16 bytes, as the launch finds them.
int64_t packs_of(const DiversityParams& p) {
  int64_t packs = 0;
  by_width(p, [&](auto, auto wide) {
    packs = p.dim / decltype(wide)::value;
    return cudaSuccess;
  });
  return packs;
}

}  // namespace

DiversityPlan plan(const DiversityParams& p, int processors, int64_t shared_limit) {
  DiversityPlan plan{};
  if (p.groups > INT32_MAX || p.vectors > INT32_MAX / 2 || p.dim > shared_limit) return plan;
  const bool small = p.vectors <= kSmallGroup;
  plan.threads = !small || p.vectors > 8 ? kMostThreads : p.vectors > 4 ? 256 : 128;
  int64_t blocks = p.groups, rows = p.vectors;
  if (!small) {
    const int64_t slices = std::min<int64_t>(processors / p.groups, (p.vectors + kLeastSlice - 1) / kLeastSlice);
    plan.slices = static_cast<int>(std::max<int64_t>(slices, 1));
    rows = (p.vectors + plan.slices - 1) / plan.slices;
    blocks = std::min<int64_t>(p.groups * plan.slices, processors);
  }
  plan.teams = static_cast<int>(std::clamp<int64_t>(plan.threads / packs_of(p), 1, rows));
  const int64_t row_bytes = p.dim * (p.element == Element::f32 ? 4 : 2);
  const int64_t sum_bytes =
      small ? Shared<float, float>::sum_bytes(plan.teams, p.dim) : Shared<float, double>::sum_bytes(plan.teams, p.dim);
  const int64_t room = shared_limit - kStaticShared - sum_bytes;
  const int64_t scale_bytes = small ? 0 : rows * static_cast<int64_t>(sizeof(float));
  plan.kept = rows * row_bytes + scale_bytes + 15 <= room && blocks == p.groups * std::max(plan.slices, 1);
  const int64_t tile = plan.kept ? rows : std::min<int64_t>(rows, (room - 15) / row_bytes);
  if (tile < 1) return plan;
  plan.tile = static_cast<int>(tile);
  plan.shared = sum_bytes + (tile * row_bytes + 15) / 16 * 16 + (plan.kept ? scale_bytes : 0);
  plan.blocks = static_cast<int>(blocks);
  return plan;
}

int64_t scratch_size(const DiversityParams& p, const DiversityPlan& plan) {
  return plan.slices == 0 ? 0 : p.groups * (plan.slices + 1) * (p.dim + 2);
}

cudaError_t launch(const DiversityParams& p, const DiversityPlan& plan, double* scratch, cudaStream_t stream) {
  return by_width(p, [&](auto type, auto wide) {
    using T = TypeIn<decltype(type)>;
    constexpr int N = decltype(wide)::value;
    const auto shared = static_cast<size_t>(plan.shared);
    const auto allow = [&](auto kernel) {
      if (plan.shared <= kSharedOfAll) return cudaSuccess;
      return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(plan.shared));
    };
    if (plan.slices == 0) {
      const cudaError_t error = allow(&by_block<T, N>);
      if (error != cudaSuccess) return error;
      return start_early(&by_block<T, N>, static_cast<unsigned>(plan.blocks), plan.threads, shared, stream, p, plan);
    }
    const cudaError_t error = allow(&by_slices<T, N>);
    if (error != cudaSuccess) return error;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
    config.blockDim = dim3(static_cast<unsigned>(plan.threads));
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, &by_slices<T, N>, p, plan, scratch);
  });
}

}  // namespace hrm::ops::cuda
