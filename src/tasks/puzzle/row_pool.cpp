#include "hrm/tasks/row_pool.h"

#include <algorithm>
#include <utility>

namespace hrm::tasks {

RowPool::RowPool(std::shared_ptr<const data::PuzzleDataset> dataset, const data::TrainStreamOptions& options,
                 int64_t slots, int64_t position, at::Device device, const data::DeviceTable* table)
    : stream_(std::make_unique<data::RowStream>(dataset, options, position)),
      table_(table),
      slots_(slots),
      capacity_(kBatches * slots),
      known_(position),
      loaded_(position),
      staged_(device) {
  const auto ints = at::TensorOptions().device(device).dtype(at::kInt);
  const int64_t seq_len = dataset->meta().seq_len;
  ring_ = {at::zeros({capacity_, seq_len}, ints), at::zeros({capacity_, seq_len}, ints), at::zeros({capacity_}, ints),
           capacity_};
  cursor_ = at::full({}, position, ints.dtype(at::kLong));
}

double RowPool::prepare() {
  while (auto entry = reader_.pop(/*wait=*/static_cast<int64_t>(reader_.pending()) > kLag)) {
    known_ = static_cast<int64_t>(entry->values[0]);
  }
  // Each step whose cursor is not known yet took at most `slots_` rows; this one takes as many again.
  const int64_t needed = known_ + (static_cast<int64_t>(reader_.pending()) + 1) * slots_;
  double waited = 0;
  while (loaded_ < needed) {
    const int64_t place = loaded_ % capacity_;
    const int64_t count = std::min({needed - loaded_, capacity_ - place, slots_});
    staged_.make_room();
    data::StreamBatch rows = stream_->next_rows(count);
    waited += stream_->wait_ms();
    const data::PuzzleBatch to{ring_.inputs.narrow(0, place, count), ring_.labels.narrow(0, place, count),
                               ring_.puzzle_identifiers.narrow(0, place, count), count};
    data::load_rows(rows, to, table_);
    staged_.hold(std::move(rows));
    loaded_ += count;
  }
  return waited;
}

void RowPool::finish() {
  reader_.push(0, cursor_.reshape({1}));
}

}  // namespace hrm::tasks
