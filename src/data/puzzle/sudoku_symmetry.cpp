#include "hrm/data/sudoku_symmetry.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "data/puzzle/sudoku_search.h"
#include "hrm/base/error.h"

namespace hrm::data {
namespace {

static_assert(kMaxSudokuSize == ops::kMaxSymmetrySize);

}  // namespace

SudokuSymmetry draw_symmetry(const SudokuGeometry& geometry, CounterRng& rng) {
  SudokuSymmetry symmetry{};
  ops::draw_sudoku_symmetry(rng, geometry.box_rows, geometry.box_cols, symmetry);
  return symmetry;
}

SudokuSymmetry draw_symmetry(const SudokuGeometry& geometry, uint64_t seed, uint64_t sample) {
  CounterRng rng(seed, Stream::augment, sample);
  return draw_symmetry(geometry, rng);
}

Grid apply_symmetry(const SudokuGeometry& geometry, const SudokuSymmetry& symmetry, const Grid& grid) {
  const int n = geometry.size();
  Grid result(grid.size());
  for (int cell = 0; cell < geometry.cells(); ++cell) {
    result[cell] = symmetry.digit_map[grid[ops::sudoku_source(symmetry, n, cell / n, cell % n)]];
  }
  return result;
}

SudokuAugmenter::SudokuAugmenter(SudokuGeometry geometry) : geometry_(geometry), scratch_(geometry.cells()) {}

void SudokuAugmenter::operator()(uint64_t seed, uint64_t sample, int32_t* inputs, int32_t* labels) {
  const SudokuSymmetry symmetry = draw_symmetry(geometry_, seed, sample);
  const int n = geometry_.size();
  for (int32_t* tokens : {inputs, labels}) {
    std::copy_n(tokens, scratch_.size(), scratch_.begin());
    for (int row = 0; row < n; ++row) {
      for (int col = 0; col < n; ++col) {
        *tokens++ = ops::sudoku_token(symmetry, scratch_[ops::sudoku_source(symmetry, n, row, col)]);
      }
    }
  }
}

// ---- classes ----------------------------------------------------------------------------------------------------

namespace {

int64_t factorial(int n) {
  return n <= 1 ? 1 : n * factorial(n - 1);
}

// All column orders of a grid that keep stacks together: (orders, N).
std::vector<uint8_t> column_orders(const SudokuGeometry& geometry) {
  const int n = geometry.size(), width = geometry.box_cols, stacks = n / width;
  std::vector<uint8_t> inner(width), outer(stacks);
  std::iota(inner.begin(), inner.end(), uint8_t{0});
  std::iota(outer.begin(), outer.end(), uint8_t{0});
  std::vector<std::vector<uint8_t>> inners;
  do inners.push_back(inner);
  while (std::next_permutation(inner.begin(), inner.end()));
  std::vector<uint8_t> orders;
  std::vector<size_t> choice(stacks, 0);
  do {
    // Enumerates all choices of an inner order for each stack.
    for (bool more = true; more;) {
      for (int s = 0; s < stacks; ++s) {
        for (const int c : inners[choice[s]]) orders.push_back(static_cast<uint8_t>(outer[s] * width + c));
      }
      more = false;
      for (int s = 0; s < stacks && !more; ++s) {
        choice[s] = (choice[s] + 1) % inners.size();
        more = choice[s] != 0;
      }
    }
  } while (std::next_permutation(outer.begin(), outer.end()));
  return orders;
}

const std::vector<uint8_t>& cached_column_orders(const SudokuGeometry& geometry) {
  struct Entry {
    SudokuGeometry geometry;
    std::vector<uint8_t> orders;
  };
  thread_local Entry cache;
  if (cache.orders.empty() || cache.geometry != geometry) cache = {geometry, column_orders(geometry)};
  return cache.orders;
}

int64_t forms_to_try(const SudokuGeometry& geometry) {
  double count = geometry.size() * (geometry.square_boxes() ? 2.0 : 1.0);
  count *= static_cast<double>(factorial(geometry.box_rows));
  for (int stack = 0; stack < geometry.box_rows; ++stack) count *= static_cast<double>(factorial(geometry.box_cols));
  return count < 1e15 ? static_cast<int64_t>(count) : INT64_MAX;
}

Grid transposed(const Grid& grid, int n) {
  Grid result(grid.size());
  for (int row = 0; row < n; ++row) {
    for (int col = 0; col < n; ++col) result[col * n + row] = grid[row * n + col];
  }
  return result;
}

// Searches for the smallest form. The first row and the order of columns determine the rest: digits are renamed so that
// the first row reads 1..N, and rows and bands are sorted by their first entries.
class FormSearch {
 public:
  FormSearch(const SudokuGeometry& geometry, const Grid& grid)
      : geometry_(geometry), n_(geometry.size()), grid_(grid), best_(grid.size(), 255) {}

  void run() {
    const std::vector<uint8_t>& orders = cached_column_orders(geometry_);
    for (size_t start = 0; start < orders.size(); start += n_) {
      for (int first = 0; first < n_; ++first) try_form(orders.data() + start, first);
    }
  }
  void set_grid(Grid grid) { grid_ = std::move(grid); }
  const Grid& best() const { return best_; }

 private:
  void try_form(const uint8_t* cols, int first) {
    uint8_t label[kMaxSudokuSize + 1];
    for (int j = 0; j < n_; ++j) label[grid_[first * n_ + cols[j]]] = static_cast<uint8_t>(j + 1);
    const auto entry = [&](int row) { return label[grid_[row * n_ + cols[0]]]; };
    // The second row is enough to reject nearly all forms.
    const int band_rows = geometry_.box_rows, band = first / band_rows * band_rows;
    if (band_rows > 1) {
      int second = -1;
      for (int row = band; row < band + band_rows; ++row) {
        if (row != first && (second < 0 || entry(row) < entry(second))) second = row;
      }
      for (int j = 0; j < n_; ++j) {
        const int value = label[grid_[second * n_ + cols[j]]], best = best_[n_ + j];
        if (value > best) return;
        if (value < best) break;
      }
    }
    int rows[kMaxSudokuSize], bands[kMaxSudokuSize];
    const int num_bands = n_ / band_rows;
    std::iota(rows, rows + n_, 0);
    std::iota(bands, bands + num_bands, 0);
    for (int b = 0; b < num_bands; ++b) {
      std::sort(rows + b * band_rows, rows + (b + 1) * band_rows, [&](int a, int c) { return entry(a) < entry(c); });
    }
    std::sort(bands, bands + num_bands,
              [&](int a, int c) { return entry(rows[a * band_rows]) < entry(rows[c * band_rows]); });
    Grid form;
    form.reserve(best_.size());
    bool smaller = false;
    for (int b = 0; b < num_bands; ++b) {
      for (int r = 0; r < band_rows; ++r) {
        const int row = rows[bands[b] * band_rows + r];
        for (int j = 0; j < n_; ++j) {
          const uint8_t value = label[grid_[row * n_ + cols[j]]];
          if (!smaller && value > best_[form.size()]) return;
          smaller = smaller || value < best_[form.size()];
          form.push_back(value);
        }
      }
    }
    best_ = std::move(form);
  }

  SudokuGeometry geometry_;
  int n_;
  Grid grid_;
  Grid best_;
};

uint64_t mix_hash(uint64_t x) {  // finalizer of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Two rows define a permutation of the columns: from a digit's place in one row to its place in the other. Its cycle
// lengths are invariant under column and digit symmetries. Summing makes the digest independent of the order of rows
// and bands.
uint64_t row_invariant(const SudokuGeometry& geometry, int band_rows, const Grid& grid) {
  const int n = geometry.size();
  std::vector<uint8_t> place(n * (n + 1));  // place[row][digit]
  for (int row = 0; row < n; ++row) {
    for (int col = 0; col < n; ++col) place[row * (n + 1) + grid[row * n + col]] = static_cast<uint8_t>(col);
  }
  const auto pair_type = [&](int a, int b) {
    uint32_t seen = 0;
    uint64_t type = 0;
    for (int start = 0; start < n; ++start) {
      uint64_t length = 0;
      for (int col = start; !(seen >> col & 1); col = place[a * (n + 1) + grid[b * n + col]]) {
        seen |= 1u << col;
        ++length;
      }
      if (length > 0) type += mix_hash(length);
    }
    return mix_hash(type);
  };
  uint64_t total = 0;
  for (int band = 0; band < n; band += band_rows) {
    for (int other = band; other < n; other += band_rows) {
      uint64_t sum = 0;
      for (int a = band; a < band + band_rows; ++a) {
        for (int b = other; b < other + band_rows; ++b) {
          if (band != other || a < b) sum += pair_type(a, b);
        }
      }
      total += mix_hash(sum + (band == other ? 1 : 2));
    }
  }
  return mix_hash(total);
}

}  // namespace

bool has_canonical_form(const SudokuGeometry& geometry) {
  return forms_to_try(geometry) <= 2'000'000;
}

Grid canonical_form(const SudokuGeometry& geometry, const Grid& solution) {
  require(has_canonical_form(geometry), ExitCode::unexpected, "canonical forms of ", geometry.size(), "x",
          geometry.size(), " grids are out of reach");
  FormSearch search(geometry, solution);
  search.run();
  if (geometry.square_boxes()) {
    search.set_grid(transposed(solution, geometry.size()));
    search.run();
  }
  return search.best();
}

uint64_t class_invariant(const SudokuGeometry& geometry, const Grid& solution) {
  const uint64_t rows = row_invariant(geometry, geometry.box_rows, solution);
  const uint64_t cols = row_invariant(geometry, geometry.box_cols, transposed(solution, geometry.size()));
  return geometry.square_boxes() ? mix_hash(rows + cols) : mix_hash(3 * rows + cols);
}

namespace {

std::string form_key(const SudokuGeometry& geometry, const Grid& solution) {
  const Grid form = canonical_form(geometry, solution);
  return std::string(form.begin(), form.end());
}

}  // namespace

void SolutionClasses::insert(const Grid& solution) {
  Bucket& bucket = buckets_[class_invariant(geometry_, solution)];
  if (has_canonical_form(geometry_)) bucket.solutions.push_back(solution);
}

bool SolutionClasses::contains(const Grid& solution) {
  const auto found = buckets_.find(class_invariant(geometry_, solution));
  if (found == buckets_.end()) return false;
  if (!has_canonical_form(geometry_)) return true;
  Bucket& bucket = found->second;
  for (const Grid& pending : bucket.solutions) bucket.forms.insert(form_key(geometry_, pending));
  bucket.solutions.clear();
  return bucket.forms.contains(form_key(geometry_, solution));
}

std::vector<SolutionClass> all_classes(const SudokuGeometry& geometry) {
  if (geometry.size() > 6 || geometry.box_rows < 2 || geometry.box_cols < 2) return {};
  // Up to renaming digits, every grid equals one whose first row is 1..N. There are 12 and 39,168 of those.
  std::unordered_map<std::string, int64_t> counts;
  Grid givens(geometry.cells(), 0);
  std::iota(givens.begin(), givens.begin() + geometry.size(), uint8_t{1});
  int64_t total = 0;
  enumerate_solutions(geometry, givens, [&](const Grid& grid) {
    ++counts[form_key(geometry, grid)];
    ++total;
  });
  std::vector<SolutionClass> classes;
  for (const auto& [form, count] : counts) {
    classes.push_back({Grid(form.begin(), form.end()), static_cast<double>(count) / static_cast<double>(total)});
  }
  std::sort(classes.begin(), classes.end(),
            [](const SolutionClass& a, const SolutionClass& b) { return a.form < b.form; });
  return classes;
}

}  // namespace hrm::data
