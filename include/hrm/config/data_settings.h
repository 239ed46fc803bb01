#pragma once
// Settings of training and test data: section data.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

enum class PuzzleFileKind { automatic, sudoku, maze };
template <>
struct EnumNames<PuzzleFileKind> {
  static constexpr const char* kNames[] = {"auto", "sudoku", "maze"};
};

enum class Augmentation { none, sudoku, dihedral };
template <>
struct EnumNames<Augmentation> {
  static constexpr const char* kNames[] = {"none", "sudoku", "dihedral"};
};

enum class AugmentationDevice { automatic, host, device };
template <>
struct EnumNames<AugmentationDevice> {
  static constexpr const char* kNames[] = {"auto", "host", "device"};
};

enum class TripleCache { automatic, memory, stream };
template <>
struct EnumNames<TripleCache> {
  static constexpr const char* kNames[] = {"auto", "memory", "stream"};
};

struct DataConfig {
  std::string train = "data/sudoku/train_17clue_1k.csv";
  std::string test = "data/sudoku/test_17clue_2k.csv";
  PuzzleFileKind kind = PuzzleFileKind::automatic;
  std::string question_field = "";
  std::string answer_field = "";
  Augmentation augmentation = Augmentation::none;
  int64_t box_rows = 0;
  int64_t box_cols = 0;
  int64_t subsample = 0;
  int64_t min_rating = 0;
  AugmentationDevice augmentation_device = AugmentationDevice::automatic;
  bool reference_semantics = true;
  int64_t encoder_len = 0;
  int64_t decoder_len = 256;
  bool document_masks = false;
  int64_t max_malformed = 0;
  TripleCache cache = TripleCache::automatic;
  int64_t prefetch_batches = 4;

  template <class F>
  static void describe(F&& f) {
    f("train", &DataConfig::train, PathText{.list = true}, "",
      "training data: a dataset folder (its train split) or CSV file of puzzles; folders of language data, e.g. "
      "books*3,code (three rows of books for each of code); or a JSON lines file, a JSON array or a folder of such "
      "files for task polychromic. Files may be compressed (.gz, .zst)",
      Resume::free);
    f("test", &DataConfig::test, PathText{.list = true}, "",
      "test data in the same forms, with names if wanted (old:books,code); none = no evaluation. Empty = no evaluation "
      "of puzzles, the val splits of data.train for task language, chat.val_share of the prompts for task polychromic",
      Resume::free);
    f("kind", &DataConfig::kind, Choice<PuzzleFileKind>{}, "", "what a CSV file holds; auto = decide by its characters",
      Tasks{"puzzle"});
    f("question_field", &DataConfig::question_field, AnyText{}, "",
      "CSV column that holds the puzzles; empty = q, question, quizzes or puzzle", Tasks{"puzzle"}, Resume::free);
    f("answer_field", &DataConfig::answer_field, AnyText{}, "",
      "CSV column that holds the solutions; empty = a, answer, solutions or solution", Tasks{"puzzle"}, Resume::free);
    f("augmentation", &DataConfig::augmentation, Choice<Augmentation>{}, "",
      "draw a new random symmetric copy of each training sample: sudoku = permute digits, bands, rows, stacks and "
      "columns, and transpose if boxes are square; dihedral = rotate and reflect a square grid",
      Tasks{"puzzle"});
    f("augmentation_device", &DataConfig::augmentation_device, Choice<AugmentationDevice>{}, "",
      "where symmetric copies are drawn, with the same result; auto = on the GPU if possible, otherwise by the "
      "prefetch thread",
      Tasks{"puzzle"}, Resume::free);
    f("box_rows", &DataConfig::box_rows, IntRange{0, 16}, "rows",
      "rows of a Sudoku box; 0 = square boxes, or 2x3 for 6x6 grids", Tasks{"puzzle"});
    f("box_cols", &DataConfig::box_cols, IntRange{0, 16}, "columns", "columns of a Sudoku box; 0 = as for box_rows",
      Tasks{"puzzle"});
    f("subsample", &DataConfig::subsample, IntRange{0}, "puzzles",
      "draw this many training puzzles at random from a CSV file; 0 = use all", Tasks{"puzzle"});
    f("min_rating", &DataConfig::min_rating, IntRange{0}, "",
      "drop training puzzles of a CSV file that are rated below this", Tasks{"puzzle"});
    f("reference_semantics", &DataConfig::reference_semantics, Flag{}, "",
      "true = discard a batch row that is offered to a slot which has not halted, as the official loader does; false = "
      "slots receive rows in slot order as they halt, and no row is lost",
      Tasks{"puzzle"});
    f("encoder_len", &DataConfig::encoder_len, IntRange{0, 1 << 20}, "tokens",
      "maximum prompt length of task language; longer prompts are cut, and 0 means no prompts. An HRM language model "
      "needs prompts; a plain decoder reads them in front of the answer",
      Tasks{"language"});
    f("decoder_len", &DataConfig::decoder_len, IntRange{1, 1 << 20}, "tokens",
      "length of a row, or maximum length of an answer, of task language; longer ones are cut", Tasks{"language"});
    f("document_masks", &DataConfig::document_masks, Flag{}, "",
      "restrict attention in packed text to a position's own document", Tasks{"language"});
    f("max_malformed", &DataConfig::max_malformed, IntRange{0}, "lines",
      "skip up to this many malformed lines of triples or of JSON lines; one more is an error",
      Tasks{"language polychromic"});
    f("cache", &DataConfig::cache, Choice<TripleCache>{}, "",
      "when the ids of triples are read: memory = at the start, stream = when needed, auto = memory up to 1 GiB. "
      "Batches are the same",
      Tasks{"language"}, Resume::free);
    f("prefetch_batches", &DataConfig::prefetch_batches, IntRange{1, 64}, "batches",
      "batches that the prefetch thread prepares ahead", Tasks{"puzzle language polychromic"}, Resume::free);
  }
};

}  // namespace hrm::config
