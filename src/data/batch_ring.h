#pragma once
// A fixed set of batch buffers that go round: free -> filled by the producer -> ready -> held by the consumer -> free.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "hrm/data/batch.h"

namespace hrm::data::internal {

struct BatchBuffer {
  PuzzleBatch batch;  // or, of a ring of picks, undefined
  at::Tensor picks;   // of a ring of picks: (rows, 3) int64
  int64_t position_before = 0;
  int64_t position_after = 0;
};

// All members may be called from any thread.
class BatchRing : public std::enable_shared_from_this<BatchRing> {
 public:
  // Allocates `count` buffers of `rows` rows, or of the picks of so many, page-locked when asked.
  BatchRing(int64_t count, int64_t rows, const PuzzleMeta& meta, bool pinned, bool picks);

  // Producer: a free buffer, waiting for one; nullptr after stop().
  BatchBuffer* wait_free();
  void push_ready(BatchBuffer* buffer);
  // What next_ready() throws once the ready buffers are used up.
  void push_error(std::exception_ptr error);

  // Consumer: the next ready buffer; it becomes free again when the last copy of the pointer goes. `wait_ms`: how long
  // this waited. Throws the producer's error; Error(unexpected) when the consumer itself holds all buffers.
  std::shared_ptr<BatchBuffer> next_ready(double& wait_ms);
  // A free buffer for a consumer that fills it itself. Throws Error(unexpected) when there is none.
  std::shared_ptr<BatchBuffer> take_free();

  void stop();

 private:
  std::shared_ptr<BatchBuffer> lend(BatchBuffer* buffer);  // with the mutex held

  std::mutex mutex_;
  std::condition_variable free_changed_, ready_changed_;
  std::vector<std::unique_ptr<BatchBuffer>> buffers_;
  std::deque<BatchBuffer*> free_, ready_;
  size_t held_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace hrm::data::internal
