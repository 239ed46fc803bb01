#include "hrm/tasks/answer_text.h"

#include <algorithm>

namespace hrm::tasks {

AnswerEnds answer_ends(const data::ChatEncoder& chat, const std::vector<int64_t>& eos_ids) {
  AnswerEnds ends;
  const auto add = [&](int64_t id) {
    if (id >= 0 && std::find(ends.ids.begin(), ends.ids.end(), id) == ends.ids.end()) ends.ids.push_back(id);
  };
  for (const int64_t id : chat.stop_ids()) add(id);
  add(chat.encoder().meta.eos_id);
  for (const int64_t id : eos_ids) add(id);
  if (!chat.stop_text().empty()) ends.texts.push_back(chat.stop_text());
  return ends;
}

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
  // The longest end that could continue to be a stop string stays.
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
