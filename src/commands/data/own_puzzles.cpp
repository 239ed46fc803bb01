#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <ostream>
#include <set>

#include "commands/data/puzzle_groups.h"
#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/commands/data.h"
#include "hrm/data/dataset.h"
#include "hrm/data/dihedral.h"

namespace hrm::data {
namespace {

// The shape that all puzzles are padded to, and whether all have it.
struct CommonShape {
  int64_t rows = 0, cols = 0;
  bool uniform = true;
};

CommonShape common_shape(const std::vector<const PuzzleSource*>& sources, PuzzleForm form) {
  CommonShape shape;
  const PuzzleRecord& first = sources[0]->records[0];
  for (const PuzzleSource* source : sources) {
    for (const PuzzleRecord& record : source->records) {
      shape.uniform = shape.uniform && record.rows == first.rows && record.cols == first.cols;
      const auto answer_and_end = static_cast<int64_t>(record.answer.size()) + 1;
      shape.rows = std::max(shape.rows, record.rows);
      shape.cols = std::max({shape.cols, record.cols, form == PuzzleForm::pairs ? answer_and_end : 0});
    }
  }
  require(shape.rows * shape.cols <= kMostCells, ExitCode::data, sources[0]->path, ": padded to the largest puzzle, ",
          shape.rows, "x", shape.cols, ", a puzzle has ", shape.rows * shape.cols, " cells; at most ", kMostCells,
          " are allowed");
  return shape;
}

void require_uniform(const std::vector<const PuzzleSource*>& sources) {
  const PuzzleRecord& first = sources[0]->records[0];
  for (const PuzzleSource* source : sources) {
    for (size_t i = 0; i < source->records.size(); ++i) {
      const PuzzleRecord& record = source->records[i];
      require(record.rows == first.rows && record.cols == first.cols, ExitCode::usage,
              "--symmetries dihedral needs grids of one size, but ", sources[0]->place(0), " has ", first.rows, "x",
              first.cols, " cells and ", source->place(i), " ", record.rows, "x", record.cols);
    }
  }
}

// Numbers of symbols to tokens, in the shape of the vocabulary.
class Encoder {
 public:
  Encoder(const PuzzleVocabulary& vocabulary, const std::vector<uint8_t>& order) : vocabulary_(vocabulary) {
    for (size_t i = 0; i < order.size(); ++i) {
      tokens_[order[i]] = static_cast<uint8_t>(i + vocabulary.special_tokens());
    }
  }

  std::vector<uint8_t> question(const PuzzleRecord& record) const { return padded(record, record.question); }
  std::vector<uint8_t> answer(const PuzzleRecord& record) const {
    std::vector<uint8_t> tokens = padded(record, record.answer);
    if (vocabulary_.form == PuzzleForm::pairs) tokens[record.answer.size()] = kEndToken;
    return tokens;
  }

 private:
  std::vector<uint8_t> padded(const PuzzleRecord& record, const std::vector<uint8_t>& numbers) const {
    std::vector<uint8_t> tokens(static_cast<size_t>(vocabulary_.cells()), 0);
    const int64_t width = vocabulary_.form == PuzzleForm::pairs ? vocabulary_.cols : record.cols;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / width, col = static_cast<int64_t>(i) % width;
      tokens[static_cast<size_t>(row * vocabulary_.cols + col)] = tokens_[numbers[i]];
    }
    return tokens;
  }

  const PuzzleVocabulary& vocabulary_;
  std::array<uint8_t, kMostPuzzleTokens> tokens_{};
};

// Writes groups as rows. With more than one transform, each puzzle is followed by its copies.
class RowWriter {
 public:
  RowWriter(const PuzzleVocabulary& vocabulary, const Encoder& encoder) : vocabulary_(vocabulary), encoder_(encoder) {}

  PuzzleRows rows(const PuzzleSource& source, const std::vector<PuzzleGroup>& groups,
                  const std::vector<int>& transforms, int64_t copies, uint64_t seed) const {
    PuzzleRows rows;
    rows.meta.vocab_size = static_cast<int64_t>(vocabulary_.tokens.size());
    rows.meta.seq_len = vocabulary_.cells();
    rows.meta.ignore_label_id = 0;
    for (const PuzzleGroup& group : groups) {
      std::set<std::vector<uint8_t>> seen;  // a symmetric puzzle equals some of its copies
      for (const size_t index : group) add(rows, source.records[index], seen);
      for (const size_t index : group) {
        std::vector<int> chosen(transforms.begin() + 1, transforms.end());
        if (copies >= 0) {
          CounterRng(seed, Stream::augment, index).shuffle(chosen);
          chosen.resize(std::min(chosen.size(), static_cast<size_t>(copies)));
        }
        for (const int transform : chosen) add(rows, transformed(source.records[index], transform), seen);
      }
      rows.end_group();
    }
    return rows;
  }

 private:
  static PuzzleRecord transformed(const PuzzleRecord& record, int transform) {
    PuzzleRecord copy = record;
    const int grid_rows = static_cast<int>(record.rows), grid_cols = static_cast<int>(record.cols);
    copy.question = dihedral(transform, grid_rows, grid_cols, record.question);
    copy.answer = dihedral(transform, grid_rows, grid_cols, record.answer);
    return copy;
  }

  void add(PuzzleRows& rows, const PuzzleRecord& record, std::set<std::vector<uint8_t>>& seen) const {
    const std::vector<uint8_t> question = encoder_.question(record), answer = encoder_.answer(record);
    std::vector<uint8_t> both = question;
    both.insert(both.end(), answer.begin(), answer.end());
    if (seen.insert(std::move(both)).second) rows.add_puzzle(question, answer);
  }

  const PuzzleVocabulary& vocabulary_;
  const Encoder& encoder_;
};

void check_options(const OwnPuzzlesCommand& command) {
  const char* name = command.form == PuzzleForm::grid ? "data grid" : "data pairs";
  require(!command.train.empty() && !command.out.empty(), ExitCode::usage, name,
          ": give the puzzles with --train and the folder to write with --out");
  require(command.test.empty() || command.test_share == 0, ExitCode::usage, name,
          ": give either --test or --test-share, not both");
  require(command.test_share >= 0 && command.test_share < 1, ExitCode::usage, "--test-share ", command.test_share,
          " is not within 0 and 1");
  require(command.symmetries == "none" || command.symmetries == "dihedral", ExitCode::usage, "--symmetries ",
          command.symmetries, " is neither none nor dihedral");
  require(command.copies < 0 || command.symmetries == "dihedral", ExitCode::usage,
          "--copies is read with --symmetries dihedral only");
}

void print_split(std::ostream& out, const char* split, const PuzzleRows& rows) {
  const size_t groups = rows.group_indices.size() - 1, puzzles = rows.puzzle_identifiers.size();
  out << split << ": " << groups << (groups == 1 ? " group of " : " groups of ") << puzzles
      << (puzzles == 1 ? " puzzle\n" : " puzzles\n");
}

}  // namespace

void run_data_own_puzzles(const OwnPuzzlesCommand& command, std::ostream& out) {
  check_options(command);
  const PuzzleRecordOptions options{command.form, command.question_field, command.answer_field, command.rows,
                                    command.cols};
  PuzzleVocabulary vocabulary;
  vocabulary.form = command.form;
  SymbolTable symbols(command.alphabet, kMostPuzzleTokens - vocabulary.special_tokens());
  PuzzleSource train{command.train, read_puzzle_records(command.train, options, symbols)}, test;
  std::vector<const PuzzleSource*> sources{&train};
  if (!command.test.empty()) {
    test = {command.test, read_puzzle_records(command.test, options, symbols)};
    sources.push_back(&test);
  }
  const CommonShape shape = common_shape(sources, command.form);
  std::vector<int> transforms{0};
  if (command.symmetries == "dihedral") {
    require_uniform(sources);
    transforms = shape_keeping_transforms(shape.rows, shape.cols);
    for (const int transform : transforms) vocabulary.symmetries.emplace_back(kDihedralNames[transform]);
  }
  GroupedPuzzles train_groups = group_puzzles(train, transforms);
  std::vector<PuzzleGroup> test_groups;
  int64_t repeated = train_groups.repeated;
  if (!command.test.empty()) {
    check_separate(train, test, transforms);
    GroupedPuzzles grouped = group_puzzles(test, transforms);
    repeated += grouped.repeated;
    test_groups = std::move(grouped.groups);
  } else if (command.test_share > 0) {
    test_groups = take_test_groups(train_groups.groups, command.test_share, static_cast<uint64_t>(command.seed));
  }

  const std::vector<uint8_t> order = symbols.order();
  vocabulary.rows = shape.rows;
  vocabulary.cols = shape.cols;
  vocabulary.tokens.resize(vocabulary.special_tokens());
  for (const uint8_t number : order) vocabulary.tokens.push_back(symbols.texts()[number]);
  const Encoder encoder(vocabulary, order);
  const RowWriter writer(vocabulary, encoder);
  std::error_code ignored;
  require(!test_groups.empty() || !std::filesystem::exists(std::filesystem::path(command.out) / "test", ignored),
          ExitCode::usage, "'", command.out,
          "' holds a test split of earlier puzzles; remove it, or choose another --out");
  // The vocabulary first: a folder without it would be taken for another kind of puzzle.
  write_vocabulary(command.out, vocabulary);
  const auto seed = static_cast<uint64_t>(command.seed);
  const PuzzleRows train_rows = writer.rows(train, train_groups.groups, transforms, command.copies, seed);
  write_dataset(command.out, "train", train_rows);
  out << command.out << ": ";
  if (command.form == PuzzleForm::grid) {
    out << "grids of " << (shape.uniform ? "" : "at most ") << shape.rows << "x" << shape.cols;
  } else {
    out << "pairs of sequences, padded to " << shape.cols;
  }
  out << ", " << order.size() << " symbols, vocabulary " << vocabulary.tokens.size() << "\n";
  print_split(out, "train", train_rows);
  if (!test_groups.empty()) {
    const PuzzleRows test_rows = writer.rows(command.test.empty() ? train : test, test_groups, {0}, 0, seed);
    write_dataset(command.out, "test", test_rows);
    print_split(out, "test", test_rows);
  }
  if (repeated > 0)
    out << repeated << (repeated == 1 ? " repeated puzzle is" : " repeated puzzles are") << " left out\n";
}

}  // namespace hrm::data
