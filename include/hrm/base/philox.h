#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
// A draw depends on (seed, stream, index) alone, so batching, resuming and the number of ranks do not change it.

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
};

// Ten rounds; the block of four words that belongs to this key and counter.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A sequence of draws for one (seed, stream, index).
class CounterRng {
 public:
  CounterRng(uint64_t seed, Stream stream, uint64_t index)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        stream_(static_cast<uint32_t>(stream)),
        index_(index) {}

  uint32_t next() {
    if (used_ == 4) {
      block_ =
          philox4x32({count_++, stream_, static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32)}, key_);
      used_ = 0;
    }
    return block_[used_++];
  }

  // Uniform in [0, 1), a multiple of 2^-24, exact in float.
  float uniform() { return static_cast<float>(next() >> 8) * 0x1.0p-24f; }

  // Uniform in 0..n-1 without bias (Lemire's rejection). n >= 1.
  uint32_t below(uint32_t n) {
    uint64_t product = uint64_t{next()} * n;
    if (static_cast<uint32_t>(product) < n) {
      const uint32_t threshold = (0u - n) % n;
      while (static_cast<uint32_t>(product) < threshold) product = uint64_t{next()} * n;
    }
    return static_cast<uint32_t>(product >> 32);
  }

  // Fisher-Yates.
  template <class Range>
  void shuffle(Range& range) {
    for (uint32_t i = static_cast<uint32_t>(range.size()); i > 1; --i) std::swap(range[i - 1], range[below(i)]);
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t stream_;
  uint64_t index_;
  uint32_t count_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

// FNV-1a, for names that key a stream.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace hrm
