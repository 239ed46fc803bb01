// hrm_train data.
#include <iostream>
#include <memory>

#include "commands/line/command_line_parts.h"
#include "hrm/base/error.h"
#include "hrm/commands/data.h"
#include "hrm/commands/language_data.h"

namespace hrm {
namespace {

// Where puzzles come from: CSV files and their columns, or --generate. things: "puzzles", "mazes".
template <class Command>
void add_csv_sources(CLI::App& sub, Command& o, const std::string& things, const std::string& generate) {
  auto* train_csv =
      sub.add_option("--train-csv", o.train_csv, cat("training ", things, ": a CSV file, which may be compressed"))
          ->type_name("FILE");
  auto* test_csv = sub.add_option("--test-csv", o.test_csv, "test " + things)->type_name("FILE");
  sub.add_flag("--generate", o.generate, generate)->excludes(train_csv)->excludes(test_csv);
  sub.add_option("--question-field", o.question_field,
                 "column that holds the puzzles (default: q, question, quizzes or puzzle, in upper or lower case)")
      ->type_name("COLUMN")
      ->excludes("--generate");
  sub.add_option("--answer-field", o.answer_field,
                 "column that holds the solutions (default: a, answer, solutions or solution, in upper or lower case)")
      ->type_name("COLUMN")
      ->excludes("--generate");
}

// Which rows of a CSV file become a dataset, and the ends of all commands that make one of puzzles.
template <class Command>
void add_csv_choice(CLI::App& sub, Command& o, const std::string& things) {
  sub.add_option("--subsample", o.subsample,
                 cat("draw this many training ", things, " from the CSV file at random; 0 = all"))
      ->capture_default_str()
      ->check(at_least(0));
  sub.add_option("--min-rating", o.min_rating, cat("drop CSV training ", things, " rated below this"))
      ->capture_default_str()
      ->check(at_least(0));
  sub.add_option("--seed", o.seed, "seed of all random choices")->capture_default_str()->check(at_least(0));
  sub.add_option("--out", o.out, "folder to write the dataset to")->type_name("DIR")->required();
}

void add_data_sudoku(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("sudoku", "build a Sudoku dataset from CSV files, or generate one");
  auto o = std::make_shared<data::SudokuCommand>();
  add_csv_sources(*sub, *o, "puzzles", "generate new puzzles, each with one solution");
  sub->add_option("--box", o->box, "rows x columns of a box (default: 3x3, or 2x3 for 6x6 grids)")->type_name("RxC");
  sub->add_option("--empty", o->empty, "number of empty cells in a generated puzzle")
      ->capture_default_str()
      ->type_name("MIN:MAX");
  sub->add_option("--train", o->train, "training puzzles to generate")->capture_default_str()->check(at_least(0));
  sub->add_option("--test", o->test, "test puzzles to generate, from other solution classes")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--augment", o->augment, "symmetric copies to store per training puzzle")
      ->capture_default_str()
      ->check(at_least(0));
  add_csv_choice(*sub, *o, "puzzles");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_sudoku(*o, std::cout);
      return 0;
    };
  });
}

void add_data_maze(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("maze", "build a maze dataset from CSV files, or generate one");
  auto o = std::make_shared<data::MazeCommand>();
  add_csv_sources(*sub, *o, "mazes", "generate new mazes");
  sub->add_option("--size", o->size, "cells per side of a generated maze")
      ->capture_default_str()
      ->check(CLI::Range(3, 1000));
  sub->add_option("--min-path", o->min_path, "the shortest path of a generated maze is longer than this many moves")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--train", o->train, "training mazes to generate")->capture_default_str()->check(at_least(0));
  sub->add_option("--test", o->test, "test mazes to generate")->capture_default_str()->check(at_least(0));
  sub->add_flag("--augment", o->augment, "store all 8 rotations and reflections of each training maze");
  add_csv_choice(*sub, *o, "mazes");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_maze(*o, std::cout);
      return 0;
    };
  });
}

void add_data_arc(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("arc", "build an ARC-AGI dataset from JSON tasks, as the builder of TRM does");
  auto o = std::make_shared<data::ArcCommand>();
  sub->add_option(
         "subsets", o->subsets,
         "subsets of tasks, in this order: NAME_challenges.json with NAME_solutions.json beside it, or a folder "
         "of TASK.json")
      ->required()
      ->type_name("SUBSET");
  sub->add_option("--test", o->test,
                  "names of the subsets whose test pairs are the test set, e.g. evaluation; their other pairs, and all "
                  "pairs of the other subsets, are trained on")
      ->type_name("NAME");
  sub->add_option("--augment", o->augment, "copies of each task with other colours, turned or reflected")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));
  sub->add_option("--seed", o->seed, "seeds the copies and the places of the grids")->capture_default_str();
  sub->add_flag("--unsolved", o->unsolved, "take test subsets without answers, to make a submission");
  sub->add_flag("--compact", o->compact,
                "store each pair once, with a table of its copies, which training makes on its device; the official "
                "Python programs cannot read such a folder");
  sub->add_option("--out", o->out, "folder to write")->required()->type_name("DIR");
  sub->footer(
      "example: hrm_train data arc arc-agi_training_challenges.json arc-agi_evaluation_challenges.json\n"
      "             --test evaluation --out data/arc1");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_arc(*o, std::cout);
      return 0;
    };
  });
}

void add_data_pictures(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("pictures", "draw ARC tasks as SVG files");
  auto o = std::make_shared<data::PicturesCommand>();
  sub->add_option(
         "subsets", o->subsets,
         "subsets of tasks: NAME_challenges.json, with NAME_solutions.json beside it if the answers are known, "
         "or a folder of TASK.json")
      ->required()
      ->type_name("SUBSET");
  sub->add_option("--task", o->tasks, "names of the tasks to draw (default: all)")->type_name("TASK");
  sub->add_option("--out", o->out, "folder to write TASK.svg to, where no such file may be")
      ->required()
      ->type_name("DIR");
  sub->footer("example: hrm_train data pictures arc-agi_training_challenges.json --task 007bbfb7 --out pictures");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_pictures(*o, std::cout);
      return 0;
    };
  });
}

void add_data_arithmetic(CLI::App& data, Action& action) {
  CLI::App* sub =
      data.add_subcommand("arithmetic", "generate sums as language data: 'What is 12 + 34?' and the answer");
  auto o = std::make_shared<data::ArithmeticCommand>();
  sub->add_option("--digits", o->digits, "maximum number of digits of a number")
      ->capture_default_str()
      ->check(CLI::Range(1, 6));
  sub->add_option("--samples", o->samples, "number of training problems, all different")
      ->capture_default_str()
      ->check(at_least(1));
  sub->add_option("--validation", o->validation, "validation problems as a fraction of --samples")
      ->capture_default_str()
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--seed", o->seed, "seed of all random choices")->capture_default_str()->check(at_least(0));
  sub->add_option("--out", o->out, "folder to write the dataset to")->type_name("DIR")->required();
  sub->footer("example: hrm_train data arithmetic --digits 2 --out runs/data/sums");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_arithmetic(*o, std::cout);
      return 0;
    };
  });
}

void add_data_vectors(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("vectors", "build a dataset of vectors with labels from CSV files of numbers");
  auto o = std::make_shared<data::VectorsCommand>();
  sub->add_option("file", o->csv, "CSV file, which may be compressed; its header row may be missing")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  sub->add_option("--label-column", o->label_column, "column of the labels: last, first, or a name of the header row")
      ->capture_default_str()
      ->type_name("COLUMN")
      ->check(not_empty);
  auto* train_rows = sub->add_option("--train-rows", o->train_rows,
                                     "this many rows are for training, the others for the test; 0 = all")
                         ->capture_default_str()
                         ->check(at_least(0));
  sub->add_option("--test", o->test_csv, "CSV file of the test rows")->type_name("FILE")->excludes(train_rows);
  sub->add_flag("--shuffle", o->shuffle, "shuffle the rows of the first file before they are divided");
  sub->add_option("--seed", o->seed, "seed of --shuffle")->capture_default_str()->check(at_least(0));
  sub->add_option("--out", o->out, "folder to write the dataset to")->type_name("DIR")->required();
  sub->footer("example: hrm_train data vectors digits.csv.gz --train-rows 1347 --out runs/data/digits");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_vectors(*o, std::cout);
      return 0;
    };
  });
}

void add_data_answers(CLI::App& data, Action& action) {
  CLI::App* sub =
      data.add_subcommand("answers", "generate prompts that have several right answers, and a tokenizer for them");
  auto command = std::make_shared<data::AnswersCommand>();
  data::AnswersOptions& o = command->options;
  sub->add_option("--largest", o.largest, "largest number to split; larger ones are harder")
      ->capture_default_str()
      ->check(CLI::Range(12, 10'000));
  sub->add_option("--train", o.train, "number of training prompts, all different")
      ->capture_default_str()
      ->check(at_least(1));
  sub->add_option("--validation", o.validation, "number of validation prompts, none of them in training")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--test", o.test, "number of test prompts, none of them in training or validation")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--responses", o.responses, "records per prompt, with responses drawn from its right answers")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  sub->add_option("--skew", o.skew, "probability of an answer divided by that of the one before it; 1 = all are equal")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--seed", o.seed, "seed of all random choices")->capture_default_str()->check(at_least(0));
  sub->add_option("--out", command->out, "folder to write the dataset to")->type_name("DIR")->required();
  sub->footer("example: hrm_train data answers --largest 200 --train 2000 --out runs/data/answers");
  sub->callback([command, &action] {
    action = [command] {
      data::run_data_answers(*command, std::cout);
      return 0;
    };
  });
}

// What `data text` and `data jsonl` share.
void add_language_build(CLI::App& sub, data::LanguageBuild& o, const char* documents) {
  sub.add_option("inputs", o.inputs, "files and folders; folders are walked in sorted order")
      ->type_name("FILE_OR_DIR")
      ->required();
  sub.add_option("--pattern", o.patterns,
                 "use only files of a folder whose name matches, e.g. '*.txt'; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  sub.add_option("--tokenizer", o.tokenizer, "tokenizer.json or its folder, or 'bytes', where every byte is an id")
      ->capture_default_str()
      ->type_name("FILE|bytes");
  sub.add_option("--bos", o.bos, "token that begins an answer, e.g. '<|im_start|>' (default: none)")
      ->type_name("TOKEN");
  sub.add_option("--eos", o.eos, "token that ends a text, e.g. '<|endoftext|>'")->type_name("TOKEN");
  sub.add_option("--validation", o.validation, cat("fraction of the ", documents, " that is kept for validation"))
      ->capture_default_str()
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 0.5));
  sub.add_option("--max-malformed", o.max_malformed,
                 cat("number of malformed ", documents, " to skip before it is an error"))
      ->capture_default_str()
      ->type_name("N");
  sub.add_option("--seed", o.seed, "seed of all random choices")->capture_default_str()->check(at_least(0));
  sub.add_option("--out", o.out, "folder to write the dataset to; a stopped build resumes there")
      ->type_name("DIR")
      ->required();
}

void add_data_text(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("text", "turn text files into shards of tokens");
  auto o = std::make_shared<data::TextCommand>();
  add_language_build(*sub, *o, "documents");
  CLI::Option* blank = sub->add_flag("--split-blank-lines", o->split_blank_lines,
                                     "end a document at a blank line (default: at the end of its file)");
  sub->add_option("--separator", o->separator, "end a document at this text, which belongs to no document")
      ->type_name("TEXT")
      ->check(not_empty)
      ->excludes(blank);
  sub->add_option("--shard-tokens", o->shard_tokens, "tokens per shard, which is the most that a stopped build loses")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(1));
  sub->footer("example: hrm_train data text books --pattern '*.txt' --split-blank-lines --out runs/data/books");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_text(*o, std::cout);
      return 0;
    };
  });
}

void add_data_jsonl(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("jsonl", "turn JSON lines of text into records of ids");
  auto o = std::make_shared<data::JsonlCommand>();
  add_language_build(*sub, *o, "records");
  sub->add_option("--prompt-field", o->prompt_field, "member that holds the encoder's text")->capture_default_str();
  sub->add_option("--response-field", o->response_field, "member that holds the decoder's text")->capture_default_str();
  sub->add_option("--text-field", o->text_field,
                  "member of records without these two that holds one text, which is cut in two")
      ->capture_default_str();
  sub->add_option("--text-prefix", o->text_prefix, "fraction of such a text's ids that the encoder reads")
      ->capture_default_str()
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  sub->footer("example: hrm_train data jsonl questions.jsonl --validation 0.05 --out runs/data/questions");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_jsonl(*o, std::cout);
      return 0;
    };
  });
}

void add_data_inspect(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand(
      "inspect", "show sizes and one example of a dataset folder, a CSV file, or prompts and responses");
  auto o = std::make_shared<data::InspectCommand>();
  sub->add_option("path", o->path, "dataset folder, CSV file, or *.jsonl and *.json records of prompts and responses")
      ->type_name("PATH")
      ->required();
  sub->add_option("--example", o->example, "number of the example to show")->capture_default_str()->check(at_least(0));
  sub->add_option("--box", o->box, "rows x columns of a Sudoku box")->type_name("RxC");
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->footer(
      "Prompts and responses are shown as a training with this configuration reads them. hf.tokenizer=FOLDER names "
      "the\ntokenizer (default: one beside the records), chat.template=NAME the template. data.question_field=COLUMN "
      "and\ndata.answer_field=COLUMN name the columns of a CSV file.\nexamples: hrm_train data inspect "
      "runs/data/maze30 --example 7\n          hrm_train data inspect chats.jsonl hf.tokenizer=models/Qwen3-0.6B "
      "--example 7");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_inspect(*o, std::cout);
      return 0;
    };
  });
}

void add_data_tokenizer(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("tokenizer", "train a byte-level BPE tokenizer on text");
  auto o = std::make_shared<data::TrainTokenizerCommand>();
  sub->add_option("--text", o->texts, "text files in UTF-8")->type_name("FILE")->required();
  sub->add_option("--vocab-size", o->vocab_size, "size of the vocabulary, with 256 bytes and the special tokens")
      ->type_name("N")
      ->required()
      ->check(CLI::Range(256, 1 << 20));
  sub->add_option("--min-frequency", o->min_frequency, "do not merge pairs that are rarer than this")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(1));
  sub->add_option("--special", o->special,
                  "special token, e.g. '<|endoftext|>', which gets one of the highest ids; may be repeated")
      ->type_name("TOKEN")
      ->allow_extra_args(false);
  sub->add_option("--words", o->words, "model whose pattern cuts text into words")
      ->capture_default_str()
      ->check(CLI::IsMember({"qwen3", "llama3", "gpt2"}));
  sub->add_flag("--no-nfc", o->no_nfc, "do not apply Unicode's normalization form C");
  sub->add_option("--threads", o->threads, "threads that count words; 0 = one per core")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  sub->add_option("--out", o->out, "tokenizer.json to write")->type_name("FILE")->required()->check(not_empty);
  sub->footer(
      "example: hrm_train data tokenizer --text book.txt --vocab-size 8192 --special '<|endoftext|>' --out "
      "tokenizer.json");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_tokenizer(*o, std::cout);
      return 0;
    };
  });
}

void add_data_tokenize(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("tokenize", "turn lines of text on standard input into lines of ids, or back");
  auto o = std::make_shared<data::TokenizeCommand>();
  sub->add_option("--tokenizer", o->tokenizer, "tokenizer.json, or the folder that holds it")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  auto* decode = sub->add_flag("--decode", o->decode, "turn ids into text");
  sub->add_flag("--add-special", o->add_special, "add the tokens that the tokenizer's template puts around a text")
      ->excludes(decode);
  sub->add_flag("--skip-special", o->skip_special, "with --decode: leave special tokens out")->needs(decode);
  sub->add_option("--threads", o->threads, "threads that turn text into ids")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_tokenize(*o, std::cin, std::cout);
      return 0;
    };
  });
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("data", "build datasets and tokenizers, and inspect them");
  sub->require_subcommand(1);
  add_data_sudoku(*sub, action);
  add_data_maze(*sub, action);
  add_data_arc(*sub, action);
  add_data_pictures(*sub, action);
  add_data_own_puzzles(*sub, action);
  add_data_arithmetic(*sub, action);
  add_data_vectors(*sub, action);
  add_data_answers(*sub, action);
  add_data_text(*sub, action);
  add_data_jsonl(*sub, action);
  add_data_inspect(*sub, action);
  add_data_tokenizer(*sub, action);
  add_data_tokenize(*sub, action);
}

}  // namespace hrm
