#include <gtest/gtest.h>

#include "hrm/runtime/memory_snapshot.h"
#include "support/python.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

// PyTorch's own reader of such files, which pytorch.org/memory_viz is made from.
TEST(MemorySnapshot, PyTorchsViewerOpensTheFile) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python beside the torch wheel";
  const test::TempDir dir;
  const auto product = std::make_shared<AllocationSource>(
      AllocationSource{.phase = "forward", .operations = {"aten::empty", "aten::mm"}});
  MemorySnapshot snapshot;
  snapshot.segments.push_back(
      {.address = 4096,
       .size = 4096,
       .large = true,
       .blocks = {{.size = 1024, .requested = 1000, .allocated = true, .active = true, .source = product},
                  {.size = 1024, .requested = 1000, .active = true, .source = product},
                  {.size = 2048}}});
  using Action = MemoryEvent::Action;
  snapshot.events = {{.action = Action::segment_alloc, .address = 4096, .size = 4096, .time_us = 1},
                     {.action = Action::alloc, .address = 4096, .size = 1024, .time_us = 2, .source = product},
                     {.action = Action::alloc, .address = 5120, .size = 1024, .time_us = 3, .source = product},
                     {.action = Action::free_requested, .address = 5120, .size = 1024, .time_us = 4},
                     {.action = Action::out_of_memory, .address = 77, .size = 1 << 20, .time_us = 5}};
  write_memory_snapshot(dir / "memory.pickle", snapshot);
  const auto result = test::run_python(dir / "check.py", R"(
import pickle, sys
from torch.cuda import _memory_viz as viz
whole = pickle.load(open(sys.argv[1], "rb"))
names = [frame["name"] for frame in whole["segments"][0]["blocks"][0]["frames"]]
assert names == ["aten::empty", "aten::mm", "forward"], names
text = viz.segsum(whole)
assert "segments: 1" in text, text
trace = viz.trace(whole)
assert "cudaMalloc" in trace and "OutOfMemoryError" in trace, trace
page = viz.trace_plot(whole)
assert "<html" in page.lower() or "script" in page.lower()
assert viz.segment_plot(whole)
print("good")
)",
                                       (dir / "memory.pickle").string());
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_NE(result.output.find("good"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace hrm
