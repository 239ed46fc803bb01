#include "hrm/data/chat_prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace hrm::data {
namespace {

TEST(ChatPrefetch, GivesBatchesInOrderAndAtMostSoManyAhead) {
  std::atomic<int64_t> made{0};
  ChatPrefetch prefetch(
      [&] {
        ChatBatch batch;
        batch.position_before = made++;
        return batch;
      },
      /*depth=*/3);
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(prefetch.next().position_before, i);
    EXPECT_LE(made, i + 1 + 3);
    EXPECT_GE(prefetch.wait_ms(), 0);
  }
}

TEST(ChatPrefetch, SaysHowLongItWaited) {
  ChatPrefetch prefetch(
      [] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        return ChatBatch();
      },
      /*depth=*/1);
  prefetch.next();
  prefetch.next();
  EXPECT_GT(prefetch.wait_ms(), 5);
}

TEST(ChatPrefetch, PassesErrorsOnBehindTheBatchesBeforeThem) {
  int made = 0;
  ChatPrefetch prefetch(
      [&] {
        if (++made > 2) throw std::runtime_error("line 7");
        return ChatBatch();
      },
      /*depth=*/4);
  prefetch.next();
  prefetch.next();
  EXPECT_THROW(prefetch.next(), std::runtime_error);
  EXPECT_THROW(prefetch.next(), std::runtime_error);
}

}  // namespace
}  // namespace hrm::data
