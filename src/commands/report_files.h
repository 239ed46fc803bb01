#pragma once
// Where `eval --report` and `report` write.

#include <filesystem>
#include <string>

#include "commands/answer_report.h"

namespace hrm::commands {

inline constexpr const char* kEvaluationFile = "eval.json";  // what `report` reads again

// Error(usage), naming the option, where `folder` has `file` already: what was measured or compared before is not
// replaced.
void require_new_report(const std::string& option, const std::filesystem::path& folder, const char* file);

// report.md, answers.html and front.svg in `folder`, which is made; without points no front.svg, and one that is left
// there is removed. Returns the names of what was written. Error(environment) where that cannot be.
std::string write_answer_report(const AnswerReport& report, const std::filesystem::path& folder);

}  // namespace hrm::commands
