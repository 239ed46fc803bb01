// All relaxation steps of a phase in one kernel.
//
// A cluster of blocks owns some tiles of 16 rows and shares the slots: each block keeps its part of them in shared
// memory for all steps, and the state of all rows. In a step a warp takes one tile of rows through its part of the
// block's slots. The warps of a block add up what they found, and each block gets the sums of its own rows from all
// others, moves them, and hands the new state out.
#include "ops/contrastive/cuda/geometric_relax.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <map>
#include <mutex>

#include "ops/contrastive/cuda/relax_division.cuh"
#include "ops/contrastive/cuda/relax_tiles.cuh"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kMostClasses = 1024, kMostSlots = 1 << 20;

// What several parts of the slots (or classes) add to a row, which lie `stride` numbers apart: their common maximum,
// and the factors that bring them to it.
struct Parts {
  __device__ Parts(const float* first, int count, int stride) : first(first), count(count), stride(stride) {
    float4 heads[kMostParts];
#pragma unroll
    for (int i = 0; i < kMostParts; ++i) {
      if (i < count)
        heads[i] = *reinterpret_cast<const float4*>(first + i * stride);
      else
        heads[i] = make_float4(kLeast, 0, 0, 0);
      most = fmaxf(most, heads[i].x);
    }
#pragma unroll
    for (int i = 0; i < kMostParts; ++i) {
      factor[i] = power_of_2(heads[i].x - most);
      sum = fmaf(factor[i], heads[i].y, sum);
      pulls = fmaf(factor[i], heads[i].z, pulls);
    }
  }

  // The sums of four columns, counted from the parts' first.
  __device__ float4 columns(int at) const {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kMostParts; ++i) {
      if (i >= count) break;
      const float4 four = *reinterpret_cast<const float4*>(first + i * stride + at);
      total.x = fmaf(factor[i], four.x, total.x);
      total.y = fmaf(factor[i], four.y, total.y);
      total.z = fmaf(factor[i], four.z, total.z);
      total.w = fmaf(factor[i], four.w, total.w);
    }
    return total;
  }

  const float* first;
  int count, stride;
  float factor[kMostParts], most = kLeast, sum = 0, pulls = 0;
};

// Where a lane writes what its warp adds to two rows: in the blocks that own them, or first in its own block.
template <int N, int D, int kColumns>
struct PartOfRows {
  __device__ PartOfRows(const Shared<N, D>& shared, const Division& division, int row, int slot_warp) {
    const int own = division.own_rows();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + 8 * r;
      to[r] = division.slot_warps > 1 ? shared.of_warps + (at * division.slot_warps + slot_warp) * kColumns
                                      : in_block_of_cluster(shared.of_blocks, at / own) +
                                            (at % own * division.cluster + rank_in_cluster()) * kColumns;
    }
  }
  float* to[2];
};

// Adds up what the warps of the block found and sends it to the owners of the rows.
template <int N, int D, int kColumns>
__device__ void send_sums(const Shared<N, D>& shared, const Division& division) {
  using C = Columns<N, D>;
  constexpr int kFours = kColumns / 4;
  const int own = division.own_rows(), count = division.rows() * kFours;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const int row = i / kFours, column = i % kFours * 4, head = column >= C::kReadout ? C::kReadout : C::kHead;
    const Parts parts(shared.of_warps + row * division.slot_warps * kColumns + head, division.slot_warps, kColumns);
    const float4 sums =
        column == head ? make_float4(parts.most, parts.sum, parts.pulls, 0) : parts.columns(column - head);
    float* const to = in_block_of_cluster(shared.of_blocks, row / own) +
                      (row % own * division.cluster + rank_in_cluster()) * kColumns + column;
    *reinterpret_cast<float4*>(to) = sums;
  }
}

// Sum over the neighbouring lanes that hold the x of a row, four numbers each.
template <int N>
__device__ inline float sum_of_x(float value) {
#pragma unroll
  for (int offset = N / 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

__device__ inline float4 sum_of(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ inline float square_sum(const float4& v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

__device__ inline float largest_of(const float4& v) {
  if (isnan(v.x + v.y + v.z + v.w)) return __int_as_float(0x7fffffff);  // fmaxf leaves it out
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Four neighbouring numbers of an own row, `at` of W, into all blocks. By pairs of neighbouring lanes: one writes the
// high parts of their eight numbers, the other what those leave out.
template <int W>
__device__ inline void hand_out(__half* rows, const Division& division, int own_row, int at, bool real,
                                const float4& value) {
  const Split first(value.x, value.y), second(value.z, value.w);
  const bool odd = at / 4 % 2 != 0;
  const uint2 mine = odd ? make_uint2(first.low, second.low) : make_uint2(first.high, second.high);
  const uint2 give = odd ? make_uint2(first.high, second.high) : make_uint2(first.low, second.low);
  const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1));
  if (!real) return;
  const uint4 eight = odd ? make_uint4(got.x, got.y, mine.x, mine.y) : make_uint4(mine.x, mine.y, got.x, got.y);
  const int row = rank_in_cluster() * division.own_rows() + own_row;
  __half* const to = rows + row * SplitRows<W>::kStride + (odd ? W : 0) + at / 8 * 8;
  for (int block = 0; block < division.cluster; ++block) {
    *reinterpret_cast<uint4*>(in_block_of_cluster(to, block)) = eight;
  }
}

// The same of x, with its square; N / 4 neighbouring lanes have a row.
template <int N, int D>
__device__ inline void hand_out_x(const Shared<N, D>& shared, const Division& division, int own_row, int at, bool real,
                                  const float4& value) {
  const float square = sum_of_x<N>(square_sum(value));
  hand_out<N>(shared.charts, division, own_row, at, real, value);
  if (!real || at != 0) return;
  float* const to = shared.squares + rank_in_cluster() * division.own_rows() + own_row;
  for (int block = 0; block < division.cluster; ++block) *in_block_of_cluster(to, block) = square;
}

// What a step does to the block's own rows.
template <int N, int D, bool kNudged>
struct RowMover {
  using C = Columns<N, D>;
  static constexpr int kColumns = kNudged ? C::kNudged : C::kFree;

  const GeometricRelax& p;
  const Shared<N, D>& shared;
  const Division& division;
  float rate_x, rate_o, beta;
  int first_own;

  __device__ const float* sums_of(int row) const { return shared.of_blocks + row * division.cluster * kColumns; }

  // Numbers above zero are ordered as their bits, and a maximum does not depend on the order of its terms.
  __device__ void keep_residual(int row, const float4& move) const {
    atomicMax(shared.residual + row, __float_as_int(largest_of(move)));
  }

  // Moves x = drive + offset by four numbers of a row; N / 4 neighbouring lanes have a row. By whole warps.
  __device__ void move_x(int item, bool last) const {
    constexpr int kLanes = N / 4;
    const bool real = item < division.own_rows() * kLanes;
    const int row = real ? item / kLanes : 0, at = item % kLanes * 4;
    const Parts slots(sums_of(row), division.cluster, kColumns);
    const float inverse = slots.sum > 0 ? 1 / slots.sum : 0, pulls = slots.pulls * inverse;
    float4* const state = reinterpret_cast<float4*>(shared.state + row * (N + D) + at);
    const float4 drive = *reinterpret_cast<const float4*>(shared.drive + row * N + at);
    float4 offset = *state;
    const float4 x = sum_of(drive, offset), total = slots.columns(C::kPull + at);
    const float pull[4] = {total.x * inverse - pulls * x.x, total.y * inverse - pulls * x.y,
                           total.z * inverse - pulls * x.z, total.w * inverse - pulls * x.w};
    const int lane = static_cast<int>(threadIdx.x) % 32, first = lane - lane % kLanes;
    float4 force = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float one = __shfl_sync(0xffffffffu, pull[i % 4], first + i / 4);
      const float4 metric = *reinterpret_cast<const float4*>(shared.metric + i * N + at);
      force.x = fmaf(one, metric.x, force.x);
      force.y = fmaf(one, metric.y, force.y);
      force.z = fmaf(one, metric.z, force.z);
      force.w = fmaf(one, metric.w, force.w);
    }
    const float4 move = make_float4(rate_x * (force.x - p.kappa * offset.x), rate_x * (force.y - p.kappa * offset.y),
                                    rate_x * (force.z - p.kappa * offset.z), rate_x * (force.w - p.kappa * offset.w));
    offset = sum_of(offset, move);
    const float square = sum_of_x<N>(square_sum(move));
    if (real) {
      *state = offset;
      if (at == 0) shared.speed[row] += sqrtf(square + p.cost_eps);
      if (last) keep_residual(row, move);
    }
    hand_out_x<N, D>(shared, division, row, at, real, sum_of(drive, offset));
  }

  // Moves four numbers of o of a row. By whole warps.
  __device__ void move_o(int item, bool last) const {
    constexpr int kLanes = D / 4;
    const bool real = item < division.own_rows() * kLanes;
    const int row = real ? item / kLanes : 0, at = item % kLanes * 4;
    const Parts slots(sums_of(row), division.cluster, kColumns);
    const float inverse = slots.sum > 0 ? 1 / slots.sum : 0;
    float4* const state = reinterpret_cast<float4*>(shared.state + row * (N + D) + N + at);
    float4 value = *state;
    const float4 total = slots.columns(C::kMix + at);
    float4 force = make_float4(p.gamma * (total.x * inverse - value.x), p.gamma * (total.y * inverse - value.y),
                               p.gamma * (total.z * inverse - value.z), p.gamma * (total.w * inverse - value.w));
    if constexpr (kNudged) {
      const Parts classes(sums_of(row) + C::kReadout, division.cluster, kColumns);
      const float4 mean = classes.columns(C::kReadoutMix - C::kReadout + at);
      const float4 target = *reinterpret_cast<const float4*>(shared.target + row * D + at);
      const float scale = 1 / classes.sum, nudge = shared.sign[row] * beta;
      force = make_float4(force.x - nudge * (mean.x * scale - target.x), force.y - nudge * (mean.y * scale - target.y),
                          force.z - nudge * (mean.z * scale - target.z), force.w - nudge * (mean.w * scale - target.w));
    }
    const float4 move = make_float4(rate_o * force.x, rate_o * force.y, rate_o * force.z, rate_o * force.w);
    value = sum_of(value, move);
    if (real) {
      *state = value;
      if (last) keep_residual(row, move);
    }
    hand_out<D>(shared.outputs, division, row, at, real, value);
  }

  // All own rows: o by some warps, x by others.
  __device__ void move(bool last) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warps = division.warps(), own = division.own_rows();
    const int of_o = (own * (D / 4) + 31) / 32, of_x = (own * (N / 4) + 31) / 32;
    for (int chunk = static_cast<int>(threadIdx.x) / 32; chunk < of_o + of_x; chunk += warps) {
      if (chunk < of_o) {
        move_o(chunk * 32 + lane, last);
      } else {
        move_x((chunk - of_o) * 32 + lane, last);
      }
    }
  }

  // What the caller gets of each row beside its state.
  __device__ void write_sums() const {
    const int row = static_cast<int>(threadIdx.x), to = first_own + row;
    if (row >= division.own_rows() || to >= p.rows) return;
    const Parts slots(sums_of(row), division.cluster, kColumns);
    p.log_sum[to] = slots.sum == 0 ? kLeast : (slots.most + log2f(slots.sum)) * kLn2;
    p.speed[to] = shared.speed[row];
    p.residual[to] = __int_as_float(shared.residual[row]);
  }
};

template <int N, int D, bool kNudged>
__global__ void __launch_bounds__(most_warps(kNudged) * 32) geometric_relax(GeometricRelax p, Division division) {
  extern __shared__ __align__(16) char memory[];
  using S = Shared<N, D>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x);
  const S shared(memory, division, kNudged);
  const int rank = rank_in_cluster(), cluster = static_cast<int>(blockIdx.x) / division.cluster;
  const int own = division.own_rows(), first_own = cluster * division.rows() + rank * own;

  // The block's part of the slots that are filled.
  const int filled =
      p.filled == nullptr ? p.slots : static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(p.slots), *p.filled)));
  const int slot_warps = division.slot_warps, grain = kTile * slot_warps;
  const int share = (filled + division.cluster * grain - 1) / (division.cluster * grain) * grain;
  const int first_slot = rank * share, mine = max(0, min(share, filled - first_slot));
  for (int i = thread; i < share * N; i += threads) {
    const int slot = i / N, at = i % N;
    const float key =
        slot < mine && at < p.coords ? p.keys[static_cast<int64_t>(first_slot + slot) * p.coords + at] : 0;
    const __half high = __float2half_rn(key);
    shared.keys[slot * S::kKeyStride + at] = high;
    shared.keys[slot * S::kKeyStride + N + at] = __float2half_rn(key - __half2float(high));
  }
  const auto* const values = static_cast<const __half*>(p.values);
  for (int i = thread; i < share * D; i += threads) {
    const int slot = i / D, at = i % D;
    shared.values[slot * S::kValueStride + at] =
        slot < mine && at < p.width ? values[static_cast<int64_t>(first_slot + slot) * p.width + at] : __half(0.0f);
  }
  for (int i = thread; i < share; i += threads) {
    // Far and stiff where there is no slot: its weight is zero.
    shared.key_norms[i] = i < mine ? p.key_norms[first_slot + i] + p.cost_eps : 1e30f;
    shared.resilience[i] = i < mine ? p.resilience[first_slot + i] : 1e30f;
  }
  const auto* const readout = static_cast<const __half*>(p.readout);
  // Every parts-th tile of classes is a warp's.
  for (int i = thread; i < division.classes * D; i += threads) {
    const int row = i / D, at = i % D, tile = row / kTile;
    const int of_all = (tile / slot_warps * division.parts() + rank * slot_warps + tile % slot_warps) * kTile;
    const int klass = of_all + row % kTile;
    shared.readout[row * S::kValueStride + at] =
        klass < p.classes && at < p.width ? readout[klass * p.width + at] : __half(0.0f);
    if (at == 0) shared.bias[row] = klass < p.classes ? p.bias[klass] : -INFINITY;
  }
  for (int i = thread; i < N * N; i += threads) {
    const int row = i / N, column = i % N;
    shared.metric[i] = row < p.coords && column < p.coords ? p.metric[row * p.coords + column] : 0;
  }
  for (int i = thread; i < own * (N + D); i += threads) {
    const int row = i / (N + D), column = i % (N + D), from = first_own + row, at = column - N;
    const int64_t chart = static_cast<int64_t>(from) * p.coords + column,
                  output = static_cast<int64_t>(from) * p.width + at;
    const bool real = from < p.rows && (column < N ? column < p.coords : at < p.width);
    shared.state[i] = real ? (column < N ? p.offset[chart] : p.o[output]) : 0;
    if (column < N) {
      shared.drive[row * N + column] = real ? p.drive[chart] : 0;
    } else if (kNudged) {
      // A class that does not exist gives NaN, which the caller notices, and reads nothing.
      const int64_t target = real ? p.targets[from] : 0;
      const bool exists = target >= 0 && target < p.classes;
      shared.target[row * D + at] = !real    ? 0
                                    : exists ? __half2float(readout[target * p.width + at])
                                             : __int_as_float(0x7fffffff);
    }
  }
  for (int i = thread; i < own; i += threads) {
    shared.sign[i] = kNudged && first_own + i < p.rows ? p.signs[first_own + i] : 0;
    shared.speed[i] = 0;
    shared.residual[i] = 0;
  }
  sync_cluster();  // all blocks run, so their shared memory may be written
  for (int base = warp * 32; base < own * (N / 4); base += threads) {
    const bool real = base + lane < own * (N / 4);
    const int row = real ? (base + lane) / (N / 4) : 0, at = lane % (N / 4) * 4;
    const float4 drive = *reinterpret_cast<const float4*>(shared.drive + row * N + at);
    const float4 offset = *reinterpret_cast<const float4*>(shared.state + row * (N + D) + at);
    hand_out_x<N, D>(shared, division, row, at, real, sum_of(drive, offset));
  }
  for (int base = warp * 32; base < own * (D / 4); base += threads) {
    const bool real = base + lane < own * (D / 4);
    const int row = real ? (base + lane) / (D / 4) : 0, at = (base + lane) % (D / 4) * 4;
    const float4 value = *reinterpret_cast<const float4*>(shared.state + row * (N + D) + N + at);
    hand_out<D>(shared.outputs, division, row, at, real, value);
  }
  sync_cluster();

  using Mover = RowMover<N, D, kNudged>;
  const Mover mover{p, shared, division, p.rates[0], p.rates[1], p.rates[2], first_own};
  const int row_tile = warp % division.row_tiles, slot_warp = warp / division.row_tiles, chunk = share / slot_warps;
  const int first = slot_warp * chunk, last = min(first + chunk, (mine + kTile - 1) / kTile * kTile);
  const PartOfRows<N, D, Mover::kColumns> part(shared, division, row_tile * kTile + lane / 4, slot_warp);
  for (int step = 0;; ++step) {
    retrieve<N, D>(p, shared, row_tile * kTile, first, last, part.to);
    if constexpr (kNudged) {
      read_out<N, D>(shared, row_tile * kTile, slot_warp, division.classes / kTile, slot_warps, part.to);
    }
    if (slot_warps > 1) {
      __syncthreads();
      send_sums<N, D, Mover::kColumns>(shared, division);
    }
    sync_cluster();
    if (step == p.steps) {
      mover.write_sums();
    } else {
      mover.move(step + 1 == p.steps);
    }
    sync_cluster();  // after the last step, too: no block ends while others read its memory
    if (step == p.steps) break;
  }

  for (int i = thread; i < own * (N + D); i += threads) {
    const int row = i / (N + D), column = i % (N + D), to = first_own + row, at = column - N;
    if (to >= p.rows) continue;
    if (column < p.coords) p.next_offset[static_cast<int64_t>(to) * p.coords + column] = shared.state[i];
    if (at >= 0 && at < p.width) p.next_o[static_cast<int64_t>(to) * p.width + at] = shared.state[i];
  }
}

int round_up(int value, int to) {
  return (value + to - 1) / to * to;
}

template <int N, int D>
size_t shared_bytes(const Division& division, bool nudged) {
  return static_cast<size_t>(Shared<N, D>(nullptr, division, nudged).at - static_cast<char*>(nullptr));
}

struct Device {
  int capability = 0, processors = 0, shared = 0;
};

Device current_device() {
  int device = 0, major = 0;
  Device facts;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&facts.processors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&facts.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  facts.capability = 10 * major;
  return facts;
}

template <int N, int D>
cudaLaunchConfig_t launch_config(const Division& division, int clusters, bool nudged, cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * division.cluster));
  config.blockDim = dim3(static_cast<unsigned>(division.warps() * 32));
  config.dynamicSmemBytes = shared_bytes<N, D>(division, nudged);
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(division.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = division.cluster > 1 ? 1 : 0;
  return config;
}

template <int N, int D>
auto kernel_of(bool nudged) {
  return nudged ? &geometric_relax<N, D, true> : &geometric_relax<N, D, false>;
}

// How many clusters run at once, and how many of them while no multiprocessor has two blocks.
struct Places {
  int all = 0, alone = 0;
};

template <int N, int D>
Places places_of(const Division& division, bool nudged, const Device& device) {
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = launch_config<N, D>(division, 1, nudged, attribute);
  const auto kernel = kernel_of<N, D>(nudged);
  int blocks = 0, clusters = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(config.blockDim.x),
                                                    config.dynamicSmemBytes) != cudaSuccess ||
      (division.cluster > 1 && cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess)) {
    cudaGetLastError();
    return {};
  }
  if (division.cluster == 1) clusters = blocks * device.processors;
  return blocks == 0 ? Places{} : Places{clusters, std::max(1, clusters / blocks)};
}

// Clock cycles that a step takes, roughly: of the tiles of slots and classes that a warp goes through while its
// scheduler has others, of the rounds in which a block adds up and moves its rows, and of exchange and barriers. The
// constants were fitted to the times of 430 divisions on an H200; they only choose between divisions.
double cycles_of_step(const Division& division, int slots, int classes, int blocks_of_processor, int columns,
                      int state) {
  const auto rounds = [](int work, int workers) { return (work + workers - 1) / workers; };
  const int per_round = division.parts() * kTile, warps = division.warps(), threads = 32 * warps;
  const int tiles = rounds(slots, per_round), class_tiles = rounds(classes, per_round);
  const int crowd = rounds(warps * blocks_of_processor, 4);
  const int sends = division.slot_warps > 1 ? rounds(division.rows() * columns / 4, threads) : 0;
  const int moves = rounds(division.own_rows() * state / 4, threads);
  return tiles * std::max(980.0, 710.0 * crowd) + 1400.0 * class_tiles * crowd + 430.0 * sends + 360.0 * moves +
         (division.cluster > 1 ? 6000 : 1800);
}

// The fastest division that fits into shared memory; cluster 0: none does.
template <int N, int D>
Division search_division(const GeometricRelax& p) {
  const Device device = current_device();
  const bool nudged = p.readout != nullptr;
  Division best;
  // What the loaded code is made for counts, not the device: code for older devices knows no clusters.
  cudaFuncAttributes code{};
  if (device.capability < 80 || cudaFuncGetAttributes(&code, kernel_of<N, D>(nudged)) != cudaSuccess) return best;
  const bool clusters_exist = device.capability >= 90 && code.binaryVersion >= 90 && code.ptxVersion >= 90;
  cudaFuncSetAttribute(kernel_of<N, D>(nudged), cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
  const int tiles = (p.rows + kTile - 1) / kTile;
  double least = 0;
  for (int cluster = 1; cluster <= (clusters_exist ? kMostParts : 1); cluster *= 2) {
    for (int slot_warps = 1; slot_warps <= kMostParts; ++slot_warps) {
      for (int row_tiles = 1; row_tiles * slot_warps <= most_warps(nudged); ++row_tiles) {
        Division division{.row_tiles = row_tiles, .slot_warps = slot_warps, .cluster = cluster};
        const int parts = division.parts();
        division.slots = round_up((p.slots + cluster - 1) / cluster, kTile * slot_warps);
        const int class_tiles = nudged ? (p.classes + kTile - 1) / kTile : 0;
        division.classes = (class_tiles + parts - 1) / parts * slot_warps * kTile;
        if (shared_bytes<N, D>(division, nudged) > static_cast<size_t>(device.shared)) continue;
        const Places places = places_of<N, D>(division, nudged, device);
        if (places.all == 0) continue;
        const int clusters = (tiles + row_tiles - 1) / row_tiles, waves = (clusters + places.all - 1) / places.all;
        const int blocks_of_processor = (std::min(clusters, places.all) + places.alone - 1) / places.alone;
        const int columns = nudged ? Columns<N, D>::kNudged : Columns<N, D>::kFree;
        const double cycles =
            waves * cycles_of_step(division, p.slots, nudged ? p.classes : 0, blocks_of_processor, columns, N + D);
        if (best.cluster == 0 || cycles < least) {
          best = division;
          least = cycles;
        }
      }
    }
  }
  return best;
}

// The same, searched once for each size.
template <int N, int D>
Division divide(const GeometricRelax& p) {
  static std::mutex mutex;
  static std::map<std::array<int, 4>, Division> known;
  int device = 0;
  cudaGetDevice(&device);
  const std::array<int, 4> key{device, p.rows, p.slots, p.readout != nullptr ? p.classes : -1};
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, search_division<N, D>(p)).first->second;
}

template <int N, int D>
cudaError_t start(const GeometricRelax& p, cudaStream_t stream) {
  const Division division = divide<N, D>(p);
  if (division.cluster == 0) return cudaErrorInvalidConfiguration;
  const int tiles = (p.rows + kTile - 1) / kTile, clusters = (tiles + division.row_tiles - 1) / division.row_tiles;
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config = launch_config<N, D>(division, clusters, p.readout != nullptr, attribute);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel_of<N, D>(p.readout != nullptr), p, division);
}

template <int N, int D>
struct Padded {
  static constexpr int kCoords = N, kWidth = D;
};

template <int N, class With>
auto by_width(const GeometricRelax& p, const With& with) {
  return p.width <= 32 ? with(Padded<N, 32>()) : with(Padded<N, 64>());
}

// Calls `with` with the padded sizes as a type.
template <class With>
auto by_size(const GeometricRelax& p, const With& with) {
  return p.coords <= 16 ? by_width<16>(p, with) : by_width<32>(p, with);
}

}  // namespace

bool fits(const GeometricRelax& p) {
  if (p.coords > 32 || p.width > 64 || p.classes > kMostClasses || p.rows == 0 || p.slots == 0) return false;
  if (p.slots > kMostSlots || !(p.retrieval_beta > 0) || p.cost_eps < FLT_MIN) return false;
  return by_size(p, [&](auto size) { return divide<size.kCoords, size.kWidth>(p).cluster > 0; });
}

cudaError_t launch(const GeometricRelax& p, cudaStream_t stream) {
  return by_size(p, [&](auto size) { return start<size.kCoords, size.kWidth>(p, stream); });
}

}  // namespace hrm::ops::cuda
