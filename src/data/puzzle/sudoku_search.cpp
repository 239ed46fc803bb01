#include "data/puzzle/sudoku_search.h"

#include <bit>
#include <utility>

#include "hrm/base/error.h"

namespace hrm::data {
namespace {

bool is_single(uint32_t mask) {
  return (mask & (mask - 1)) == 0;
}

}  // namespace

SudokuSearch::SudokuSearch(const SudokuGeometry& geometry, const Grid& givens)
    : geometry_(geometry),
      size_(geometry.size()),
      full_((1u << geometry.size()) - 1),
      grid_(givens),
      row_of_(givens.size()),
      col_of_(givens.size()),
      box_of_(givens.size()),
      forbidden_(givens.size(), 0) {
  for (int cell = 0; cell < geometry.cells(); ++cell) {
    row_of_[cell] = static_cast<uint8_t>(cell / size_);
    col_of_[cell] = static_cast<uint8_t>(cell % size_);
    box_of_[cell] = static_cast<uint8_t>(geometry.box(cell / size_, cell % size_));
    if (grid_[cell] == 0) {
      empty_.push_back(cell);
      continue;
    }
    const uint32_t bit = 1u << (grid_[cell] - 1);
    rows_[row_of_[cell]] |= bit;
    cols_[col_of_[cell]] |= bit;
    boxes_[box_of_[cell]] |= bit;
  }
  empty_count_ = static_cast<int>(empty_.size());
  trail_.reserve(empty_.size());
}

void SudokuSearch::randomise(CounterRng& rng) {
  rng_ = &rng;
  rng.shuffle(empty_);
}

void SudokuSearch::fill(int position, uint32_t bit) {
  const int cell = empty_[position];
  rows_[row_of_[cell]] |= bit;
  cols_[col_of_[cell]] |= bit;
  boxes_[box_of_[cell]] |= bit;
  grid_[cell] = static_cast<uint8_t>(std::countr_zero(bit) + 1);
  trail_.push_back({position, cell, bit});
  std::swap(empty_[position], empty_[--empty_count_]);
  ++nodes_;
}

void SudokuSearch::undo(size_t trail_size) {
  while (trail_.size() > trail_size) {
    const Filled& last = trail_.back();
    std::swap(empty_[last.position], empty_[empty_count_++]);
    rows_[row_of_[last.cell]] &= ~last.bit;
    cols_[col_of_[last.cell]] &= ~last.bit;
    boxes_[box_of_[last.cell]] &= ~last.bit;
    grid_[last.cell] = 0;
    trail_.pop_back();
  }
}

bool SudokuSearch::fill_naked(int& branch_position) {
  for (bool changed = true; changed;) {
    changed = false;
    int fewest = 64;
    for (int position = 0; position < empty_count_;) {
      const uint32_t open = candidates(empty_[position]);
      if (open == 0) return false;
      if (is_single(open)) {
        fill(position, open);  // moves another empty cell to this position
        changed = true;
        continue;
      }
      // Two candidates are the minimum here, so counting bits is unnecessary then.
      const int count = fewest == 2 ? 2 : is_single(open & (open - 1)) ? 2 : std::popcount(open);
      if (count < fewest) {
        fewest = count;
        branch_position = position;
      }
      ++position;
    }
  }
  return true;
}

bool SudokuSearch::fill_hidden(bool& changed) {
  // For each unit: the digits with at least one place, and with at least two.
  uint32_t once[3][kMaxSudokuSize] = {}, twice[3][kMaxSudokuSize] = {};
  const auto note = [](uint32_t& one, uint32_t& two, uint32_t open) {
    two |= one & open;
    one |= open;
  };
  for (int position = 0; position < empty_count_; ++position) {
    const int cell = empty_[position];
    const uint32_t open = candidates(cell);
    note(once[0][row_of_[cell]], twice[0][row_of_[cell]], open);
    note(once[1][col_of_[cell]], twice[1][col_of_[cell]], open);
    note(once[2][box_of_[cell]], twice[2][box_of_[cell]], open);
  }
  for (int unit = 0; unit < size_; ++unit) {
    if ((once[0][unit] | rows_[unit]) != full_ || (once[1][unit] | cols_[unit]) != full_ ||
        (once[2][unit] | boxes_[unit]) != full_) {
      return false;
    }
  }
  changed = false;
  for (int position = 0; position < empty_count_;) {
    const int cell = empty_[position];
    // Digits for which this cell was the only place in some unit when places were counted.
    const int row = row_of_[cell], col = col_of_[cell], box = box_of_[cell];
    uint32_t forced =
        (once[0][row] & ~twice[0][row]) | (once[1][col] & ~twice[1][col]) | (once[2][box] & ~twice[2][box]);
    const uint32_t open = candidates(cell);
    // A forced digit of a unit belongs to the only cell that could hold it.
    uint32_t here = forced & open;
    if (here == 0) {
      ++position;
      continue;
    }
    if (!is_single(here)) return false;
    fill(position, here);
    changed = true;
  }
  return true;
}

void SudokuSearch::search() {
  const size_t trail_size = trail_.size();
  int branch_position = 0;
  for (bool changed = true; changed;) {
    if (nodes_ >= max_nodes_) gave_up_ = true;
    if (gave_up_ || !fill_naked(branch_position)) {
      undo(trail_size);
      return;
    }
    if (empty_count_ == 0) {
      if (solutions_++ == 0) first_ = grid_;
      if (callback_) callback_(grid_);
      undo(trail_size);
      return;
    }
    if (!fill_hidden(changed)) {
      undo(trail_size);
      return;
    }
  }
  std::array<uint32_t, kMaxSudokuSize> order;
  int count = 0;
  for (uint32_t open = candidates(empty_[branch_position]); open != 0; open &= open - 1) {
    order[count++] = open & (0u - open);
  }
  if (rng_ != nullptr) {
    for (int i = count; i > 1; --i) std::swap(order[i - 1], order[rng_->below(static_cast<uint32_t>(i))]);
  }
  for (int i = 0; i < count && solutions_ < wanted_ && !gave_up_; ++i) {
    const size_t before = trail_.size();
    fill(branch_position, order[i]);
    search();
    undo(before);
  }
  undo(trail_size);
}

void SudokuSearch::run(int64_t wanted, int64_t max_nodes) {
  wanted_ = wanted;
  max_nodes_ = max_nodes;
  search();
}

void enumerate_solutions(const SudokuGeometry& geometry, const Grid& givens,
                         const std::function<void(const Grid&)>& visit) {
  SudokuSearch search(geometry, givens);
  search.on_solution(visit);
  search.run(INT64_MAX, INT64_MAX);
}

// ---- public functions -------------------------------------------------------------------------------------------

SolveResult solve_sudoku(const SudokuGeometry& geometry, const Grid& givens, int64_t max_nodes) {
  SolveResult result;
  if (!find_conflict(geometry, givens).empty()) return result;
  SudokuSearch search(geometry, givens);
  search.run(2, max_nodes);
  result.solutions = static_cast<int>(search.solutions());
  result.complete = !search.gave_up();
  result.grid = search.first();
  result.nodes = search.nodes();
  return result;
}

std::string find_fault(const SudokuGeometry& geometry, const Grid& givens) {
  const std::string conflict = find_conflict(geometry, givens);
  if (!conflict.empty()) return "the givens contradict each other: " + conflict;
  const SolveResult result = solve_sudoku(geometry, givens);
  if (result.solutions == 0) return "the puzzle has no solution";
  if (result.solutions > 1) return "the puzzle has more than one solution";
  return "";
}

namespace {

// The plain search that defines ratings: no hidden singles, and a fixed order of cells and digits.
class RatingSearch {
 public:
  RatingSearch(const SudokuGeometry& geometry, const Grid& givens)
      : geometry_(geometry), size_(geometry.size()), full_((1u << size_) - 1), grid_(givens) {
    for (int cell = 0; cell < geometry.cells(); ++cell) {
      if (grid_[cell] != 0) flip(cell, 1u << (grid_[cell] - 1));
    }
  }

  bool solve() {
    int best = -1, fewest = 64;
    uint32_t best_open = 0;
    for (int cell = 0; cell < geometry_.cells(); ++cell) {
      if (grid_[cell] != 0) continue;
      const int row = cell / size_, col = cell % size_;
      const uint32_t open = full_ & ~(rows_[row] | cols_[col] | boxes_[geometry_.box(row, col)]);
      const int count = std::popcount(open);
      if (count >= fewest) continue;
      fewest = count;
      best = cell;
      best_open = open;
      if (count <= 1) break;
    }
    if (best < 0) return true;
    if (fewest == 0) return false;
    ++nodes_;
    for (; best_open != 0; best_open &= best_open - 1) {
      const uint32_t bit = best_open & (0u - best_open);
      grid_[best] = 1;
      flip(best, bit);
      const bool solved = solve();
      flip(best, bit);
      grid_[best] = 0;
      if (solved) return true;
    }
    return false;
  }
  int64_t nodes() const { return nodes_; }

 private:
  void flip(int cell, uint32_t bit) {
    const int row = cell / size_, col = cell % size_;
    rows_[row] ^= bit;
    cols_[col] ^= bit;
    boxes_[geometry_.box(row, col)] ^= bit;
  }

  SudokuGeometry geometry_;
  int size_;
  uint32_t full_;
  Grid grid_;  // 0 = empty
  std::array<uint32_t, kMaxSudokuSize> rows_{}, cols_{}, boxes_{};
  int64_t nodes_ = 0;
};

}  // namespace

int64_t rate_sudoku(const SudokuGeometry& geometry, const Grid& givens) {
  if (!find_conflict(geometry, givens).empty()) return 0;
  RatingSearch search(geometry, givens);
  return search.solve() ? search.nodes() : 0;
}

Grid generate_solution(const SudokuGeometry& geometry, CounterRng& rng) {
  const Grid nothing(geometry.cells(), 0);
  // A random start can lead to a long search; a restart is faster. The limit grows, so the loop terminates.
  for (int64_t limit = 4 * geometry.cells();; limit += limit / 8) {
    SudokuSearch search(geometry, nothing);
    search.randomise(rng);
    search.run(1, limit);
    if (search.solutions() > 0) return search.first();
  }
}

Grid dig_puzzle(const SudokuGeometry& geometry, const Grid& solution, int empty, CounterRng& rng) {
  require(empty >= 0 && empty <= geometry.cells(), ExitCode::unexpected, "dig_puzzle: ", empty, " empty cells");
  std::vector<int> order(geometry.cells());
  constexpr int kTries = 4;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    for (int i = 0; i < geometry.cells(); ++i) order[i] = i;
    rng.shuffle(order);
    Grid puzzle = solution;
    int done = 0;
    for (int i = 0; i < geometry.cells() && done < empty; ++i) {
      // Even emptying all remaining cells would not be enough.
      if (done + geometry.cells() - i < empty) break;
      const int cell = order[i];
      puzzle[cell] = 0;
      // The solution stays unique if and only if no solution has another digit in this cell.
      SudokuSearch search(geometry, puzzle);
      search.forbid(cell, solution[cell]);
      search.run(1, int64_t{1000} * geometry.cells());
      if (search.solutions() == 0 && !search.gave_up()) {
        ++done;
      } else {
        puzzle[cell] = solution[cell];
      }
    }
    if (done == empty) return puzzle;
  }
  return {};
}

}  // namespace hrm::data
