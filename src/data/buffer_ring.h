#pragma once
// A fixed set of batch buffers that cycle: free -> filled by the producer -> ready -> held by the consumer -> free.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/data/prefetch_stats.h"

namespace hrm::data::internal {

// All members except add() are thread-safe. Must be owned by a shared_ptr: lent buffers keep the ring alive.
template <class Buffer>
class BufferRing : public std::enable_shared_from_this<BufferRing<Buffer>> {
 public:
  // `source`: the name in hrm/data/prefetch_stats.h.
  explicit BufferRing(std::string source) : source_(std::move(source)) {}

  // Adds a free buffer. Call it before anything else.
  void add(std::unique_ptr<Buffer> buffer) {
    free_.push_back(buffer.get());
    buffers_.push_back(std::move(buffer));
  }

  // For the producer: waits for a free buffer. Returns nullptr after stop().
  Buffer* wait_free() {
    std::unique_lock lock(mutex_);
    free_changed_.wait(lock, [&] { return stopped_ || !free_.empty(); });
    if (stopped_) return nullptr;
    Buffer* buffer = free_.front();
    free_.pop_front();
    fill_begins_ = Clock::now();
    return buffer;
  }
  void push_ready(Buffer* buffer) {
    add_filled(source_, milliseconds_since(fill_begins_));
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(buffer);
    }
    ready_changed_.notify_one();
  }
  // The error that next_ready() throws after the last ready buffer.
  void push_error(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      error_ = std::move(error);
    }
    ready_changed_.notify_one();
  }

  // For the consumer: the next ready buffer. It becomes free when the last copy of the pointer is destroyed. `wait_ms`
  // receives the waiting time. Throws the producer's error, and Error(unexpected) if the consumer itself holds all
  // buffers.
  std::shared_ptr<Buffer> next_ready(double& wait_ms) {
    std::unique_lock lock(mutex_);
    wait_ms = 0;
    const auto ready = static_cast<int64_t>(ready_.size());
    if (ready_.empty() && !error_) {
      require(held_ < buffers_.size(), ExitCode::unexpected, "all ", held_,
              " batch buffers are held by the caller: release one before taking the next");
      const auto start = Clock::now();
      ready_changed_.wait(lock, [&] { return error_ || !ready_.empty(); });
      wait_ms = milliseconds_since(start);
    }
    if (ready_.empty()) std::rethrow_exception(error_);
    add_prefetched(source_, ready, wait_ms);
    Buffer* buffer = ready_.front();
    ready_.pop_front();
    return lend(buffer);
  }
  // A free buffer for a consumer that fills it itself. Throws Error(unexpected) if there is none.
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
  using Clock = std::chrono::steady_clock;
  static double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

  // The mutex must be held.
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

  std::string source_;
  Clock::time_point fill_begins_;  // of the producer's thread alone
  std::mutex mutex_;
  std::condition_variable free_changed_, ready_changed_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::deque<Buffer*> free_, ready_;
  size_t held_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace hrm::data::internal
