#include "ops/cuda/next_tokens.h"

#include "ops/cuda/by_element.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/early.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 32;
constexpr int kThreads = kWarps * 32;
constexpr int kBins = 2 * kThreads;
constexpr int kMostListed = 2048;
constexpr float kUnits = 0x1.0p40f;  // of a mass, as in the reference
constexpr int kNothing = -2;

using Mass = unsigned long long;

// The logits of a row; 16 bytes at a time where they stand so. take(id, logit) for every id, each in one thread.
template <typename T>
struct Row {
  static constexpr int N = 16 / sizeof(T), kBatch = 4;
  const T* data;
  int count;
  bool packed;

  template <class Take>
  __device__ inline void each(const Take& take) const {
    const int full = packed ? count / N : 0;
    for (int first = static_cast<int>(threadIdx.x); first < full; first += kBatch * kThreads) {
      take_packs(first, kThreads, full, take);
    }
    for (int id = full * N + static_cast<int>(threadIdx.x); id < count; id += kThreads) take(id, to_float(data[id]));
  }
  // A stretch of ids for each thread, in order.
  template <class Take>
  __device__ inline void each_in_order(const Take& take) const {
    const int full = packed ? count / N : 0, share = (count + N * kThreads - 1) / (N * kThreads);
    const int begin = static_cast<int>(threadIdx.x) * share, end = min(begin + share, full);
    for (int first = begin; first < end; first += kBatch) take_packs(first, 1, end, take);
    for (int id = max(begin, full) * N; id < min((begin + share) * N, count); ++id) take(id, to_float(data[id]));
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

struct Shared {
  Mass bins[kBins];
  Mass sums[kWarps];
  float logits[kMostListed];
  int ids[kMostListed];
  Mass before;
  int bin;
  int token;
};

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

// Adds the weights of a row's tokens to the bins that they belong to: take(value, weight) -> bin, or -1. Whole numbers,
// so that the order of the threads makes no difference.
template <class Tokens, class Take>
__device__ inline void fill(Shared& s, const Tokens& row, const Scale& scale, const Take& take) {
  __syncthreads();
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
      if (last >= 0) atomicAdd(&s.bins[last], waiting);
      last = bin;
      waiting = 0;
    }
    waiting += weight;
  });
  if (last >= 0) atomicAdd(&s.bins[last], waiting);
  __syncthreads();
}

// The first bin with which the sum, of `before` and the bins in turn, has reached what is wanted; before: the sum then
// without it. reached(sum, all): all is the sum of all bins.
template <class Reached>
__device__ inline int find(Shared& s, Mass& before, const Reached& reached) {
  const int mine = 2 * static_cast<int>(threadIdx.x);
  const Mass low = s.bins[mine], high = s.bins[mine + 1];
  Mass all = 0;
  const Mass start = before + sum_before(s, low + high, all);
  if (!reached(start, all) && reached(start + low, all)) {
    s.bin = mine;
    s.before = start;
  } else if (!reached(start + low, all) && reached(start + low + high, all)) {
    s.bin = mine + 1;
    s.before = start + low;
  }
  __syncthreads();
  before = s.before;
  return s.bin;
}

struct Selected {
  uint32_t key;
  Mass before;  // of the keys below
};

// The key with which the sum of the weights, least keys first, has reached what is wanted. weight(value) -> Mass.
template <class Tokens, class Weight, class Reached>
__device__ inline Selected select(Shared& s, const Tokens& row, const Scale& scale, const Weight& weight,
                                  const Reached& reached) {
  Mass before = 0;
  fill(s, row, scale, [&](float value, Mass& w) {
    w = weight(value);
    return coarse_of(value);
  });
  const int coarse = find(s, before, reached);
  uint32_t prefix = 0;
  constexpr int kShift[] = {21, 10, 0};
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    const int shift = kShift[level], above = level == 0 ? 32 : kShift[level == 0 ? 0 : level - 1];
    fill(s, row, scale, [&](float value, Mass& w) {
      const uint32_t key = key_of(value);
      if (coarse_of(value) != coarse || (above < 32 && key >> above != prefix)) return -1;
      w = weight(value);
      return static_cast<int>(key >> shift & ((1u << (above - shift)) - 1));
    });
    const auto bin = static_cast<uint32_t>(find(s, before, reached));
    prefix = (above < 32 ? prefix << (above - shift) : 0) | bin;
  }
  return {prefix, before};
}

// A token by its draw, from the row whose greatest logit is finite, or those of it that top_k may leave. The filters
// are those of the reference.
template <class Tokens>
__device__ inline int draw_token(Shared& s, const Tokens& row, const NextTokens& p, const Scale& scale, double draw) {
  uint32_t last = __float_as_uint(INFINITY);  // the greatest key that stays
  if (p.top_k > 0) {
    const auto wanted = static_cast<Mass>(p.top_k);
    last = select(
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
    const Selected found = select(
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
  // What stays of this thread's stretch: below the last key, and of those that have it the first so many.
  Mass sum = 0, ties = 0;
  row.each_in_order([&](int, float logit) {
    const float value = scale.value(logit);
    const uint32_t key = key_of(value);
    if (key < last) sum += left(value);
    if (key == last) ++ties;
  });
  const Mass of_tie = left(-__uint_as_float(last));
  Mass all = 0;
  const Mass ties_before = sum_before(s, ties, all);
  const Mass ties_left = equals > ties_before ? equals - ties_before : 0;
  sum += min(ties, ties_left) * of_tie;
  const Mass before = sum_before(s, sum, all);
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
    s.token = token;
  }
  __syncthreads();
  return s.token;
}

// The tokens among which the top_k first are, if they are not too many: a list of count 0 if they are.
template <typename T>
__device__ inline Listed list_tokens(Shared& s, const Row<T>& row, const Scale& scale, int64_t top_k) {
  fill(s, row, scale, [](float value, Mass& weight) {
    weight = 1;
    return coarse_of(value);
  });
  Mass before = 0, all = 0;
  const int last = find(s, before, [=](Mass sum, Mass) { return sum >= static_cast<Mass>(top_k); });
  if (before + s.bins[last] > kMostListed) return {s.logits, s.ids, 0};
  Mass mine = 0;
  row.each_in_order([&](int, float logit) { mine += coarse_of(scale.value(logit)) <= last ? 1 : 0; });
  auto to = static_cast<int>(sum_before(s, mine, all));
  row.each_in_order([&](int id, float logit) {
    if (coarse_of(scale.value(logit)) > last) return;
    s.logits[to] = logit;
    s.ids[to++] = id;
  });
  __syncthreads();
  return {s.logits, s.ids, static_cast<int>(all)};
}

// Orders as numbers do; the second word prefers the lower of equal ids.
__device__ inline Mass rank_of(float logit, int id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return Mass{ordered} << 32 | ~static_cast<uint32_t>(id);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) next_tokens(NextTokens p) {
  __shared__ Shared s;
  wait_for_earlier();
  const int64_t index = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const T* data = static_cast<const T*>(p.logits) + index * p.pitch;
  const Row<T> row{data, static_cast<int>(p.vocabulary), reinterpret_cast<uintptr_t>(data) % 16 == 0};
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
  int token = static_cast<int>(~static_cast<uint32_t>(best));
  const float greatest = to_float(data[none ? 0 : token]);
  if (none || !isfinite(greatest)) {
    token = -1;
  } else if (!p.greatest) {
    const int64_t place = p.count == nullptr ? 0 : min(p.count[index], p.row_draws - 1);
    const double draw = p.draws[index * p.row_draws + place];
    const Scale scale{greatest, p.inverse};
    const Listed listed = p.top_k > 0 ? list_tokens(s, row, scale, p.top_k) : Listed{};
    token = listed.count > 0 ? draw_token(s, listed, p, scale, draw) : draw_token(s, row, p, scale, draw);
  }
  if (p.tokens != nullptr) {
    if (threadIdx.x == 0) p.tokens[index] = token;
    return;
  }
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

}  // namespace

cudaError_t launch(const NextTokens& params, cudaStream_t stream) {
  if (params.stops > kMostStops || params.vocabulary < 1 || params.vocabulary > INT32_MAX - kThreads * 16) {
    return cudaErrorInvalidValue;
  }
  return by_element(params.element, [&](auto type) {
    using T = TypeIn<decltype(type)>;
    return start_early(&next_tokens<T>, static_cast<unsigned>(params.rows), kThreads, 0, stream, params);
  });
}

}  // namespace hrm::ops::cuda
