#pragma once
// Where `eval --report` and `report` write.

#include <filesystem>

#include "train/answer_report.h"

namespace hrm::train {

inline constexpr const char* kEvaluationFile = "eval.json";  // what `report` reads again

// report.md, answers.html and front.svg in `folder`, which is made; without points no front.svg, and an older one is
// removed. Returns the names of what was written. Error(environment) where that cannot be.
std::string write_answer_report(const AnswerReport& report, const std::filesystem::path& folder);

}  // namespace hrm::train
