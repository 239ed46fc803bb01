#include "command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/config/load.h"
#include "hrm/config/print.h"
#include "hrm/data/commands.h"
#include "hrm/data/language_commands.h"
#include "hrm/train/commands.h"

namespace hrm {
namespace {

// Set by the subcommand that was chosen, run after the whole line was read.
using Action = std::function<int()>;

constexpr const char* kRunOrStep = "run folder (its newest checkpoint) or checkpoint folder";
constexpr const char* kOverrides =
    "configuration values, e.g. optim.lr=3e-4 ('hrm_train config --describe' lists them)";

// For names of files: "" would otherwise count as not given.
std::string not_empty(const std::string& text) {
  return text.empty() ? "needs a name, but got an empty text" : "";
}

void add_device(CLI::App& sub, std::string& device) {
  sub.add_option("--device", device, "auto = the GPU when there is a usable one")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

// A size of what a benchmark times.
void add_size(CLI::App& sub, const char* name, int64_t& value, const char* what) {
  sub.add_option(name, value, what)->type_name("N")->capture_default_str()->check(CLI::Range(1, 1 << 20));
}

void add_json_out(CLI::App& sub, std::string& file) {
  sub.add_option("--json", file, "also write the result to this file")->type_name("FILE")->check(not_empty);
}

// Minutes of work must not end at a result file that can never be written.
void check_can_write(const std::string& file) {
  namespace fs = std::filesystem;
  if (file.empty()) return;
  std::error_code error;
  require(!fs::is_directory(file, error), ExitCode::environment, "--json '", printable(file),
          "' is a folder; give the name of a file");
  const fs::path folder = fs::path(file).has_parent_path() ? fs::path(file).parent_path() : fs::path(".");
  require(fs::is_directory(folder, error), ExitCode::environment, "--json '", printable(file),
          "': there is no folder '", printable(folder.string()), "'; make it first");
  const bool writable = access(fs::exists(file, error) ? file.c_str() : folder.c_str(), W_OK) == 0;
  require(writable, ExitCode::environment, "--json '", printable(file), "': no permission to write there");
}

void add_config_files(CLI::App& sub, std::vector<std::string>& files) {
  sub.add_option("--config", files, "configuration file; of several, later ones win")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

void add_overrides(CLI::App& sub, std::vector<std::string>& overrides) {
  sub.add_option("overrides", overrides, kOverrides)->type_name("KEY=VALUE");
}

void add_train(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("train", "train a model; a stopped run goes on where it was");
  auto o = std::make_shared<train::TrainOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option(
         "--resume", o->resume,
         "auto: continue from the newest valid checkpoint of the run; never: refuse to; or a checkpoint folder")
      ->capture_default_str()
      ->type_name("auto|never|PATH");
  sub->add_flag("--accept-data-change", o->accept_data_change,
                "go on although the training data are not those of the checkpoint: their order becomes another one");
  sub->footer("example: hrm_train train --config configs/puzzle/hrm_sudoku17.json run.name=first train.steps=5000");
  sub->callback([o, &action] { action = [o] { return train::run_train(*o); }; });
}

void add_eval(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("eval", "measure a trained model; the result goes to stdout as JSON");
  auto o = std::make_shared<train::EvalOptions>();
  sub->add_option("--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  sub->add_option("--data", o->data, "dataset directory or CSV file (default: the run's test data)")
      ->type_name("PATH")
      ->check(not_empty);
  add_json_out(*sub, o->json_out);
  sub->add_flag("--early-halt", o->early_halt,
                "let each puzzle stop when the model's own rule halts it (as eval.early_halt=true)");
  add_overrides(*sub, o->overrides);
  sub->footer("example: hrm_train eval --checkpoint runs/first --data data/sudoku/test_17clue_2k.csv eval.weights=raw");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_eval(*o);
    };
  });
}

void add_solve(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("solve", "solve puzzles with a trained model");
  auto o = std::make_shared<train::SolveOptions>();
  sub->add_option("--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  sub->add_option("input", o->input,
                  "puzzles, one a line: Sudoku with dots or zeros for empty cells, or maze text (default: stdin)")
      ->type_name("FILE");
  sub->add_flag("--watch", o->watch, "show the grid after each reasoning segment");
  sub->add_option("--watch-delay", o->watch_delay_seconds, "pause after each segment shown")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 60.0));
  sub->add_option("--segments", o->segments, "reasoning segments, also more than in training (default: as trained)")
      ->type_name("N")
      ->check(CLI::Range(1, 65535));
  sub->add_flag("--early-halt", o->early_halt, "let each puzzle stop when the model's own rule halts it")
      ->excludes("--watch");
  sub->add_option("--weights", o->weights, "auto = the averaged weights where there are any")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  add_device(*sub, o->device);
  sub->add_option("--batch-size", o->batch_size, "puzzles solved at once (default: chosen by the program)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  sub->add_option("--puzzle-identifier", o->puzzle_identifier, "row of the puzzle embedding")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  sub->add_option("--format", o->format, "text: one answer a line; jsonl: one JSON object a line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "jsonl"}));
  sub->footer("example: hrm_train solve --checkpoint runs/first --watch < puzzles.txt");
  sub->callback([o, &action] { action = [o] { return train::run_solve(*o); }; });
}

void add_generate(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("generate", "let a language model go on with a text, or answer it");
  auto o = std::make_shared<train::GenerateOptions>();
  sub->add_option("checkpoint,--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  CLI::Option* prompt = sub->add_option("--prompt", o->prompt, "the text; the answer is printed as it comes");
  CLI::Option* input = sub->add_option("--input", o->input,
                                       "file of prompts, one a line, or JSON Lines with a member \"prompt\" (also by "
                                       "its name, *.jsonl); - = stdin. Answers come in its order")
                           ->type_name("FILE")
                           ->check(not_empty)
                           ->excludes(prompt);
  sub->add_option("--max-new-tokens", o->max_new_tokens, "tokens of an answer, at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  sub->add_option("--temperature", o->temperature, "0 = the best token each time; above: sampling")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  sub->add_option("--top-k", o->top_k, "sample from the k best tokens; 0 = all")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24));
  sub->add_option("--top-p", o->top_p, "then from the fewest that have this probability together")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--min-p", o->min_p, "then from those with this share of the best one's probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--samples", o->samples, "answers to each prompt")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16));
  sub->add_option("--stop", o->stop, "text that ends an answer and is no part of it; may be given again")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->check(not_empty);
  sub->add_option("--seed", o->seed, "the same seed gives the same answers, whatever the batch")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--batch-size", o->batch_size, "answers written at a time (default: 64 on a GPU, else 16)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--weights", o->weights, "auto = the averaged weights where there are any")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  add_device(*sub, o->device);
  sub->add_option("--format", o->format, "text: the answers alone, each ends a line; jsonl: one JSON object a line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "jsonl"}));
  sub->footer(
      "examples: hrm_train generate runs/books --prompt 'It was the best of' --temperature 0.8 --top-p 0.95\n"
      "          hrm_train generate runs/sums --input questions.txt --format jsonl");
  sub->callback([o, prompt, input, &action] {
    o->has_prompt = prompt->count() > 0;
    require(o->has_prompt || input->count() > 0, ExitCode::usage,
            "hrm_train generate: give --prompt TEXT or --input FILE; see 'hrm_train generate --help'");
    action = [o] { return train::run_generate(*o); };
  });
}

void add_data_sudoku(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("sudoku", "build a Sudoku dataset from CSV files, or generate one");
  auto o = std::make_shared<data::SudokuCommand>();
  auto* train_csv = sub->add_option("--train-csv", o->train_csv, "training puzzles: source,question,answer,rating");
  auto* test_csv = sub->add_option("--test-csv", o->test_csv, "test puzzles");
  sub->add_flag("--generate", o->generate, "make new puzzles, each with one solution")
      ->excludes(train_csv)
      ->excludes(test_csv);
  sub->add_option("--box", o->box, "rows x columns of a box (default: 3x3, for 6x6 grids 2x3)")->type_name("RxC");
  sub->add_option("--empty", o->empty, "empty cells of a generated puzzle")
      ->capture_default_str()
      ->type_name("MIN:MAX");
  sub->add_option("--train", o->train, "training puzzles to generate")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--test", o->test, "test puzzles to generate, of other solution classes")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--augment", o->augment, "symmetric copies stored per training puzzle")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--subsample", o->subsample, "take so many training puzzles of the CSV file; 0 = all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--min-rating", o->min_rating, "drop CSV training puzzles rated below this")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--seed", o->seed, "seed of every choice")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub->add_option("--out", o->out, "folder of the dataset")->type_name("DIR")->required();
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
  auto* train_csv = sub->add_option("--train-csv", o->train_csv, "training mazes: source,question,answer,rating");
  auto* test_csv = sub->add_option("--test-csv", o->test_csv, "test mazes");
  sub->add_flag("--generate", o->generate, "make new mazes")->excludes(train_csv)->excludes(test_csv);
  sub->add_option("--size", o->size, "cells of a side (generated)")->capture_default_str()->check(CLI::Range(3, 1000));
  sub->add_option("--min-path", o->min_path, "the shortest path is longer than so many moves (generated)")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--train", o->train, "training mazes to generate")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--test", o->test, "test mazes to generate")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub->add_flag("--augment", o->augment, "store all 8 rotations and reflections of each training maze");
  sub->add_option("--subsample", o->subsample, "take so many training mazes of the CSV file; 0 = all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--min-rating", o->min_rating, "drop CSV training mazes rated below this")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--seed", o->seed, "seed of every choice")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub->add_option("--out", o->out, "folder of the dataset")->type_name("DIR")->required();
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_maze(*o, std::cout);
      return 0;
    };
  });
}

void add_data_arithmetic(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("arithmetic", "make sums as language data: 'What is 12 + 34?' and the answer");
  auto o = std::make_shared<data::ArithmeticCommand>();
  sub->add_option("--digits", o->digits, "digits of a number, at most")->capture_default_str()->check(CLI::Range(1, 6));
  sub->add_option("--samples", o->samples, "training problems, all different")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  sub->add_option("--validation", o->validation, "validation problems as a share of --samples")
      ->capture_default_str()
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--seed", o->seed, "seed of every choice")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub->add_option("--out", o->out, "folder of the dataset")->type_name("DIR")->required();
  sub->footer("example: hrm_train data arithmetic --digits 2 --out runs/data/sums");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_arithmetic(*o, std::cout);
      return 0;
    };
  });
}

// What `data text` and `data jsonl` share.
void add_language_build(CLI::App& sub, data::LanguageBuild& o, const char* documents) {
  sub.add_option("inputs", o.inputs, "files and folders; folders are walked in sorted order")
      ->type_name("FILE_OR_DIR")
      ->required();
  sub.add_option("--pattern", o.patterns, "of a folder only files with such names, e.g. '*.txt'; may be given again")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  sub.add_option("--tokenizer", o.tokenizer, "tokenizer.json, or 'bytes': every byte is an id")
      ->capture_default_str()
      ->type_name("FILE|bytes");
  sub.add_option("--bos", o.bos, "the tokenizer's token that begins an answer, e.g. '<|im_start|>' (default: none)")
      ->type_name("TOKEN");
  sub.add_option("--eos", o.eos, "the tokenizer's token that ends a text, e.g. '<|endoftext|>'")->type_name("TOKEN");
  sub.add_option("--validation", o.validation, cat("share of the ", documents, " that is for validation"))
      ->capture_default_str()
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 0.5));
  sub.add_option("--max-malformed", o.max_malformed, cat("malformed ", documents, " to pass over"))
      ->capture_default_str()
      ->type_name("N");
  sub.add_option("--seed", o.seed, "seed of every choice")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub.add_option("--out", o.out, "folder of the dataset; a build that was stopped goes on in it")
      ->type_name("DIR")
      ->required();
}

void add_data_text(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("text", "turn text files into shards of tokens");
  auto o = std::make_shared<data::TextCommand>();
  add_language_build(*sub, *o, "documents");
  CLI::Option* blank = sub->add_flag("--split-blank-lines", o->split_blank_lines,
                                     "a document ends at a blank line (default: at the end of its file)");
  sub->add_option("--separator", o->separator, "a document ends at this text, which belongs to none")
      ->type_name("TEXT")
      ->check(not_empty)
      ->excludes(blank);
  sub->add_option("--shard-tokens", o->shard_tokens, "tokens of a shard; what a stopped build loses at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::PositiveNumber);
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
  sub->add_option("--prompt-field", o->prompt_field, "member with what the encoder reads")->capture_default_str();
  sub->add_option("--response-field", o->response_field, "member with what the decoder learns")->capture_default_str();
  sub->add_option("--text-field", o->text_field, "member of records without these two: one text, cut in two")
      ->capture_default_str();
  sub->add_option("--text-prefix", o->text_prefix, "share of such a text's ids that the encoder reads")
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
  CLI::App* sub = data.add_subcommand("inspect", "sizes and one example of a dataset directory or a CSV file");
  auto o = std::make_shared<data::InspectCommand>();
  sub->add_option("path", o->path, "dataset directory or CSV file")->type_name("PATH")->required();
  sub->add_option("--example", o->example, "which example to draw")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--box", o->box, "rows x columns of a Sudoku box")->type_name("RxC");
  sub->callback([o, &action] {
    action = [o] {
      data::run_data_inspect(*o, std::cout);
      return 0;
    };
  });
}

void add_data_tokenizer(CLI::App& data, Action& action) {
  CLI::App* sub = data.add_subcommand("tokenizer", "learn a byte-level BPE tokenizer from text");
  auto o = std::make_shared<data::TrainTokenizerCommand>();
  sub->add_option("--text", o->texts, "texts in UTF-8")->type_name("FILE")->required();
  sub->add_option("--vocab-size", o->vocab_size, "tokens, with 256 for the bytes and the special ones")
      ->type_name("N")
      ->required()
      ->check(CLI::Range(256, 1 << 20));
  sub->add_option("--min-frequency", o->min_frequency, "a pair that is rarer becomes no token")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, INT64_MAX));
  sub->add_option("--special", o->special, "a special token, e.g. '<|endoftext|>'; they get the highest ids")
      ->type_name("TOKEN")
      ->allow_extra_args(false);
  sub->add_option("--words", o->words, "whose pattern cuts text into words")
      ->capture_default_str()
      ->check(CLI::IsMember({"qwen3", "llama3", "gpt2"}));
  sub->add_flag("--no-nfc", o->no_nfc, "leave out Unicode's normalization form C");
  sub->add_option("--threads", o->threads, "for counting words; 0 = one per core")
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
  CLI::App* sub = data.add_subcommand("tokenize", "lines of text on standard input to lines of ids, or back");
  auto o = std::make_shared<data::TokenizeCommand>();
  sub->add_option("--tokenizer", o->tokenizer, "tokenizer.json of a byte-level BPE")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  auto* decode = sub->add_flag("--decode", o->decode, "ids to text");
  sub->add_flag("--add-special", o->add_special, "with what the tokenizer's template puts around a text")
      ->excludes(decode);
  sub->add_flag("--skip-special", o->skip_special, "with --decode: without special tokens")->needs(decode);
  sub->add_option("--threads", o->threads, "for text to ids")
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

void add_data(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("data", "build datasets and tokenizers, and look at them");
  sub->require_subcommand(1);
  add_data_sudoku(*sub, action);
  add_data_maze(*sub, action);
  add_data_arithmetic(*sub, action);
  add_data_text(*sub, action);
  add_data_jsonl(*sub, action);
  add_data_inspect(*sub, action);
  add_data_tokenizer(*sub, action);
  add_data_tokenize(*sub, action);
}

struct ConfigOptions {
  std::vector<std::string> files, overrides;
  bool print = false, describe = false, json = false;
};

int run_config(const ConfigOptions& options) {
  if (options.describe) {
    std::cout << config::describe_fields();
    return 0;
  }
  const config::LoadedConfig loaded = config::load_config(options.files, options.overrides);
  std::cout << (options.json ? loaded.to_json() : config::values_with_origins(loaded));
  return 0;
}

void add_config(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("config", "show the configuration and what it may hold");
  auto o = std::make_shared<ConfigOptions>();
  auto* print =
      sub->add_flag("--print", o->print, "each value with its origin (this is also what happens without a flag)");
  auto* json = sub->add_flag("--json", o->json, "the complete configuration as a file for --config")->excludes(print);
  sub->add_flag("--describe,--help-fields", o->describe, "every key with its range, unit, default and meaning")
      ->excludes(print)
      ->excludes(json);
  add_config_files(*sub, o->files);
  add_overrides(*sub, o->overrides);
  sub->callback([o, &action] { action = [o] { return run_config(*o); }; });
}

void add_import(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("import", "make a run folder from an official HRM or TRM checkpoint");
  auto o = std::make_shared<train::ImportOptions>();
  sub->add_option("--from", o->from, "which official code wrote it")->required()->check(CLI::IsMember({"hrm", "trm"}));
  sub->add_option("path", o->path, "the file, as torch.save wrote it")->type_name("FILE")->required();
  sub->add_option("--config", o->config, "configuration that describes its model")->type_name("FILE");
  sub->add_option("--out", o->out, "run folder to make")->type_name("DIR")->required();
  add_overrides(*sub, o->overrides);
  sub->footer(
      "example: hrm_train import --from hrm --config configs/puzzle/hrm_sudoku17.json checkpoint --out runs/official");
  sub->callback([o, &action] { action = [o] { return train::run_import(*o); }; });
}

void add_export(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("export", "write the weights of a checkpoint for other programs");
  auto o = std::make_shared<train::ExportOptions>();
  sub->add_option("--to", o->to,
                  "torchscript: a puzzle model as a module that torch.jit.load runs, of a language model the weights "
                  "alone; safetensors: tensors for any framework; pt: a state dict that torch.load and the official "
                  "code open; hf: a folder for transformers (plain decoders without experts)")
      ->required()
      ->check(CLI::IsMember({"torchscript", "safetensors", "pt", "hf"}));
  sub->add_option("--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  sub->add_option("--out", o->out, "file to write; hf: a new folder")->type_name("PATH")->required();
  sub->add_option("--weights", o->weights, "auto = the averaged weights where there are any")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  sub->callback([o, &action] { action = [o] { return train::run_export(*o); }; });
}

void add_bench_step(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("step", "time the training step of a configuration, and where its time goes");
  auto o = std::make_shared<train::BenchStepOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--steps", o->steps, "timed steps")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  sub->add_option("--warmup", o->warmup, "steps before them, not timed")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  sub->add_option("--settle", o->settle,
                  "then seconds of further steps, not timed: clocks need them under load (with fp8 recursions name a "
                  "--warmup of more than precision.fp8_warmup_steps)")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 600.0));
  sub->add_option("--profile-steps", o->profile_steps, "steps recorded after them for the table; 0 = no table")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 100));
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench step --config configs/puzzle/hrm_sudoku17.json train.global_batch_size=768");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_step(*o);
    };
  });
}

void add_bench_eval(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("eval", "time an evaluation of a configuration's test data");
  auto o = std::make_shared<train::BenchEvalOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--passes", o->passes, "timed evaluations, after one that is not")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  sub->add_option("--profile-passes", o->profile_passes, "evaluations recorded after them for the table; 0 = no table")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 100));
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_eval(*o);
    };
  });
}

void add_bench_ops(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("ops", "time each of our ops with the shapes of the recipes, beside plain ATen");
  auto o = std::make_shared<train::BenchOpsOptions>();
  sub->add_option("--filter", o->filter,
                  "only rows whose op and recipe this regular expression fits, e.g. 'swiglu.*384'")
      ->type_name("REGEX");
  add_device(*sub, o->device);
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_ops(*o);
    };
  });
}

void add_bench_moe(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("moe", "time a mixture-of-experts layer, forward and backward, and its parts");
  auto o = std::make_shared<train::BenchMoeOptions>();
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--tokens", o->tokens, "tokens of a batch");
  add("--dim", o->dim, "width of the model");
  add("--width", o->width, "width inside of an expert");
  add("--experts", o->experts, "experts");
  add("--top-k", o->top_k, "experts of a token");
  add_device(*sub, o->device);
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench moe --dim 512 --width 2048 --experts 32 --top-k 2");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_moe(*o);
    };
  });
}

void add_bench_scan(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("scan", "time the recurrence of Mamba2, forward and backward");
  auto o = std::make_shared<train::BenchScanOptions>();
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--rows", o->rows, "rows of a batch");
  add("--length", o->length, "positions of a row");
  add("--heads", o->heads, "heads");
  add("--head-dim", o->head_dim, "channels of a head");
  add("--groups", o->groups, "groups of heads that share B and C");
  add("--state", o->state, "numbers of a channel's state");
  add("--chunk", o->chunk, "positions of a chunk, where ATen computes");
  add_device(*sub, o->device);
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench scan --rows 16 --length 1024");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_scan(*o);
    };
  });
}

void add_bench_comm(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("comm", "time sums between ranks that were started together");
  auto o = std::make_shared<train::BenchCommOptions>();
  sub->add_option("--device", o->device, "auto = GPUs, by NCCL, when there are usable ones; cpu = CPUs, by Gloo")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  sub->add_option("--max-mb", o->max_mb, "up to tensors of this size, from 8 bytes on")
      ->capture_default_str()
      ->type_name("MIB")
      ->check(CLI::Range(1, 4096));
  sub->add_option("--meet-timeout", o->meet_timeout_s, "how long to wait for all ranks")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 86400.0));
  add_json_out(*sub, o->json_out);
  sub->footer("example: torchrun --no-python --nproc-per-node=8 hrm_train bench comm --json node.json");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_comm(*o);
    };
  });
}

void add_bench_tokenizer(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("tokenizer", "time a tokenizer on the CPU: text to ids");
  auto o = std::make_shared<train::BenchTokenizerOptions>();
  sub->add_option("--tokenizer", o->tokenizer, "tokenizer.json of a byte-level BPE")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  sub->add_option("--text", o->text, "text in UTF-8; cut at line ends into documents of 64 KiB")
      ->type_name("FILE")
      ->required()
      ->check(not_empty);
  sub->add_option("--threads", o->threads, "at a time, each with documents of its own")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--passes", o->passes, "timed passes over the text, after one that is not")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1000));
  add_json_out(*sub, o->json_out);
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_tokenizer(*o);
    };
  });
}

void add_bench_generate(CLI::App& bench, Action& action) {
  CLI::App* sub = bench.add_subcommand("generate", "time text generation: tokens per second");
  auto o = std::make_shared<train::BenchGenerateOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--checkpoint", o->checkpoint,
                  "instead of a configuration's model with random weights: run folder or checkpoint folder")
      ->type_name("PATH")
      ->check(not_empty);
  sub->add_option("--rows", o->rows, "rows of a batch; several numbers are timed one after the other")
      ->type_name("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  const auto add = [&](const char* name, int64_t& value, const char* what) { add_size(*sub, name, value, what); };
  add("--prompt", o->prompt, "tokens of each prompt");
  add("--new", o->new_tokens, "new tokens of each row");
  add("--vocab-size", o->vocab_size, "tokens of a model with random weights");
  add("--passes", o->passes, "timed passes, after two that are not");
  sub->add_option("--temperature", o->temperature, "0 = the best token each time; above: sampling")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  sub->add_option("--top-k", o->top_k, "sample from the k best tokens; 0 = all")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24));
  sub->add_option("--top-p", o->top_p, "then from the fewest that have this probability together")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  add_json_out(*sub, o->json_out);
  sub->footer("example: hrm_train bench generate --rows 1,64 lm.arch=decoder lm.layers=12 lm.hidden_size=768");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_bench_generate(*o);
    };
  });
}

void add_bench(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand(
      "bench", "measure the speed of steps, ops, evaluations, sums between ranks, tokenizers, and generation");
  sub->require_subcommand(1);
  add_bench_step(*sub, action);
  add_bench_ops(*sub, action);
  add_bench_moe(*sub, action);
  add_bench_scan(*sub, action);
  add_bench_eval(*sub, action);
  add_bench_comm(*sub, action);
  add_bench_tokenizer(*sub, action);
  add_bench_generate(*sub, action);
}

// What is asked of `plan` for several ranks.
void add_plan_ranks(CLI::App& sub, train::PlanOptions& o) {
  CLI::Option* ranks =
      sub.add_option("--ranks", o.ranks, "plan data-parallel trainings with so many ranks, a GPU each, e.g. 8,64,1024")
          ->type_name("N,...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(CLI::Range(1, 1 << 20));
  sub.add_flag("--weak", o.weak,
               "with --ranks: train.global_batch_size is each rank's batch (default: of all together)")
      ->needs(ranks);
  sub.add_option("--ranks-per-node", o.ranks_per_node, "with --ranks: GPUs of a node")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20))
      ->needs(ranks);
  sub.add_option(
         "--bandwidths", o.bandwidths,
         "with --ranks: result of 'bench comm --json', of one node, or with one rank on each of several for the "
         "network; may be given for both")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->check(not_empty)
      ->needs(ranks);
  const auto rate = [&](const char* name, double& value, const char* what) {
    sub.add_option(name, value, what)->type_name("GB/S")->check(CLI::Range(1e-3, 1e6))->needs(ranks);
  };
  rate("--link-gbs", o.link_gbs,
       "with --ranks: 1e9 bytes a second that a GPU sends to others of its node, bus bandwidth (default: data sheet)");
  rate("--network-gbs", o.network_gbs, "with --ranks: the same to other nodes (default: 50, one 400 Gbit/s adapter)");
  const auto hop = [&](const char* name, double& value, const char* what) {
    sub.add_option(name, value, what)->type_name("US")->check(CLI::Range(1e-3, 1e6))->needs(ranks);
  };
  hop("--hop-us", o.hop_us,
      "with --ranks: microseconds of an empty message to the next GPU of a node (default: as NCCL assumes)");
  hop("--network-hop-us", o.network_hop_us, "with --ranks: the same to another node");
}

void add_plan(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("plan", "estimate memory and time of a configuration before a run, without a GPU");
  auto o = std::make_shared<train::PlanOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--gpu", o->gpu, "GPU to plan for, e.g. H200, A100, 'RTX 4090' (default: the one here, else H200)")
      ->type_name("NAME")
      ->check(not_empty);
  sub->add_option("--seq-len", o->seq_len, "cells of a puzzle, for data that is not there yet (with --vocab-size)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--vocab-size", o->vocab_size, "tokens of that data (Sudoku 11, mazes 6)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  add_plan_ranks(*sub, *o);
  add_json_out(*sub, o->json_out);
  sub->footer(
      "examples: hrm_train plan --config configs/puzzle/trm_att_sudoku17.json --gpu A100\n"
      "          hrm_train plan --config configs/puzzle/hrm_sudoku17.json --ranks 8,64,1024 --weak");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      return train::run_plan(*o);
    };
  });
}

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("doctor", "what this machine can do, and why not");
  auto o = std::make_shared<train::DoctorOptions>();
  sub->add_flag("--json", o->json, "as JSON");
  CLI::Option* ranks = sub->add_flag("--ranks", o->ranks,
                                     "test the ranks instead: start it as a training with several, e.g. torchrun "
                                     "--no-python --nproc-per-node=2 hrm_train doctor --ranks");
  sub->add_option("--meet-timeout", o->meet_timeout_s, "with --ranks: how long to wait for all of them")
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str()
      ->needs(ranks);
  sub->add_flag("--failpoints", o->failpoints,
                "list the places that HRM_FAIL=<name>:<count>:<action>[,...] can let fail, for tests of what is left")
      ->excludes(ranks);
  auto replay = std::make_shared<train::ReplayOptions>();
  CLI::Option* dump =
      sub->add_option("--replay", replay->dump,
                      "make the next step of a dump again (<run>/diverged) and say where it stops being "
                      "finite; exit code 6 when it does")
          ->type_name("DUMP")
          ->excludes(ranks);
  sub->add_option("overrides", replay->overrides, "with --replay: of the configuration in the dump")
      ->type_name("KEY=VALUE");
  sub->callback([o, replay, dump, &action] {
    replay->json = o->json;
    if (dump->count() > 0) {
      action = [replay] { return train::run_replay(*replay); };
    } else {
      require(replay->overrides.empty(), ExitCode::usage, "hrm_train doctor: unknown argument '",
              replay->overrides.empty() ? "" : printable(replay->overrides[0]), "'; see 'hrm_train doctor --help'");
      action = [o] { return train::run_doctor(*o); };
    }
  });
}

std::string version_text() {
  return cat("hrm_train ", build_info("version"), " (commit ", build_info("commit"), ", ", build_info("build_type"),
             ", ", build_info("compiler"), ")\ntorch ", build_info("torch"), "\nCUDA ", build_info("cuda"),
             ", architectures ", build_info("cuda_archs"));
}

// The subcommand that the line names, as deep as it goes.
CLI::App* chosen(CLI::App* app) {
  const auto subs = app->get_subcommands();
  return subs.empty() ? app : chosen(subs.front());
}

std::string full_name(const CLI::App* app) {
  return app->get_parent() ? full_name(app->get_parent()) + " " + app->get_name() : "hrm_train";
}

// What CLI11 has to say, as a sentence with a way on.
[[noreturn]] void fail_usage(CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  CLI::App* sub = chosen(&app);
  std::string what = printable(error.what()), hint;
  const auto commands = sub->get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* command : commands) names.push_back(command->get_name());
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    what = "give a subcommand: " + list;
    if (argc > 1 && argv[1][0] == '-' && sub == &app) what = cat("unknown option '", printable(argv[1]), "'");
    for (int i = argc - 1; i > 0; --i) {
      const std::string word = argv[i];
      // The first word behind the subcommand that was understood.
      if (!word.empty() && word[0] != '-' && word != sub->get_name()) {
        const std::string guess = nearest_name(word, names);
        what = cat("unknown subcommand '", printable(word), "'");
        hint = guess.empty() ? "; use one of " + list : "; did you mean '" + guess + "'?";
      }
      if (word == sub->get_name()) break;
    }
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    what = "unknown argument '" + (unknown.empty() ? what : printable(unknown.front())) + "'";
    for (const std::string& word : unknown) {
      if (word.rfind("--", 0) != 0) continue;
      const std::string name = word.substr(0, word.find('='));
      if (name.find('.') != std::string::npos) {
        hint = "; configuration values stand without dashes: " + printable(word.substr(2));
        break;
      }
      std::vector<std::string> names;
      for (const CLI::Option* option : sub->get_options()) {
        for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
      }
      const std::string guess = nearest_name(name, names);
      if (!guess.empty()) hint = "; did you mean '" + guess + "'?";
      break;
    }
  }
  fail(ExitCode::usage, full_name(sub), ": ", what, hint, hint.ends_with('?') ? " See '" : "; see '", full_name(sub),
       " --help'");
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  CLI::App app(
      "Trains HRM and TRM, recurrent models that reason in segments, on Sudoku and mazes; evaluates them, and "
      "solves puzzles with them.",
      "hrm_train");
  app.set_version_flag("--version", version_text());
  app.set_help_all_flag("--help-all", "help of all subcommands");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.footer(
      "Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 unexpected error, 2 command line or\n"
      "configuration, 3 machine or device, 4 data, 5 checkpoint, 6 diverged, 7 another rank is gone (start all "
      "again),\n"
      "75 stopped after saving (start it again).");
  Action action;
  add_train(app, action);
  add_eval(app, action);
  add_solve(app, action);
  add_generate(app, action);
  add_data(app, action);
  add_config(app, action);
  add_import(app, action);
  add_export(app, action);
  add_bench(app, action);
  add_plan(app, action);
  add_doctor(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --help-all, --version
    return app.exit(asked, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    fail_usage(app, error, argc, argv);
  }
  return action();
}

}  // namespace hrm
