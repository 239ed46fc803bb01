#pragma once
// The weights' gradients: [dG; a] (3F x 64 d) @ [h; dv] (64 d x l), summed over all units. A block owns a tile, an
// entry's 256 of the 3F rows, and every splits-th unit; a thread of it adds, in the order of the units, where nobody
// else does. The same code runs in mix_weight_gradient, on all units of a part, and in mix_fused, where it waits for
// each entry.

#include "ops/mixing/cuda/mlp_mix_backward.cuh"

namespace hrm::ops::cuda::mix {

constexpr int kSplits = 22;  // of mix_weight_gradient: with six tiles (inner = 512) the 132 processors of an H100, H200
constexpr int kSumUnits = 70;  // the tensor cores cut off what they add, so they sum this many units at a time

// Shared memory of a block.
template <class P>
struct WeightGradient {
  static constexpr uint32_t kStageBytes = kEntryBytes + kImageBytes<P>;
  static constexpr int kStages = kSharedLimit / kStageBytes;
  static constexpr uint32_t kBytes = kStages * (kStageBytes + 16);
};

// What a block for the weights' gradients goes by.
struct WeightView {
  unsigned char* ring;
  uint64_t* full;
  uint64_t* empty;
  int tile, split, splits, units;
  bool add;            // to what earlier parts left in `partial`
  int stride;          // fused only, as in GradientView
  uint32_t* ready;     // of each entry: whether it is written
  uint32_t* consumed;  // of each entry: whether it is read
};

template <class P>
__device__ WeightView weight_view(unsigned char* shared) {
  WeightView v{};
  v.ring = shared;
  v.full = reinterpret_cast<uint64_t*>(shared + WeightGradient<P>::kStages * WeightGradient<P>::kStageBytes);
  v.empty = v.full + WeightGradient<P>::kStages;
  return v;
}

template <class P, bool kFused>
__device__ void start_weight_barriers(const WeightView& v) {
  for (int i = 0; i < WeightGradient<P>::kStages; ++i) {
    barrier_init(v.full + i, 1);
    barrier_init(v.empty + i, kWarpgroups * 4 + (kFused ? 1 : 0));  // see announce_read()
  }
}

// Adds without reading back. The order of a thread's additions to an address is theirs in the program.
__device__ inline void add_to(float4* to, float4 value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}

// A split's units one after another, each with the flag of its entry and where that and its image stand, almost without
// divisions: a single thread has half a microsecond for a unit.
struct UnitWalk {
  int step, stride;
  bool of_dg;
  int of_round, flags_of_round;  // entries of a unit of this kind, all of a round
  int writer, flag;
  int turn, image_turn = 0;  // of the slots

  __device__ UnitWalk(const WeightView& v, int inner)
      : step(v.splits),
        stride(v.stride),
        of_dg(v.tile < places_of(inner)),
        of_round(of_dg ? places_of(inner) : places_of(inner) / 2),
        flags_of_round(tiles_of(inner) * v.stride),
        writer(v.split),
        flag(v.tile * v.stride + v.split),
        turn(of_dg ? v.tile % kGradientSlots : (v.tile - places_of(inner)) % kValueSlots) {}
  __device__ void advance() {
    writer += step;
    flag += step;
    while (writer >= stride) {
      writer -= stride;
      flag += flags_of_round - stride;
      turn = of_dg ? (turn + of_round) % kGradientSlots : (turn + of_round) % kValueSlots;
      image_turn = (image_turn + 1) % kImageSlots;
    }
  }
  __device__ int slot() const { return (of_dg ? turn : kGradientSlots + turn) * stride + writer; }
  __device__ int image() const { return image_turn * stride + writer; }
};

// Fused only, one warp: waits until the tile's entry of this unit is written, and returns the next unit of the split of
// which it is not known.
__device__ inline int wait_until_written(const WeightView& v, int inner, int unit, int lane) {
  int count = 0;
  for (;;) {
    const int ahead = unit + lane * v.splits;
    const bool there = ahead < v.units && load_acquire(v.ready + flag_of(inner, v.stride, ahead / v.stride, v.tile,
                                                                         ahead % v.stride)) != 0;
    count = __ffs(static_cast<int>(~__ballot_sync(0xffffffffu, there))) - 1;
    if (count != 0) break;
    __nanosleep(40);
  }
  __syncwarp();  // what all lanes have acquired, the copying one has
  fence_async();
  return unit + (count < 0 ? 32 : count) * v.splits;
}

// One warp: brings the tile's rows and images, unit after unit. Fused: as soon as they are written.
template <class P, bool kFused>
__device__ void load_rows(const MlpMixBackward& p, const WeightView& v, int lane) {
  using W = WeightGradient<P>;
  const int inner = static_cast<int>(p.inner);
  // Rows of dG meet h, those of a meet dv.
  const auto* images = static_cast<const unsigned char*>(p.images) + (v.tile < places_of(inner) ? 0 : kImageBytes<P>);
  const auto* rows = static_cast<const unsigned char*>(p.rows);
  RingPosition<W::kStages> at;
  const auto load = [&](int64_t entry, int64_t image) {
    unsigned char* const to = v.ring + at.stage * W::kStageBytes;
    uint64_t* const full = v.full + at.stage;
    barrier_arrive_expect(full, W::kStageBytes);
    bulk_load(to, rows + entry * kEntryBytes, kEntryBytes, full);
    bulk_load(to + kEntryBytes, images + image * 2 * kImageBytes<P>, kImageBytes<P>, full);
  };
  [[maybe_unused]] UnitWalk walk(v, inner);
  [[maybe_unused]] int known = v.split;  // the first unit that has not been seen to be written
  for (int unit = v.split; unit < v.units; unit += v.splits, at.advance()) {
    barrier_wait(v.empty + at.stage, at.parity ^ 1);
    __syncwarp();
    if constexpr (kFused) {
      if (unit >= known) known = wait_until_written(v, inner, unit, lane);
      if (lane == 0) load(walk.slot(), walk.image());
      walk.advance();
    } else {
      if (lane == 0) load(int64_t{unit} * tiles_of(inner) + v.tile, unit);
    }
    __syncwarp();
  }
}

template <class P, Input kInput>
__device__ void weight_gradient(const MlpMixBackward& p, const WeightView& v, int warp, int lane) {
  using W = WeightGradient<P>;
  const int warpgroup = warp / 4;
  const int tiles = tiles_of(static_cast<int>(p.inner));
  // Four accumulators of each of the 256 threads stand together, see mix_reduce.
  constexpr int kFours = P::kColumns / 8;
  float4* const partial = reinterpret_cast<float4*>(p.partial) +
                          (int64_t{v.split} * tiles + v.tile) * 2 * kFours * kTileRows + warp * 32 + lane;
  RingPosition<W::kStages> at;
  int unit = v.split;
  bool add = v.add;
  // Warpgroups add to `partial` at different times, so that one has work for the tensor cores meanwhile and the blocks
  // do not stand still together.
  const int turn = v.split * kWarpgroups + warpgroup;
  int count = kSumUnits * (turn + 1) / (v.splits * kWarpgroups);
  do {
    float sum[2][P::kColumns / 2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < P::kColumns / 2; ++i) sum[m][i] = 0;
    }
    int before = -1;
    const int64_t last = unit + int64_t{v.splits} * (count > 0 ? count : 1);
    const int end = last < v.units ? static_cast<int>(last) : v.units;
    for (; unit < end; unit += v.splits, at.advance()) {
      barrier_wait(v.full + at.stage, at.parity);
      const uint32_t a = shared_address(v.ring) + static_cast<uint32_t>(at.stage) * W::kStageBytes +
                         static_cast<uint32_t>(warpgroup) * (kEntryBytes / 2);
      const uint32_t b = shared_address(v.ring) + static_cast<uint32_t>(at.stage) * W::kStageBytes + kEntryBytes;
      registers_fence(sum[0]);
      registers_fence(sum[1]);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kUnitChannels / 16; ++s) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Mma<P::kColumns, kInput>::template shared<Major::mn, Major::k>(
              sum[m], descriptor_core(a + m * (kEntryBytes / 4) + s * 256, 128, 1024),
              descriptor_core(b + s * 2 * P::kColumns * 16, P::kColumns * 16, 128), true);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && lane == 0) barrier_arrive(v.empty + before);
      before = at.stage;
    }
    wgmma_wait<0>();
    registers_fence(sum[0]);
    registers_fence(sum[1]);
    if (before >= 0 && lane == 0) barrier_arrive(v.empty + before);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kFours; ++j) {
        float4* const to = partial + (m * kFours + j) * kTileRows;
        const float4 four = {sum[m][4 * j], sum[m][4 * j + 1], sum[m][4 * j + 2], sum[m][4 * j + 3]};
        if (add) {
          add_to(to, four);
        } else {
          *to = four;
        }
      }
    }
    add = true;
    count = kSumUnits;
  } while (unit < v.units);
}

template <class P, Input kInput>
__global__ void __launch_bounds__((kWarpgroups + 1) * 128, 1)
    mix_weight_gradient(MlpMixBackward p, int units, bool add) {
#if HRM_SM90A
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WeightView v = weight_view<P>(shared);
  v.tile = static_cast<int>(blockIdx.x);
  v.split = static_cast<int>(blockIdx.y);
  v.splits = kSplits;
  v.units = units;
  v.add = add;
  if (threadIdx.x == 0) {
    start_weight_barriers<P, false>(v);
    barrier_init_fence();
  }
  wait_for_earlier();
  __syncthreads();
  if (warp / 4 == kWarpgroups) {
    registers_decrease<24>();
    if (warp == kWarpgroups * 4) load_rows<P, false>(p, v, lane);
  } else {
    registers_increase<240>();
    weight_gradient<P, kInput>(p, v, warp, lane);
  }
#endif
}

}  // namespace hrm::ops::cuda::mix
