// y of a segment of one head. Chunk by chunk, with the state S before it in registers and M_ij = exp(s_i - s_j) dt_j
// (C_i . B_j) for j <= i:  y = M x + exp(s) C S^T + D x, then S = exp(s_last) S + sum_j exp(s_last - s_j) dt_j x_j
// B_j^T. Several blocks share a multiprocessor: one loads while others multiply.
#include "ops/sequence/cuda/selective_scan.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSides = 2;  // a product's columns are shared by so many warps, its rows by four bands of 16

template <int kState>
struct OutputLayout {
  static constexpr int kWide = ScanTile<kState>::kBytes;
  static constexpr int kX = 0, kB = ScanTile<kScanChannels>::kBytes, kC = kB + 2 * kWide;  // B: two
  static constexpr int kRounded = kC + kWide, kMatrix = kRounded + kWide;
  static constexpr int kWeights = kMatrix + ScanTile<kScanChunk>::kBytes;  // two
  static constexpr int kBytes = kWeights + 2 * static_cast<int>(sizeof(ScanWeights));
};

template <typename T, int kState>
__global__ void __launch_bounds__(kThreads, 2) output_kernel(ScanOutput p) {
  using Layout = OutputLayout<kState>;
  using State = CarriedState<kState, kSides>;
  extern __shared__ __align__(128) unsigned char shared[];
  const ScanShape& s = p.shape;
  const SegmentPlace at(s, blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, band = warp % 4, side = warp / 4;
  const int rows[2] = {band * 16 + g, band * 16 + g + 8};
  const uint32_t x = shared_address(shared) + Layout::kX, C = shared_address(shared) + Layout::kC;
  const uint32_t rounded = shared_address(shared) + Layout::kRounded;
  auto* const weights = reinterpret_cast<ScanWeights*>(shared + Layout::kWeights);
  wait_for_earlier();

  const float D = p.D[at.head];
  const auto fetch_B_C = [&](int chunk) {
    if (chunk < at.end_chunk) {
      const int first = chunk * kScanChunk, length = s.length - first;
      load_tile<T, kState, kThreads>(
          view_at<T>(p.B, at.row, at.group, first), p.B.position, length,
          shared_address(shared) + Layout::kB + static_cast<uint32_t>((chunk - at.first_chunk) % 2 * Layout::kWide));
      load_tile<T, kState, kThreads>(view_at<T>(p.C, at.row, at.group, first), p.C.position, length, C);
      load_weights(p.weights, s, at.row, chunk, at.head, weights + (chunk - at.first_chunk) % 2);
    }
    copy_async_commit();
  };
  const auto fetch_x = [&](int chunk) {
    if (chunk < at.end_chunk) {
      const int first = chunk * kScanChunk, length = s.length - first;
      load_tile<T, kScanChannels, kThreads>(view_at<T>(p.x, at.row, at.head, first), p.x.position, length, x);
    }
    copy_async_commit();
  };
  fetch_B_C(at.first_chunk);
  fetch_x(at.first_chunk);
  State state;
  state.clear();
  if (s.segments > 1) {
    state.load_registers(p.totals + (at.row_head * s.segments + at.segment) * State::kNumbers);
  } else if (p.first != nullptr) {
    state.load_matrix(p.first + at.row_head * State::kNumbers);
  }
  for (int chunk = at.first_chunk; chunk < at.end_chunk; ++chunk) {
    const int first = chunk * kScanChunk, length = s.length - first, turn = (chunk - at.first_chunk) % 2;
    const uint32_t B = shared_address(shared) + Layout::kB + static_cast<uint32_t>(turn * Layout::kWide);
    const ScanWeights& w = weights[turn];
    state.template round_to<T>(shared + Layout::kRounded);
    copy_async_wait<1>();
    __syncthreads();  // all but x is here

    // C B^T up to the diagonal, and C S^T.
    float scores[4][4] = {}, y[4][4] = {};
#pragma unroll 2
    for (int k = 0; k < kState; k += 16) {
      uint32_t a[4], b[4];
      left_operand<kState>(a, C, band * 16, k);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (side * 2 + j <= band) {
          right_operand_transposed<kState>(b, B, side * 32 + j * 16, k);
          multiply_two<T>(scores[2 * j], scores[2 * j + 1], a, b);
        }
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        right_operand_transposed<kState>(b, rounded, side * 32 + c * 16, k);
        multiply_two<T>(y[2 * c], y[2 * c + 1], a, b);
      }
    }
    copy_async_wait<0>();
    __syncthreads();  // x is here, C and the rounded state were used
    fetch_B_C(chunk + 1);
    const float sums[2] = {w.sum[rows[0]], w.sum[rows[1]]}, starts[2] = {w.start[rows[0]], w.start[rows[1]]};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = side * 32 + n * 8 + 2 * t + i % 2;
        // Above the diagonal the exponent is positive and could overflow.
        m[i] = column <= rows[i / 2] ? scores[n][i] * w.dt[column] * exp2_approx(sums[i / 2] - w.sum[column]) : 0.f;
        y[n][i] *= starts[i / 2];
      }
      set_pair<T, kScanChunk>(shared + Layout::kMatrix, rows[0], side * 32 + n * 8 + 2 * t, m[0], m[1]);
      set_pair<T, kScanChunk>(shared + Layout::kMatrix, rows[1], side * 32 + n * 8 + 2 * t, m[2], m[3]);
    }
    state.template step<T>(w.whole, x, B, [&](int j) {
      return float2{w.end[j] * w.dt[j], w.end[j + 1] * w.dt[j + 1]};
    });
    __syncthreads();  // M is whole
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j <= band) {
        uint32_t a[4], b[4];
        left_operand<kScanChunk>(a, shared_address(shared) + Layout::kMatrix, band * 16, j * 16);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          right_operand<kScanChannels>(b, x, j * 16, side * 32 + c * 16);
          multiply_two<T>(y[2 * c], y[2 * c + 1], a, b);
        }
      }
    }

    // y leaves through places of the rounded state that this warp alone uses.
    unsigned char* const through = shared + Layout::kRounded;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = side * 32 + n * 8 + 2 * t;
        const float2 input = pair_at<T, kScanChannels>(shared + Layout::kX, rows[half], column);
        set_pair<T, kScanChannels>(through, rows[half], column, y[n][2 * half] + D * input.x,
                                   y[n][2 * half + 1] + D * input.y);
      }
    }
    __syncwarp();
    T* const to = static_cast<T*>(p.y) + ((at.row * s.length + first) * s.heads + at.head) * kScanChannels;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = band * 16 + i * 8 + lane / 4, piece = side * 4 + lane % 4;
      if (row < length) {
        *reinterpret_cast<uint4*>(to + static_cast<int64_t>(row) * s.heads * kScanChannels + piece * 8) =
            *reinterpret_cast<const uint4*>(through + ScanTile<kScanChannels>::at(row, piece));
      }
    }
    __syncthreads();  // x and the rounded state are free
    fetch_x(chunk + 1);
  }
  if (at.segment == s.segments - 1) state.store_matrix(p.final_state + at.row_head * State::kNumbers);
}

}  // namespace

cudaError_t launch(const ScanOutput& p, cudaStream_t stream) {
  return by_scan_shape(p.shape, [&](auto type, auto state) {
    using T = TypeIn<decltype(type)>;
    constexpr int kState = decltype(state)::value;
    return start_scan(&output_kernel<T, kState>, p, p.shape.rows * p.shape.heads * p.shape.segments, kThreads,
                      OutputLayout<kState>::kBytes, stream);
  });
}

}  // namespace hrm::ops::cuda
