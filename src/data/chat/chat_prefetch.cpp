#include "hrm/data/chat_prefetch.h"

#include <thread>
#include <utility>

#include "data/buffer_ring.h"

namespace hrm::data {

class ChatPrefetch::Producer {
 public:
  Producer(std::function<ChatBatch()> make, int64_t depth)
      : make_(std::move(make)), ring_(std::make_shared<internal::BufferRing<ChatBatch>>("chats")) {
    for (int64_t i = 0; i < depth; ++i) ring_->add(std::make_unique<ChatBatch>());
    thread_ = std::thread([this] { run(); });
  }
  ~Producer() {
    ring_->stop();
    thread_.join();
  }
  internal::BufferRing<ChatBatch>& ring() { return *ring_; }

 private:
  void run() {
    try {
      while (ChatBatch* batch = ring_->wait_free()) {
        *batch = make_();
        ring_->push_ready(batch);
      }
    } catch (...) {
      ring_->push_error(std::current_exception());
    }
  }

  std::function<ChatBatch()> make_;
  std::shared_ptr<internal::BufferRing<ChatBatch>> ring_;
  std::thread thread_;
};

ChatPrefetch::ChatPrefetch(std::function<ChatBatch()> make, int64_t depth)
    : producer_(std::make_unique<Producer>(std::move(make), depth)) {}

ChatPrefetch::~ChatPrefetch() = default;

ChatBatch ChatPrefetch::next() {
  return std::move(*producer_->ring().next_ready(wait_ms_));
}

}  // namespace hrm::data
