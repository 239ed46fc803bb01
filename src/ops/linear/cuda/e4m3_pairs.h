#pragma once
// Rows of bfloat16 numbers as pairs of e4m3 numbers, which tensor cores multiply with a weight in e4m3 as it is stored.
// The low number is 16 times what rounding to the high one leaves over. Together they have the 8 significant bits of
// bfloat16. A number above 2^-13 of the largest one of its run loses nothing. The others lose at most 2^-21 of the
// largest, or 2^-140 where the largest is below 2^-119.

#include <cstdint>

namespace hrm::ops::cuda {

constexpr int64_t kPairsRun = 64;  // columns that share a scale

// Element = scale * (high + low / 16). The scale is a power of two, not-a-number for a run with a number that is not
// finite.
struct E4m3Pairs {
  float* scales;    // (columns / 64, rows rounded up to 8)
  uint8_t* values;  // (rows / 8 rounded up, 2, 8, columns): the high numbers of eight rows, then the low ones
};

constexpr int64_t pairs_rows(int64_t rows) {
  return (rows + 7) / 8 * 8;
}
// Of both arrays in one.
constexpr int64_t pairs_bytes(int64_t rows, int64_t columns) {
  return pairs_rows(rows) * (columns / kPairsRun * 4 + 2 * columns);
}
// Both arrays in these bytes, which are aligned to 16 bytes.
inline E4m3Pairs pairs_in(uint8_t* bytes, int64_t rows, int64_t columns) {
  return {reinterpret_cast<float*>(bytes), bytes + pairs_rows(rows) * (columns / kPairsRun * 4)};
}

}  // namespace hrm::ops::cuda
