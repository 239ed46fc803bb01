// The backward pass of the MLP over positions: packs the weights, runs mix_fused where it can, otherwise mix_gradient
// and mix_weight_gradient in turn, part after part of the batch, and adds the splits, in their order, to the gradients.
// mlp_mix_backward.cuh says what is where.
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/mixing/cuda/mlp_mix_fused.cuh"

namespace hrm::ops::cuda {
namespace {

using namespace mix;  // NOLINT

// ---- Packing ----

// A thread writes one row of a core matrix, 16 bytes; and the flags of mix_fused become zero.
template <Input kInput>
__global__ void pack_weights(PackParams p, uint32_t* flags, int flag_count) {
  wait_for_earlier();
  for (int i = static_cast<int>((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x); i < flag_count;
       i += static_cast<int>(gridDim.x * gridDim.y * blockDim.x)) {
    flags[i] = 0;
  }
  const int gate_up_rows = p.steps * 2 * 2 * kChunk;  // (step, half of 8 positions, column)
  const int down_rows = p.steps * 2 * kChunk;
  const int rows = gate_up_rows + down_rows;
  const int chunk = static_cast<int>(blockIdx.y);
  int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  uint16_t* to = p.packed + (int64_t{chunk} * rows + row) * 8;
  Pack<uint16_t, 8> out;
  if (row < gate_up_rows) {
    out = pack_gate_up_row<kInput>(p, chunk, row);
  } else {
    row -= gate_up_rows;
    const int f = chunk * kChunk + unit_of_column(row % kChunk), first = row / kChunk * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.value[i] = first + i < p.length ? p.down[int64_t{first + i} * p.inner + f] : uint16_t{0};
    }
  }
  store_pack<uint16_t, 8>(to, out);
}

// ---- The splits together ----

// A thread adds four sums as weight_gradient() has left them: of its rows g and g + 8, columns 2q and 2q + 1 of eight.
// `gate_scale`: of the rows of gates, see Slope.
__global__ void mix_reduce(MlpMixBackward p, int columns, int splits, float gate_scale) {
  wait_for_earlier();
  const int inner = static_cast<int>(p.inner), length = static_cast<int>(p.length);
  const int tile = static_cast<int>(blockIdx.y), at = static_cast<int>(blockIdx.x);  // m, j of weight_gradient()
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int fours = columns / 8;
  const int64_t stride = int64_t{3} * inner * columns / 4;
  const float4* const from =
      reinterpret_cast<const float4*>(p.partial) + (int64_t{tile} * 2 * fours + at) * kTileRows + thread;
  float4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const float4 more = from[split * stride];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  const float value[4] = {sum.x, sum.y, sum.z, sum.w};
  // Of an entry's dG the first warpgroup has the gates, the second one up.
  const bool of_dg = tile < places_of(inner);
  const int half = thread / 128, kind = of_dg ? half : 2;
  const int first = of_dg ? tile * kPlaceUnits : (tile - places_of(inner)) * kTileRows + half * kPlaceUnits;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int l = at % fours * 8 + lane % 4 * 2 + i % 2;
    const int f = first + at / fours * 64 + thread / 32 % 4 * 16 + lane / 4 + i / 2 * 8;
    if (l >= length) continue;
    if (kind == 2) {
      p.grad_down[int64_t{l} * inner + f] += value[i];
    } else {
      p.grad_gate_up[(int64_t{kind} * inner + f) * length + l] += kind == 0 ? value[i] * gate_scale : value[i];
    }
  }
}

// ---- Launch ----

// For this many positions mix_fused has too few registers.
template <class P>
constexpr bool kMayBeFused = P::kColumns < 128;

// Flags, `ready` and `consumed` each: of whole rounds.
int64_t flags_of(const FusedPlan& plan, const MlpMixBackward& p) {
  if (plan.splits == 0) return 0;
  const int64_t units = p.batch * (p.width / kUnitChannels);
  return (units + int64_t{kWarpgroups} * plan.gradient_blocks) * tiles_of(static_cast<int>(p.inner));
}

// The one place that decides for mix_fused, by nothing but the shape, takes_turns and what the device always answers:
// it needs all of its blocks at once.
template <class P>
FusedPlan plan_fused(const MlpMixBackward& p) {
  FusedPlan plan{};
  if (!kMayBeFused<P> || p.takes_turns || sm90::current_device_attribute(cudaDevAttrCooperativeLaunch) == 0)
    return plan;
  const int processors = multiprocessors();
  const int tiles = tiles_of(static_cast<int>(p.inner));
  // The weights' gradients take about 3/11 of the time: 36 blocks of 132, so that 6,144 units (768 x 512 channels) are
  // 32 whole rounds of the others. Few processors, or many tiles, cannot be shared out like that.
  const int splits = (processors * 3 + tiles * 11 / 2) / (tiles * 11);
  if (splits * tiles * 3 > processors || splits * tiles * 11 * 5 < processors * 3 * 4) return plan;
  plan.splits = splits;
  plan.weight_blocks = splits * tiles;
  plan.gradient_blocks = processors - plan.weight_blocks;
  return 2 * flags_of(plan, p) <= INT32_MAX ? plan : FusedPlan{};
}

// All blocks at once or none, beginning before earlier kernels are done.
template <class... Params, class... Args>
cudaError_t start_together(void (*kernel)(Params...), int blocks, size_t shared, cudaStream_t stream,
                           const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3((kWarpgroups + 1) * 128);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

template <class Kernel>
cudaError_t allow(Kernel kernel, uint32_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

template <class P, Input kInput>
cudaError_t start_in_parts(const MlpMixBackward& p, cudaStream_t stream) {
  const auto gradient = &mix_gradient<P, kInput>;
  const auto weight_gradient = &mix_weight_gradient<P, kInput>;
  cudaError_t error = allow(gradient, Gradient<P>::kBytes);
  if (error == cudaSuccess) error = allow(weight_gradient, WeightGradient<P>::kBytes);
  const int groups = static_cast<int>(p.width) / kUnitChannels;
  const unsigned tiles = static_cast<unsigned>(tiles_of(static_cast<int>(p.inner)));
  const int processors = multiprocessors();
  for (int64_t first = 0; first < p.batch && error == cudaSuccess; first += p.part) {
    const int samples = static_cast<int>(p.batch - first < p.part ? p.batch - first : p.part);
    const int units = samples * groups;
    const int blocks = (units + kWarpgroups - 1) / kWarpgroups;
    error = start_early(gradient, static_cast<unsigned>(blocks < processors ? blocks : processors),
                        (kWarpgroups + 1) * 128, Gradient<P>::kBytes, stream, p, static_cast<int>(first), samples);
    if (error != cudaSuccess) return error;
    error = start_early(weight_gradient, dim3(tiles, kSplits), (kWarpgroups + 1) * 128, WeightGradient<P>::kBytes,
                        stream, p, units, first > 0);
  }
  return error;
}

template <class P, Input kInput>
cudaError_t start_fused(const MlpMixBackward& p, const FusedPlan& plan, int64_t flags, cudaStream_t stream) {
  constexpr uint32_t kBytes =
      Gradient<P>::kBytes > WeightGradient<P>::kBytes ? Gradient<P>::kBytes : WeightGradient<P>::kBytes;
  const auto kernel = &mix_fused<P, kInput>;
  const cudaError_t error = allow(kernel, kBytes);
  if (error != cudaSuccess) return error;
  auto* const ready = static_cast<uint32_t*>(p.flags);
  return start_together(kernel, plan.weight_blocks + plan.gradient_blocks, kBytes, stream, p, plan, ready,
                        ready + flags);
}

template <class P, Input kInput>
cudaError_t start(const MlpMixBackward& p, const FusedPlan& plan, cudaStream_t stream) {
  const int64_t flags = flags_of(plan, p);
  PackParams pack{};
  pack.gate_up = static_cast<const uint16_t*>(p.weight_gate_up);
  pack.down = static_cast<const uint16_t*>(p.weight_down);
  pack.packed = static_cast<uint16_t*>(p.packed);
  pack.length = static_cast<int>(p.length);
  pack.inner = static_cast<int>(p.inner);
  pack.steps = P::kSteps;
  pack.columns = P::kColumns;
  constexpr unsigned kPackRows = Gradient<P>::kChunkBytes / 16;
  cudaError_t error =
      start_early(&pack_weights<kInput>, dim3((kPackRows + 127) / 128, static_cast<unsigned>(p.inner / kChunk)), 128, 0,
                  stream, pack, static_cast<uint32_t*>(p.flags), static_cast<int>(2 * flags));
  if (error != cudaSuccess) return error;
  bool fused = false;
  if constexpr (kMayBeFused<P>) {
    fused = plan.splits > 0;
    if (fused) error = start_fused<P, kInput>(p, plan, flags, stream);
  }
  if (!fused) error = start_in_parts<P, kInput>(p, stream);
  if (error != cudaSuccess) return error;
  return start_early(&mix_reduce, dim3(2 * P::kColumns / 8, static_cast<unsigned>(tiles_of(static_cast<int>(p.inner)))),
                     kTileRows, 0, stream, p, P::kColumns, fused ? plan.splits : kSplits,
                     kInput == Input::bf16 ? 0.5f : 1.0f);
}

template <class P>
cudaError_t start_by_element(const MlpMixBackward& p, cudaStream_t stream) {
  const FusedPlan plan = plan_fused<P>(p);
  return p.half ? start<P, Input::f16>(p, plan, stream) : start<P, Input::bf16>(p, plan, stream);
}

template <class P>
MlpMixScratch scratch_of(const MlpMixBackward& p) {
  const FusedPlan plan = plan_fused<P>(p);
  const int64_t packed = p.inner / kChunk * Gradient<P>::kChunkBytes;
  const int64_t partial = 3 * p.inner * P::kColumns * 4;  // of a split
  if (plan.splits > 0) {
    const int64_t writers = int64_t{kWarpgroups} * plan.gradient_blocks;
    return {packed, writers * (kGradientSlots + kValueSlots) * kEntryBytes, writers * kImageSlots * 2 * kImageBytes<P>,
            partial * plan.splits, 2 * flags_of(plan, p) * 4};
  }
  const int64_t units = p.part * (p.width / kUnitChannels);
  return {packed, units * tiles_of(static_cast<int>(p.inner)) * kEntryBytes, units * 2 * kImageBytes<P>,
          partial * kSplits, 0};
}

}  // namespace

MlpMixScratch mlp_mix_scratch(const MlpMixBackward& params) {
  if (params.length <= 96) return scratch_of<Positions<6, 96>>(params);
  if (params.length <= 104) return scratch_of<Positions<7, 104>>(params);
  if (params.length <= 112) return scratch_of<Positions<7, 112>>(params);
  return scratch_of<Positions<8, 128>>(params);
}

cudaError_t launch(const MlpMixBackward& params, cudaStream_t stream) {
  if (params.length <= 96) return start_by_element<Positions<6, 96>>(params, stream);
  if (params.length <= 104) return start_by_element<Positions<7, 104>>(params, stream);
  if (params.length <= 112) return start_by_element<Positions<7, 112>>(params, stream);
  return start_by_element<Positions<8, 128>>(params, stream);
}

}  // namespace hrm::ops::cuda
