#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
// A draw depends only on (seed, stream, index), so batching, resuming and the number of ranks do not change it.

#include <array>
#include <cstdint>
#include <string_view>

namespace hrm {

// One number per use of randomness. Numbers are part of the checkpoint contract: append, never renumber.
enum class Stream : uint32_t {
  init = 1,           // parameter initialisation; index = hash of the parameter's name
  sample_order = 2,   // permutation of an epoch; index = epoch
  puzzle_choice = 3,  // which puzzle of a group, which examples of a puzzle; index = visit
  augment = 4,        // data augmentation; index = global sample index
  explore = 5,        // ACT exploration; index = step * 2^24 + global slot
  generate = 6,       // puzzle generators; index = puzzle
  subset = 7,         // subsampling of a data set; index = 0
  jitter = 8,         // noise of the router's input; index = step
  token = 9,          // sampled tokens; index = the row's key, draws in the order of its positions
  dropout = 10,       // masks of dropout; index = step
  state_noise = 11,   // noise on a recurrent state; index = key * 2^16 + segment
  path_noise = 12,    // noise of the updates in a segment; index = key * 2^16 + update
  start_state = 13,   // states that samples start with; index = key * 2^16 + which state
};

// Marks functions that kernels call, too.
#ifdef __CUDACC__
#define HRM_HOST_DEVICE __host__ __device__
#else
#define HRM_HOST_DEVICE
#endif

// Ten rounds: turns the four words of a counter into the block of four random words that belongs to it and the key.
HRM_HOST_DEVICE inline void philox4x32(uint32_t* counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  philox4x32(counter.data(), key[0], key[1]);
  return counter;
}

// Uniform in 0..n-1 without bias (Lemire's rejection), from the 32-bit words of rng.next(). n >= 1.
template <class Rng>
HRM_HOST_DEVICE uint32_t uniform_below(Rng& rng, uint32_t n) {
  uint64_t product = uint64_t{rng.next()} * n;
  if (static_cast<uint32_t>(product) < n) {
    const uint32_t threshold = (0u - n) % n;
    while (static_cast<uint32_t>(product) < threshold) product = uint64_t{rng.next()} * n;
  }
  return static_cast<uint32_t>(product >> 32);
}

// A sequence of draws for one (seed, stream, index).
class CounterRng {
 public:
  HRM_HOST_DEVICE CounterRng(uint64_t seed, Stream stream, uint64_t index)
      : seed_(seed), stream_(static_cast<uint32_t>(stream)), index_(index) {}

  HRM_HOST_DEVICE uint32_t next() {
    if (used_ == 4) {
      block(count_++, block_);
      used_ = 0;
    }
    return block_[used_++];
  }

  // Words 4 * number .. 4 * number + 3 of the sequence, whatever was drawn before.
  HRM_HOST_DEVICE void block(uint32_t number, uint32_t* words) const {
    words[0] = number;
    words[1] = stream_;
    words[2] = static_cast<uint32_t>(index_);
    words[3] = static_cast<uint32_t>(index_ >> 32);
    philox4x32(words, static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32));
  }

  // Uniform in [0, 1), a multiple of 2^-24, exact in float.
  HRM_HOST_DEVICE float uniform() { return static_cast<float>(next() >> 8) * 0x1.0p-24f; }

  HRM_HOST_DEVICE uint32_t below(uint32_t n) { return uniform_below(*this, n); }

  // Fisher-Yates.
  template <class Range>
  void shuffle(Range& range) {
    for (uint32_t i = static_cast<uint32_t>(range.size()); i > 1; --i) std::swap(range[i - 1], range[below(i)]);
  }

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t index_;
  uint32_t count_ = 0;
  uint32_t block_[4] = {};
  int used_ = 4;
};

// FNV-1a, for names that key a stream.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace hrm
