#pragma once
// The threads of memory_blocks.cuh that compute: what they keep, exchange and multiply.

#include "ops/memory/cuda/sm90/memory_blocks_parts.cuh"

namespace hrm::ops::cuda::sm90 {

// What two warpgroups do. A thread has, of rows row and row + 8 and columns 32 * side + 8 * j + 2 * q + e of the
// block's own 64, the element [4 * j + 2 * i + e] of 16, as wgmma lays them out.
template <Input kInput, class Shape>
class MemoryWorker {
 public:
  __device__ MemoryWorker(const MemoryBlocks& p, unsigned char* shared, int rank, int warp)
      : p_(p),
        shared_(shared),
        barriers_(reinterpret_cast<uint64_t*>(shared + Shape::kBarriers)),
        rank_(rank),
        warp_(warp),
        side_(warp / 4) {}

  static __device__ void init_barriers(unsigned char* shared) {
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + Shape::kBarriers);
    for (int i = 0; i < 2 * kStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(full + 2 * kStages + i, 4);
    }
    for (int i = 0; i < 2 * kRanks + 1; ++i) barrier_init(full + 4 * kStages + i, 1);
    barrier_init_fence();
  }

  __device__ void run() {
    load_norms();
    float h[16];
    read_state(h);
    for (int step = 0; step < p_.steps; ++step) {
      start_step(h);
      for (int i = 0; i < p_.count; ++i) run_block(i, step, h);
      save(p_.saved_last, step, Shape::kWidth, own_columns(), h);
      send_x(h, -1);
      for (int i = 0; i < kRanks; ++i) barrier_wait_cluster(x1_ready() + i, parity_x1_);
      parity_x1_ ^= 1;
      const Place at = place();
      float factor[2];
      row_factors(factor);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 weight = norm_weight(2 * p_.count, j, at);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* const pair = h + 4 * j + 2 * i;
          const float2 y =
              widen_pair<kInput>(round_pair<kInput>(pair[0] * factor[i] * weight.x, pair[1] * factor[i] * weight.y));
          pair[0] = y.x;
          pair[1] = y.y;
        }
      }
    }
    save(p_.out, 0, Shape::kWidth, own_columns(), h);
  }

 private:
  static constexpr int kRanks = Shape::kRanks, kStages = Shape::kStages, kTile = Shape::kTile;

  __device__ uint64_t* full() const {
    return barriers_ + kStages * side_;
  }
  __device__ uint64_t* empty() const {
    return barriers_ + kStages * (2 + side_);
  }
  __device__ uint64_t* x0_ready() const {
    return barriers_ + 4 * kStages;
  }
  __device__ uint64_t* x1_ready() const {
    return x0_ready() + kRanks;
  }
  __device__ uint64_t* parts_ready() const {
    return x1_ready() + kRanks;
  }
  __device__ unsigned char* x0(int rank) const {
    return shared_ + rank * kTile;
  }
  __device__ unsigned char* x1(int rank) const {
    return shared_ + Shape::kX1 + rank * kTile;
  }
  __device__ unsigned char* head(int part) const {
    return shared_ + Shape::kHead + part * kTile;
  }
  __device__ float* norm(int index) const {
    return reinterpret_cast<float*>(shared_ + Shape::kNorms) + 64 * index;
  }
  __device__ float2* sums(int rank) const {
    return reinterpret_cast<float2*>(shared_ + Shape::kSums + (sums_turn_ * kRanks + rank) * Shape::kSumBytes);
  }

  // Where this thread's elements are. Read again wherever it is needed, so that the compiler does not keep what it can
  // compute of it in registers, which accumulators take.
  struct Place {
    int lane, g, q, row;  // row and row + 8; columns 2 * q, 2 * q + 1 of each 8
  };
  __device__ Place place() const {
    const int lane = fresh_lane();
    return {lane, lane / 4, lane % 4, 16 * (warp_ % 4) + lane / 4};
  }
  // Of row + 8 * i, among the vectors of all memories; below zero where there is none.
  __device__ int vector(const Place& at, int i) const {
    const int rows = 64 / p_.length * p_.length, row = at.row + 8 * i;
    const int vector = static_cast<int>(blockIdx.x) / kRanks * rows + row;
    return row < rows && vector < static_cast<int>(p_.batch) * p_.length ? vector : -1;
  }
  __device__ int own_columns() const {
    return 64 * rank_ + 32 * side_;
  }
  __device__ float2 norm_weight(int index, int j, const Place& at) const {
    return *reinterpret_cast<const float2*>(norm(index) + 32 * side_ + 8 * j + 2 * at.q);
  }
  // Two neighbouring elements.
  static __device__ uint32_t& at(void* base, int64_t element) {
    return *reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(base) + 2 * element);
  }
  static __device__ uint32_t read(const void* base, int64_t element) {
    return __ldg(reinterpret_cast<const unsigned int*>(static_cast<const unsigned char*>(base) + 2 * element));
  }
  // The thread's two columns of chunk `chunk`, 8 columns, of row + 8 * i in a swizzled tile.
  static __device__ uint32_t& in_tile(unsigned char* tile, int chunk, int i, const Place& at) {
    return *reinterpret_cast<uint32_t*>(tile + (at.row + 8 * i) * 128 + ((chunk ^ at.g) << 4) + 4 * at.q);
  }
  static __device__ void all_workers() {
    named_barrier(1, 256);
  }

  __device__ void load_norms() const {
    for (int i = 32 * warp_ + fresh_lane(); i < 64 * (2 * p_.count + 1); i += 256) {
      const int index = i / 64;
      const float* const from = index == 2 * p_.count ? p_.norm
                                : index % 2 == 0      ? p_.blocks[index / 2].attention_norm
                                                      : p_.blocks[index / 2].mlp_norm;
      norm(0)[i] = from[64 * rank_ + i % 64];
    }
    all_workers();
  }

  __device__ void read_state(float (&h)[16]) const {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int v = vector(at, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = own_columns() + 8 * j + 2 * at.q;
        const float2 pair = widen_pair<kInput>(v < 0 ? 0 : read(p_.state, int64_t{v} * Shape::kWidth + column));
        h[4 * j + 2 * i] = pair.x;
        h[4 * j + 2 * i + 1] = pair.y;
      }
    }
  }

  // h + extra + pos, rounded after each.
  __device__ void start_step(float (&h)[16]) const {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int v = vector(at, i);
      if (v < 0) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t column = own_columns() + 8 * j + 2 * at.q;
        float* const pair = h + 4 * j + 2 * i;
        const uint32_t extra = read(p_.extra, int64_t{v / p_.length} * Shape::kWidth + column);
        const uint32_t pos = read(p_.pos, int64_t{v % p_.length} * Shape::kWidth + column);
        const float2 sum =
            widen_pair<kInput>(add_pairs<kInput>(add_pairs<kInput>(round_pair<kInput>(pair[0], pair[1]), extra), pos));
        pair[0] = sum.x;
        pair[1] = sum.y;
      }
    }
  }

  // Columns `column` + 8 * j + 2 * q of a stacked tensor, from accumulators. The four threads of a row exchange their
  // pairs, so that each has 8 neighbouring columns of every 32, 16 bytes.
  template <int kCount>
  __device__ void save(void* to, int step, int width, int column, const float (&d)[kCount]) const {
    static_assert(kCount % 16 == 0);
    if (to == nullptr) return;
    const Place where = place();
    const int64_t first = int64_t{step} * p_.batch * p_.length;
    const bool odd = where.q % 2 == 1, high = where.q >= 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int v = vector(where, i);
      unsigned char* const row = static_cast<unsigned char*>(to) + 2 * ((first + v) * width + column + 8 * where.q);
#pragma unroll
      for (int run = 0; run < kCount / 16; ++run) {
        uint32_t pair[4];  // of columns 8 * j + 2 * q
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          pair[j] = round_pair<kInput>(d[16 * run + 4 * j + 2 * i], d[16 * run + 4 * j + 2 * i + 1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? pair[j] : pair[j + 1], 1);
          (odd ? pair[j] : pair[j + 1]) = got;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? pair[j] : pair[j + 2], 2);
          (high ? pair[j] : pair[j + 2]) = got;
        }
        if (v >= 0) store_16(row + 64 * run, {pair[0], pair[1], pair[2], pair[3]});
      }
    }
  }

  // ---- Exchange ----

  // Sends the own columns of h * the weight of this norm, and their share of the rows' sums of squares; below zero
  // these alone, told by x1's barriers: others may send the next x0 before this rank has all of the sums.
  __device__ void send_x(const float (&h)[16], int norm) {
    sums_turn_ ^= 1;
    const Place at = place();
    float squares[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 weight = norm >= 0 ? norm_weight(norm, j, at) : float2{};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = h[4 * j + 2 * i], second = h[4 * j + 2 * i + 1];
        squares[i] = fmaf(first, first, fmaf(second, second, squares[i]));
        if (norm >= 0)
          in_tile(x0(rank_), 4 * side_ + j, i, at) = round_pair<kInput>(first * weight.x, second * weight.y);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
      squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
      if (at.q == 0) (side_ == 0 ? sums(rank_)[at.row + 8 * i].x : sums(rank_)[at.row + 8 * i].y) = squares[i];
    }
    if (norm >= 0) {
      send(x0_ready(), x0(rank_), true);
    } else {
      send(x1_ready(), nullptr, true);
    }
  }

  // This rank's chunk, and its sums, to all others: a warp for each.
  __device__ void send(uint64_t* ready, const unsigned char* chunk, bool with_sums) {
    fence_async_shared();
    all_workers();
    if (warp_ < kRanks && fresh_lane() == 0) {
      if (warp_ == rank_) {
        barrier_arrive(ready + rank_);
      } else {
        const auto to = static_cast<uint32_t>(warp_);
        barrier_arrive_expect(ready + warp_, (with_sums ? Shape::kSumBytes : 0) + (chunk != nullptr ? kTile : 0));
        if (chunk != nullptr) copy_to_rank(chunk, kTile, ready + rank_, to);
        if (with_sums) copy_to_rank(sums(rank_), Shape::kSumBytes, ready + rank_, to);
      }
    }
    __syncwarp();
  }

  // 1 / sqrt(mean of squares + eps) of this thread's rows, from the sums that came with x0.
  __device__ void row_factors(float (&factor)[2]) const {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        const float2 both = sums(rank)[at.row + 8 * i];
        sum += both.x + both.y;
      }
      factor[i] = rsqrtf(sum / static_cast<float>(Shape::kWidth) + p_.eps);
    }
  }

  // ---- Products ----

  // The next tile of the ring goes to multiply(tile).
  template <class Multiply>
  __device__ void use_tile(Multiply&& multiply) {
    barrier_wait(full() + at_.stage, at_.parity);
    wgmma_fence();
    multiply(shared_ + Shape::kRing + (kStages * side_ + at_.stage) * kTile);
    wgmma_commit();
    if (previous_ >= 0) {
      wgmma_wait<1>();
      release(previous_);
    }
    previous_ = at_.stage;
    at_.advance();
  }
  __device__ void end_products() {
    wgmma_wait<0>();
    release(previous_);
    previous_ = -1;
  }
  __device__ void release(int stage) const {
    if (fresh_lane() == 0) barrier_arrive(empty() + stage);
  }

  // The chunks of all ranks as they arrive, this rank's own first: multiply(rows). Two sets of registers:
  // the last product with a chunk still reads its own while the next chunk is loaded.
  template <class Multiply>
  __device__ void for_chunks(const unsigned char* chunks, uint64_t* ready, uint32_t& parity, Multiply&& multiply) {
    uint32_t a[2][4][4];
    for (int i = 0; i < kRanks; i += 2) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int rank = (rank_ + i + k) % kRanks;
        barrier_wait_cluster(ready + rank, parity);
        load_rows(a[k], chunks + rank * kTile, warp_);
        multiply(a[k]);
      }
    }
    parity ^= 1;
    end_products();
  }

  __device__ void run_block(int index, int step, float (&h)[16]) {
    const MemoryBlock& block = p_.blocks[index];
    save(block.saved_x, step, Shape::kWidth, own_columns(), h);
    send_x(h, 2 * index);
    attend(block, step);
    {
      float d[16];
      start_at_zero(d);
      for_chunks(x1(0), x1_ready(), parity_x1_, [&](const uint32_t(&a)[4][4]) {
        use_tile([&](const unsigned char* tile) { multiply_chunk<kInput, 32>(d, a, tile); });
      });
      registers_fence(d);
      add_rounded(h, d);
    }
    save(block.saved_h, step, Shape::kWidth, own_columns(), h);
    send_x(h, 2 * index + 1);
    gate(block, step);
    feed_down(h);
  }

  static __device__ void add_rounded(float (&h)[16], const float (&d)[16]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float2 sum = widen_pair<kInput>(round_pair<kInput>(h[2 * k] + d[2 * k], h[2 * k + 1] + d[2 * k + 1]));
      h[2 * k] = sum.x;
      h[2 * k + 1] = sum.y;
    }
  }

  template <int kCount>
  static __device__ void scale_rows(float (&d)[kCount], const float (&factor)[2]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) d[k] *= factor[k / 2 % 2];
  }

  template <int kCount>
  __device__ void put(unsigned char* tile, int chunk, const float (&d)[kCount]) const {
    const Place at = place();
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        in_tile(tile, chunk + j, i, at) = round_pair<kInput>(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
      }
    }
  }

  // q, k and v of the head, its attention, and the result to all.
  __device__ void attend(const MemoryBlock& block, int step);
  // RMSNorm of each row of q and k, 64 elements; two threads to a row.
  __device__ void normalise_head(const MemoryBlock& block) const;
  // The rank's 192 columns of act = silu(gate) * up, into the place of q, k and v; each side has 96 of them.
  __device__ void gate(const MemoryBlock& block, int step);
  // h += act * down^T. This rank's 192 of K make parts of all columns.
  __device__ void feed_down(float (&h)[16]);

  const MemoryBlocks& p_;
  unsigned char* const shared_;
  uint64_t* const barriers_;
  const int rank_, warp_, side_;
  RingPosition<kStages> at_;
  int previous_ = -1;
  int sums_turn_ = 0;
  uint32_t parity_x0_ = 0, parity_x1_ = 0, parity_parts_ = 0;
};

}  // namespace hrm::ops::cuda::sm90
