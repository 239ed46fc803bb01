#pragma once
// The eight rotations and reflections of a rectangle, numbered as in the official code:
//    0 identity, 1/2/3 rotation by 90/180/270 degrees counter-clockwise, 4 left-right, 5 up-down, 6 transposition,
//    7 left-right of the rotation by 90 degrees (the other diagonal).

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hrm/ops/symmetry.h"

namespace hrm::data {

inline constexpr std::array<int, 8> kDihedralInverse{0, 3, 2, 1, 4, 5, 6, 7};
inline constexpr std::array<std::string_view, 8> kDihedralNames{"identity",   "rotate_90",       "rotate_180",
                                                                "rotate_270", "flip_left_right", "flip_up_down",
                                                                "transpose",  "anti_transpose"};

using ops::dihedral_swaps_axes;

// For each cell of the result, in row order: the index of its source cell in a (rows x cols) grid. The result is (cols
// x rows) if dihedral_swaps_axes, otherwise (rows x cols).
std::vector<uint32_t> dihedral_source(int transform, int rows, int cols);

template <class T>
std::vector<T> dihedral(int transform, int rows, int cols, const std::vector<T>& grid) {
  std::vector<T> result;
  result.reserve(grid.size());
  for (const uint32_t from : dihedral_source(transform, rows, cols)) result.push_back(grid[from]);
  return result;
}

// Applies random transforms to token rows that are square grids, in place.
class DihedralAugmenter {
 public:
  explicit DihedralAugmenter(int side);
  // Applies the transform of (seed, sample) to a puzzle and its labels, (side * side) int32 each.
  void operator()(uint64_t seed, uint64_t sample, int32_t* inputs, int32_t* labels);

 private:
  std::array<std::vector<uint32_t>, 8> sources_;
  std::vector<int32_t> scratch_;
};

}  // namespace hrm::data
