#include "commands/line/command_line.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "commands/line/command_line_parts.h"
#include "commands/line/reference.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/json_schema.h"
#include "hrm/config/load.h"
#include "hrm/config/print.h"
#include "hrm/formats/manifest.h"

namespace hrm {
namespace {

// Of eval, generate and export.
constexpr const char* kBase =
    "folder of the frozen model that an adapter belongs to (default: hf.model of the run, or base_model_name_or_path "
    "of a PEFT adapter)";
constexpr const char* kOrModelFolder = ", or a folder that transformers or PEFT saved";

void add_train(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("train", "train a model, or resume the run of that name");
  auto o = std::make_shared<commands::TrainOptions>();
  add_config_files(*sub, o->config_files);
  add_overrides(*sub, o->overrides);
  sub->add_option("--resume", o->resume,
                  "auto: resume from the newest valid checkpoint of the run; never: refuse if there is one; PATH: "
                  "resume from this checkpoint folder")
      ->capture_default_str()
      ->type_name("auto|never|PATH");
  sub->add_option("--init", o->init,
                  "start a new run of task puzzle with the weights of this checkpoint (its EMA if it has one). "
                  "Optimizer and data start afresh; for other puzzles, each row of the puzzle embedding becomes the "
                  "mean of the old rows. A run with checkpoints of its own resumes from those")
      ->type_name("PATH")
      ->check(not_empty);
  sub->add_flag("--accept-data-change", o->accept_data_change,
                "resume although the training data differ from those of the checkpoint; their order changes");
  sub->footer("example: hrm_train train --config configs/puzzle/hrm_sudoku17.json run.name=first train.steps=5000");
  sub->callback([o, &action] { action = [o] { return commands::run_train(*o); }; });
}

void add_eval(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("eval", "evaluate a trained model and print the result as JSON");
  auto o = std::make_shared<commands::EvalOptions>();
  sub->add_option("--checkpoint", o->checkpoint, std::string(kRunOrStep) + kOrModelFolder)
      ->type_name("PATH")
      ->required();
  sub->add_option("--base", o->base, kBase)->type_name("FOLDER")->check(not_empty);
  sub->add_option("--data", o->data,
                  "dataset folder or CSV file of puzzles, folders of language data as in data.test, or JSON lines "
                  "files for task polychromic (default: the run's test data)")
      ->type_name("PATH")
      ->check(not_empty);
  add_json_out(*sub, o->json_out);
  sub->add_flag("--early-halt", o->early_halt,
                "stop each puzzle when the model's own rule halts it (same as eval.early_halt=true)");
  sub->add_option("--segments", o->segments,
                  "reasoning segments, which may exceed those of training (same as eval.segments=N)")
      ->type_name("N")
      ->check(CLI::Range(1, 65535));
  sub->add_option(
         "--rollouts", o->rollouts,
         "rollouts of each puzzle, one of which is chosen (same as eval.rollouts=K; see eval.noise, eval.selector)")
      ->type_name("K")
      ->check(CLI::Range(1, 32768));
  sub->add_option("--report", o->report,
                  "write the completions of each prompt (eval.json), a report and a web page to this new folder (task "
                  "polychromic)")
      ->type_name("DIR")
      ->check(not_empty);
  sub->add_flag("--blank-identifier", o->blank_identifier,
                "give every puzzle the blank identifier, so that none has an embedding of its own (task puzzle)");
  sub->add_option("--submission", o->submission,
                  "write the two best answers to each ARC test input to this file, in the form of the ARC Prize")
      ->type_name("FILE")
      ->check(not_empty);
  sub->add_option("--pictures", o->pictures,
                  "draw each ARC task with its two best answers beside the truth, as SVG files in this folder")
      ->type_name("DIR")
      ->check(not_empty);
  add_overrides(*sub, o->overrides);
  sub->footer(
      "examples: hrm_train eval --checkpoint runs/first --data data/sudoku/test_17clue_2k.csv eval.weights=raw\n"
      "          hrm_train eval --checkpoint runs/tuned --data test.jsonl --report runs/tuned/answers eval.answers=20\n"
      "          hrm_train eval --checkpoint models/Qwen3-0.6B --data test.jsonl --report runs/base eval.answers=20\n"
      "          torchrun --no-python --nproc-per-node=2 hrm_train eval --checkpoint models/Qwen3-8B --data "
      "test.jsonl\n"
      "          (each rank holds one part of a model of text)");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->json_out);
      check_can_write(o->submission, "--submission");
      return commands::run_eval(*o);
    };
  });
}

void add_report(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand(
      "report",
      "compare evaluations of completions: write report.md, answers.html and, if they share measures, front.svg");
  auto o = std::make_shared<commands::ReportOptions>();
  sub->add_option("evaluations", o->evaluations,
                  "folders that 'eval --report' wrote, or eval.json in them. Those of one name form a group, e.g. "
                  "several seeds; differences are to the first name")
      ->type_name("[NAME=]PATH")
      ->required();
  sub->add_option("--out", o->out, "folder to write to, which must not hold a report")
      ->type_name("DIR")
      ->required()
      ->check(not_empty);
  sub->footer("example: hrm_train report plain=runs/plain/answers diverse=runs/diverse/answers --out runs/compared");
  sub->callback([o, &action] { action = [o] { return commands::run_report(*o); }; });
}

void add_dashboard(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("dashboard", "show runs, while they train, as a web page of this machine");
  auto o = std::make_shared<commands::DashboardOptions>();
  sub->add_option("runs", o->runs, "folder of runs, at any depth, or one run")
      ->type_name("FOLDER")
      ->capture_default_str()
      ->check(not_empty);
  auto* file = sub->add_option("--export", o->export_file,
                               "write one HTML file that needs nothing else, instead of serving the page")
                   ->type_name("FILE")
                   ->check(not_empty);
  sub->add_option("--listen", o->listen,
                  "IP address to listen on; 0.0.0.0: all of this machine. Other machines can then connect, so the "
                  "printed address has a token, without which nothing is shown")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->excludes(file);
  sub->add_option("--port", o->port, "port; 0: any free one")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->excludes(file);
  sub->footer(
      "examples: hrm_train dashboard runs\n"
      "          hrm_train dashboard runs/first --export first.html");
  sub->callback([o, &action] {
    action = [o] {
      check_can_write(o->export_file, "--export");
      return commands::run_dashboard(*o);
    };
  });
}

void add_solve(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("solve", "solve puzzles with a trained model");
  auto o = std::make_shared<commands::SolveOptions>();
  sub->add_option("--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  sub->add_option(
         "input", o->input,
         "file of puzzles, one per line: Sudoku with dots or zeros for empty cells, maze text, or your own puzzles as "
         "strings or JSON arrays (default: stdin)")
      ->type_name("FILE");
  sub->add_flag("--watch", o->watch, "show the grid after each reasoning segment");
  sub->add_option("--watch-delay", o->watch_delay_seconds, "pause after each segment that is shown")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 60.0));
  sub->add_option("--segments", o->segments,
                  "number of reasoning segments, which may exceed that of training (default: as trained)")
      ->type_name("N")
      ->check(CLI::Range(1, 65535));
  CLI::Option* early_halt = sub->add_flag("--early-halt", o->early_halt,
                                          "stop each puzzle when the model's own rule halts it, or --agreeing of its "
                                          "rollouts with the same answer")
                                ->excludes("--watch");
  CLI::Option* rollouts = sub->add_option("--rollouts", o->rollouts,
                                          "runs of each puzzle, all but the first with noise; one answer is chosen")
                              ->capture_default_str()
                              ->type_name("K")
                              ->check(CLI::Range(1, 32768))
                              ->excludes("--watch");
  sub->add_option("--agreeing", o->agreeing,
                  "rollouts that must agree before a puzzle stops early (default: eval.agreeing_rollouts of the run)")
      ->type_name("N")
      ->check(CLI::Range(1, 32768))
      ->needs(rollouts)
      ->needs(early_halt);
  sub->add_option("--noise", o->noise,
                  "standard deviation of the noise that rollouts add to their state (default: eval.noise of the run)")
      ->type_name("STD")
      ->check(CLI::Range(0.0, 100.0))
      ->needs(rollouts);
  sub->add_option("--noisy-state", o->noisy_state,
                  "state that rollouts add noise to (default: eval.noisy_state of the run)")
      ->check(CLI::IsMember({"z_L", "z_H"}))
      ->needs(rollouts);
  sub->add_option("--selector", o->selector,
                  "choose by: q = largest Q value; majority = most frequent answer; residual = smallest change in the "
                  "last segments; settled = answer unchanged for longest; first = the run without noise; valid = an "
                  "answer that obeys the rules (default: eval.selector of the run)")
      ->check(CLI::IsMember({"q", "majority", "residual", "settled", "first", "valid"}))
      ->needs(rollouts);
  sub->add_option("--weights", o->weights, "which weights to use; auto = the EMA if there is one")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  add_device(*sub, o->device);
  sub->add_option("--batch-size", o->batch_size,
                  "puzzles solved at once, or rollouts with --rollouts (default: chosen by the program)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  sub->add_option("--puzzle-identifier", o->puzzle_identifier, "row of the puzzle embedding to use")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  sub->add_option("--format", o->format, "text: one answer per line; jsonl: one JSON object per line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "jsonl"}));
  sub->footer("example: hrm_train solve --checkpoint runs/first --watch < puzzles.txt");
  sub->callback([o, &action] { action = [o] { return commands::run_solve(*o); }; });
}

void add_generate(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("generate", "let a language model continue a text or answer a prompt");
  auto o = std::make_shared<commands::GenerateOptions>();
  sub->add_option("checkpoint,--checkpoint", o->checkpoint, std::string(kRunOrStep) + kOrModelFolder)
      ->type_name("PATH")
      ->required();
  sub->add_option("--template", o->chat_template,
                  "chat template of a Hugging Face model: model (the tokenizer's own), chatml, llama3, plain (default: "
                  "model, if there is one)")
      ->type_name("NAME");
  sub->add_option("--base", o->base, kBase)->type_name("FOLDER");
  sub->add_option(
         "--quantize", o->quantize,
         "how a folder of transformers or PEFT keeps the frozen weights of its blocks, as hf.quantize (default: "
         "in the compute dtype)")
      ->check(CLI::IsMember({"none", "nf4", "fp8", "int8"}));
  CLI::Option* prompt =
      sub->add_option("--prompt", o->prompt, "text to continue or answer; tokens are printed as they are sampled");
  CLI::Option* input =
      sub->add_option("--input", o->input,
                      "file of prompts, one per line, or JSON records with a member \"prompt\" (runs of task "
                      "polychromic: chat.prompt_field) or \"messages\"; - = stdin. Answers keep its order")
          ->type_name("FILE")
          ->check(not_empty)
          ->excludes(prompt);
  sub->add_option("--system", o->system,
                  "system message in front of each prompt, for templates that have one (model, chatml, llama3)")
      ->type_name("TEXT")
      ->check(not_empty);
  sub->add_option("--max-new-tokens", o->max_new_tokens, "maximum number of tokens in an answer")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  add_sampling(*sub, o->temperature, o->top_k, o->top_p);
  sub->add_option("--min-p", o->min_p,
                  "then keep tokens that have at least this fraction of the best token's probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--samples", o->samples, "number of answers to each prompt")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16));
  sub->add_option("--stop", o->stop, "text that ends an answer and is not part of it; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->check(not_empty);
  sub->add_option("--seed", o->seed, "seed of the sampling; the same seed gives the same answers at any batch size")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--batch-size", o->batch_size, "answers sampled at the same time (default: 64 on a GPU, 16 on a CPU)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--weights", o->weights, "which weights to use; auto = the EMA if there is one")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  add_device(*sub, o->device);
  sub->add_option("--format", o->format, "text: only the answers, one per line; jsonl: one JSON object per line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "jsonl"}));
  sub->footer(
      "examples: hrm_train generate runs/books --prompt 'It was the best of' --temperature 0.8 --top-p 0.95\n"
      "          hrm_train generate runs/sums --input questions.txt --format jsonl\n"
      "          torchrun --no-python --nproc-per-node=2 hrm_train generate models/Qwen3-8B --input questions.txt\n"
      "          (each rank holds one part of the model)");
  sub->callback([o, prompt, input, &action] {
    o->has_prompt = prompt->count() > 0;
    require(o->has_prompt || input->count() > 0, ExitCode::usage,
            "hrm_train generate: give --prompt TEXT or --input FILE; see 'hrm_train generate --help'");
    action = [o] { return commands::run_generate(*o); };
  });
}

struct ConfigOptions {
  std::vector<std::string> files, overrides;
  bool print = false, describe = false, json = false, schema = false;
};

int run_config(const ConfigOptions& options) {
  if (options.describe) {
    require(options.files.empty() && options.overrides.empty(), ExitCode::usage,
            "config --describe lists every key; leave --config and KEY=VALUE out");
    std::cout << config::describe_fields();
    return 0;
  }
  if (options.schema) {
    require(options.files.empty() && options.overrides.empty(), ExitCode::usage,
            "config --schema describes every configuration; leave --config and KEY=VALUE out");
    std::cout << config::json_schema();
    return 0;
  }
  const config::LoadedConfig loaded = config::load_config(options.files, options.overrides);
  std::cout << (options.json ? loaded.to_json() : config::values_with_origins(loaded));
  return 0;
}

void add_config(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("config", "show the configuration, or all keys that it may hold");
  auto o = std::make_shared<ConfigOptions>();
  auto* print = sub->add_flag("--print", o->print, "print each value with its origin (the default)");
  auto* json =
      sub->add_flag("--json", o->json, "print the complete configuration as a file for --config")->excludes(print);
  auto* describe = sub->add_flag("--describe,--help-fields", o->describe,
                                 "print every key with its range, unit, default and meaning")
                       ->excludes(print)
                       ->excludes(json);
  sub->add_flag("--schema", o->schema, "print a JSON Schema (draft 2020-12) of a configuration file, for editors")
      ->excludes(print)
      ->excludes(json)
      ->excludes(describe);
  add_config_files(*sub, o->files);
  add_overrides(*sub, o->overrides);
  sub->callback([o, &action] { action = [o] { return run_config(*o); }; });
}

void add_import(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("import", "make a run folder from an official HRM, TRM or URM checkpoint");
  auto o = std::make_shared<commands::ImportOptions>();
  sub->add_option("--from", o->from, "which official code wrote the checkpoint")
      ->required()
      ->check(CLI::IsMember({"hrm", "trm", "urm"}));
  sub->add_option("path", o->path, "checkpoint file that torch.save wrote")->type_name("FILE")->required();
  sub->add_option("--config", o->config, "configuration that describes the checkpoint's model")->type_name("FILE");
  sub->add_option("--out", o->out, "run folder to create")->type_name("DIR")->required();
  add_overrides(*sub, o->overrides);
  sub->footer(
      "example: hrm_train import --from hrm --config configs/puzzle/hrm_sudoku17.json checkpoint --out runs/official");
  sub->callback([o, &action] { action = [o] { return commands::run_import(*o); }; });
}

void add_export(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("export", "write the weights of a checkpoint for other programs");
  auto o = std::make_shared<commands::ExportOptions>();
  sub->add_option("--to", o->to,
                  "torchscript: a module for torch.jit.load, with an adapter merged; safetensors: tensors for any "
                  "framework; pt: a state dict for torch.load and the official code; hf: a folder for transformers "
                  "(plain decoders without experts, or a causal model with its adapter merged); peft: only the "
                  "adapter, for PEFT; checkpoint: one set of weights to hand on, which eval, solve, generate and train "
                  "accept (puzzle and language models). A PEFT adapter exports to hf and torchscript, a folder of "
                  "transformers to torchscript")
      ->required()
      ->check(CLI::IsMember({"torchscript", "safetensors", "pt", "hf", "peft", "checkpoint"}));
  sub->add_option("--checkpoint", o->checkpoint,
                  std::string(kRunOrStep) + ", or a folder that PEFT or transformers saved")
      ->type_name("PATH")
      ->required();
  sub->add_option("--out", o->out, "file to write; for hf, peft and checkpoint a new folder")
      ->type_name("PATH")
      ->required();
  sub->add_option("--weights", o->weights, "which weights to use; auto = the EMA if there is one")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "raw", "ema"}));
  sub->add_option("--dtype", o->dtype,
                  "dtype of the weights that --to hf and --to checkpoint write; with --to hf also fp8 (e4m3) and int8: "
                  "the blocks' "
                  "linear layers in 8 bits with a scale for each output, as compressed-tensors, the rest in bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16", "fp8", "int8"}));
  sub->add_option("--base", o->base, kBase)->type_name("FOLDER");
  sub->footer(
      "example: hrm_train export --to checkpoint --dtype bfloat16 --checkpoint runs/first --out checkpoints/first");
  sub->callback([o, &action] { action = [o] { return commands::run_export(*o); }; });
}

void add_reshard(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("reshard", "write a checkpoint in another number of parts");
  auto o = std::make_shared<commands::ReshardOptions>();
  sub->add_option("--checkpoint", o->checkpoint, kRunOrStep)->type_name("PATH")->required();
  sub->add_option("--ranks", o->ranks,
                  "number of parts; 1 = model.pt and state.safetensors, as a run of one rank writes them")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, checkpoint::kMostParts))
      ->required();
  sub->add_option("--out", o->out, "folder to create; copy it into a run's checkpoints as step-<number> to resume it")
      ->type_name("DIR")
      ->required();
  sub->footer(
      "Training needs no resharding: any number of ranks resumes from any checkpoint.\n"
      "example: hrm_train reshard --checkpoint runs/first --ranks 1 --out runs/first_whole");
  sub->callback([o, &action] { action = [o] { return commands::run_reshard(*o); }; });
}

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("doctor", "say what this machine can do, and why not");
  auto o = std::make_shared<commands::DoctorOptions>();
  sub->add_flag("--json", o->json, "print the result as JSON");
  CLI::Option* ranks = sub->add_flag("--ranks", o->ranks,
                                     "test the ranks of a training instead; start it with the training's launcher, "
                                     "e.g. torchrun --no-python --nproc-per-node=2 hrm_train doctor --ranks");
  sub->add_option("--meet-timeout", o->meet_timeout_s, "with --ranks: time to wait for all ranks")
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str()
      ->needs(ranks);
  sub->add_option("--tensor", o->tensor, "with --ranks: ranks of a tensor axis, which are neighbours")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->needs(ranks);
  sub->add_option("--replicas", o->replicas, "with --ranks: groups of ranks that share out the optimizer's state")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->needs(ranks);
  sub->add_flag("--failpoints", o->failpoints,
                "list the failpoints that HRM_FAIL=<name>:<count>:<action>[,...] can trigger, for tests")
      ->excludes(ranks);
  auto replay = std::make_shared<commands::ReplayOptions>();
  CLI::Option* dump = sub->add_option("--replay", replay->dump,
                                      "repeat the step of a dump (<run>/diverged) and name the first tensors that are "
                                      "not finite; exit code 6 if there are any")
                          ->type_name("DUMP")
                          ->excludes(ranks);
  sub->add_option("overrides", replay->overrides, "with --replay: configuration values that replace those in the dump")
      ->type_name("KEY=VALUE");
  sub->callback([o, replay, dump, &action] {
    replay->json = o->json;
    if (dump->count() > 0) {
      action = [replay] { return commands::run_replay(*replay); };
    } else {
      require(replay->overrides.empty(), ExitCode::usage, "hrm_train doctor: unknown argument '",
              replay->overrides.empty() ? "" : printable(replay->overrides[0]), "'; see 'hrm_train doctor --help'");
      action = [o] { return commands::run_doctor(*o); };
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
      "Trains, evaluates and runs reasoning models (HRM, TRM) on puzzles and language models (HRM-LM, decoders, "
      "Hugging Face folders) on texts and chats.",
      "hrm_train");
  app.set_version_flag("--version", version_text());
  app.set_help_all_flag("--help-all", "print the help of all subcommands and exit");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.footer(
      "Results go to stdout, messages to stderr. Exit codes: 0 done, 1 unexpected error, 2 command line or "
      "configuration,\n3 machine or device, 4 data, 5 checkpoint, 6 diverged, 7 another rank was lost (start all ranks "
      "again),\n75 stopped after saving (run the same command again).");
  Action action;
  add_train(app, action);
  add_eval(app, action);
  add_report(app, action);
  add_dashboard(app, action);
  add_solve(app, action);
  add_generate(app, action);
  add_data(app, action);
  add_config(app, action);
  add_import(app, action);
  add_export(app, action);
  add_reshard(app, action);
  add_bench(app, action);
  add_plan(app, action);
  add_doctor(app, action);
  add_reference(app, action);
  expand_home_in_paths(app);
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
