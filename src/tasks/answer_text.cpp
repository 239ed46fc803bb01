#include "hrm/tasks/answer_text.h"

#include <algorithm>

namespace hrm::tasks {

AnswerText::AnswerText(const data::TextEncoder& encoder, std::vector<std::string> stops)
    : stream_(encoder.stream()), stops_(std::move(stops)) {}

std::string AnswerText::push(int32_t id) {
  if (stopped_) return {};
  held_ += stream_->push(id);
  return release(/*all=*/false);
}

std::string AnswerText::finish() {
  if (stopped_) return {};
  held_ += stream_->finish();
  return release(/*all=*/true);
}

std::string AnswerText::release(bool all) {
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, first);
  }
  // The longest end that could go on to be a stop string stays.
  size_t kept = 0;
  for (const std::string& stop : stops_) {
    if (all) break;
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length) {
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) kept = length;
    }
  }
  std::string text = held_.substr(0, held_.size() - kept);
  held_.erase(0, text.size());
  return text;
}

}  // namespace hrm::tasks
