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
      "training data: a dataset directory in the official layout (its train split) or a CSV file, also compressed "
      "(.csv.gz, .csv.zst); the default ships with the project. task=language: one or several folders of language data "
      "with commas between, e.g. books or "
      "books*3,code: three rows of books for each of code. task=polychromic: a file of JSON lines or "
      "of one JSON array, also compressed (.gz, .zst), or a folder of such files",
      Resume::free);
    f("test", &DataConfig::test, PathText{.list = true}, "",
      "test data: a dataset directory (its test split) or a CSV file; empty, and the default of a run that sets "
      "data.train: no evaluation. task=language: folders whose val split is evaluated, each with a name before a colon "
      "if it shall have one, e.g. old:books,code; empty: those of data.train, as far as they have one; none: no "
      "evaluation. task=polychromic: as data.train; empty: chat.val_share of the prompts of data.train",
      Resume::free);
    f("kind", &DataConfig::kind, Choice<PuzzleFileKind>{}, "", "what a CSV file holds; auto tells by the characters",
      Tasks{"puzzle"});
    f("question_field", &DataConfig::question_field, AnyText{}, "",
      "column of a CSV file that holds the puzzles; empty = q, question, quizzes or puzzle", Tasks{"puzzle"},
      Resume::free);
    f("answer_field", &DataConfig::answer_field, AnyText{}, "",
      "column that holds their solutions; empty = a, answer, solutions or solution", Tasks{"puzzle"}, Resume::free);
    f("augmentation", &DataConfig::augmentation, Choice<Augmentation>{}, "",
      "new random symmetric copy of each training sample, drawn on the fly: sudoku = digits, bands, rows, stacks, "
      "columns, and transposition where boxes are square; dihedral = the 8 rotations and reflections of a square grid",
      Tasks{"puzzle"});
    f("augmentation_device", &DataConfig::augmentation_device, Choice<AugmentationDevice>{}, "",
      "where the copies are drawn; both give the same ones. auto = on the GPU where it can, else by the prefetch "
      "thread",
      Tasks{"puzzle"}, Resume::free);
    f("box_rows", &DataConfig::box_rows, IntRange{0, 16}, "rows",
      "rows of a Sudoku box; 0 = square boxes, or 2x3 for 6x6", Tasks{"puzzle"});
    f("box_cols", &DataConfig::box_cols, IntRange{0, 16}, "columns", "columns of a Sudoku box; 0 as for box_rows",
      Tasks{"puzzle"});
    f("subsample", &DataConfig::subsample, IntRange{0}, "puzzles",
      "take this many training puzzles at random from a CSV file; 0 = all", Tasks{"puzzle"});
    f("min_rating", &DataConfig::min_rating, IntRange{0}, "", "drop CSV training puzzles rated below this",
      Tasks{"puzzle"});
    f("reference_semantics", &DataConfig::reference_semantics, Flag{}, "",
      "true: as the official loader, a batch row offered to a slot that has not halted is discarded; "
      "false: slots take rows in slot order as they halt, and no row is lost",
      Tasks{"puzzle"});
    f("encoder_len", &DataConfig::encoder_len, IntRange{0, 1 << 20}, "tokens",
      "task=language: longest prompt S; longer ones are cut. lm.arch=hrm needs one; a plain decoder reads it in front "
      "of the answer. 0 = no prompts",
      Tasks{"language"});
    f("decoder_len", &DataConfig::decoder_len, IntRange{1, 1 << 20}, "tokens",
      "task=language: length T of a row, or of an answer; longer ones are cut", Tasks{"language"});
    f("document_masks", &DataConfig::document_masks, Flag{}, "",
      "task=language, packed text: positions see their own document alone", Tasks{"language"});
    f("max_malformed", &DataConfig::max_malformed, IntRange{0}, "lines",
      "task=language, triples, and task=polychromic: so many malformed lines are passed over before it is an error",
      Tasks{"language polychromic"});
    f("cache", &DataConfig::cache, Choice<TripleCache>{}, "",
      "task=language, triples: memory = ids are read at the start, stream = when they are needed, auto = memory up to "
      "1 GiB; the batches are the same",
      Tasks{"language"}, Resume::free);
    f("prefetch_batches", &DataConfig::prefetch_batches, IntRange{1, 64}, "batches",
      "batches that the prefetch thread prepares ahead", Tasks{"puzzle language"}, Resume::free);
  }
};

}  // namespace hrm::config
