// The buffers of batches on their way to the device.

#include "hrm/tasks/staged_batches.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace hrm::tasks {
namespace {

// On the CPU a copy is done when it was queued.
TEST(StagedBatches, GiveBuffersBackAtOnceOnTheCpu) {
  StagedBatches<std::shared_ptr<int>> staged(at::kCPU);
  std::vector<std::weak_ptr<int>> lent;
  for (int i = 0; i < 4; ++i) {
    staged.make_room();
    auto buffer = std::make_shared<int>(i);
    lent.push_back(buffer);
    staged.hold(std::move(buffer));
    EXPECT_TRUE(lent.back().expired()) << i;
  }
}

}  // namespace
}  // namespace hrm::tasks
