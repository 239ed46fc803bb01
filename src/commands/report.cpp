#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>

#include "commands/answer_report.h"
#include "commands/report_files.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"

namespace hrm::commands {

namespace fs = std::filesystem;

void require_new_report(const std::string& option, const fs::path& folder, const char* file) {
  std::error_code error;
  require(!fs::exists(folder / file, error), ExitCode::usage, "'", printable(folder.string()), "' holds ", file,
          " already; give ", option, " a new folder, or remove that one");
}

std::string write_answer_report(const AnswerReport& report, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require(fs::is_directory(folder), ExitCode::environment, "cannot make the folder '", folder.string(),
          "': ", error ? error.message() : "a file is in its place");
  write_text_atomic(folder / "report.md", report_markdown(report));
  write_text_atomic(folder / "answers.html", answers_page(report));
  const Front front = quality_diversity_front(report);
  if (front.missing.empty()) {
    write_text_atomic(folder / "front.svg", front_picture(front));
    return "report.md, answers.html and front.svg";
  }
  // That of a report whose other files were removed would be taken for this one's.
  fs::remove(folder / "front.svg", error);
  require(!error, ExitCode::environment, "cannot remove '", (folder / "front.svg").string(), "': ", error.message());
  return "report.md and answers.html";
}

int run_report(const ReportOptions& options) {
  require(!options.out.empty(), ExitCode::usage, "--out needs the folder to write to");
  require_new_report("--out", options.out, "report.md");
  std::vector<ReportGroup> groups;
  std::map<std::pair<std::string, fs::path>, std::string> seen;  // of a group, the file -> as it was given
  for (const std::string& item : options.evaluations) {
    std::error_code error;
    // The path of a run may have an equals sign, e.g. runs/lr=1/answers.
    const size_t equals = fs::exists(item, error) ? item.npos : item.find('=');
    const std::string file = equals == item.npos ? item : item.substr(equals + 1);
    std::string name = equals == item.npos ? "" : item.substr(0, equals);
    require(!file.empty(), ExitCode::usage, "'", item, "' names no file; give NAME=FILE, or FILE");
    const fs::path path = fs::is_directory(file, error) ? fs::path(file) / kEvaluationFile : fs::path(file);
    ReportedEvaluation run = parse_evaluation(read_text(path, ExitCode::data, uint64_t{256} << 20), path.string());
    if (name.empty()) name = run.checkpoint;
    // Twice it would be a seed more, and the interval too small.
    const auto [first, is_new] = seen.emplace(std::pair(name, fs::weakly_canonical(path, error)), item);
    require(is_new, ExitCode::usage, "'", printable(first->second), "' and '", printable(item),
            "' are one evaluation, given twice as '", printable_start(name), "'; give it once");
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ReportGroup& one) { return one.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->runs.push_back(std::move(run));
  }
  const AnswerReport report = compare_answers(std::move(groups));
  const std::string written = write_answer_report(report, options.out);
  log::info("wrote ", written, " of ", options.evaluations.size(),
            options.evaluations.size() == 1 ? " evaluation (" : " evaluations (", report.prompts.size(),
            " prompts in common) to ", options.out);
  std::cout << (fs::path(options.out) / "report.md").string() << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
