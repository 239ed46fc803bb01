#pragma once
// What the row of task=language is made of. Private to tasks/language/.

#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/text_writer.h"

namespace hrm::tasks {

EvalOutcome evaluate_language(const StoredModel& stored, const EvalRequest& request);
std::string export_language(const StoredModel& stored, const ExportRequest& request);
TextWriter open_language_writer(const StoredModel& stored, const WriterRequest& request);

}  // namespace hrm::tasks
