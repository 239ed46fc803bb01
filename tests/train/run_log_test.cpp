#include "hrm/train/run_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "hrm/base/file.h"
#include "support/temp_dir.h"

namespace hrm::train {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::vector<fs::path> event_files(const fs::path& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run / "tensorboard")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// A process was killed after step 5, its last checkpoint is of step 3.
TEST(RunLog, AResumeDropsLaterSteps) {
  const test::TempDir dir;
  {
    RunLog log(dir.path());
    log.truncate_after(0);
    for (int64_t step = 1; step <= 5; ++step) log.write(step, {{"train/loss", 1.0 / static_cast<double>(step)}});
  }
  RunLog log(dir.path());
  log.truncate_after(3);
  log.write(4, {{"train/loss", 0.5}});
  EXPECT_EQ(read_text(dir / "metrics.jsonl", ExitCode::data),
            "{\"step\":1,\"train/loss\":1.0}\n{\"step\":2,\"train/loss\":0.5}\n"
            "{\"step\":3,\"train/loss\":0.3333333333333333}\n{\"step\":4,\"train/loss\":0.5}\n");
  // TensorBoard drops what it has read of step 4 and later, at a START of step 4 in front of all scalars.
  const auto files = event_files(dir.path());
  ASSERT_EQ(files.size(), 2u);
  const std::string first = read_text(files[0], ExitCode::data), second = read_text(files[1], ExitCode::data);
  EXPECT_NE(first.find("\x10\x01\x3A\x02\x08\x01"s), std::string::npos);
  const size_t start = second.find("\x10\x04\x3A\x02\x08\x01"s);
  ASSERT_NE(start, std::string::npos);
  EXPECT_LT(start, second.find("train/loss"));
}

}  // namespace
}  // namespace hrm::train
