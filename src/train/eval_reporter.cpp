#include "hrm/train/eval_reporter.h"

#include <chrono>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"

namespace hrm::train {
namespace {

constexpr double kPlainLineEvery = 30;  // s

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

EvalReporter::EvalReporter() : start_(now_seconds()), last_line_(start_) {}

void EvalReporter::report(const tasks::EvalProgress& progress) {
  const double now = now_seconds();
  const double left =
      (now - start_) / static_cast<double>(progress.done) * static_cast<double>(progress.total - progress.done);
  if (!log::stderr_is_interactive() && now - last_line_ < kPlainLineEvery) return;
  last_line_ = now;
  log::progress(cat("evaluating ", progress.done, "/", progress.total, " samples, eta ", human_seconds(left)));
}

}  // namespace hrm::train
