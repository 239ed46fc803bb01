#pragma once
// What the row of task=polychromic is made of. Private to tasks/causal/.

#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/text_writer.h"

namespace hrm::tasks {

EvalOutcome evaluate_causal(const StoredModel& stored, const EvalRequest& request);
std::string export_causal(const StoredModel& stored, const ExportRequest& request);
TextWriter open_causal_writer(const StoredModel& stored, const WriterRequest& request);

}  // namespace hrm::tasks
