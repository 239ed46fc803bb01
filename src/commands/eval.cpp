// hrm_train eval.
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands/parts.h"
#include "commands/report_files.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/tasks/answer_eval.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/registry.h"
#include "hrm/train/eval_reporter.h"

namespace hrm::commands {
namespace {

void write_evaluation(nlohmann::ordered_json json, const tasks::NamedValues& result, double seconds,
                      const EvalOptions& options) {
  for (const auto& [key, value] : result) json[key] = value;
  json["seconds"] = seconds;
  const std::string text = json.dump(2) + "\n";
  std::cout << text;
  if (!options.json_out.empty()) write_text_atomic(options.json_out, text);
}

// eval.json with the answers to each prompt, and the report of it alone.
void write_report(nlohmann::ordered_json json, const tasks::NamedValues& result, const tasks::AnswerEvaluation& found,
                  const std::string& name, const std::filesystem::path& folder) {
  for (const auto& [key, value] : result) json[key] = value;
  json["samples"] = nlohmann::ordered_json::array();
  for (const tasks::EvaluatedPrompt& p : found.prompts) {
    json["samples"].push_back({{"prompt", p.prompt},
                               {"reference", p.reference},
                               {"answers", p.answers},
                               {"greedy", p.greedy},
                               {"sampled", p.sampled},
                               {"right", p.right},
                               {"finished", p.finished},
                               {"values", p.values}});
  }
  // Bytes of a cut answer may not be UTF-8.
  const std::string text = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::string file = (folder / kEvaluationFile).string();
  // First what was measured: a report can be made of it again.
  std::error_code said_by_what_writes;
  std::filesystem::create_directories(folder, said_by_what_writes);
  write_text_atomic(file, text);
  log::info("wrote ", file, ", ",
            write_answer_report(compare_answers({{name, {parse_evaluation(text, file)}}}), folder));
}

void check_report(const EvalOptions& options, const config::Config& config, const tasks::TaskSpec& spec) {
  if (options.report.empty()) return;
  require(spec.samples_answers != nullptr, ExitCode::usage, "--report is of sampled answers, and task ",
          spec.settings->name, " samples none");
  require(spec.samples_answers(config), ExitCode::usage, "--report is of sampled answers, and eval.answers is 0");
  require_new_report("--report", options.report, kEvaluationFile);
}

int eval(const EvalOptions& options, train::Ranks& ranks) {
  std::vector<std::string> overrides = options.overrides;
  if (options.early_halt) overrides.emplace_back("eval.early_halt=true");
  if (options.segments > 0) overrides.push_back(cat("eval.segments=", options.segments));
  if (options.rollouts > 0) overrides.push_back(cat("eval.rollouts=", options.rollouts));
  const tasks::StoredModel stored = open_in_parts("eval", ranks, options.checkpoint, overrides, options.base);
  const tasks::TaskSpec& spec = tasks::task_spec(stored.config);
  require(spec.evaluate != nullptr, ExitCode::usage, "models of task ", spec.settings->name, " cannot be evaluated");
  check_report(options, stored.config, spec);
  const bool puzzles = stored.config.task == "puzzle";
  require(puzzles || (!options.blank_identifier && options.submission.empty() && options.pictures.empty()),
          ExitCode::usage, "--blank-identifier, --submission and --pictures are of puzzles, and the run's task is ",
          stored.config.task);
  train::EvalReporter reporter;
  tasks::EvalOutcome outcome = spec.evaluate(stored, {.data = options.data,
                                                      .progress =
                                                          [&](const tasks::EvalProgress& at) {
                                                            report_alive(ranks, at.done, "evaluation");
                                                            reporter.report(at);
                                                          },
                                                      .blank_identifier = options.blank_identifier,
                                                      .submission = options.submission,
                                                      .pictures = options.pictures});
  if (!ranks.comm->main()) return static_cast<int>(ExitCode::done);
  const double seconds = reporter.seconds();
  log::info(outcome.text, " | ", human_seconds(seconds));
  if (outcome.answers && !options.report.empty()) {
    const std::string& name = outcome.name.empty() ? stored.config.run.name : outcome.name;
    write_report(outcome.head, outcome.values, *outcome.answers, name, options.report);
  }
  write_evaluation(std::move(outcome.head), outcome.values, seconds, options);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_eval(const EvalOptions& options) {
  return run_in_parts("eval", options.overrides, [&](train::Ranks& ranks) { return eval(options, ranks); });
}

}  // namespace hrm::commands
