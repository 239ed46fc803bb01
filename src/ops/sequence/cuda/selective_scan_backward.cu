// The gradients of a chunk, all of whose states are there: E before it, dZ of the gradient after it (letters of
// reference/selective_scan_ref.cpp). A block goes through some heads of one group, and sums over them in registers:
//   G = C B^T, dM = (grad_y x^T) dt_j, L_ij = exp(s_i - s_j) for j <= i, M = G L
//   grad_X = exp(s_last - s_j) B dZ^T + M^T grad_y                   grad_x = dt grad_X + D grad_y
//   grad_C = (sum over heads of dM L) B + exp(s_i) grad_y E          grad_B likewise, of C, x and dZ
// The gradient of s_i is that of what it scales: with W = dM M, row i of W and grad_y_i . exp(s_i) E C_i, less column i
// of W and X_i . exp(s_last - s_i) dZ B_i; the last position's has <dZ, S after the chunk> on top. Rows and columns are
// summed from the same float32 numbers, since most of the two cancels.
#include "ops/sequence/cuda/selective_scan.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kSides = 4;  // a product's columns are shared by so many warps, its rows by four bands of 16

// Sums that each side (columns: each band) has of a position, and each warp of all.
struct ChunkSums {
  float rows[kSides][kScanChunk];   // of W, and grad_y . exp(s) E C
  float columns[4][kScanChunk];     // of W
  float x[kSides][kScanChunk];      // x . grad_X
  float state[kSides][kScanChunk];  // x . the part of grad_X that comes by the state
  float entry[kWarps];              // <dZ, E>
  float skip[kWarps];               // grad_y . x
};

template <int kState>
struct BackwardLayout {
  static constexpr int kWide = ScanTile<kState>::kBytes, kNarrow = ScanTile<kScanChannels>::kBytes;
  static constexpr int kB = 0, kC = kWide, kEntry = 2 * kWide, kAfter = 3 * kWide;
  static constexpr int kX = 4 * kWide, kGradY = kX + 2 * kNarrow, kMatrix = kGradY + 2 * kNarrow;  // x, grad_y: two
  static constexpr int kWeights = kMatrix + kNarrow;                                               // two
  static constexpr int kSums = kWeights + 2 * static_cast<int>(sizeof(ScanWeights));               // two
  static constexpr int kBytes = kSums + 2 * static_cast<int>(sizeof(ChunkSums));
};

__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Sums of four numbers over the lanes of equal lane % 4. Each lane gets one of them, that of sum_of_lane().
__device__ inline int sum_of_lane() {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  return (g & 1) * 2 + (g >> 1 & 1);
}
__device__ inline float octet_sum(float (&values)[4]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int kept = 2 >> step;
    const bool upper = (g >> step & 1) != 0;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float keep = upper ? values[i + kept] : values[i], give = upper ? values[i] : values[i + kept];
      values[i] = keep + __shfl_xor_sync(0xffffffffu, give, 4 << step);
    }
  }
  return values[0] + __shfl_xor_sync(0xffffffffu, values[0], 16);
}

__device__ inline float sum_of_four(const float (&values)[4][kScanChunk], int j) {
  return (values[0][j] + values[1][j]) + (values[2][j] + values[3][j]);
}

// What the sums say of dt, A and D; by one warp.
__device__ inline void finish_head(const ScanBackward& p, const ScanWeights& w, const ChunkSums& sums, int64_t row,
                                   int chunk, int head, float A) {
  const ScanShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float grad_sum[2], of_x[2], by_state = 0, entry = 0, skip = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int j = 2 * lane + i;
    of_x[i] = sum_of_four(sums.x, j);
    const float of_state = w.dt[j] * sum_of_four(sums.state, j);
    grad_sum[i] = sum_of_four(sums.rows, j) - sum_of_four(sums.columns, j) - of_state;
    by_state += of_state;
  }
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    entry += sums.entry[i];
    skip += sums.skip[i];
  }
  float behind = grad_sum[0] + grad_sum[1];  // inclusive sum over the lanes from the right
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, behind, static_cast<unsigned>(offset));
    if (lane + offset < 32) behind += other;
  }
  const float after = warp_sum(by_state) + w.whole * entry;
  const float grad_a[2] = {behind + after, behind - grad_sum[0] + after};
  float of_A = 0;
  float* const to = p.grad_dt + (row * s.length + chunk * kScanChunk) * s.heads + head;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int j = 2 * lane + i;
    of_A += grad_a[i] * w.dt[j];
    if (chunk * kScanChunk + j < s.length) to[static_cast<int64_t>(j) * s.heads] = grad_a[i] * A + of_x[i];
  }
  of_A = warp_sum(of_A);
  if (lane == 0) p.partial_heads[(row * s.chunks + chunk) * s.heads + head] = {of_A, skip};
}

// 16 rows of accumulators of one side of the columns.
template <typename T, int kState>
__device__ inline void store_group(const float (&values)[kState / kSides / 8][4], const ScanBackward& p, void* whole,
                                   float* partial, int64_t row, int chunk, int group, int part) {
  const ScanShape& s = p.shape;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = chunk * kScanChunk + warp % 4 * 16 + lane / 4 + 8 * half;
    if (position >= s.length) continue;
    const int64_t at =
        ((row * s.length + position) * s.groups + group) * kState + warp / 4 * (kState / kSides) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kState / kSides / 8; ++n) {
      const float low = values[n][2 * half], high = values[n][2 * half + 1];
      if (p.parts == 1) {
        *reinterpret_cast<uint32_t*>(static_cast<T*>(whole) + at + n * 8) = Pair<T>::pack(low, high);
      } else {
        *reinterpret_cast<float2*>(partial + part * s.rows * s.length * s.groups * kState + at + n * 8) = {low, high};
      }
    }
  }
}

template <typename T, int kState>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(ScanBackward p) {
  using Layout = BackwardLayout<kState>;
  constexpr int kPart = kState / kSides;  // columns of B and C that a warp has
  extern __shared__ __align__(128) unsigned char shared[];
  const ScanShape& s = p.shape;
  int64_t block = blockIdx.x;
  const int part = static_cast<int>(block % p.parts);
  block /= p.parts;
  const int group = static_cast<int>(block % s.groups);
  block /= s.groups;
  const int chunk = static_cast<int>(block % s.chunks);
  const int64_t row = block / s.chunks;
  const int in_group = s.heads / s.groups, in_part = (in_group + p.parts - 1) / p.parts;
  const int first_head = group * in_group + part * in_part;
  const int end_head = min(first_head + in_part, (group + 1) * in_group);
  const int first = chunk * kScanChunk, length = s.length - first;

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int band = warp % 4, side = warp / 4;
  const int rows[2] = {band * 16 + g, band * 16 + g + 8};
  const uint32_t base = shared_address(shared);
  const uint32_t B = base + Layout::kB, C = base + Layout::kC, entry = base + Layout::kEntry;
  const uint32_t after = base + Layout::kAfter, matrix = base + Layout::kMatrix;
  auto* const all_weights = reinterpret_cast<ScanWeights*>(shared + Layout::kWeights);
  auto* const all_sums = reinterpret_cast<ChunkSums*>(shared + Layout::kSums);
  wait_for_earlier();

  // What a head needs comes in three groups of copies, each as soon as its place is free.
  const auto fetch_rows = [&](int head) {
    if (head < end_head) {
      const uint32_t offset = static_cast<uint32_t>((head - first_head) % 2 * Layout::kNarrow);
      load_tile<T, kScanChannels, kThreads>(view_at<T>(p.grad_y, row, head, first), p.grad_y.position, length,
                                            base + Layout::kGradY + offset);
      load_tile<T, kScanChannels, kThreads>(view_at<T>(p.x, row, head, first), p.x.position, length,
                                            base + Layout::kX + offset);
      load_weights(p.weights, s, row, chunk, head, all_weights + (head - first_head) % 2);
    }
    copy_async_commit();
  };
  const auto fetch_state = [&](int head, int direction, uint32_t to) {
    if (head < end_head) {
      const int64_t place = ((direction * s.rows + row) * s.heads + head) * s.chunks + chunk;
      const T* const from = static_cast<const T*>(p.entries) + place * (kScanChannels * kState);
      load_tile<T, kState, kThreads>(from, kState, kScanChunk, to);
    }
    copy_async_commit();
  };
  load_tile<T, kState, kThreads>(view_at<T>(p.B, row, group, first), p.B.position, length, B);
  load_tile<T, kState, kThreads>(view_at<T>(p.C, row, group, first), p.C.position, length, C);
  fetch_rows(first_head);
  fetch_state(first_head, 0, entry);
  fetch_state(first_head, 1, after);

  float scores[2][4] = {};       // G
  float grad_scores[2][4] = {};  // sum over heads of dM L
  float grad_B[kPart / 8][4] = {}, grad_C[kPart / 8][4] = {};
  for (int head = first_head; head < end_head; ++head) {
    const int turn = (head - first_head) % 2;
    const ScanWeights& w = all_weights[turn];
    ChunkSums& sums = all_sums[turn];
    unsigned char* const x_tile = shared + Layout::kX + turn * Layout::kNarrow;
    unsigned char* const grad_y_tile = shared + Layout::kGradY + turn * Layout::kNarrow;
    const uint32_t x = shared_address(x_tile), grad_y = shared_address(grad_y_tile);
    copy_async_wait<1>();
    __syncthreads();  // all but dZ is here
    fetch_rows(head + 1);
    const float D = p.D[head];
    if (head == first_head) {
      if (side <= band) {
#pragma unroll 2
        for (int k = 0; k < kState; k += 16) {
          uint32_t a[4], b[4];
          left_operand<kState>(a, C, band * 16, k);
          right_operand_transposed<kState>(b, B, side * 16, k);
          multiply_two<T>(scores[0], scores[1], a, b);
        }
      }
    }
    const float starts[2] = {w.start[rows[0]], w.start[rows[1]]}, ends[2] = {w.end[rows[0]], w.end[rows[1]]};
    const float steps[2] = {w.dt[rows[0]], w.dt[rows[1]]};
    float of_row[2] = {}, of_x[2] = {}, by_state[2] = {}, skip = 0;

    // grad_y with x, inside the chunk, and with E.
    {
      uint32_t a[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) left_operand<kScanChannels>(a[k], grad_y, band * 16, k * 16);
      float grad_matrix[2][4] = {};
      if (side <= band) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          uint32_t b[4];
          right_operand_transposed<kScanChannels>(b, x, side * 16, k * 16);
          multiply_two<T>(grad_matrix[0], grad_matrix[1], a[k], b);
        }
      }
      const float at_row[2] = {w.sum[rows[0]], w.sum[rows[1]]};
      float of_column[4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float m[4], taken[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = side * 16 + n * 8 + 2 * t + i % 2;
          // Above the diagonal the exponent is positive and could overflow.
          const float decay = column <= rows[i / 2] ? exp2_approx(at_row[i / 2] - w.sum[column]) : 0.f;
          const float of_matrix = grad_matrix[n][i] * w.dt[column];
          m[i] = scores[n][i] * decay;
          taken[i] = of_matrix * m[i];
          of_row[i / 2] += taken[i];
          grad_scores[n][i] += of_matrix * decay;
        }
        of_column[2 * n] = taken[0] + taken[2];
        of_column[2 * n + 1] = taken[1] + taken[3];
        set_pair<T, kScanChunk>(shared + Layout::kMatrix, rows[0], side * 16 + n * 8 + 2 * t, m[0], m[1]);
        set_pair<T, kScanChunk>(shared + Layout::kMatrix, rows[1], side * 16 + n * 8 + 2 * t, m[2], m[3]);
      }
      const float column_sum = octet_sum(of_column);
      sums.columns[band][side * 16 + sum_of_lane() / 2 * 8 + 2 * t + sum_of_lane() % 2] = column_sum;
#pragma unroll
      for (int n = 0; n < kPart; n += 16) {
        float product[2][4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          uint32_t b[4];
          right_operand<kState>(b, entry, k * 16, side * kPart + n);
          multiply_two<T>(product[0], product[1], a[k], b);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float low = product[i][2 * half] * starts[half], high = product[i][2 * half + 1] * starts[half];
            const float2 c = pair_at<T, kState>(shared + Layout::kC, rows[half], side * kPart + n + i * 8 + 2 * t);
            of_row[half] += c.x * low + c.y * high;
            grad_C[n / 8 + i][2 * half] += low;
            grad_C[n / 8 + i][2 * half + 1] += high;
          }
        }
      }
    }

    copy_async_wait<1>();
    __syncthreads();  // dZ is here, M is whole, E was used

    // <dZ, E>. Each thread then overwrites what it alone has read of E.
    float both = 0;
    {
      constexpr int kPieces = ScanTile<kState>::kPieces;
      const int piece = static_cast<int>(threadIdx.x) % kPieces;
#pragma unroll
      for (int i = static_cast<int>(threadIdx.x) / kPieces; i < kScanChunk; i += kThreads / kPieces) {
        const uint32_t offset = ScanTile<kState>::at(i, piece);
        const uint4 left = *reinterpret_cast<const uint4*>(shared + Layout::kEntry + offset);
        const uint4 right = *reinterpret_cast<const uint4*>(shared + Layout::kAfter + offset);
        const uint32_t l[4] = {left.x, left.y, left.z, left.w}, r[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 e = Pair<T>::unpack(l[j]), d = Pair<T>::unpack(r[j]);
          both += e.x * d.x + e.y * d.y;
        }
      }
      both = warp_sum(both);
    }
    fetch_state(head + 1, 0, entry);

    // x with dZ.
    {
      uint32_t a[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) left_operand<kScanChannels>(a[k], x, band * 16, k * 16);
#pragma unroll
      for (int n = 0; n < kPart; n += 16) {
        float product[2][4] = {};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          uint32_t b[4];
          right_operand<kState>(b, after, k * 16, side * kPart + n);
          multiply_two<T>(product[0], product[1], a[k], b);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) grad_B[n / 8 + i][j] += product[i][j] * (ends[j / 2] * steps[j / 2]);
        }
      }
    }

    // grad_X: 16 positions, 16 channels.
    float grad_X[2][4] = {};
#pragma unroll 2
    for (int k = 0; k < kState; k += 16) {
      uint32_t a[4], b[4];
      left_operand<kState>(a, B, band * 16, k);
      right_operand_transposed<kState>(b, after, side * 16, k);
      multiply_two<T>(grad_X[0], grad_X[1], a, b);
    }
    float2 in[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        in[n][half] = pair_at<T, kScanChannels>(x_tile, rows[half], side * 16 + n * 8 + 2 * t);
        grad_X[n][2 * half] *= ends[half];
        grad_X[n][2 * half + 1] *= ends[half];
        by_state[half] += in[n][half].x * grad_X[n][2 * half] + in[n][half].y * grad_X[n][2 * half + 1];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= band) {
        uint32_t a[4], b[4];
        left_operand_transposed<kScanChunk>(a, matrix, i * 16, band * 16);
        right_operand<kScanChannels>(b, grad_y, i * 16, side * 16);
        multiply_two<T>(grad_X[0], grad_X[1], a, b);
      }
    }
    T* const to = static_cast<T*>(p.grad_x) + ((row * s.length + first) * s.heads + head) * kScanChannels;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 out = pair_at<T, kScanChannels>(grad_y_tile, rows[half], side * 16 + n * 8 + 2 * t);
        const float low = grad_X[n][2 * half], high = grad_X[n][2 * half + 1];
        of_x[half] += in[n][half].x * low + in[n][half].y * high;
        skip += in[n][half].x * out.x + in[n][half].y * out.y;
        words[n] = Pair<T>::pack(low * steps[half] + out.x * D, high * steps[half] + out.y * D);
      }
      // Two lanes swap, so that each stores eight bytes in a row.
      const uint32_t other = __shfl_xor_sync(0xffffffffu, t % 2 == 0 ? words[1] : words[0], 1);
      if (rows[half] < length) {
        *reinterpret_cast<uint2*>(to + static_cast<int64_t>(rows[half]) * s.heads * kScanChannels + side * 16 +
                                  t % 2 * 8 + t / 2 * 4) =
            t % 2 == 0 ? make_uint2(words[0], other) : make_uint2(other, words[1]);
      }
    }

    skip = warp_sum(skip);
    if (lane == 0) {
      sums.entry[warp] = both;
      sums.skip[warp] = skip;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_rows = quad_sum(of_row[half]), of_xs = quad_sum(of_x[half]), of_states = quad_sum(by_state[half]);
      if (t == 0) {
        sums.rows[side][rows[half]] = of_rows;
        sums.x[side][rows[half]] = of_xs;
        sums.state[side][rows[half]] = of_states;
      }
    }
    __syncthreads();  // the sums are there, the tiles of M and dZ are free
    fetch_state(head + 1, 1, after);
    // By a warp that has nothing to do above the diagonal.
    if (warp == kWarps - 4) finish_head(p, w, sums, row, chunk, head, p.A[head]);
  }

  // The sum over heads with B and with C.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      set_pair<T, kScanChunk>(shared + Layout::kMatrix, rows[half], side * 16 + n * 8 + 2 * t, grad_scores[n][2 * half],
                              grad_scores[n][2 * half + 1]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t a[4], b[4];
    if (i <= band) {
      left_operand<kScanChunk>(a, matrix, band * 16, i * 16);
#pragma unroll
      for (int n = 0; n < kPart; n += 16) {
        right_operand<kState>(b, B, i * 16, side * kPart + n);
        multiply_two<T>(grad_C[n / 8], grad_C[n / 8 + 1], a, b);
      }
    }
    if (i >= band) {
      left_operand_transposed<kScanChunk>(a, matrix, i * 16, band * 16);
#pragma unroll
      for (int n = 0; n < kPart; n += 16) {
        right_operand<kState>(b, C, i * 16, side * kPart + n);
        multiply_two<T>(grad_B[n / 8], grad_B[n / 8 + 1], a, b);
      }
    }
  }
  store_group<T, kState>(grad_B, p, p.grad_B, p.partial_B, row, chunk, group, part);
  store_group<T, kState>(grad_C, p, p.grad_C, p.partial_C, row, chunk, group, part);
}

// The first blocks: a head's sums over all chunks. The others: four numbers of grad_B or grad_C a thread.
template <typename T>
__global__ void __launch_bounds__(kThreads) sums_kernel(ScanSums p) {
  wait_for_earlier();
  const ScanShape& s = p.shape;
  int64_t block = blockIdx.x;
  if (block < s.heads) {
    float of_A = 0, of_D = 0;
    for (int64_t i = threadIdx.x; i < s.rows * s.chunks; i += kThreads) {
      const float2 two = p.partial_heads[i * s.heads + block];
      of_A += two.x;
      of_D += two.y;
    }
    of_A = block_sum<kWarps>(of_A);
    of_D = block_sum<kWarps>(of_D);
    if (threadIdx.x == 0) {
      p.grad_A[block] = of_A;
      p.grad_D[block] = of_D;
    }
    return;
  }
  block -= s.heads;
  const int64_t fours = s.rows * s.length * s.groups * s.state / 4;
  int64_t four = block * kThreads + threadIdx.x;
  const bool of_C = four >= fours;
  if (of_C) four -= fours;
  if (four >= fours) return;
  const auto* from = reinterpret_cast<const float4*>(of_C ? p.partial_C : p.partial_B);
  float4 sum{};
  for (int part = 0; part < p.parts; ++part) {
    const float4 add = from[part * fours + four];
    sum = {sum.x + add.x, sum.y + add.y, sum.z + add.z, sum.w + add.w};
  }
  auto* const to = reinterpret_cast<uint2*>(of_C ? p.grad_C : p.grad_B);
  to[four] = {Pair<T>::pack(sum.x, sum.y), Pair<T>::pack(sum.z, sum.w)};
}

}  // namespace

cudaError_t launch(const ScanBackward& p, cudaStream_t stream) {
  return by_scan_shape(p.shape, [&](auto type, auto state) {
    using T = TypeIn<decltype(type)>;
    constexpr int kState = decltype(state)::value;
    return start_scan(&backward_kernel<T, kState>, p, p.shape.rows * p.shape.chunks * p.shape.groups * p.parts,
                      kThreads, BackwardLayout<kState>::kBytes, stream);
  });
}

cudaError_t launch(const ScanSums& p, cudaStream_t stream) {
  const ScanShape& s = p.shape;
  const int64_t fours = p.parts == 1 ? 0 : 2 * (s.rows * s.length * s.groups * s.state / 4);
  const int64_t blocks = s.heads + (fours + kThreads - 1) / kThreads;
  return by_half_element(s.element, [&](auto type) {
    return start_scan(&sums_kernel<TypeIn<decltype(type)>>, p, blocks, kThreads, 0, stream);
  });
}

}  // namespace hrm::ops::cuda
