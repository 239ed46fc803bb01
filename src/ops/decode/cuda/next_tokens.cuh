#pragma once
// The kernel that draws the next token of each row. It compiles slowly, so each file instantiates it for one type of
// logits and two sizes of clusters.
//
// A block for each row, or where the GPU has clusters (compute capability 9.0) and the vocabulary is large, a cluster
// of blocks that share a row: each goes through its stretch of it, and they add up their bins through distributed
// shared memory. Whole numbers are added, so that the number of blocks changes nothing.

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"
#include "ops/cuda/packed.cuh"
#include "ops/decode/cuda/next_tokens_start.h"

namespace hrm::ops::cuda::sampling {

constexpr int kThreads = kNextTokensThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2 * kThreads;
constexpr int kMostListed = 2048;
constexpr float kUnits = 0x1.0p40f;  // of a mass, as in the reference
constexpr int kNothing = -2;

using Mass = unsigned long long;

// What the blocks of a cluster do together; K is 1 where a block has a row to itself.
template <int K>
struct Together {
  __device__ static inline int rank() {
    if constexpr (K > 1) return rank_in_cluster();
    return 0;
  }
  // What all wrote before is there for all after.
  __device__ static inline void sync() {
    if constexpr (K > 1) {
      sync_cluster();
    } else {
      __syncthreads();
    }
  }
  // The same variable of shared memory in another block.
  template <typename V>
  __device__ static inline V* of(V* shared, int block) {
    if constexpr (K > 1) return in_block_of_cluster(shared, block);
    return shared;
  }
};

// A stretch of a row's logits; 16 bytes at a time where they stand so. take(id, logit) for every id, each in one
// thread.
template <typename T>
struct Row {
  static constexpr int N = 16 / sizeof(T), kBatch = 4;
  const T* data;   // of the whole row
  int first, end;  // ids; first is a multiple of N
  bool packed;

  template <class Take>
  __device__ inline void each(const Take& take) const {
    const int full = packed ? end / N : 0;
    for (int pack = first / N + static_cast<int>(threadIdx.x); pack < full; pack += kBatch * kThreads) {
      take_packs(pack, kThreads, full, take);
    }
    for (int id = max(full * N, first) + static_cast<int>(threadIdx.x); id < end; id += kThreads) {
      take(id, to_float(data[id]));
    }
  }
  // A part of it for each thread, in order.
  template <class Take>
  __device__ inline void each_in_order(const Take& take) const {
    const int full = packed ? end / N : 0, share = (end - first + N * kThreads - 1) / (N * kThreads);
    const int mine = first / N + static_cast<int>(threadIdx.x) * share, last = min(mine + share, full);
    for (int pack = mine; pack < last; pack += kBatch) take_packs(pack, 1, last, take);
    for (int id = max(mine, full) * N; id < min((mine + share) * N, end); ++id) take(id, to_float(data[id]));
  }

 private:
  template <class Take>
  __device__ inline void take_packs(int first, int step, int end, const Take& take) const {
    Pack<T, N> packs[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first + j * step < end) packs[j] = load_pack<T, N>(data + (first + j * step) * N);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first + j * step >= end) break;
      keep_packed(packs[j]);
#pragma unroll
      for (int n = 0; n < N; ++n) take((first + j * step) * N + n, to_float(packs[j].value[n]));
    }
  }
};

// Some tokens of a row, in order.
struct Listed {
  const float* logits;
  const int* ids;
  int count;

  template <class Take>
  __device__ inline void each(const Take& take) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) take(ids[i], logits[i]);
  }
  template <class Take>
  __device__ inline void each_in_order(const Take& take) const {
    const int share = (count + kThreads - 1) / kThreads, begin = static_cast<int>(threadIdx.x) * share;
    for (int i = begin; i < min(begin + share, count); ++i) take(ids[i], logits[i]);
  }
};

struct Selected {
  uint32_t key;
  Mass before;  // of the keys below
};

struct Shared {
  Mass bins[kBins];
  Mass sums[kWarps];
  float logits[kMostListed];
  int ids[kMostListed];
  Mass totals[4];  // of a block, for the others of its cluster: one for each use
  Mass before, inside;
  Selected selected;
  int listed, place;  // of a block's own part of a list, and where it goes
  int all_listed;
  int bin;
  int token;
};
enum Total { kBest, kListed, kTies, kDrawn };

// Sum of what the threads before have, and of all. Holds two barriers.
__device__ inline Mass sum_before(Shared& s, Mass own, Mass& all) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Mass sum = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == 31) s.sums[warp] = sum;
  __syncthreads();
  Mass before = 0;
  all = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) before += s.sums[other];
    all += s.sums[other];
  }
  return before + sum - own;
}

// The same over all blocks of a cluster, in the order of their stretches. Each `use` once in a kernel.
template <int K>
__device__ inline Mass sum_before_together(Shared& s, Mass own, Mass& all, Total use) {
  Mass before = sum_before(s, own, all);
  if constexpr (K > 1) {
    if (threadIdx.x == 0) s.totals[use] = all;
    Together<K>::sync();
    const int rank = Together<K>::rank();
    all = 0;
    for (int other = 0; other < K; ++other) {
      const Mass total = *Together<K>::of(&s.totals[use], other);
      if (other < rank) before += total;
      all += total;
    }
  }
  return before;
}

// What a logit is over the greatest one: 0 or below.
struct Scale {
  float greatest, inverse;
  __device__ inline float value(float logit) const { return (logit - greatest) * inverse; }
};
__device__ inline Mass mass_of(float value) {
  return static_cast<Mass>(expf(value) * kUnits);
}
// Rises as the value falls.
__device__ inline uint32_t key_of(float value) {
  return __float_as_uint(fabsf(value));
}
// The same, roughly: evenly spread where keys share their first bits.
__device__ inline int coarse_of(float value) {
  return min(kBins - 1, static_cast<int>(fabsf(value) * 64));
}

// A thread's two bins of kBins.
struct Bins {
  Mass low, high;
};

// By two additions of 32 bits: one of 64 bits in shared memory is a loop that compares and swaps, which took four
// fifths of the time of a top-p filter. Once all have added, the words are those of the sum.
__device__ inline void add_mass(Mass* bin, Mass weight) {
  auto* words = reinterpret_cast<uint32_t*>(bin);
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t before = atomicAdd(words, low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < before ? 1 : 0);
  if (high != 0) atomicAdd(words + 1, high);
}

// Adds the weights of a row's tokens to the bins that they belong to: take(value, weight) -> bin, or -1. Whole numbers,
// so that the order of the threads and blocks makes no difference.
template <int K, class Tokens, class Take>
__device__ inline Bins fill(Shared& s, const Tokens& row, const Scale& scale, const Take& take) {
  Together<K>::sync();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) s.bins[i] = 0;
  __syncthreads();
  // Equal neighbours, which logits of 16 bits may have many of, are added up first.
  int last = -1;
  Mass waiting = 0;
  row.each([&](int, float logit) {
    Mass weight = 0;
    const int bin = take(scale.value(logit), weight);
    if (bin < 0 || weight == 0) return;
    if (bin != last) {
      if (last >= 0) add_mass(&s.bins[last], waiting);
      last = bin;
      waiting = 0;
    }
    waiting += weight;
  });
  if (last >= 0) add_mass(&s.bins[last], waiting);
  Together<K>::sync();
  Bins sum{0, 0};
  for (int block = 0; block < K; ++block) {
    const Mass* bins = Together<K>::of(&s.bins[2 * threadIdx.x], block);
    sum.low += bins[0];
    sum.high += bins[1];
  }
  return sum;
}

// The first bin with which the sum, of `before` and the bins in turn, has reached what is wanted; before: the sum then
// without it. reached(sum, all): all is the sum of all bins.
template <class Reached>
__device__ inline int find(Shared& s, const Bins& bins, Mass& before, const Reached& reached) {
  const int mine = 2 * static_cast<int>(threadIdx.x);
  Mass all = 0;
  const Mass start = before + sum_before(s, bins.low + bins.high, all);
  if (!reached(start, all) && reached(start + bins.low, all)) {
    s.bin = mine;
    s.before = start;
    s.inside = bins.low;
  } else if (!reached(start + bins.low, all) && reached(start + bins.low + bins.high, all)) {
    s.bin = mine + 1;
    s.before = start + bins.low;
    s.inside = bins.high;
  }
  __syncthreads();
  before = s.before;
  return s.bin;
}

// The same by the bits of the key, of the tokens in a coarse bin; before: the sum without it.
template <int K, class Tokens, class Weight, class Reached>
__device__ inline Selected select_in_bin(Shared& s, const Tokens& row, const Scale& scale, const Weight& weight,
                                         const Reached& reached, int coarse, Mass before) {
  uint32_t prefix = 0;
  // Eleven bits, eleven more, and the last ten. Unrolled, this would be three copies of the loop over the row.
#pragma unroll 1
  for (int above = 32; above > 0;) {
    const int bits = min(above, 11), shift = above - bits;
    const Bins bins = fill<K>(s, row, scale, [&](float value, Mass& w) {
      const uint32_t key = key_of(value);
      if (coarse_of(value) != coarse || key >> shift >> bits != prefix) return -1;
      w = weight(value);
      return static_cast<int>(key >> shift & ((1u << bits) - 1));
    });
    prefix = prefix << bits | static_cast<uint32_t>(find(s, bins, before, reached));
    above = shift;
  }
  return {prefix, before};
}

// The logits of a coarse bin, in any order, as a list in the first block of a cluster. False where they are too many.
// s.listed and s.all_listed are 0 in all blocks.
template <int K, typename T>
__device__ inline bool list_bin(Shared& s, const Row<T>& row, const Scale& scale, int coarse) {
  int* const own = s.ids;  // their bits
  row.each([&](int, float logit) {
    if (coarse_of(scale.value(logit)) != coarse) return;
    const int at = atomicAdd(&s.listed, 1);
    if (at < kMostListed) own[at] = __float_as_int(logit);
  });
  __syncthreads();
  if (threadIdx.x == 0) s.place = atomicAdd(Together<K>::of(&s.all_listed, 0), s.listed);
  __syncthreads();
  float* const to = Together<K>::of(s.logits, 0);
  for (int i = static_cast<int>(threadIdx.x); i < s.listed && s.place + i < kMostListed; i += kThreads) {
    to[s.place + i] = __int_as_float(own[i]);
  }
  Together<K>::sync();
  return *Together<K>::of(&s.all_listed, 0) <= kMostListed;
}

template <class Tokens>
constexpr bool kIsRow = false;
template <typename T>
constexpr bool kIsRow<Row<T>> = true;

// The key with which the sum of the weights, least keys first, has reached what is wanted. weight(value) -> Mass.
template <int K, class Tokens, class Weight, class Reached>
__device__ inline Selected select(Shared& s, const Tokens& row, const Scale& scale, const Weight& weight,
                                  const Reached& reached) {
  // Seen by all when the bins are full; nobody reads what was there before.
  if (threadIdx.x == 0) s.listed = s.all_listed = 0;
  Mass before = 0;
  const Bins coarse_bins = fill<K>(s, row, scale, [&](float value, Mass& w) {
    w = weight(value);
    return coarse_of(value);
  });
  const int coarse = find(s, coarse_bins, before, reached);
  if constexpr (kIsRow<Tokens>) {
    // The bin that matters holds few tokens: one block looks at them while the others wait.
    if (list_bin<K>(s, row, scale, coarse)) {
      if (Together<K>::rank() == 0) {
        const Listed listed{s.logits, s.ids, s.all_listed};
        const Selected found = select_in_bin<1>(s, listed, scale, weight, reached, coarse, before);
        if (threadIdx.x == 0) s.selected = found;
      }
      Together<K>::sync();
      return *Together<K>::of(&s.selected, 0);
    }
  }
  return select_in_bin<K>(s, row, scale, weight, reached, coarse, before);
}

// A token by its draw, from the row whose greatest logit is finite, or those of it that top_k may leave. The filters
// are those of the reference. Of a cluster, the first block gets it.
template <int K, class Tokens>
__device__ inline int draw_token(Shared& s, const Tokens& row, const NextTokens& p, const Scale& scale, double draw) {
  uint32_t last = __float_as_uint(INFINITY);  // the greatest key that stays
  if (p.top_k > 0) {
    const auto wanted = static_cast<Mass>(p.top_k);
    last = select<K>(
               s, row, scale, [](float) { return Mass{1}; }, [=](Mass sum, Mass) { return sum >= wanted; })
               .key;
  }
  Mass equals = ~Mass{0};  // how many of those with the last key stay
  if (p.top_p < 1) {
    double wanted = -1;  // at the first call all bins hold the whole mass
    const auto reached = [&](Mass sum, Mass all) {
      if (wanted < 0) wanted = fmax(static_cast<double>(all) * p.top_p, 1.0);
      return static_cast<double>(sum) >= wanted;
    };
    const uint32_t most = last;
    const Selected found = select<K>(
        s, row, scale, [=](float value) { return key_of(value) <= most ? mass_of(value) : Mass{0}; }, reached);
    last = found.key;
    const Mass each = mass_of(-__uint_as_float(last));
    const auto there = [&](Mass number) { return static_cast<double>(found.before + number * each) >= wanted; };
    equals = static_cast<Mass>((wanted - static_cast<double>(found.before)) / static_cast<double>(each));
    while (equals > 0 && there(equals - 1)) --equals;
    while (!there(equals)) ++equals;
  }

  const auto left = [&](float value) {
    const float part = expf(value);
    return part < p.min_p ? Mass{0} : static_cast<Mass>(part * kUnits);
  };
  // What remains of this thread's range: tokens below the last key, and the first of those that equal it.
  Mass sum = 0, ties = 0;
  row.each_in_order([&](int, float logit) {
    const float value = scale.value(logit);
    const uint32_t key = key_of(value);
    if (key < last) sum += left(value);
    if (key == last) ++ties;
  });
  const Mass of_tie = left(-__uint_as_float(last));
  Mass all = 0;
  const Mass ties_before = sum_before_together<K>(s, ties, all, kTies);
  const Mass ties_left = equals > ties_before ? equals - ties_before : 0;
  sum += min(ties, ties_left) * of_tie;
  const Mass before = sum_before_together<K>(s, sum, all, kDrawn);
  // Rounding may bring the product to the whole mass, which belongs to no token.
  const Mass drawn = min(static_cast<Mass>(draw * static_cast<double>(all)), all - 1);
  if (drawn >= before && drawn < before + sum) {
    Mass reached = before, number = 0;
    int token = -1;
    row.each_in_order([&](int id, float logit) {
      if (token >= 0) return;
      const float value = scale.value(logit);
      const uint32_t key = key_of(value);
      if (key < last || (key == last && number++ < ties_left)) reached += left(value);
      if (reached > drawn) token = id;
    });
    *Together<K>::of(&s.token, 0) = token;
  }
  Together<K>::sync();
  return s.token;
}

// The tokens among which the top_k first are, if they are not too many: a list of count 0 if they are. Of a cluster,
// the first block has them.
template <int K, typename T>
__device__ inline Listed list_tokens(Shared& s, const Row<T>& row, const Scale& scale, int64_t top_k) {
  const Bins bins = fill<K>(s, row, scale, [](float value, Mass& weight) {
    weight = 1;
    return coarse_of(value);
  });
  Mass before = 0, all = 0;
  const int last = find(s, bins, before, [=](Mass sum, Mass) { return sum >= static_cast<Mass>(top_k); });
  if (before + s.inside > kMostListed) return {s.logits, s.ids, 0};
  Mass mine = 0;
  row.each_in_order([&](int, float logit) { mine += coarse_of(scale.value(logit)) <= last ? 1 : 0; });
  auto to = static_cast<int>(sum_before_together<K>(s, mine, all, kListed));
  float* logits = Together<K>::of(s.logits, 0);
  int* ids = Together<K>::of(s.ids, 0);
  row.each_in_order([&](int id, float logit) {
    if (coarse_of(scale.value(logit)) > last) return;
    logits[to] = logit;
    ids[to++] = id;
  });
  Together<K>::sync();
  return {s.logits, s.ids, static_cast<int>(all)};
}

// Orders as numbers do; the second word prefers the lower of equal ids.
__device__ inline Mass rank_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return Mass{ordered} << 32 | ~static_cast<uint32_t>(id);
}

// The id that is drawn, or the best one, or -1; greatest: the row's greatest logit. Of a cluster, in the first block.
template <int K, typename T>
__device__ inline int choose(Shared& s, const Row<T>& row, const NextTokens& p, int64_t index, float& greatest) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Mass best = 0;
  bool none = false;
  row.each([&](int id, float logit) {
    none = none || logit != logit;
    best = max(best, rank_of(logit, id));
  });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
  if (lane == 0) s.sums[warp] = best;
  none = __syncthreads_or(none);
#pragma unroll
  for (int other = 0; other < kWarps; ++other) best = max(best, s.sums[other]);
  if constexpr (K > 1) {
    // A rank is never ~0: its second word is that of an id.
    if (threadIdx.x == 0) s.totals[kBest] = none ? ~Mass{0} : best;
    Together<K>::sync();
    for (int other = 0; other < K; ++other) best = max(best, *Together<K>::of(&s.totals[kBest], other));
    none = best == ~Mass{0};
  }
  const int token = static_cast<int>(~static_cast<uint32_t>(best));
  greatest = to_float(row.data[none ? 0 : token]);
  if (none || !isfinite(greatest)) return -1;
  if (p.greatest) return token;
  const int64_t place = p.count == nullptr ? 0 : min(p.count[index], p.row_draws - 1);
  const double draw = p.draws[index * p.row_draws + place];
  const Scale scale{greatest, p.inverse};
  const Listed listed = p.top_k > 0 ? list_tokens<K>(s, row, scale, p.top_k) : Listed{};
  if (listed.count == 0) return draw_token<K>(s, row, p, scale, draw);
  return Together<K>::rank() == 0 ? draw_token<1>(s, listed, p, scale, draw) : -1;
}

// Mass of the whole row, in every thread.
template <int K, typename T>
__device__ inline Mass whole_mass(Shared& s, const Row<T>& row, const Scale& scale) {
  Mass own = 0, all = 0;
  row.each([&](int, float logit) { own += mass_of(scale.value(logit)); });
  __syncthreads();
  sum_before(s, own, all);
  if constexpr (K > 1) {
    Together<K>::sync();  // others may still read the totals
    if (threadIdx.x == 0) s.totals[kBest] = all;
    Together<K>::sync();
    all = 0;
    for (int other = 0; other < K; ++other) all += *Together<K>::of(&s.totals[kBest], other);
  }
  return all;
}

template <typename T, int K>
__global__ void __launch_bounds__(kThreads, 1) next_tokens(NextTokens p) {
  if constexpr (K > 1 && !kHasClusters) return;
  __shared__ Shared s;
  wait_for_earlier();
  const int64_t index = blockIdx.x / K;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* data = static_cast<const T*>(p.logits) + index * p.pitch;
  constexpr int N = Row<T>::N;
  const int vocabulary = static_cast<int>(p.vocabulary), stretch = (vocabulary + K * N - 1) / (K * N) * N;
  const int first = min(Together<K>::rank() * stretch, vocabulary / N * N);
  const int end = Together<K>::rank() == K - 1 ? vocabulary : min(first + stretch, vocabulary / N * N);
  const Row<T> row{data, first, end, reinterpret_cast<uintptr_t>(data) % 16 == 0};
  float greatest = 0;
  const int token = choose<K>(s, row, p, index, greatest);
  Mass all = 0;
  const Scale scale{greatest, p.inverse};
  if (p.log_p != nullptr && isfinite(greatest)) all = whole_mass<K>(s, row, scale);
  // No block leaves while another reads its memory.
  if constexpr (K > 1) Together<K>::sync();
  if (Together<K>::rank() != 0) return;
  if (p.log_p != nullptr && threadIdx.x == 0) {
    const bool active = p.active == nullptr || p.active[index];
    p.log_p[index] =
        !active     ? 0
        : token < 0 ? __int_as_float(0x7fc00000)
                    : scale.value(to_float(data[token])) - logf(static_cast<float>(static_cast<double>(all) / kUnits));
  }
  if (p.tokens != nullptr) {
    if (threadIdx.x == 0) p.tokens[index] = token;
    return;
  }
  __syncthreads();
  if (warp != 0) return;
  const bool stops = __any_sync(0xffffffffu, lane < p.stops && p.stop_ids[min(lane, 31)] == token);
  if (lane != 0) return;
  const bool active = p.active[index];
  const int64_t count = p.count[index] + (active ? 1 : 0);
  p.chosen[index] = active ? token : kNothing;
  p.count[index] = count;
  p.active[index] = active && !stops && count < p.limits[index];
  p.ids[index] = max(token, 0);
}

}  // namespace hrm::ops::cuda::sampling

namespace hrm::ops::cuda {

template <typename T, int K>
cudaError_t start_next_tokens(const NextTokens& p, cudaStream_t stream) {
  return start_early_clusters(&sampling::next_tokens<T, K>, static_cast<unsigned>(p.rows * K), sampling::kThreads, 0, K,
                              stream, p);
}

template <typename T>
cudaError_t next_tokens_attributes(cudaFuncAttributes& code) {
  return cudaFuncGetAttributes(&code, &sampling::next_tokens<T, 8>);
}

}  // namespace hrm::ops::cuda
