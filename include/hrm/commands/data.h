#pragma once
// hrm_train data ...: build data sets and look at them. Results go to `out`, progress to stderr.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "hrm/data/puzzle_vocabulary.h"

namespace hrm::data {

// hrm_train data sudoku: from CSV files, or generated (train or test > 0 without a CSV file).
struct SudokuCommand {
  std::string train_csv;        // --train-csv; empty: generate, or no training split
  std::string test_csv;         // --test-csv
  std::string question_field;   // --question-field: columns of the CSV files; empty: their usual names
  std::string answer_field;     // --answer-field
  bool generate = false;        // --generate; excludes the CSV files
  std::string box;              // --box RxC; empty: square boxes, or 2x3 for 6x6 (CSV), 3x3 (generated)
  std::string empty = "40:50";  // --empty MIN:MAX cells, both included (generated)
  int64_t train = 1000;         // --train puzzles (generated)
  int64_t test = 1000;          // --test puzzles (generated)
  int64_t augment = 0;          // --augment copies per training puzzle beside the original
  int64_t subsample = 0;        // --subsample training puzzles of the CSV file; 0 = all
  int64_t min_rating = 0;       // --min-rating of training puzzles of the CSV file
  int64_t seed = 0;             // --seed
  std::string out;              // --out folder
};
// Generated test puzzles never share a solution class with training puzzles: no symmetry (digits, bands, rows, stacks,
// columns, transposition) maps a test solution onto a training solution. If there are few classes (6x6: 49), whole
// classes are held out for the test. For CSV files the summary counts test solutions in a training class.
void run_data_sudoku(const SudokuCommand& command, std::ostream& out);

// hrm_train data maze
struct MazeCommand {
  std::string train_csv;       // --train-csv
  std::string test_csv;        // --test-csv
  std::string question_field;  // --question-field, as for Sudokus
  std::string answer_field;    // --answer-field
  int64_t train = 1000;        // --train mazes (generated)
  int64_t test = 1000;         // --test mazes (generated)
  bool generate = false;       // --generate; excludes the CSV files
  int64_t size = 30;           // --size of the side (generated)
  int64_t min_path = 110;      // --min-path: shortest path in moves must be longer (generated)
  bool augment = false;        // --augment: all 8 rotations and reflections of each training maze
  int64_t subsample = 0;       // --subsample
  int64_t min_rating = 0;      // --min-rating
  int64_t seed = 0;            // --seed
  std::string out;             // --out folder
};
void run_data_maze(const MazeCommand& command, std::ostream& out);

// hrm_train data arc SUBSET...: an ARC dataset in the official layout (hrm/data/arc.h).
struct ArcCommand {
  std::vector<std::string> subsets;  // SUBSET...: NAME_challenges.json files or folders of tasks, in order
  std::vector<std::string> test;     // --test: names of the subsets to test on
  int64_t augment = 1000;            // --augment copies of each task
  int64_t seed = 42;                 // --seed
  bool unsolved = false;             // --unsolved: the answers of test subsets may be missing
  bool compact = false;              // --compact: each pair once, with a table of its copies
  std::string out;                   // --out folder
};
void run_data_arc(const ArcCommand& command, std::ostream& out);

// hrm_train data pictures SUBSET...: an SVG of each ARC task (hrm/data/arc_picture.h).
struct PicturesCommand {
  std::vector<std::string> subsets;  // as ArcCommand; answers of test pairs may be missing
  std::vector<std::string> tasks;    // --task: names of the tasks to draw; empty: all
  std::string out;                   // --out folder
};
void run_data_pictures(const PicturesCommand& command, std::ostream& out);

// hrm_train data grid and data pairs: a folder of puzzles of any kind, from CSV files or JSON lines, with the texts of
// its tokens (hrm/data/puzzle_vocabulary.h).
struct OwnPuzzlesCommand {
  PuzzleForm form = PuzzleForm::grid;
  std::string train;                        // --train FILE
  std::string test;                         // --test FILE; excludes test_share
  double test_share = 0;                    // --test-share of the puzzles of FILE; 0 = no test split
  std::string question_field = "question";  // --question-field: column or member
  std::string answer_field = "answer";      // --answer-field
  std::string alphabet;                     // --alphabet: one character per symbol; empty: collected from the files
  int64_t rows = 0;                         // --rows of a grid without row structure; 0 = whatever fits
  int64_t cols = 0;                         // --cols
  std::string symmetries = "none";          // --symmetries none or dihedral, of grids
  int64_t copies = -1;                      // --copies per training puzzle beside the original; -1 = all different ones
  int64_t seed = 0;                         // --seed of the split and the copies
  std::string out;                          // --out folder
};
// The splits share no question, and with symmetries no symmetric copy of one. A group of the training split is a
// question with its copies. Throws Error(usage) for options that do not fit each other or the data. Throws Error(data)
// naming file and line for a malformed puzzle, for a question with two answers, and for one in both files.
void run_data_own_puzzles(const OwnPuzzlesCommand& command, std::ostream& out);

// hrm_train data vectors FILE: a folder of vectors with labels (hrm/data/vectors.h) from CSV files.
struct VectorsCommand {
  std::string csv;                    // FILE
  std::string test_csv;               // --test: a file of test rows; excludes train_rows
  int64_t train_rows = 0;             // --train-rows: the first rows, the others are for the test; 0 = all
  bool shuffle = false;               // --shuffle the rows before they are divided
  std::string label_column = "last";  // --label-column last, first or a name
  int64_t seed = 0;                   // --seed of the shuffle
  std::string out;                    // --out folder
};
// Throws Error(usage) for rows that cannot be divided as asked, and Error(data) for a malformed file.
void run_data_vectors(const VectorsCommand& command, std::ostream& out);

// hrm_train data inspect PATH: sizes and one example of a directory (each split; puzzles, vectors or language data), a
// CSV file of puzzles, or JSON lines of prompts and responses.
struct InspectCommand {
  std::string path;
  int64_t example = 0;  // --example index to draw
  std::string box;      // --box RxC of a Sudoku
  // The configuration that says how records are read, and with which tokenizer, or which columns a CSV file has.
  std::vector<std::string> config_files;  // --config
  std::vector<std::string> overrides;     // KEY=VALUE
};
void run_data_inspect(const InspectCommand& command, std::ostream& out);

// hrm_train data tokenizer: learns a byte-level BPE tokenizer (bpe_training.h).
struct TrainTokenizerCommand {
  std::vector<std::string> texts;    // --text FILE...; UTF-8
  int64_t vocab_size = 0;            // --vocab-size
  int64_t min_frequency = 2;         // --min-frequency
  std::vector<std::string> special;  // --special TOKEN
  std::string words = "qwen3";       // --words
  bool no_nfc = false;               // --no-nfc
  int64_t threads = 0;               // --threads; 0: one per core
  std::string out;                   // --out tokenizer.json
};
void run_data_tokenizer(const TrainTokenizerCommand& command, std::ostream& out);

// hrm_train data tokenize: each line of `in` becomes a line of ids in `out`, or with --decode each line of ids a text.
struct TokenizeCommand {
  std::string tokenizer;      // --tokenizer tokenizer.json
  bool decode = false;        // --decode
  bool add_special = false;   // --add-special
  bool skip_special = false;  // --skip-special, with --decode
  int64_t threads = 1;        // --threads
};
// Reads about a MiB before it writes. Throws Error(data) that names the line.
void run_data_tokenize(const TokenizeCommand& command, std::istream& in, std::ostream& out);

}  // namespace hrm::data
