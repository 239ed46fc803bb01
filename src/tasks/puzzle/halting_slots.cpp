#include "tasks/puzzle/halting_slots.h"

#include <ATen/ATen.h>

#include <optional>

namespace hrm::tasks {

HaltingSlots::HaltingSlots(int64_t places, at::Device device)
    : running_(at::zeros({places}, at::device(device).dtype(at::kBool))),
      row_(at::zeros({places}, at::device(device).dtype(at::kLong))),
      next_(at::zeros({}, row_.options())),
      rows_(at::zeros({}, row_.options())),
      left_(at::zeros({}, row_.options())) {}

void HaltingSlots::begin(int64_t rows) {
  running_.zero_();
  row_.zero_();
  next_.zero_();
  rows_.fill_(rows);
}

at::Tensor HaltingSlots::refill(int64_t places) {
  const at::Tensor running = running_.narrow(0, 0, places), row = row_.narrow(0, 0, places);
  const at::Tensor free = running.logical_not();
  const at::Tensor candidate = at::cumsum(free, 0) - 1 + next_;
  at::Tensor taken = free.logical_and(candidate.lt(rows_));
  row.copy_(at::where(taken, candidate, row));
  running.logical_or_(taken);
  next_.add_(taken.sum());
  return taken;
}

void HaltingSlots::finish(int64_t places, const at::Tensor& goes_on) {
  const at::Tensor running = running_.narrow(0, 0, places);
  running.logical_and_(goes_on);
  left_.copy_(running.sum() + rows_ - next_);
}

at::Tensor HaltingSlots::running(int64_t places) const {
  return running_.narrow(0, 0, places);
}

at::Tensor HaltingSlots::row(int64_t places) const {
  return row_.narrow(0, 0, places);
}

at::Tensor HaltingSlots::row_or(int64_t places, int64_t spare) const {
  return at::where(running(places), row(places), at::scalar_tensor(spare, row_.options()));
}

void HaltingSlots::run(int64_t rows, const std::function<int64_t(int64_t)>& places_for,
                       const std::function<void(int64_t)>& segment,
                       const std::function<void(const at::Tensor& kept)>& move) {
  begin(rows);
  int64_t places = places_for(rows);
  for (int64_t i = 0;; ++i) {
    segment(places);
    reader_.push(i, left_.reshape({1}));
    if (reader_.pending() < 2) continue;
    const auto left = static_cast<int64_t>(reader_.pop(/*wait=*/true)->values[0]);
    if (left == 0) break;
    if (const int64_t smaller = places_for(left); smaller < places) {
      move(shrink(places, smaller));
      places = smaller;
    }
  }
  while (reader_.pending() > 0) reader_.pop(/*wait=*/true);
}

// Keeps all places with a row, in their order, and the first of the others.
at::Tensor HaltingSlots::shrink(int64_t places, int64_t smaller) {
  const at::Tensor idle = running(places).logical_not().to(at::kInt);
  at::Tensor kept = std::get<1>(at::sort(idle, /*stable=*/std::optional<bool>(true), /*dim=*/0)).narrow(0, 0, smaller);
  move_to_front(kept, {running_, row_});
  return kept;
}

void move_to_front(const at::Tensor& kept, std::initializer_list<at::Tensor> tensors, int64_t dim) {
  for (const at::Tensor& t : tensors) t.narrow(dim, 0, kept.size(0)).copy_(t.index_select(dim, kept));
}

}  // namespace hrm::tasks
