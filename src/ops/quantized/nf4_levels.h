#pragma once
// The levels of NF4 and of the dynamic 8-bit map, and what lies between two of them. No torch headers: the kernels
// include it, too.

namespace hrm::ops {

constexpr int kNf4Levels = 16;
constexpr int kNf4AbsmaxLevels = 256;

// Ascending, and the points halfway between neighbours: a number above `between[i]` is of level i + 1 or more.
template <int kLevels>
struct Nf4Levels {
  float level[kLevels];
  float between[kLevels - 1];
};

template <int kLevels>
constexpr void set_between(Nf4Levels<kLevels>& levels) {
  for (int i = 0; i + 1 < kLevels; ++i) {
    levels.between[i] =
        static_cast<float>((static_cast<double>(levels.level[i]) + static_cast<double>(levels.level[i + 1])) / 2);
  }
}

// Appendix E of the paper.
constexpr Nf4Levels<kNf4Levels> nf4_levels() {
  Nf4Levels<kNf4Levels> levels{{-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                                -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                                0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                                0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f},
                               {}};
  set_between(levels);
  return levels;
}

// Of 8 bits, one is the sign; the exponent is unary, and the bits that it leaves count linear steps. Magnitudes:
// 10^(e - 6), e = 0 ... 6, times the middles of 2^e equal steps from 0.1 to 1; then 0, and 1 itself on the positive
// side alone.
constexpr Nf4Levels<kNf4AbsmaxLevels> nf4_absmax_levels() {
  constexpr int kExponents = 7, kZero = 127;  // 1 + 2 + ... + 64 levels below zero
  Nf4Levels<kNf4AbsmaxLevels> levels{};
  int at = 0;
  const double powers[kExponents] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  for (int e = 0; e < kExponents; ++e) {
    const int steps = 1 << e;
    for (int i = 0; i < steps; ++i) {
      const double middle = 0.1 + 0.9 * (2 * i + 1) / (2 * steps);
      ++at;
      levels.level[kZero + at] = static_cast<float>(powers[e] * middle);
      levels.level[kZero - at] = -static_cast<float>(powers[e] * middle);
    }
  }
  levels.level[kZero] = 0;
  levels.level[kNf4AbsmaxLevels - 1] = 1;
  set_between(levels);
  return levels;
}

}  // namespace hrm::ops
