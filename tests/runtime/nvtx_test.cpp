#include "hrm/runtime/nvtx.h"

#include <gtest/gtest.h>

#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace hrm {
namespace {

class Nvtx : public testing::Test {
 protected:
  ~Nvtx() override { enable_nvtx({}); }
};

TEST_F(Nvtx, OffUnlessAskedFor) {
  enable_nvtx({});
  EXPECT_EQ(ranges::active.load(), 0U);
}

#if HRM_WITH_CUDA
TEST_F(Nvtx, EachKindByItsOwnKey) {
  config::ProfilingConfig config;
  config.nvtx_enabled = true;
  config.nvtx_include_data = false;
  config.nvtx_include_eval = true;
  enable_nvtx(config);
  EXPECT_EQ(ranges::active.load(), static_cast<unsigned>(RangeKind::step) | static_cast<unsigned>(RangeKind::eval));
  config.nvtx_include_data = true;
  config.nvtx_include_eval = false;
  enable_nvtx(config);
  EXPECT_EQ(ranges::active.load(), static_cast<unsigned>(RangeKind::step) | static_cast<unsigned>(RangeKind::data));
}

TEST_F(Nvtx, RangesNest) {
  config::ProfilingConfig config;
  config.nvtx_enabled = true;
  enable_nvtx(config);
  // Without a listening tool a push returns a negative number; it must not crash or be charged to the wrong range.
  const ProfilerRange outer(RangeKind::step, "train.step");
  { const ProfilerRange inner(RangeKind::data, "data.next_batch"); }
  SUCCEED();
}
#else
TEST_F(Nvtx, NothingInABuildWithoutCuda) {
  config::ProfilingConfig config;
  config.nvtx_enabled = true;
  enable_nvtx(config);
  EXPECT_EQ(ranges::active.load(), 0U);
}
#endif

// A range that was opened while nobody listened closes nothing, even if somebody listens by then.
TEST_F(Nvtx, AnOpenRangeKeepsItsListeners) {
  auto range = std::make_unique<ProfilerRange>(RangeKind::step, "train.step");
  annotate_trace(true);
  EXPECT_NE(ranges::active.load(), 0U);
  range.reset();
  annotate_trace(false);
  EXPECT_EQ(ranges::active.load(), 0U);
}

}  // namespace
}  // namespace hrm
