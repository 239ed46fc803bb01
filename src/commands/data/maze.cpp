#include <algorithm>
#include <ostream>

#include "commands/data/support.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/commands/data.h"
#include "hrm/data/dihedral.h"
#include "hrm/data/maze.h"
#include "hrm/data/puzzle_csv.h"

namespace hrm::data {
namespace {

// Test mazes are drawn from indices beyond any training set.
constexpr uint64_t kMazeTestIndices = uint64_t{1} << 48;

std::vector<uint8_t> maze_tokens(const std::string& maze) {
  std::vector<uint8_t> tokens(maze.size());
  std::transform(maze.begin(), maze.end(), tokens.begin(), maze_token);
  return tokens;
}

PuzzleRows empty_mazes(int64_t cells) {
  PuzzleRows rows;
  rows.kind = PuzzleKind::maze;
  rows.meta.vocab_size = kMazeVocabSize;
  rows.meta.seq_len = cells;
  rows.meta.ignore_label_id = 0;
  return rows;
}

PuzzleRows generate_mazes(const MazeCommand& command, bool test, int64_t count) {
  PuzzleRows rows = empty_mazes(command.size * command.size);
  for (int64_t i = 0; i < count; ++i) {
    CounterRng rng(static_cast<uint64_t>(command.seed), Stream::generate,
                   static_cast<uint64_t>(i) + (test ? kMazeTestIndices : 0));
    const Maze maze = generate_maze(static_cast<int>(command.size), command.min_path, rng);
    rows.add_puzzle(maze_tokens(maze.question), maze_tokens(maze.answer));
    rows.end_group();
    if ((i + 1) % 256 == 0)
      log::progress(cat("generating ", test ? "test" : "training", " mazes: ", i + 1, " of ", count));
  }
  log::progress_done();
  return rows;
}

std::vector<uint8_t> row_of(const std::vector<uint8_t>& tokens, int64_t row, int64_t cells) {
  return {tokens.begin() + row * cells, tokens.begin() + (row + 1) * cells};
}

// Each maze in its eight orientations, the given one first, as one group.
PuzzleRows augment_mazes(const PuzzleRows& rows) {
  const int64_t cells = rows.meta.seq_len;
  const int side = maze_side(static_cast<size_t>(cells));
  PuzzleRows result = empty_mazes(cells);
  for (size_t i = 0; i < rows.puzzle_identifiers.size(); ++i) {
    for (int transform = 0; transform < 8; ++transform) {
      const auto turned = [&](const std::vector<uint8_t>& tokens) {
        return dihedral(transform, side, side, row_of(tokens, static_cast<int64_t>(i), cells));
      };
      result.add_puzzle(turned(rows.inputs), turned(rows.labels));
    }
    result.end_group();
  }
  return result;
}

void print_maze_split(std::ostream& out, const char* split, const PuzzleRows& rows) {
  const int64_t cells = rows.meta.seq_len, puzzles = static_cast<int64_t>(rows.puzzle_identifiers.size());
  int64_t shortest = cells, longest = 0;
  for (int64_t i = 0; i < puzzles; ++i) {
    const auto begin = rows.labels.begin() + i * cells;
    const int64_t moves = std::count(begin, begin + cells, maze_token('o')) + 1;
    shortest = std::min(shortest, moves);
    longest = std::max(longest, moves);
  }
  out << split << ": " << rows.group_indices.size() - 1 << " mazes, " << puzzles << " with augmented copies, paths of "
      << shortest << " to " << longest << " moves\n";
}

// What the question itself, taken as the answer, gets right.
void print_maze_baseline(std::ostream& out, const PuzzleRows& rows) {
  const Score score = score_predictor(static_cast<int64_t>(rows.puzzle_identifiers.size()), [&](int64_t i) {
    return std::pair{row_of(rows.inputs, i, rows.meta.seq_len), row_of(rows.labels, i, rows.meta.seq_len)};
  });
  out << cat("baseline on the test set: no path at all   exact ", 100 * score.exact, " %   cells ",
             static_cast<double>(static_cast<int64_t>(1000 * score.cells + 0.5)) / 10, " %\n");
}

}  // namespace

void run_data_maze(const MazeCommand& command, std::ostream& out) {
  check_sources("maze", command.generate, command.train_csv, command.test_csv, command.out);
  std::optional<PuzzleRows> train, test;
  if (command.generate) {
    require(command.size >= 3 && command.size <= 1024, ExitCode::usage, "--size ", command.size,
            " is not within 3 to 1024");
    require(command.train > 0 || command.test > 0, ExitCode::usage, "nothing to generate: give --train or --test");
    if (command.train > 0) train = generate_mazes(command, /*test=*/false, command.train);
    if (command.test > 0) test = generate_mazes(command, /*test=*/true, command.test);
  } else {
    PuzzleCsvOptions options;
    options.kind = config::PuzzleFileKind::maze;
    options.question_field = command.question_field;
    options.answer_field = command.answer_field;
    options.field_settings = "--question-field and --answer-field";
    options.progress = true;
    if (!command.test_csv.empty()) test = read_puzzle_csv(command.test_csv, options).rows;
    if (!command.train_csv.empty()) {
      options.subsample = command.subsample;
      options.min_rating = command.min_rating;
      options.seed = static_cast<uint64_t>(command.seed);
      train = read_puzzle_csv(command.train_csv, options).rows;
    }
    require(!train || !test || train->meta.seq_len == test->meta.seq_len, ExitCode::data, command.train_csv, " and ",
            command.test_csv, " hold mazes of different sizes");
  }
  if (train && command.augment) *train = augment_mazes(*train);
  if (train) write_dataset(command.out, "train", *train);
  if (test) write_dataset(command.out, "test", *test);
  const int side = maze_side(static_cast<size_t>((train ? train : test)->meta.seq_len));
  out << command.out << ": mazes of " << side << "x" << side << ", vocabulary " << kMazeVocabSize << "\n";
  if (train) print_maze_split(out, "train", *train);
  if (test) print_maze_split(out, "test", *test);
  if (test) print_maze_baseline(out, *test);
}

}  // namespace hrm::data
