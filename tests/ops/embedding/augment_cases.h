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
  for (const int64_t side : {1, 2, 7, 30, 32}) cases.push_back({{AugmentKind::arc}, side * side, 12});
  cases.push_back({{AugmentKind::none, 3}, 97, 12});
  return cases;
}

// Tables of random tokens, some labels ignored, and picks of samples far apart: the upper half of a sample counts too.
struct AugmentData {
  at::Tensor table_inputs, table_labels, picks, inputs, labels, identifiers;
};

inline AugmentData make_arc_data(const AugmentCase& one, int64_t rows, at::Device device);

inline AugmentData make_augment_data(const AugmentCase& one, int64_t rows, at::Device device) {
  if (one.how.kind == AugmentKind::arc) return make_arc_data(one, rows, device);
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

inline int64_t square_root(int64_t cells) {
  return static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(cells))));
}

// Grids of random sizes at the first cell, and codes of copies that have room for both grids of their row.
inline AugmentData make_arc_data(const AugmentCase& one, int64_t rows, at::Device device) {
  constexpr int64_t kEntries = 40;
  const int64_t side = square_root(one.cells);
  CounterRng rng(static_cast<uint64_t>(one.cells), Stream::augment, 0);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng.below(static_cast<uint32_t>(n))); };
  const auto ints = at::device(at::kCPU).dtype(at::kInt);
  AugmentData data;
  data.table_inputs = at::zeros({kEntries, one.cells}, ints);
  data.table_labels = at::full({kEntries, one.cells}, kArcIgnored, ints);
  std::vector<int64_t> longest;
  for (int64_t entry = 0; entry < kEntries; ++entry) {
    longest.push_back(1);
    for (const at::Tensor& table : {data.table_inputs, data.table_labels}) {
      // The first entry fills the square.
      const int64_t height = entry == 0 ? side : 1 + below(side), width = entry == 0 ? side : 1 + below(side);
      longest.back() = std::max({longest.back(), height, width});
      const at::Tensor square = table[entry].view({side, side});
      auto* tokens = square.data_ptr<int32_t>();
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = 0; j < width; ++j) tokens[i * side + j] = static_cast<int32_t>(2 + below(10));
      }
      if (height < side) square[height].slice(0, 0, width).fill_(1);
      if (width < side) square.select(1, width).slice(0, 0, height).fill_(1);
    }
  }
  data.picks = at::zeros({rows, 3}, ints.dtype(at::kLong));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t entry = below(kEntries), room = side - longest[static_cast<size_t>(entry)] + 1;
    ArcCopy copy{.transform = static_cast<int>(below(8)),
                 .row = static_cast<int>(below(room)),
                 .col = static_cast<int>(below(room))};
    uint8_t colours[kArcCopyColours] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    shuffle(rng, colours, kArcCopyColours);
    for (int i = 0; i < kArcCopyColours; ++i) copy.colours |= static_cast<uint64_t>(colours[i]) << (4 * i);
    data.picks[row][0] = entry;
    data.picks[row][1] = arc_copy_code(copy);
    data.picks[row][2] = below(1000);
  }
  for (at::Tensor* tensor : {&data.table_inputs, &data.table_labels, &data.picks}) *tensor = tensor->to(device);
  data.inputs = at::full({rows, one.cells}, -1, ints).to(device);
  data.labels = data.inputs.clone();
  data.identifiers = at::full({rows}, -1, ints).to(device);
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

// The grid is cut out, recoloured, turned and put at its place among tokens `around`; tokens 1 close it.
inline at::Tensor expected_arc(const at::Tensor& row, const ArcCopy& copy, int64_t side, int64_t around) {
  const at::Tensor square = row.view({side, side});
  const int64_t height = square.select(1, 0).ge(2).sum().item<int64_t>();
  const int64_t width = square[0].ge(2).sum().item<int64_t>();
  const at::Tensor grid = square.slice(0, 0, height).slice(1, 0, width);
  at::Tensor colours = at::empty({kArcCopyColours}, at::kInt);
  for (int i = 0; i < kArcCopyColours; ++i) colours[i] = static_cast<int64_t>(copy.colours >> (4 * i) & 15);
  const at::Tensor recoloured = colours.index({grid.to(at::kLong) - 2}) + 2;
  const std::vector<at::Tensor> all = {recoloured,          recoloured.rot90(1),         recoloured.rot90(2),
                                       recoloured.rot90(3), recoloured.fliplr(),         recoloured.flipud(),
                                       recoloured.t(),      recoloured.rot90(1).fliplr()};
  const at::Tensor turned = all[static_cast<size_t>(copy.transform)];
  const int64_t bottom = copy.row + turned.size(0), right = copy.col + turned.size(1);
  at::Tensor out = at::full({side, side}, around, at::kInt);
  out.slice(0, copy.row, bottom).slice(1, copy.col, right).copy_(turned);
  if (bottom < side) out[bottom].slice(0, copy.col, right).fill_(1);
  if (right < side) out.select(1, right).slice(0, copy.row, bottom).fill_(1);
  return out.reshape({-1});
}

}  // namespace hrm::ops::testing
