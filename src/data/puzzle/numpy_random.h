#pragma once
// NumPy's legacy generator (numpy.random.seed, randint, shuffle), so that data are built as by Python programs.
// https://numpy.org/doc/stable/reference/random/legacy.html

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace hrm::data {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // 0 to n - 1, as randint(0, n): the low bits of a draw, until they fit. n = 1 draws nothing.
  uint32_t below(uint32_t n) {
    const uint32_t most = n - 1;
    uint32_t mask = most;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    if (most == 0) return 0;
    for (;;) {
      const auto draw = static_cast<uint32_t>(engine_()) & mask;
      if (draw <= most) return draw;
    }
  }

  // As shuffle().
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(static_cast<uint32_t>(i))]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace hrm::data
