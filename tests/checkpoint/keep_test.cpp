// Which checkpoints stay, which lose their name, and whether there is room for them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "sample_state.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

const bool kQuietKeep = (log::set_level(log::Level::error), true);

void save_with_score(const TempDir& run, int64_t step, const Keep& keep, const std::string& score = "") {
  SampleState state(step);
  CheckpointMeta meta = sample_meta(step);
  if (!score.empty()) meta.info[kScore] = score;
  save_checkpoint(run.path(), state, meta, keep);
}

std::vector<int64_t> steps(const TempDir& run) {
  std::vector<int64_t> out;
  for (const fs::path& dir : list_checkpoints(run.path())) out.push_back(open_checkpoint(dir).meta.step);
  return out;
}

using Steps = std::vector<int64_t>;

TEST(Keep, TheNewest) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30, 40}) save_with_score(run, step, {2});
  EXPECT_EQ(steps(run), (Steps{40, 30}));
}

TEST(Keep, EveryNth) {
  const TempDir run;
  for (int64_t step = 10; step <= 100; step += 10) save_with_score(run, step, {2, 30});
  EXPECT_EQ(steps(run), (Steps{100, 90, 60, 30}));
}

TEST(Keep, TheBestAndOfEqualsTheNewest) {
  const TempDir run;
  const char* scores[] = {"0.1", "0.5", "", "0.5", "0.25", "nan", ""};
  for (int64_t i = 0; i < 7; ++i) save_with_score(run, 10 * (i + 1), {1, 0, true}, scores[i]);
  EXPECT_EQ(steps(run), (Steps{70, 40}));
  EXPECT_EQ(best_score(run.path()), 0.5);
  save_with_score(run, 80, {1, 0, true}, "0.75");
  EXPECT_EQ(steps(run), (Steps{80}));
  save_with_score(run, 90, {1, 0, false});
  EXPECT_EQ(steps(run), (Steps{90}));
  EXPECT_EQ(best_score(run.path()), std::nullopt);
}

TEST(Keep, ADamagedOneIsNotTheBest) {
  const TempDir run;
  save_with_score(run, 10, {5}, "0.9");
  save_with_score(run, 20, {5}, "0.5");
  fs::resize_file(run / "checkpoints" / "step-000000010" / "manifest.json", 20);
  save_with_score(run, 30, {1, 0, true});
  EXPECT_EQ(steps(run), (Steps{30, 20}));
}

TEST(Quarantine, ABadCheckpointLosesItsName) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30}) save_with_score(run, step, {5});
  const fs::path folder = run / "checkpoints";
  fs::resize_file(folder / "step-000000030" / "model.pt", 100);
  fs::remove(folder / "step-000000020" / "manifest.json");
  EXPECT_EQ(find_latest_valid(run.path())->meta.step, 10);
  EXPECT_TRUE(fs::exists(folder / "step-000000030")) << "who does not own the run renames nothing";
  EXPECT_EQ(find_latest_valid(run.path(), Quarantine::yes)->meta.step, 10);
  EXPECT_EQ(steps(run), (Steps{10}));
  EXPECT_EQ(fs::file_size(folder / "bad-step-000000030" / "model.pt"), 100u) << "nothing is deleted";
  EXPECT_TRUE(fs::exists(folder / "bad-step-000000020"));
  // The same step is saved again and goes bad again.
  save_with_score(run, 30, {5});
  fs::resize_file(folder / "step-000000030" / "model.pt", 200);
  EXPECT_EQ(find_latest_valid(run.path(), Quarantine::yes)->meta.step, 10);
  EXPECT_EQ(fs::file_size(folder / "bad-step-000000030-2" / "model.pt"), 200u);
}

// It may be a good one: the disk or the permissions are at fault.
TEST(Quarantine, WhatCannotBeReadKeepsItsName) {
  const TempDir run;
  for (const int64_t step : {10, 20}) save_with_score(run, step, {5});
  const fs::path newest = run / "checkpoints" / "step-000000020";
  fs::permissions(newest / "model.pt", fs::perms::none);
  for (const fs::path& dir : {run.path(), run / "checkpoints"}) fs::permissions(dir, fs::perms::all);
  for (const fs::path& dir : list_checkpoints(run.path())) {
    fs::permissions(dir, fs::perms::all);
    if (dir == newest) continue;
    for (const auto& file : fs::directory_iterator(dir)) fs::permissions(file, fs::perms::all);
  }
  fs::permissions(newest / "manifest.json", fs::perms::all);
  const uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(65534), 0);  // root reads everything
  }
  const auto found = find_latest_valid(run.path(), Quarantine::yes);
  ASSERT_EQ(::seteuid(user), 0);
  EXPECT_EQ(found->meta.step, 10);
  EXPECT_TRUE(fs::exists(newest));
  fs::permissions(newest / "model.pt", fs::perms::owner_all);
  EXPECT_EQ(find_latest_valid(run.path(), Quarantine::yes)->meta.step, 20);
}

TEST(Quarantine, NorWhereTheFolderCannotBeListed) {
  const TempDir run;
  std::ofstream(run / "checkpoints") << "a file where the folder should be";
  expect_error(ExitCode::environment, {"cannot list the checkpoints"},
               [&] { find_latest_valid(run.path(), Quarantine::yes); });
}

TEST(Quarantine, NeverASilentFreshStart) {
  const TempDir run;
  save_with_score(run, 10, {5});
  save_with_score(run, 20, {5});
  for (const fs::path& dir : list_checkpoints(run.path())) fs::resize_file(dir / "model.pt", 100);
  expect_error(ExitCode::checkpoint, {"none of the 2 checkpoints", "model.pt has 100 bytes"},
               [&] { find_latest_valid(run.path(), Quarantine::yes); });
  // They are renamed now; the next start must not take the run for a new one.
  for (const Quarantine how : {Quarantine::yes, Quarantine::no}) {
    expect_error(ExitCode::checkpoint, {"no checkpoint but bad ones", "bad-step-000000020", "run.name"},
                 [&] { find_latest_valid(run.path(), how); });
  }
}

TEST(Volume, WithRoom) {
  const TempDir run;
  SampleState state(1);
  const uint64_t bytes = checkpoint_bytes(list_state(state));
  EXPECT_GT(check_volume(run.path(), bytes, {}), 3 * bytes);
  EXPECT_TRUE(fs::is_empty(run / "checkpoints")) << "nothing is left of the trial";
  save_with_score(run, 1, {});
  uint64_t real = 0;
  for (const auto& file : fs::directory_iterator(run / "checkpoints" / "step-000000001")) real += file.file_size();
  EXPECT_GE(bytes, real);
  EXPECT_LT(bytes, real + (128 << 10)) << "rounded up too much";
}

TEST(Volume, WithoutRoom) {
  const TempDir run;
  const uint64_t free = std::filesystem::space(run.path()).available;
  // Three must fit, and what is there already counts.
  expect_error(ExitCode::environment, {"free; 3 checkpoints of", "must fit", "train.keep_checkpoints"},
               [&] { check_volume(run.path(), free / 2, {}); });
  expect_error(ExitCode::environment, {"free; 2 checkpoints of"}, [&] { check_volume(run.path(), free, {1}); });
  check_volume(run.path(), free / 4, {});
  save_with_score(run, 10, {5});
  save_with_score(run, 20, {5});
  save_with_score(run, 30, {5});
  check_volume(run.path(), free / 2, {});
  expect_error(ExitCode::environment, {"free; another checkpoint of"}, [&] { check_volume(run.path(), 2 * free, {}); });
}

TEST(Volume, ThatTakesNoFiles) {
  expect_error(ExitCode::environment, {"/proc"}, [] { check_volume("/proc/hrm_run", 1000, {}); });
  const TempDir run;
  for (const char* order : {"file.open:1:eio", "file.reserve:1:enospc", "file.write:1:eio", "file.fsync:1:eio",
                            "file.rename:1:eio", "directory.fsync:1:eio", "directory.create:1:enospc"}) {
    SCOPED_TRACE(order);
    failpoint::arm(order);
    expect_error(ExitCode::environment, {"checkpoints cannot be written in", "choose another run.dir"},
                 [&] { check_volume(run.path(), 1000, {}); });
    failpoint::arm("");
    EXPECT_TRUE(fs::is_empty(run / "checkpoints"));
  }
}

}  // namespace
}  // namespace hrm::checkpoint
