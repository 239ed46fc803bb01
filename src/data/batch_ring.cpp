#include "data/batch_ring.h"

#include <ATen/ATen.h>

#include <chrono>

#include "hrm/base/error.h"

namespace hrm::data::internal {

BatchRing::BatchRing(int64_t count, int64_t rows, const PuzzleMeta& meta, bool pinned, bool picks) {
  const auto ints = at::TensorOptions().dtype(at::kInt).pinned_memory(pinned);
  for (int64_t i = 0; i < count; ++i) {
    auto buffer = std::make_unique<BatchBuffer>();
    if (picks) {
      buffer->picks = at::empty({rows, 3}, ints.dtype(at::kLong));
    } else {
      buffer->batch.inputs = at::empty({rows, meta.seq_len}, ints);
      buffer->batch.labels = at::empty({rows, meta.seq_len}, ints);
      buffer->batch.puzzle_identifiers = at::empty({rows}, ints);
    }
    buffer->batch.valid_rows = rows;
    free_.push_back(buffer.get());
    buffers_.push_back(std::move(buffer));
  }
}

BatchBuffer* BatchRing::wait_free() {
  std::unique_lock lock(mutex_);
  free_changed_.wait(lock, [&] { return stopped_ || !free_.empty(); });
  if (stopped_) return nullptr;
  BatchBuffer* buffer = free_.front();
  free_.pop_front();
  return buffer;
}

void BatchRing::push_ready(BatchBuffer* buffer) {
  {
    const std::lock_guard lock(mutex_);
    ready_.push_back(buffer);
  }
  ready_changed_.notify_one();
}

void BatchRing::push_error(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  ready_changed_.notify_one();
}

std::shared_ptr<BatchBuffer> BatchRing::next_ready(double& wait_ms) {
  std::unique_lock lock(mutex_);
  wait_ms = 0;
  if (ready_.empty() && !error_) {
    require(held_ < buffers_.size(), ExitCode::unexpected, "all ", held_,
            " batch buffers are held by the caller: release one before taking the next");
    const auto start = std::chrono::steady_clock::now();
    ready_changed_.wait(lock, [&] { return error_ || !ready_.empty(); });
    wait_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  if (ready_.empty()) std::rethrow_exception(error_);
  BatchBuffer* buffer = ready_.front();
  ready_.pop_front();
  return lend(buffer);
}

std::shared_ptr<BatchBuffer> BatchRing::take_free() {
  const std::lock_guard lock(mutex_);
  require(!free_.empty(), ExitCode::unexpected, "all ", held_,
          " batch buffers are held by the caller: release one before taking the next");
  BatchBuffer* buffer = free_.front();
  free_.pop_front();
  return lend(buffer);
}

std::shared_ptr<BatchBuffer> BatchRing::lend(BatchBuffer* buffer) {
  ++held_;
  return {buffer, [ring = shared_from_this()](BatchBuffer* returned) {
            {
              const std::lock_guard lock(ring->mutex_);
              --ring->held_;
              ring->free_.push_back(returned);
            }
            ring->free_changed_.notify_one();
          }};
}

void BatchRing::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  free_changed_.notify_all();
}

}  // namespace hrm::data::internal
