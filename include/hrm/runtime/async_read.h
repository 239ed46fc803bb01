#pragma once
// Reads small device tensors on the host without stopping the device.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace hrm {

// Returns when the device has reached the event. The thread sleeps meanwhile, where cudaEventSynchronize would keep a
// core busy that the prefetch thread can use; it notices within a fraction of a millisecond.
void wait_for(const c10::Event& event);

// What the device has been given so far, in its current stream; empty for the CPU, where all of it is done.
std::optional<c10::Event> record_event(at::Device device);

// A queue of copies to pinned host memory. Entries come out in the order they went in, once the device has reached
// them. On the CPU every entry is ready at once.
class AsyncReader {
 public:
  struct Entry {
    int64_t tag;
    std::vector<double> values;
  };

  // `values` (N) of any type; its content at this point of the current stream is what is read.
  void push(int64_t tag, const at::Tensor& values);

  // The oldest entry, if the device has reached it; `wait` blocks until it has. Empty when nothing is queued.
  std::optional<Entry> pop(bool wait);

  size_t pending() const { return queue_.size(); }

 private:
  struct Pending {
    int64_t tag;
    at::Tensor host;
    std::optional<c10::Event> event;
  };
  std::deque<Pending> queue_;
};

}  // namespace hrm
