#pragma once
// A fixed set of batch buffers that go round: free -> filled by the producer -> ready -> held by the consumer -> free.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::data::internal {

// All members but add() may be called from any thread. Must be owned by a shared_ptr: lent buffers keep it alive.
template <class Buffer>
class BufferRing : public std::enable_shared_from_this<BufferRing<Buffer>> {
 public:
  // Before anything else: one more free buffer.
  void add(std::unique_ptr<Buffer> buffer) {
    free_.push_back(buffer.get());
    buffers_.push_back(std::move(buffer));
  }

  // Producer: a free buffer, waiting for one; nullptr after stop().
  Buffer* wait_free() {
    std::unique_lock lock(mutex_);
    free_changed_.wait(lock, [&] { return stopped_ || !free_.empty(); });
    if (stopped_) return nullptr;
    Buffer* buffer = free_.front();
    free_.pop_front();
    return buffer;
  }
  void push_ready(Buffer* buffer) {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(buffer);
    }
    ready_changed_.notify_one();
  }
  // What next_ready() throws once the ready buffers are used up.
  void push_error(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
    }
    ready_changed_.notify_one();
  }

  // Consumer: the next ready buffer; it becomes free again when the last copy of the pointer goes. `wait_ms`: how long
  // this waited. Throws the producer's error; Error(unexpected) when the consumer itself holds all buffers.
  std::shared_ptr<Buffer> next_ready(double& wait_ms) {
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
    Buffer* buffer = ready_.front();
    ready_.pop_front();
    return lend(buffer);
  }
  // A free buffer for a consumer that fills it itself. Throws Error(unexpected) when there is none.
  std::shared_ptr<Buffer> take_free() {
    const std::lock_guard lock(mutex_);
    require(!free_.empty(), ExitCode::unexpected, "all ", held_,
            " batch buffers are held by the caller: release one before taking the next");
    Buffer* buffer = free_.front();
    free_.pop_front();
    return lend(buffer);
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    free_changed_.notify_all();
  }

 private:
  // With the mutex held.
  std::shared_ptr<Buffer> lend(Buffer* buffer) {
    ++held_;
    return {buffer, [ring = this->shared_from_this()](Buffer* returned) {
              {
                const std::lock_guard lock(ring->mutex_);
                --ring->held_;
                ring->free_.push_back(returned);
              }
              ring->free_changed_.notify_one();
            }};
  }

  std::mutex mutex_;
  std::condition_variable free_changed_, ready_changed_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::deque<Buffer*> free_, ready_;
  size_t held_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace hrm::data::internal
