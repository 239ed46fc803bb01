#pragma once
// What the row of task=puzzle is made of. Private to tasks/puzzle/.

#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/registry.h"

namespace hrm::tasks {

EvalOutcome evaluate_puzzles(const StoredModel& stored, const EvalRequest& request);
std::string export_puzzle(const StoredModel& stored, const ExportRequest& request);

}  // namespace hrm::tasks
