// The state's way along a row (of x and B), and its gradient's way back (of grad_y and C): S = decay * S + sum over a
// chunk's positions of weighted outer products.
#include "ops/sequence/cuda/selective_scan.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kWeighWarps = 8;

// A warp for each chunk of a head.
__global__ void __launch_bounds__(kWeighWarps * 32) weigh_kernel(ScanWeigh p) {
  constexpr float kLog2e = 1.4426950408889634f;
  wait_for_earlier();
  const ScanShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kWeighWarps + static_cast<int>(threadIdx.x) / 32;
  if (place >= s.rows * s.chunks * s.heads) return;
  const int head = static_cast<int>(place % s.heads), chunk = static_cast<int>(place / s.heads % s.chunks);
  const int64_t row = place / s.heads / s.chunks;
  const float A = p.A[head] * kLog2e;
  const int first = chunk * kScanChunk + 2 * lane;
  const float* const from =
      static_cast<const float*>(p.dt.data) + row * p.dt.row + head * p.dt.head + first * p.dt.position;
  // Behind the row: positions that leave the state as it is.
  const float dt[2] = {first < s.length ? from[0] : 0.f, first + 1 < s.length ? from[p.dt.position] : 0.f};
  float sum = dt[0] * A + dt[1] * A;  // over the lanes up to and with this one
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(offset));
    if (lane >= offset) sum += other;
  }
  const float last = __shfl_sync(0xffffffffu, sum, 31), left = __shfl_up_sync(0xffffffffu, sum, 1);
  const float sums[2] = {(lane == 0 ? 0.f : left) + dt[0] * A, sum};
  ScanWeights& to = p.weights[place];
  reinterpret_cast<float2*>(to.dt)[lane] = {dt[0], dt[1]};
  reinterpret_cast<float2*>(to.sum)[lane] = {sums[0], sums[1]};
  reinterpret_cast<float2*>(to.start)[lane] = {exp2_approx(sums[0]), exp2_approx(sums[1])};
  reinterpret_cast<float2*>(to.end)[lane] = {exp2_approx(last - sums[0]), exp2_approx(last - sums[1])};
  if (lane == 0) {
    to.whole = exp2_approx(last);
    to.log_whole = last;
  }
}

template <typename T, int kState>
struct StatesLayout {
  static constexpr int kLeft = ScanTile<kScanChannels>::kBytes, kRight = ScanTile<kState>::kBytes;
  static constexpr int kStage = kLeft + kRight;
  static constexpr int kRounded = 2 * kStage;
  static constexpr int kWeights = kRounded + kRight;
  static constexpr int kBytes = kWeights + 2 * static_cast<int>(sizeof(ScanWeights));
};

template <typename T, int kState>
__global__ void __launch_bounds__(kThreads, 2) states_kernel(ScanStates p) {
  using Layout = StatesLayout<T, kState>;
  using State = CarriedState<kState, kThreads / 128>;
  extern __shared__ __align__(128) unsigned char shared[];
  const ScanShape& s = p.shape;
  const int64_t blocks = s.rows * s.heads * s.segments;
  const int direction = static_cast<int>(blockIdx.x / blocks);
  const SegmentPlace at(s, blockIdx.x % blocks);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool last_segment = at.segment == (direction == 0 ? s.segments - 1 : 0);
  wait_for_earlier();
  if (p.entries == nullptr && last_segment) return;  // no segment begins with its state

  const int64_t place = direction * s.rows * s.heads + at.row_head;
  auto* const weights = reinterpret_cast<ScanWeights*>(shared + Layout::kWeights);
  const int steps = at.end_chunk - at.first_chunk;
  const auto chunk_of = [&](int step) { return direction == 0 ? at.first_chunk + step : at.end_chunk - 1 - step; };
  const ScanView left = direction == 0 ? p.left[0] : p.left[1], right = direction == 0 ? p.right[0] : p.right[1];
  const float* const before = direction == 0 ? p.first[0] : p.first[1];
  const auto fetch = [&](int step) {
    const int first = chunk_of(step) * kScanChunk, length = s.length - first;
    const uint32_t to = shared_address(shared) + static_cast<uint32_t>(step % 2 * Layout::kStage);
    load_tile<T, kScanChannels, kThreads>(view_at<T>(left, at.row, at.head, first), left.position, length, to);
    load_tile<T, kState, kThreads>(view_at<T>(right, at.row, at.group, first), right.position, length,
                                   to + Layout::kLeft);
    load_weights(p.weights, s, at.row, chunk_of(step), at.head, weights + step % 2);
    copy_async_commit();
  };
  fetch(0);
  State state;
  state.clear();
  if (p.entries != nullptr) {
    if (s.segments > 1) {
      state.load_registers(p.totals + (place * s.segments + at.segment) * State::kNumbers);
    } else if (before != nullptr) {
      state.load_matrix(before + at.row_head * State::kNumbers);
    }
  }
  float log_decay = 0;
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<0>();
    __syncthreads();  // this chunk is here, and the other buffer is free
    if (step + 1 < steps) fetch(step + 1);
    const ScanWeights& w = weights[step % 2];
    if (p.entries != nullptr) {
      unsigned char* const rounded = shared + Layout::kRounded;
      __syncwarp();
      state.template round_to<T>(rounded);
      __syncwarp();
      T* const to = static_cast<T*>(p.entries) + (place * s.chunks + chunk_of(step)) * State::kNumbers;
      constexpr int kPieces = State::kColumns / 8;
#pragma unroll
      for (int i = 0; i < kPieces / 2; ++i) {
        const int item = lane + i * 32, row = State::band() + item / kPieces;
        const int piece = State::side() / 8 + item % kPieces;
        *reinterpret_cast<uint4*>(to + row * kState + piece * 8) =
            *reinterpret_cast<const uint4*>(rounded + ScanTile<kState>::at(row, piece));
      }
    }
    log_decay += w.log_whole;
    const uint32_t from = shared_address(shared) + static_cast<uint32_t>(step % 2 * Layout::kStage);
    if (direction == 0) {
      state.template step<T>(w.whole, from, from + Layout::kLeft, [&](int j) {
        return float2{w.end[j] * w.dt[j], w.end[j + 1] * w.dt[j + 1]};
      });
    } else {
      state.template step<T>(w.whole, from, from + Layout::kLeft, [&](int j) {
        return float2{w.start[j], w.start[j + 1]};
      });
    }
  }
  if (p.entries == nullptr) {
    state.store_registers(p.totals + (place * s.segments + at.segment) * State::kNumbers);
    if (threadIdx.x == 0) p.decays[place * s.segments + at.segment] = log_decay;
  } else if (direction == 1 && at.segment == 0) {
    state.store_matrix(p.last + at.row_head * State::kNumbers);
  }
}

constexpr int kPassThreads = 128, kPassAhead = 8;

// A thread has four numbers of a head's state in all segments.
template <int kState>
__global__ void __launch_bounds__(kPassThreads) pass_kernel(ScanPass p) {
  constexpr int kFours = CarriedState<kState, 1>::kNumbers / 4, kBlocks = kFours / kPassThreads;
  wait_for_earlier();
  const ScanShape& s = p.shape;
  const int64_t place = blockIdx.x / kBlocks, heads = s.rows * s.heads;
  const int n = static_cast<int>(blockIdx.x % kBlocks);
  const int direction = static_cast<int>(place / heads);
  float4* const fours = reinterpret_cast<float4*>(p.totals) + place * s.segments * kFours + n * kPassThreads +
                        static_cast<int>(threadIdx.x);
  const float* const decays = p.decays + place * s.segments;
  float4 carry{};
  const float* const first = direction == 0 ? p.first[0] : p.first[1];
  if (first != nullptr) {
    const float* const from = first + place % heads * CarriedState<kState, 1>::kNumbers;
    const float2 a = *reinterpret_cast<const float2*>(from + CarriedState<kState, 1>::place(n, 0));
    const float2 b = *reinterpret_cast<const float2*>(from + CarriedState<kState, 1>::place(n, 1));
    carry = {a.x, a.y, b.x, b.y};
  }
  const auto segment_of = [&](int i) { return direction == 0 ? i : s.segments - 1 - i; };
  for (int begin = 0; begin < s.segments; begin += kPassAhead) {
    float4 adds[kPassAhead];
    float decay[kPassAhead];
    // The last one's was not computed, and is not used.
#pragma unroll
    for (int i = 0; i < kPassAhead; ++i) {
      if (begin + i < s.segments - 1) {
        adds[i] = fours[static_cast<int64_t>(segment_of(begin + i)) * kFours];
        decay[i] = exp2_approx(decays[segment_of(begin + i)]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPassAhead; ++i) {
      if (begin + i < s.segments) fours[static_cast<int64_t>(segment_of(begin + i)) * kFours] = carry;
      if (begin + i < s.segments - 1) {
        carry = {carry.x * decay[i] + adds[i].x, carry.y * decay[i] + adds[i].y, carry.z * decay[i] + adds[i].z,
                 carry.w * decay[i] + adds[i].w};
      }
    }
  }
}

}  // namespace

cudaError_t launch(const ScanWeigh& p, cudaStream_t stream) {
  const int64_t places = p.shape.rows * p.shape.chunks * p.shape.heads;
  return start_scan(&weigh_kernel, p, (places + kWeighWarps - 1) / kWeighWarps, kWeighWarps * 32, 0, stream);
}

cudaError_t launch(const ScanStates& p, cudaStream_t stream) {
  return by_scan_shape(p.shape, [&](auto type, auto state) {
    using T = TypeIn<decltype(type)>;
    constexpr int kState = decltype(state)::value;
    const int64_t blocks = p.directions * p.shape.rows * p.shape.heads * p.shape.segments;
    return start_scan(&states_kernel<T, kState>, p, blocks, kThreads, StatesLayout<T, kState>::kBytes, stream);
  });
}

cudaError_t launch(const ScanPass& p, cudaStream_t stream) {
  return by_scan_shape(p.shape, [&](auto, auto state) {
    constexpr int kState = decltype(state)::value;
    const int64_t blocks = p.directions * p.shape.rows * p.shape.heads * (kScanChannels * kState / 4 / kPassThreads);
    return start_scan(&pass_kernel<kState>, p, blocks, kPassThreads, 0, stream);
  });
}

}  // namespace hrm::ops::cuda
