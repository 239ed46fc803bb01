#pragma once
// Batches of prompts and responses that a thread prepares ahead.

#include <cstdint>
#include <functional>
#include <memory>

#include "hrm/data/chat_batches.h"

namespace hrm::data {

class ChatPrefetch {
 public:
  // A thread calls `make` for one batch after the other, at most `depth` ahead of next(). `make` makes no CUDA calls.
  ChatPrefetch(std::function<ChatBatch()> make, int64_t depth);
  // Waits until `make` returns.
  ~ChatPrefetch();
  ChatPrefetch(const ChatPrefetch&) = delete;
  ChatPrefetch& operator=(const ChatPrefetch&) = delete;

  // Returns the next batch and waits until it is ready. Rethrows what `make` threw.
  ChatBatch next();

  // Milliseconds that the last next() waited.
  double wait_ms() const { return wait_ms_; }

 private:
  class Producer;
  std::unique_ptr<Producer> producer_;
  double wait_ms_ = 0;
};

}  // namespace hrm::data
