// Saving while training goes on.
#include "hrm/checkpoint/saver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "sample_state.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

const bool kQuietSaver = (log::set_level(log::Level::error), true);

class SaverTest : public testing::Test {
 protected:
  ~SaverTest() override { failpoint::arm(""); }

  // The steps of the checkpoints, newest first; each must hold the state of that number.
  std::vector<int64_t> saved_steps() {
    std::vector<int64_t> steps;
    for (const fs::path& dir : list_checkpoints(run_.path())) {
      steps.push_back(open_checkpoint(dir).meta.step);
      SampleState loaded(0), expected(steps.back());
      load_checkpoint(dir, loaded);
      EXPECT_EQ(digest_state(loaded), digest_state(expected)) << dir;
    }
    return steps;
  }
  int64_t entries() const { return std::distance(fs::directory_iterator(run_ / "checkpoints"), {}); }

  test::TempDir run_;
  SaverOptions quick_{.keep = 10, .first_retry_s = 0.01, .last_retry_s = 0.02};
};

// What training does to a state after save() returned.
void overwrite(SampleState& state) {
  const at::NoGradGuard no_grad;
  for (TensorEntry& entry : list_state(state).tensors) entry.tensor.fill_(1);
  state.step = 1;
  state.third = 1;
}

TEST_F(SaverTest, SnapshotIsOfTheMomentInMemoryOfItsOwn) {
  SampleState state(4);
  Snapshot snapshot;
  snapshot.take(state);
  overwrite(state);
  snapshot.wait();
  SampleState expected(4);
  const StateListing then = list_state(expected);
  const StateListing& taken = snapshot.listing();
  ASSERT_EQ(taken.tensors.size(), then.tensors.size());
  for (size_t i = 0; i < then.tensors.size(); ++i) {
    const TensorEntry &a = then.tensors[i], &b = taken.tensors[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_TRUE(a.tensor.eq(b.tensor).logical_or(a.tensor.ne(a.tensor)).all().item<bool>()) << a.name;
    EXPECT_EQ(a.tensor.requires_grad(), b.tensor.requires_grad()) << a.name;
    EXPECT_EQ(a.part, b.part) << a.name;
  }
  EXPECT_EQ(taken.integers, then.integers);
  EXPECT_EQ(taken.reals, then.reals);
  const void* memory = taken.tensors[0].tensor.const_data_ptr();
  snapshot.take(state);
  EXPECT_EQ(snapshot.listing().tensors[0].tensor.const_data_ptr(), memory) << "allocated again";
}

TEST_F(SaverTest, WhatChangesAfterwardsIsNotSaved) {
  Saver saver(run_.path(), quick_);
  for (const int64_t step : {3, 5, 8}) {
    SampleState state(step);
    saver.save(state, sample_meta(step));
    overwrite(state);
  }
  saver.finish(0);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{8, 5, 3}));
  EXPECT_EQ(saver.saved_step(), 8);
  EXPECT_EQ(entries(), 3) << "nothing temporary is left";
}

TEST_F(SaverTest, TrainingGoesOnWhileItIsWritten) {
  std::atomic<bool> go{false};
  quick_.before_commit = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Saver saver(run_.path(), quick_);
  SampleState state(3);
  saver.save(state, sample_meta(3));
  EXPECT_EQ(saver.saved_step(), -1);
  EXPECT_TRUE(list_checkpoints(run_.path()).empty());
  go = true;
  saver.finish(0);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{3}));
}

TEST_F(SaverTest, AtMostOneIsOnItsWay) {
  std::atomic<int> at_once{0}, most{0};
  quick_.before_commit = [&] {
    most = std::max<int>(most, ++at_once);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    --at_once;
  };
  Saver saver(run_.path(), quick_);
  for (const int64_t step : {3, 4, 5}) {
    SampleState state(step);
    saver.save(state, sample_meta(step));
  }
  saver.finish(0);
  EXPECT_EQ(most, 1);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{5, 4, 3}));
}

TEST_F(SaverTest, SynchronousSavingReturnsWhenItIsWritten) {
  quick_.asynchronous = false;
  Saver saver(run_.path(), quick_);
  SampleState state(3);
  saver.save(state, sample_meta(3));
  EXPECT_EQ(saver.saved_step(), 3);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{3}));
}

TEST_F(SaverTest, AFailedWriteIsTriedAgain) {
  for (const char* order : {"file.reserve:1:enospc", "file.write:2:eio", "file.fsync:3:enospc", "file.rename:1:eio",
                            "directory.create:1:enospc", "checkpoint.commit:1:throw"}) {
    SCOPED_TRACE(order);
    fs::remove_all(run_ / "checkpoints");
    Saver saver(run_.path(), quick_);
    SampleState first(1), second(2);
    saver.save(first, sample_meta(1));
    saver.finish(0);
    failpoint::arm(order);
    saver.save(second, sample_meta(2));
    saver.finish(10);
    EXPECT_EQ(saver.failure(), "");
    EXPECT_EQ(saver.lost_in_a_row(), 0);
    EXPECT_EQ(saved_steps(), (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(entries(), 2);
    failpoint::arm("");
  }
}

TEST_F(SaverTest, OneThatCannotBeWrittenGivesWayToTheNext) {
  Saver saver(run_.path(), quick_);
  SampleState first(1);
  saver.save(first, sample_meta(1));
  saver.finish(0);
  failpoint::arm("file.write:1+:enospc");
  for (const int64_t step : {2, 3, 4}) {
    SampleState state(step);
    saver.save(state, sample_meta(step));
  }
  expect_error(ExitCode::environment, {"checkpoint of step 4 was not saved", "No space left"},
               [&] { saver.finish(0.1); });
  EXPECT_EQ(saver.lost_in_a_row(), 2) << "2 and 3 gave way";
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{1}));
  EXPECT_EQ(entries(), 1);
  failpoint::arm("");
  SampleState last(5);
  saver.save(last, sample_meta(5));
  saver.finish(0);
  EXPECT_EQ(saver.lost_in_a_row(), 0);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{5, 1})) << "4 was given up";
}

TEST_F(SaverTest, EndsAtOnceWhileAWriteFails) {
  const auto start = std::chrono::steady_clock::now();
  {
    quick_.first_retry_s = 60;
    Saver saver(run_.path(), quick_);
    failpoint::arm("file.write:1+:eio");
    SampleState state(1);
    saver.save(state, sample_meta(1));
    while (saver.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(SaverTest, WhatMustComeFirstAndFailsKeepsTheCheckpointFromItsName) {
  int calls = 0;
  quick_.before_commit = [&] { require(++calls > 2, ExitCode::environment, "the log cannot be written"); };
  Saver saver(run_.path(), quick_);
  SampleState state(1);
  saver.save(state, sample_meta(1));
  saver.finish(10);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{1}));
}

}  // namespace
}  // namespace hrm::checkpoint
