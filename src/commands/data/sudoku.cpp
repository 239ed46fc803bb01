#include <algorithm>
#include <charconv>
#include <iomanip>
#include <ostream>

#include "commands/data/support.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/commands/data.h"
#include "hrm/data/puzzle_csv.h"
#include "hrm/data/sudoku_symmetry.h"

namespace hrm::data {
namespace {

// Of all full grids, the share whose classes are held out for the test where classes are few.
constexpr double kHeldOutShare = 0.2;
// Test puzzles are drawn from indices beyond any training set, so that the two never share a random stream.
constexpr uint64_t kTestIndices = uint64_t{1} << 48;
// Draws that belong to the data set as a whole.
constexpr uint64_t kSetIndex = uint64_t{1} << 49;

std::vector<uint8_t> grid_tokens(const Grid& grid) {
  std::vector<uint8_t> tokens(grid.size());
  std::transform(grid.begin(), grid.end(), tokens.begin(), [](uint8_t digit) { return digit + 1; });
  return tokens;
}

Grid grid_of(const std::vector<uint8_t>& tokens, int64_t row, int64_t cells) {
  Grid grid(cells);
  std::transform(tokens.begin() + row * cells, tokens.begin() + (row + 1) * cells, grid.begin(),
                 [](uint8_t token) { return static_cast<uint8_t>(token - 1); });
  return grid;
}

struct EmptyRange {
  int min = 0, max = 0;
};

EmptyRange parse_empty(const std::string& text, const SudokuGeometry& geometry) {
  const auto [min, max] = parse_pair(text, ':', "--empty", "MIN:MAX, e.g. 40:50");
  require(min >= 1 && min <= max && max < geometry.cells(), ExitCode::usage, "--empty ", text,
          " is not a range within 1 to ", geometry.cells() - 1, " cells of a ", geometry.size(), "x", geometry.size(),
          " Sudoku");
  return {static_cast<int>(min), static_cast<int>(max)};
}

// Generates puzzles and sees to it that training and test solutions are no symmetric copies of each other.
class Generator {
 public:
  Generator(const SudokuCommand& command, const SudokuGeometry& geometry)
      : geometry_(geometry),
        empty_(parse_empty(command.empty, geometry)),
        seed_(static_cast<uint64_t>(command.seed)),
        training_(geometry) {
    classes_ = all_classes(geometry);
    if (classes_.empty()) return;
    // Few classes: choose whole classes for the test, at random, up to their share of all grids.
    require(classes_.size() >= 2, ExitCode::usage, "there is only one class of solutions: nothing can be held out");
    CounterRng rng(seed_, Stream::generate, kSetIndex);
    rng.shuffle(classes_);
    for (double share = 0; share < kHeldOutShare && held_out_.size() + 1 < classes_.size();) {
      const SolutionClass& next = classes_[held_out_.size()];
      share += next.share;
      held_out_.insert(form_text(next.form));
    }
  }

  // One more puzzle and its solution. Training puzzles come first: test solutions avoid all classes seen by then.
  std::pair<Grid, Grid> next(bool test, uint64_t index) {
    CounterRng rng(seed_, Stream::generate, test ? kTestIndices + index : index);
    constexpr int kTries = 2000;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const Grid solution = generate_solution(geometry_, rng);
      if (!allowed(solution, test)) continue;
      const int empty = empty_.min + static_cast<int>(rng.below(static_cast<uint32_t>(empty_.max - empty_.min + 1)));
      Grid puzzle = dig_puzzle(geometry_, solution, empty, rng);
      if (puzzle.empty()) continue;
      if (!test && classes_.empty()) training_.insert(solution);
      return {std::move(puzzle), solution};
    }
    fail(ExitCode::usage, "no ", geometry_.size(), "x", geometry_.size(), " puzzle with ", empty_.min, " to ",
         empty_.max, " empty cells and a single solution was found in ", kTries, " tries: lower --empty");
  }

  std::string describe() const {
    if (classes_.empty()) return "no test solution equals a training solution under any symmetry";
    return cat(held_out_.size(), " of the ", classes_.size(),
               " solution classes are held out: no symmetry maps a test solution onto a training solution");
  }

 private:
  static std::string form_text(const Grid& form) { return std::string(form.begin(), form.end()); }

  bool allowed(const Grid& solution, bool test) {
    if (!classes_.empty()) return held_out_.contains(form_text(canonical_form(geometry_, solution))) == test;
    return !test || !training_.contains(solution);
  }

  SudokuGeometry geometry_;
  EmptyRange empty_;
  uint64_t seed_;
  std::vector<SolutionClass> classes_;  // empty where they are too many to list
  std::unordered_set<std::string> held_out_;
  SolutionClasses training_;
};

PuzzleRows empty_sudokus(const SudokuGeometry& geometry) {
  PuzzleRows rows;
  rows.kind = PuzzleKind::sudoku;
  rows.meta.vocab_size = geometry.vocab_size();
  rows.meta.seq_len = geometry.cells();
  rows.meta.ignore_label_id = 0;
  return rows;
}

PuzzleRows generate_sudokus(Generator& generator, const SudokuGeometry& geometry, bool test, int64_t count) {
  PuzzleRows rows = empty_sudokus(geometry);
  for (int64_t i = 0; i < count; ++i) {
    const auto [puzzle, solution] = generator.next(test, static_cast<uint64_t>(i));
    rows.add_puzzle(grid_tokens(puzzle), grid_tokens(solution));
    rows.end_group();
    if ((i + 1) % 256 == 0)
      log::progress(cat("generating ", test ? "test" : "training", " puzzles: ", i + 1, " of ", count));
  }
  log::progress_done();
  return rows;
}

// Each puzzle and `copies` random symmetric copies, as one group.
PuzzleRows augment_sudokus(const PuzzleRows& rows, const SudokuGeometry& geometry, int64_t copies, uint64_t seed) {
  if (copies == 0) return rows;
  PuzzleRows result = empty_sudokus(geometry);
  const int64_t puzzles = static_cast<int64_t>(rows.puzzle_identifiers.size());
  for (int64_t i = 0; i < puzzles; ++i) {
    const Grid puzzle = grid_of(rows.inputs, i, geometry.cells()), solution = grid_of(rows.labels, i, geometry.cells());
    result.add_puzzle(grid_tokens(puzzle), grid_tokens(solution));
    for (int64_t copy = 0; copy < copies; ++copy) {
      const SudokuSymmetry symmetry = draw_symmetry(geometry, seed, static_cast<uint64_t>(i * copies + copy));
      result.add_puzzle(grid_tokens(apply_symmetry(geometry, symmetry, puzzle)),
                        grid_tokens(apply_symmetry(geometry, symmetry, solution)));
    }
    result.end_group();
    if ((i + 1) % 1024 == 0) log::progress(cat("augmenting: ", i + 1, " of ", puzzles, " puzzles"));
  }
  log::progress_done();
  return result;
}

void print_sudoku_baseline(std::ostream& out, const char* label, const Score& score) {
  out << "  " << std::left << std::setw(36) << label << std::right << std::fixed << std::setprecision(1) << "exact "
      << std::setw(5) << 100 * score.exact << " %   cells " << std::setw(5) << 100 * score.cells << " %\n";
}

// What needs no model at all, on the same puzzles that a model will be tested on.
void print_baselines(std::ostream& out, const PuzzleRows& rows, const SudokuGeometry& geometry) {
  const int64_t cells = geometry.cells(), puzzles = static_cast<int64_t>(rows.puzzle_identifiers.size());
  Score constant, propagated;
  double best_constant = -1;
  for (int digit = 1; digit <= geometry.size(); ++digit) {
    const Score score = score_predictor(puzzles, [&](int64_t i) {
      Grid grid = grid_of(rows.inputs, i, cells);
      std::replace(grid.begin(), grid.end(), uint8_t{0}, static_cast<uint8_t>(digit));
      return std::pair{grid, grid_of(rows.labels, i, cells)};
    });
    if (score.cells > best_constant) {
      best_constant = score.cells;
      constant = score;
    }
  }
  propagated = score_predictor(puzzles, [&](int64_t i) {
    return std::pair{propagate_once(geometry, grid_of(rows.inputs, i, cells)), grid_of(rows.labels, i, cells)};
  });
  out << "baselines on the test set (givens count as cells, as they do for a model):\n";
  print_sudoku_baseline(out, "best constant in the empty cells", constant);
  print_sudoku_baseline(out, "one pass of constraint propagation", propagated);
}

void print_sudoku_split(std::ostream& out, const char* split, const PuzzleRows& rows) {
  const int64_t cells = rows.meta.seq_len;
  int64_t fewest = cells, most = 0;
  for (size_t i = 0; i < rows.puzzle_identifiers.size(); ++i) {
    const auto begin = rows.inputs.begin() + static_cast<int64_t>(i) * cells;
    const int64_t empty = std::count(begin, begin + cells, uint8_t{1});
    fewest = std::min(fewest, empty);
    most = std::max(most, empty);
  }
  out << split << ": " << rows.group_indices.size() - 1 << " puzzles, " << rows.puzzle_identifiers.size()
      << " with augmented copies, " << fewest << " to " << most << " of " << cells << " cells empty\n";
}

int64_t count_shared_classes(const PuzzleRows& train, const PuzzleRows& test, const SudokuGeometry& geometry) {
  SolutionClasses classes(geometry);
  const auto solution = [&](const PuzzleRows& rows, size_t i) {
    return grid_of(rows.labels, static_cast<int64_t>(i), geometry.cells());
  };
  for (size_t i = 0; i < train.puzzle_identifiers.size(); ++i) classes.insert(solution(train, i));
  int64_t shared = 0;
  for (size_t i = 0; i < test.puzzle_identifiers.size(); ++i) shared += classes.contains(solution(test, i));
  return shared;
}

}  // namespace

void run_data_sudoku(const SudokuCommand& command, std::ostream& out) {
  check_sources("sudoku", command.generate, command.train_csv, command.test_csv, command.out);
  require(command.augment >= 0, ExitCode::usage, "--augment must not be negative");
  const auto [box_rows, box_cols] = parse_box(command.box);
  std::optional<PuzzleRows> train, test;
  SudokuGeometry geometry;
  std::string separation;
  if (command.generate) {
    require(command.train > 0 || command.test > 0, ExitCode::usage, "nothing to generate: give --train or --test");
    const int64_t size = box_rows == 0 ? 9 : box_rows * box_cols;
    geometry = sudoku_geometry(size * size, box_rows, box_cols);
    Generator generator(command, geometry);
    if (command.train > 0) train = generate_sudokus(generator, geometry, /*test=*/false, command.train);
    if (command.test > 0) test = generate_sudokus(generator, geometry, /*test=*/true, command.test);
    separation = generator.describe();
  } else {
    PuzzleCsvOptions options;
    options.kind = config::PuzzleFileKind::sudoku;
    options.box_rows = box_rows;
    options.box_cols = box_cols;
    options.question_field = command.question_field;
    options.answer_field = command.answer_field;
    options.field_settings = "--question-field and --answer-field";
    options.progress = true;
    if (!command.test_csv.empty()) {
      PuzzleCsv csv = read_puzzle_csv(command.test_csv, options);
      geometry = csv.geometry;
      test = std::move(csv.rows);
    }
    if (!command.train_csv.empty()) {
      options.subsample = command.subsample;
      options.min_rating = command.min_rating;
      options.seed = static_cast<uint64_t>(command.seed);
      PuzzleCsv csv = read_puzzle_csv(command.train_csv, options);
      require(!test || csv.geometry == geometry, ExitCode::data, command.train_csv, " and ", command.test_csv,
              " hold Sudokus of different sizes");
      geometry = csv.geometry;
      train = std::move(csv.rows);
    }
    if (train && test) {
      separation = cat(count_shared_classes(*train, *test, geometry),
                       " test solutions equal a training solution under some symmetry");
    }
  }
  if (train) {
    *train = augment_sudokus(*train, geometry, command.augment, static_cast<uint64_t>(command.seed));
    write_dataset(command.out, "train", *train);
  }
  if (test) write_dataset(command.out, "test", *test);
  out << command.out << ": Sudoku " << geometry.size() << "x" << geometry.size() << ", boxes " << geometry.box_rows
      << "x" << geometry.box_cols << ", vocabulary " << geometry.vocab_size() << "\n";
  if (train) print_sudoku_split(out, "train", *train);
  if (test) print_sudoku_split(out, "test", *test);
  if (train && test) out << separation << "\n";
  if (test) print_baselines(out, *test, geometry);
}

}  // namespace hrm::data
