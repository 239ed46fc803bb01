#pragma once
// Puzzle datasets in the official layout of HRM and TRM. A group is an original puzzle with its augmented copies. A
// puzzle has one or more examples. An example is a row of inputs and a row of labels.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/puzzle_meta.h"
#include "hrm/data/puzzle_vocabulary.h"

namespace hrm::data {

// The half-open range [begin, end).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// A part of a dataset with its own name in the metrics. The official datasets have one, "all".
struct DatasetPart {
  std::string name;
  IndexRange examples;
};

// The kind of puzzle, if known. It decides how puzzles are displayed and how answers are checked.
enum class PuzzleKind { unknown, sudoku, maze, arc };
const char* name(PuzzleKind kind);

// Immutable and safe to read from several threads.
class PuzzleDataset {
 public:
  virtual ~PuzzleDataset() = default;

  const PuzzleMeta& meta() const { return meta_; }
  PuzzleKind kind() const { return kind_; }
  // The texts of the tokens, if the folder has a vocabulary.json; the kind is then unknown.
  const std::optional<PuzzleVocabulary>& vocabulary() const { return vocabulary_; }
  const std::string& origin() const { return origin_; }  // path, for messages
  const std::vector<DatasetPart>& parts() const { return parts_; }
  // Names of the puzzle identifiers; empty if the dataset has none.
  const std::vector<std::string>& identifiers() const { return identifiers_; }

  int64_t num_groups() const { return static_cast<int64_t>(group_indices_.size()) - 1; }
  int64_t num_puzzles() const { return static_cast<int64_t>(puzzle_indices_.size()) - 1; }
  int64_t num_examples() const { return puzzle_indices_.back(); }
  // From dataset.json. The official number of steps is epochs * groups * mean_puzzle_examples / batch.
  double mean_puzzle_examples() const { return mean_puzzle_examples_; }
  // True if each group visit yields exactly one row (Sudoku, Maze). Row i of the training stream is then visit i.
  bool one_example_per_puzzle() const { return one_example_per_puzzle_; }

  IndexRange puzzles_of_group(int64_t group) const { return {group_indices_[group], group_indices_[group + 1]}; }
  IndexRange examples_of_puzzle(int64_t puzzle) const { return {puzzle_indices_[puzzle], puzzle_indices_[puzzle + 1]}; }
  int64_t puzzle_of_example(int64_t example) const;
  int32_t puzzle_identifier(int64_t puzzle) const { return puzzle_identifiers_[puzzle]; }

  // Writes one example, (S) int32 for inputs and for labels. Labels equal to ignore_label_id become kIgnoreLabel.
  // Throws Error(data) naming file and row for a token outside 0..V-1.
  virtual void example(int64_t index, int32_t* inputs, int32_t* labels) const = 0;

  // What a device needs to make the examples: their rows, or, in a compact ARC folder (hrm/data/arc.h), the rows of the
  // tasks' own pairs and the code of each copy (ops::ArcCopy).
  struct StoredExample {
    int64_t row = 0;
    int64_t copy = 0;
  };
  virtual bool compact() const { return false; }
  virtual int64_t num_stored() const { return num_examples(); }
  virtual void stored_row(int64_t row, int32_t* inputs, int32_t* labels) const { example(row, inputs, labels); }
  virtual StoredExample stored_example(int64_t index) const { return {index, 0}; }

  // XXH3-128, in hex, of everything that training sees: sizes, groups, puzzles, identifiers and all rows, but not the
  // path. Reads the whole dataset.
  std::string digest() const;

 protected:
  // Checks the index arrays against each other and computes the derived fields.
  void finish_index();

  PuzzleMeta meta_;
  PuzzleKind kind_ = PuzzleKind::unknown;
  std::optional<PuzzleVocabulary> vocabulary_;
  std::string origin_;
  std::vector<DatasetPart> parts_;
  std::vector<std::string> identifiers_;
  std::vector<int64_t> group_indices_{0};   // (groups + 1) first puzzle of each group
  std::vector<int64_t> puzzle_indices_{0};  // (puzzles + 1) first example of each puzzle
  std::vector<int32_t> puzzle_identifiers_;
  double mean_puzzle_examples_ = 1;
  bool one_example_per_puzzle_ = true;
};

// Opens a folder in the official layout, or a CSV file of Sudokus or mazes, also compressed (puzzle_csv.h). In a
// folder, `split` ("train" or "test") names the subfolder; its .npy files of uint8, int32 or int64 are memory-mapped.
//
// Settings for CSV files: `data.kind`, `question_field` and `answer_field`; for training also `data.subsample` and
// `data.min_rating`. Settings `box_rows` and `box_cols` also help to recognize Sudoku in folders. `seed` draws the
// subsample.
//
// Throws Error(data), one sentence naming file and row or line, for missing or malformed data. Throws Error(usage) for
// options that do not fit the data.
std::shared_ptr<PuzzleDataset> open_dataset(const std::filesystem::path& path, const std::string& split,
                                            const config::DataConfig& config, uint64_t seed = 0);

// Rows in memory, from which write_dataset writes a split.
struct PuzzleRows {
  PuzzleMeta meta;
  PuzzleKind kind = PuzzleKind::unknown;
  std::vector<uint8_t> inputs;              // (N, S) tokens
  std::vector<uint8_t> labels;              // (N, S) tokens
  std::vector<int32_t> puzzle_identifiers;  // (puzzles)
  std::vector<int32_t> puzzle_indices{0};   // (puzzles + 1)
  std::vector<int32_t> group_indices{0};    // (groups + 1)

  // Appends a puzzle with one example to the current group; end_group() closes the group.
  void add_puzzle(const std::vector<uint8_t>& input, const std::vector<uint8_t>& label);
  void end_group();
};
std::shared_ptr<PuzzleDataset> dataset_from_rows(PuzzleRows rows, const std::string& origin);

// Writes <dir>/<split>/{dataset.json, all__*.npy} (uint8 tokens, int32 indices) and <dir>/identifiers.json. The
// official Python code can read them. Throws Error(environment) if writing fails.
void write_dataset(const std::filesystem::path& dir, const std::string& split, const PuzzleRows& rows);

}  // namespace hrm::data
