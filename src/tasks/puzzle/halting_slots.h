#pragma once
// The places of a batch that runs rows of a call until each halts: the next row of the call enters a place that is
// free, and at the end the batch shrinks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "hrm/runtime/async_read.h"

namespace hrm::tasks {

class HaltingSlots {
 public:
  HaltingSlots(int64_t places, at::Device device);

  // Before a call: no place has a row, and `rows` rows wait.
  void begin(int64_t rows);

  // The next rows of the call enter the free ones of the first `places` places, in the order of the places. Returns
  // where, (places) bool. May be captured.
  at::Tensor refill(int64_t places);
  // The places where `goes_on` (places) bool is false are free from now on. May be captured.
  void finish(int64_t places, const at::Tensor& goes_on);

  at::Tensor running(int64_t places) const;  // (places) bool: the place has a row
  at::Tensor row(int64_t places) const;      // (places) int64: which row of the call; the last one if it has none
  // row(), and `spare` for places without a row: where the answers of such a place do no harm.
  at::Tensor row_or(int64_t places, int64_t spare) const;

  // Runs `segment(places)` until all rows have halted. It calls refill() and finish(). The host learns one segment
  // late how many rows are left, so the device does not wait for it. `places_for(rows)`: how many places this many rows
  // need. Where that is fewer than run, `move(kept)` moves the places kept (places) int64 to the front, in this order.
  void run(int64_t rows, const std::function<int64_t(int64_t)>& places_for, const std::function<void(int64_t)>& segment,
           const std::function<void(const at::Tensor& kept)>& move);

 private:
  at::Tensor shrink(int64_t places, int64_t smaller);

  at::Tensor running_, row_;
  at::Tensor next_, rows_, left_;  // 0-dim int64: the first row without a place yet, all, those that have not halted
  AsyncReader reader_;
};

// The first rows of each tensor become those at `kept`.
void move_to_front(const at::Tensor& kept, std::initializer_list<at::Tensor> tensors, int64_t dim = 0);

}  // namespace hrm::tasks
