#pragma once
// Depth-first search over Sudoku grids that fills forced cells first.

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "hrm/data/sudoku.h"

namespace hrm::data {

class SudokuSearch {
 public:
  // `givens` must not break any rule.
  SudokuSearch(const SudokuGeometry& geometry, const Grid& givens);

  // Tries digits, and cells with equal numbers of candidates, in random order.
  void randomise(CounterRng& rng);
  // Forbids this digit in the cell.
  void forbid(int cell, int digit) { forbidden_[cell] |= 1u << (digit - 1); }

  // The callback runs for each solution found.
  void on_solution(std::function<void(const Grid&)> callback) { callback_ = std::move(callback); }

  // Searches for up to `wanted` solutions. Stops after filling `max_nodes` cells.
  void run(int64_t wanted, int64_t max_nodes);

  int64_t solutions() const { return solutions_; }
  bool gave_up() const { return gave_up_; }
  int64_t nodes() const { return nodes_; }
  const Grid& first() const { return first_; }

 private:
  struct Filled {
    int position;  // index into empty_
    int cell;
    uint32_t bit;
  };

  uint32_t candidates(int cell) const {
    return full_ & ~(rows_[row_of_[cell]] | cols_[col_of_[cell]] | boxes_[box_of_[cell]] | forbidden_[cell]);
  }
  void fill(int position, uint32_t bit);
  void undo(size_t trail_size);
  bool fill_naked(int& branch_position);  // false: a cell has no candidate
  bool fill_hidden(bool& changed);        // false: a digit has no place
  void search();

  SudokuGeometry geometry_;
  int size_;
  uint32_t full_;
  Grid grid_;
  std::vector<uint8_t> row_of_, col_of_, box_of_;
  std::vector<uint32_t> forbidden_;
  std::array<uint32_t, kMaxSudokuSize> rows_{}, cols_{}, boxes_{};  // bit sets of used digits
  std::vector<int> empty_;                                          // the first empty_count_ are empty cells
  int empty_count_ = 0;
  std::vector<Filled> trail_;
  CounterRng* rng_ = nullptr;
  int64_t wanted_ = 1;
  int64_t max_nodes_ = 0;
  int64_t solutions_ = 0;
  int64_t nodes_ = 0;
  bool gave_up_ = false;
  Grid first_;
  std::function<void(const Grid&)> callback_;
};

// Calls `visit` for each solution.
void enumerate_solutions(const SudokuGeometry& geometry, const Grid& givens,
                         const std::function<void(const Grid&)>& visit);

}  // namespace hrm::data
