#pragma once
// Both kinds of work beside each other: some blocks do that of mix_gradient, the others that of mix_weight_gradient on
// what those have just written. Entries, images, places and slots: see mlp_mix_backward.cuh.
//
// The writing warpgroups go through the units in rounds, and through a unit place by place. Each has its own slots, so
// that none waits for another one's readers: they are out of step, since the readers of a tile need a whole round's
// time for a round.
//
// Who waits for whom. A warpgroup writes a place only when what stood in the slots has been read into shared memory:
// entries of its own that were complete before the place before this one, or at least a round ago, with the image. The
// readers of a tile take its entries in the order of units, so that they wait only for places no later than the one
// that completes the entry. The two warpgroups of a block share the loads of weights, so that one may also wait for the
// other to begin the same place; all weights for what comes before have been loaded then. Hence each wait is for
// earlier places, and nothing waits forever as long as all blocks run at once, which the cooperative launch
// guarantees.
//
// Why the readers see what was written. Writer: the stores of a warp, its arrival at `written`, which announce() waits
// for, the fence between ordinary accesses and bulk copies, the release of `ready` for the whole device (what the
// thread has seen is released with what it wrote). Reader: the acquire of `ready`, the same fence, the bulk copy.
// Before a slot is written again: the copy's completion at `full`, which announce_read() waits for, so that nothing is
// left to be read when it sets `consumed`; announce() finds that and arrives at `may_write`, which the storing warps
// wait for.

#include "ops/mixing/cuda/mlp_mix_gradient.cuh"
#include "ops/mixing/cuda/mlp_mix_weight_gradient.cuh"

namespace hrm::ops::cuda::mix {

struct FusedPlan {
  int splits;  // zero: mix_fused is not for this device or shape
  int weight_blocks, gradient_blocks;
};

// One thread per warpgroup: gives leave to write the next place, and announces written ones.
__device__ inline void announce(const MlpMixBackward& p, const GradientView& v, int warpgroup, const uint32_t* consumed,
                                uint32_t* ready) {
  const int inner = static_cast<int>(p.inner), places = places_of(inner), tiles = tiles_of(inner);
  const int writer = v.first + warpgroup;
  const int total = writer < v.units ? (v.units - writer + v.stride - 1) / v.stride * places : 0;
  const auto flag = [&](int round, int tile) { return flag_of(inner, v.stride, round, tile, writer); };
  const auto is_read = [&](int round, int tile) { return load_acquire(consumed + flag(round, tile)) != 0; };
  const auto is_free = [&](int at) {
    const int gradient = at - kGradientSlots;
    if (gradient >= 0 && !is_read(gradient / places, gradient % places)) return false;
    const int value = at / 2 - kValueSlots;
    if (at % 2 == 0 && value >= 0 && !is_read(value / (places / 2), places + value % (places / 2))) return false;
    const int image = at / places - kImageSlots;
    if (at % places == 0 && image >= 0) {
      for (int tile = 0; tile < tiles; ++tile) {
        if (!is_read(image, tile)) return false;
      }
    }
    return true;
  };
  int allowed = 0, announced = 0;
  while (announced < total) {
    if (allowed < total && allowed < announced + 2 && is_free(allowed)) {
      barrier_arrive(v.may_write + warpgroup * 2 + allowed % 2);
      ++allowed;
    }
    if (barrier_test(v.written + warpgroup * 2 + announced % 2, announced / 2 % 2)) {
      const int round = announced / places, place = announced % places;
      fence_async();
      store_release(ready + flag(round, place), 1);
      if (place % 2 == 1) store_release(ready + flag(round, places + place / 2), 1);
      ++announced;
    } else {
      __nanosleep(100);
    }
  }
}

// One thread: says which entries have been read into shared memory. It publishes nothing that it wrote, and
// what was read is in its place; a release would wait for the store before, longer than the products of a unit take.
template <class P>
__device__ void announce_read(const MlpMixBackward& p, const WeightView& v) {
  RingPosition<WeightGradient<P>::kStages> at;
  UnitWalk walk(v, static_cast<int>(p.inner));
  for (int unit = v.split; unit < v.units; unit += v.splits, at.advance(), walk.advance()) {
    barrier_wait(v.full + at.stage, at.parity);
    barrier_arrive(v.empty + at.stage);  // only so that the ring does not get two rounds ahead of this thread
    store_relaxed(v.consumed + walk.flag, 1);
  }
}

template <class P, Input kInput>
__global__ void __launch_bounds__((kWarpgroups + 1) * 128, 1)
    mix_fused(MlpMixBackward p, FusedPlan plan, uint32_t* ready, uint32_t* consumed) {
#if HRM_SM90A
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The blocks for the weights are spread evenly over the grid.
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int weights_before = block * plan.weight_blocks / blocks;
  const bool for_weights = (block + 1) * plan.weight_blocks / blocks > weights_before;

  GradientView g = gradient_view<P>(shared);
  g.first = (block - weights_before) * kWarpgroups;
  g.stride = plan.gradient_blocks * kWarpgroups;
  g.units = static_cast<int>(p.batch) * (static_cast<int>(p.width) / kUnitChannels);
  WeightView w = weight_view<P>(shared);
  const int tiles = tiles_of(static_cast<int>(p.inner));
  w.tile = weights_before % tiles;
  w.split = weights_before / tiles;
  w.splits = plan.splits;
  w.units = g.units;
  w.stride = g.stride;
  w.ready = ready;
  w.consumed = consumed;

  if (threadIdx.x == 0) {
    if (for_weights) {
      start_weight_barriers<P, true>(w);
    } else {
      start_gradient_barriers<P>(g);
    }
    barrier_init_fence();
  }
  wait_for_earlier();
  __syncthreads();
  if (warp / 4 == kWarpgroups) {
    registers_decrease<24>();
    if (for_weights) {
      if (warp == kWarpgroups * 4) load_rows<P, true>(p, w, lane);
      if (warp == kWarpgroups * 4 + 1 && lane == 0) announce_read<P>(p, w);
    } else if (lane == 0) {
      if (warp == kWarpgroups * 4) {
        load_weights<P>(p, g);
      } else if (warp <= kWarpgroups * 4 + kWarpgroups) {
        announce(p, g, warp - kWarpgroups * 4 - 1, consumed, ready);
      }
    }
  } else {
    registers_increase<240>();
    if (for_weights) {
      weight_gradient<P, kInput>(p, w, warp, lane);
    } else {
      gradient_of_units<P, kInput, true>(p, g, warp, lane);
    }
  }
#endif
}

}  // namespace hrm::ops::cuda::mix
