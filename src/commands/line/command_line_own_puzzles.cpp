// hrm_train data grid and data pairs.
#include <iostream>
#include <memory>

#include "commands/line/command_line_parts.h"
#include "hrm/commands/data.h"

namespace hrm {
namespace {

void add_sources(CLI::App& sub, data::OwnPuzzlesCommand& o) {
  sub.add_option("--train", o.train,
                 "training puzzles: a CSV file with the columns question and answer, or JSON lines with these members; "
                 "may be compressed")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  CLI::Option* test = sub.add_option("--test", o.test, "test puzzles, none of which may be a training puzzle")
                          ->type_name("FILE")
                          ->check(not_empty);
  sub.add_option("--test-share", o.test_share, "fraction of the questions of --train to hold out for the test")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0))
      ->excludes(test);
  sub.add_option("--question-field", o.question_field, "column or member that holds the questions")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(not_empty);
  sub.add_option("--answer-field", o.answer_field, "column or member that holds the answers")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(not_empty);
  sub.add_option("--alphabet", o.alphabet,
                 "all allowed symbols in one text, one character each (default: the symbols of the files)")
      ->type_name("TEXT")
      ->check(not_empty);
}

void finish(CLI::App& sub, std::shared_ptr<data::OwnPuzzlesCommand> o, const char* seed, Action& action) {
  sub.add_option("--seed", o->seed, seed)->capture_default_str()->check(at_least(0));
  sub.add_option("--out", o->out, "folder to write the dataset to")->type_name("DIR")->required();
  sub.callback([o, &action] {
    action = [o] {
      data::run_data_own_puzzles(*o, std::cout);
      return 0;
    };
  });
}

void add_grid(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("grid", "build a dataset of your own puzzles on grids");
  auto o = std::make_shared<data::OwnPuzzlesCommand>();
  o->form = data::PuzzleForm::grid;
  add_sources(*sub, *o);
  sub->add_option("--rows", o->rows, "rows of grids written as one string without line breaks (default: a square)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, data::kMostCells));
  sub->add_option("--cols", o->cols, "columns of such grids")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, data::kMostCells));
  CLI::Option* symmetries =
      sub->add_option(
             "--symmetries", o->symmetries,
             "symmetries of the puzzles: dihedral = rotations and reflections that keep the shape of the grid. "
             "Copies of a question stay in one split, and training puzzles are stored with their copies")
          ->capture_default_str()
          ->check(CLI::IsMember({"none", "dihedral"}));
  sub->add_option("--copies", o->copies,
                  "random symmetric copies per training puzzle; 0 for training with data.augmentation=dihedral "
                  "(default: all that differ)")
      ->type_name("N")
      ->check(CLI::Range(0, 7))
      ->needs(symmetries);
  sub->footer(
      "A grid is a string with one character per cell, an array of strings (its rows), or a 2-D array of numbers or\n"
      "strings. Question and answer have the same shape. Smaller grids are padded to the largest.\n"
      "example: hrm_train data grid --train puzzles.jsonl --test-share 0.1 --out runs/data/puzzles");
  finish(*sub, o, "seed of --test-share and --copies", action);
}

void add_pairs(CLI::App& data, Action& action) {
  CLI::App* sub =
      data.add_subcommand("pairs", "build a dataset of your own puzzles that are sequences of different lengths");
  auto o = std::make_shared<data::OwnPuzzlesCommand>();
  o->form = data::PuzzleForm::pairs;
  add_sources(*sub, *o);
  sub->footer(
      "A sequence is a string with one character per cell, or an array of numbers or strings. Both sides are padded "
      "to\n"
      "the longest; an answer ends with a token of its own.\n"
      "example: hrm_train data pairs --train sums.csv --test-share 0.1 --out runs/data/sums");
  finish(*sub, o, "seed of --test-share", action);
}

}  // namespace

void add_data_own_puzzles(CLI::App& data, Action& action) {
  add_grid(data, action);
  add_pairs(data, action);
}

}  // namespace hrm
