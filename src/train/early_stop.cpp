#include "train/early_stop.h"

#include <ATen/ops/full.h>

#include <limits>
#include <string>

#include "hrm/base/error.h"

namespace hrm::train {

EarlyStop::EarlyStop(const config::TrainConfig& config)
    : evals_(config.early_stop_evals),
      delta_(config.early_stop_delta),
      best_(at::full({}, -std::numeric_limits<double>::infinity(), at::kDouble)) {}

double EarlyStop::best() const {
  return *best_.const_data_ptr<double>();
}

void EarlyStop::add(double score) {
  if (score > best() + delta_) {
    in_a_row_ = 0;
  } else {
    ++in_a_row_;
  }
  // Small gains add up: they are measured from the best that counted.
  if (in_a_row_ == 0) best_.fill_(score);
}

void EarlyStop::visit_state(StateVisitor& visitor) {
  if (evals_ == 0) return;
  visitor.integer(cat(kStatePrefix, "in_a_row"), in_a_row_);
  visitor.tensor(cat(kStatePrefix, "best"), best_, StateRole::loop);
}

}  // namespace hrm::train
