#pragma once
// Loops that the compiler turns into vectors as wide as the CPU has them. Their files are compiled without contraction
// and reordering (src/CMakeLists.txt), so the width does not change a bit of the result.

#include <cstdint>

// A function that is compiled for several instruction sets; the loader chooses. What it calls must be HRM_INLINE.
// Sanitizers cannot run the function that chooses when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define HRM_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HRM_FOR_EACH_CPU
#endif
#define HRM_INLINE inline __attribute__((always_inline))

namespace hrm::ops::cpu {

// e^x for x in -87..88, outside of it the value at the end of that range; right to 2 units in the last place. x is
// n * ln 2 + r with |r| <= ln 2 / 2; the polynomial is that of Cephes' expf.
HRM_INLINE float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest whole number in the last bits
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = (p * r * r + r) + 1;
  const auto exponent = static_cast<int32_t>(n) + 127;
  return mantissa * __builtin_bit_cast(float, static_cast<int32_t>(static_cast<uint32_t>(exponent) << 23));
}

}  // namespace hrm::ops::cpu
