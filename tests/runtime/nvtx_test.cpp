#include "hrm/runtime/nvtx.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hrm/build_config.h"

namespace hrm {
namespace {

class Nvtx : public testing::Test {
 protected:
  ~Nvtx() override { enable_nvtx({}); }
};

// Beginnings and ends of annotations on this thread, "+name" and "-name".
std::vector<std::string>& recorded() {
  static std::vector<std::string> all;
  return all;
}

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
  const unsigned always = static_cast<unsigned>(RangeKind::step) | static_cast<unsigned>(RangeKind::sample);
  EXPECT_EQ(ranges::active.load(), always | static_cast<unsigned>(RangeKind::eval));
  config.nvtx_include_data = true;
  config.nvtx_include_eval = false;
  enable_nvtx(config);
  EXPECT_EQ(ranges::active.load(), always | static_cast<unsigned>(RangeKind::data));
}

#else
TEST_F(Nvtx, NothingInABuildWithoutCuda) {
  config::ProfilingConfig config;
  config.nvtx_enabled = true;
  enable_nvtx(config);
  EXPECT_EQ(ranges::active.load(), 0U);
}
#endif

TEST_F(Nvtx, RangesNest) {
  config::ProfilingConfig config;
  config.nvtx_enabled = true;
  enable_nvtx(config);
  recorded().clear();
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(
                                     [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
                                       recorded().push_back(std::string("+") + range.name());
                                       return nullptr;
                                     },
                                     [](const at::RecordFunction& range, at::ObserverContext*) {
                                       recorded().push_back(std::string("-") + range.name());
                                     })
                                     .scopes({at::RecordScope::USER_SCOPE}));
  annotate_trace(true);
  {
    const ProfilerRange outer(RangeKind::step, "train.step");
    { const ProfilerRange inner(RangeKind::data, "data.next_batch"); }
    { const ProfilerRange inner(RangeKind::eval, "eval.batch"); }
  }
  annotate_trace(false);
  { const ProfilerRange unheard(RangeKind::step, "train.step"); }
  at::removeCallback(handle);
  EXPECT_EQ(recorded(), (std::vector<std::string>{"+train.step", "+data.next_batch", "-data.next_batch", "+eval.batch",
                                                  "-eval.batch", "-train.step"}));
}

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
