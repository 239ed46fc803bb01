#pragma once
// The host buffers of a stream's batches whose copies to the device may still be under way.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <optional>
#include <utility>

#include "hrm/runtime/async_read.h"

namespace hrm::tasks {

// Batch: data::StreamBatch or data::LanguageStreamBatch, of which a stream lends two at a time.
template <class Batch>
class StagedBatches {
 public:
  explicit StagedBatches(at::Device device) : device_(device) {}

  // In front of a stream's next(): gives buffers back until at most one is held, waiting for copies out of them.
  void make_room() {
    while (held_.size() >= 2) {
      wait_for(held_.front().second);
      held_.pop_front();
    }
  }

  // When the copies out of `batch` are queued in the current stream: keeps it until the device has done them. On the
  // CPU they are done already, and its buffer goes back at once.
  void hold(Batch batch) {
    if (std::optional<c10::Event> copied = record_event(device_)) {
      held_.emplace_back(std::move(batch), std::move(*copied));
    }
  }

 private:
  at::Device device_;
  std::deque<std::pair<Batch, c10::Event>> held_;
};

}  // namespace hrm::tasks
