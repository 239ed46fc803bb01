#pragma once
// Rows drawn from a table, beside a loop that is written from the definition of a symmetry.

#include <cmath>

#include "hrm/ops/augment.h"
#include "hrm/ops/symmetry.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct AugmentCase {
  Augmentation how;
  int64_t cells = 0;
  int64_t tokens = 0;  // vocabulary
};

inline std::vector<AugmentCase> augment_cases() {
  std::vector<AugmentCase> cases;
  const std::vector<std::pair<int64_t, int64_t>> boxes = {{3, 3}, {2, 3}, {3, 2}, {2, 2}, {1, 5}, {4, 4}, {5, 5}};
  for (const auto& [rows, cols] : boxes) {
    const int64_t n = rows * cols;
    cases.push_back({{AugmentKind::sudoku, 77, rows, cols}, n * n, n + 2});
  }
  for (const int64_t side : {1, 4, 9, 30})
    cases.push_back({{AugmentKind::dihedral, 0xfedcba9876543210u}, side * side, 6});
  cases.push_back({{AugmentKind::none, 3}, 97, 12});
  return cases;
}

// Tables of random tokens, some labels ignored, and picks of samples far apart: the upper half of a sample counts too.
struct AugmentData {
  at::Tensor table_inputs, table_labels, picks, inputs, labels, identifiers;
};

inline AugmentData make_augment_data(const AugmentCase& one, int64_t rows, at::Device device) {
  constexpr int64_t kEntries = 40;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(one.cells));
  const auto random = [&](int64_t below, at::IntArrayRef shape, at::ScalarType type) {
    return at::randint(below, shape, generator, type);
  };
  AugmentData data;
  data.table_inputs = random(one.tokens, {kEntries, one.cells}, at::kInt).to(device);
  const at::Tensor labels = random(one.tokens, {kEntries, one.cells}, at::kInt);
  data.table_labels = labels.masked_fill(random(5, {kEntries, one.cells}, at::kInt).eq(0), -100).to(device);
  const at::Tensor samples = at::arange(rows, at::kLong) + random(2, {rows}, at::kLong) * (int64_t{3} << 40);
  data.picks = at::stack({random(kEntries, {rows}, at::kLong), samples, random(1000, {rows}, at::kLong)}, 1).to(device);
  const auto ints = at::device(device).dtype(at::kInt);
  data.inputs = at::full({rows, one.cells}, -1, ints);
  data.labels = at::full({rows, one.cells}, -1, ints);
  data.identifiers = at::full({rows}, -1, ints);
  return data;
}

inline void run_augment(AugmentData& data, const Augmentation& how) {
  augment_rows_(data.inputs, data.labels, data.identifiers, data.table_inputs, data.table_labels, data.picks, how);
}

// The official definition on whole grids: transposition, then the order of rows and columns, then the digits.
inline at::Tensor expected_sudoku(const at::Tensor& row, const SudokuSymmetry& symmetry, int64_t n) {
  at::Tensor grid = row.view({n, n});
  if (symmetry.transpose) grid = grid.t();
  std::vector<int64_t> row_order(symmetry.row_perm, symmetry.row_perm + n);
  std::vector<int64_t> col_order(symmetry.col_perm, symmetry.col_perm + n);
  grid = grid.index_select(0, at::tensor(row_order)).index_select(1, at::tensor(col_order));
  at::Tensor result = grid.clone();
  for (int64_t digit = 0; digit <= n; ++digit) result.masked_fill_(grid.eq(digit + 1), symmetry.digit_map[digit] + 1);
  return result.reshape({-1});
}

inline at::Tensor expected_dihedral(const at::Tensor& row, int transform, int64_t side) {
  const at::Tensor grid = row.view({side, side});
  const std::vector<at::Tensor> all = {grid,          grid.rot90(1), grid.rot90(2), grid.rot90(3),
                                       grid.fliplr(), grid.flipud(), grid.t(),      grid.rot90(1).fliplr()};
  return all[static_cast<size_t>(transform)].reshape({-1});
}

}  // namespace hrm::ops::testing
