// retrieve_parts: a block mixes a part of the candidates for one row (its own sequence) or for a tile of rows (the
// bank) and a tile of columns. Scores of 32 candidates at a time, one warp for a row, go into shared memory as weights;
// then each thread adds up its columns. The softmax is online: a larger score rescales what is there. merge_parts: the
// parts of a row in one fixed order.

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/geometry/cuda/geometric_retrieval.h"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 4;  // neighbouring columns of a thread
constexpr int kTile = 32;    // candidates whose weights are in shared memory
constexpr int kAhead = 8;    // candidates whose states are loaded together

struct SharedRetrieval {
  float query[kRetrievalRows][kMostRetrievalAxes];
  float metric[kMostRetrievalAxes];
  float weight[kRetrievalRows][kTile];
  float scale[kRetrievalRows];
};

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// Candidates begin to end for rows first_row and on.
template <typename T>
struct Part {
  const float* coords;
  const T* states;
  const bool* mask;  // or null
  int64_t begin, end;
  int64_t first_row;
  int index;
};

// Four columns at once where kPacked, else those that exist, one at a time.
template <bool kPacked, typename T>
__device__ inline void load_columns(const T* state, int64_t column, int64_t width, float (&value)[kColumns]) {
  if constexpr (kPacked) {
    const Pack<T, kColumns> pack = load_pack<T, kColumns>(state + column);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) value[c] = to_float(pack.value[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) value[c] = column + c < width ? to_float(state[column + c]) : 0.0F;
  }
}

template <int kRows, bool kPacked, typename T>
__device__ void mix_part(const GeometricRetrieval& p, const Part<T>& part, SharedRetrieval& shared) {
  constexpr int kRowsOfWarp = (kRows + kWarps - 1) / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int axes = static_cast<int>(p.axes);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * axes; i += kThreads) {
    const int64_t row = part.first_row + i / axes;
    shared.query[i / axes][i % axes] = row < p.rows ? p.query[row * p.axes + i % axes] : 0.0F;
  }
  for (int i = static_cast<int>(threadIdx.x); i < axes; i += kThreads) shared.metric[i] = p.metric[i];
  // Of the rows warp, warp + kWarps, ...: the same in all lanes.
  float factor[kRowsOfWarp], largest[kRowsOfWarp], total[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int64_t row = part.first_row + warp + i * kWarps;
    factor[i] = row < p.rows ? -p.beta * p.resilience[row * p.resilience_stride] : 0.0F;
    largest[i] = -INFINITY;
    total[i] = 0;
  }
  float sum[kRows][kColumns] = {};
  const int64_t column = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kColumns;
  for (int64_t start = part.begin; start < part.end; start += kTile) {
    __syncthreads();  // the queries are there, and the weights of the tile before are used up
    const int64_t candidate = start + lane;
    const bool valid = candidate < part.end && (part.mask == nullptr || part.mask[candidate]);
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int row = warp + i * kWarps;
      if (row >= kRows) break;
      float score = -INFINITY;
      if (valid) {
        const float* coord = part.coords + candidate * p.axes;
        float distance = 0;
        for (int axis = 0; axis < axes; ++axis) {
          const float delta = coord[axis] - shared.query[row][axis];
          distance += shared.metric[axis] * delta * delta;
        }
        score = factor[i] * sqrtf(fmaxf(distance, 0.0F) + p.eps);
        // fmaxf would hide it, and the row would look like one that is near.
        if (isnan(distance)) score = NAN;
      }
      const float before = largest[i];
      largest[i] = fmaxf(before, warp_max(score));
      const float weight = score == -INFINITY ? 0.0F : expf(score - largest[i]);
      const float scale = before == -INFINITY ? 1.0F : expf(before - largest[i]);
      total[i] = total[i] * scale + warp_sum(weight);
      shared.weight[row][lane] = weight;
      if (lane == 0) shared.scale[row] = scale;
    }
    __syncthreads();
    if (column >= p.width) continue;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[row][c] *= shared.scale[row];
    }
    // The loads of several candidates at once: a block has few threads to hide their latency.
    for (int64_t k = 0; k < kTile && start + k < part.end; k += kAhead) {
      float value[kAhead][kColumns];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        // Behind the end stands the last one once more, with weight 0.
        const int64_t index = min(start + k + j, part.end - 1);
        load_columns<kPacked>(part.states + index * p.width, column, p.width, value[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          const float weight = shared.weight[row][k + j];
          // What is masked may be NaN. Only a row's own sequence has a mask.
          const bool hidden = kRows == 1 && weight == 0;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) sum[row][c] += hidden ? 0.0F : weight * value[j][c];
        }
      }
    }
  }
  const int64_t parts = p.own_parts + p.bank_parts;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (part.first_row + row >= p.rows || part.begin >= part.end) break;
    float* mix = p.mixes + ((part.first_row + row) * parts + part.index) * p.width;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column + c < p.width) mix[column + c] = sum[row][c];
    }
  }
  if (blockIdx.y != 0 || lane != 0) return;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int row = warp + i * kWarps;
    if (row >= kRows || part.first_row + row >= p.rows) break;
    const int64_t at = (part.first_row + row) * parts + part.index;
    p.largest[at] = largest[i];
    p.totals[at] = total[i];
  }
}

template <bool kPacked, typename T>
__global__ void __launch_bounds__(kThreads) retrieve_parts(GeometricRetrieval p) {
  __shared__ SharedRetrieval shared;
  const int64_t own_blocks = p.rows * p.own_parts;
  int64_t block = blockIdx.x;
  Part<T> part{};
  if (block < own_blocks) {
    const int64_t row = block / p.own_parts;
    part.coords = p.coords + row * p.own * p.axes;
    part.states = static_cast<const T*>(p.states) + row * p.own * p.width;
    part.mask = p.mask == nullptr ? nullptr : p.mask + row * p.own;
    part.index = static_cast<int>(block % p.own_parts);
    part.first_row = row;
    part.begin = part.index * p.own_part;
    part.end = min(part.begin + p.own_part, p.own);
    mix_part<1, kPacked>(p, part, shared);
    return;
  }
  block -= own_blocks;
  const int index = static_cast<int>(block % p.bank_parts);
  part.coords = p.bank_coords;
  part.states = static_cast<const T*>(p.bank_states);
  part.index = p.own_parts + index;
  part.first_row = block / p.bank_parts * kRetrievalRows;
  part.begin = index * p.bank_part;
  part.end = min(part.begin + p.bank_part, min(*p.filled, p.slots));
  mix_part<kRetrievalRows, kPacked>(p, part, shared);
}

__global__ void __launch_bounds__(kThreads) merge_parts(GeometricRetrieval p) {
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= p.width) return;
  const int parts = p.own_parts + p.bank_parts;
  const float* largest = p.largest + row * parts;
  const float* totals = p.totals + row * parts;
  float most = -INFINITY;
  for (int part = 0; part < parts; ++part) most = fmaxf(most, largest[part]);
  float total = 0, sum = 0;
  for (int part = 0; part < parts; ++part) {
    if (totals[part] == 0) continue;  // no candidates
    const float scale = expf(largest[part] - most);
    total += totals[part] * scale;
    sum += p.mixes[(row * parts + part) * p.width + column] * scale;
  }
  p.y[row * p.width + column] = total == 0 ? 0.0F : sum / total;
}

template <typename T>
cudaError_t start(const GeometricRetrieval& p, cudaStream_t stream) {
  const int64_t tiles = (p.rows + kRetrievalRows - 1) / kRetrievalRows;
  const int64_t blocks = p.rows * p.own_parts + tiles * p.bank_parts;
  const int64_t column_tiles = (p.width + retrieval_columns() - 1) / retrieval_columns();
  const int64_t merge_tiles = (p.width + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX || merge_tiles > UINT16_MAX) return cudaErrorInvalidConfiguration;
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (kColumns * sizeof(T)) == 0;
  };
  const bool packed = p.width % kColumns == 0 && aligned(p.states) && aligned(p.bank_states);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(column_tiles));
  if (packed) {
    retrieve_parts<true, T><<<grid, kThreads, 0, stream>>>(p);
  } else {
    retrieve_parts<false, T><<<grid, kThreads, 0, stream>>>(p);
  }
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const dim3 merge_grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(merge_tiles));
  merge_parts<<<merge_grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

int64_t retrieval_columns() {
  return int64_t{kThreads} * kColumns;
}

cudaError_t launch(const GeometricRetrieval& params, cudaStream_t stream) {
  return by_element(params.element, [&](auto type) { return start<TypeIn<decltype(type)>>(params, stream); });
}

}  // namespace hrm::ops::cuda
