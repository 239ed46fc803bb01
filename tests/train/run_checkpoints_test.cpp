// Ranks that save together: as threads of this process.
#include "train/run_checkpoints.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temp_dir.h"

namespace hrm::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointMeta;
using test::expect_error;

// Rows of `groups` groups of ranks: ranks of one group hold the same.
class Rows : public Stateful {
 public:
  Rows(int rank, int ranks, int groups) {
    const int64_t group = rank / (ranks / groups), count = 12 / groups;
    values = at::zeros({count, 2});
    part = groups == 1 ? StatePart() : rows_part(values.sizes(), group * count, 12);
    first_ = group * count;
  }
  void set(int64_t step) {
    values.copy_(at::arange(24).view({12, 2}).narrow(0, first_, values.size(0)) + step * 100);
    weight.fill_(step);
    count = step;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.tensor("weight", weight, StateRole::weight);
    visitor.tensor("carry.values", values, StateRole::carry, part);
    visitor.integer("loop.count", count);
  }
  at::Tensor weight = at::zeros({3}), values;
  StatePart part;
  int64_t count = 0;

 private:
  int64_t first_ = 0;
};

class RunCheckpointsTest : public ::testing::Test {
 protected:
  RunCheckpointsTest() { log::set_level(log::Level::error); }
  ~RunCheckpointsTest() override {
    failpoint::arm("");
    log::set_level(log::Level::info);  // for the program's other tests
  }

  void on_ranks(int ranks, int groups, const std::function<void(parallel::Comm&, Rows&, RunCheckpoints&)>& body) {
    const auto comms = parallel::make_thread_comms(ranks);
    test::on_threads(ranks, [&](int rank) {
      parallel::Comm& comm = *comms[static_cast<size_t>(rank)];
      Rows state(rank, ranks, groups);
      RunCheckpoints checkpoints(state, comm, run_.path(), options_);
      body(comm, state, checkpoints);
    });
  }
  static CheckpointMeta meta(int64_t step) { return {step, "{}", {{"note", "rank 0's"}}}; }

  // The steps, newest first; each must hold what its number says.
  std::vector<int64_t> saved_steps() {
    std::vector<int64_t> steps;
    for (const fs::path& dir : checkpoint::list_checkpoints(run_.path())) {
      steps.push_back(checkpoint::open_checkpoint(dir).meta.step);
      Rows loaded(0, 1, 1), expected(0, 1, 1);
      checkpoint::load_checkpoint(dir, loaded);
      expected.set(steps.back());
      EXPECT_EQ(digest_state(loaded), digest_state(expected)) << dir;
    }
    return steps;
  }
  int64_t entries() const { return std::distance(fs::directory_iterator(run_ / "checkpoints"), {}); }
  static void await(const std::function<bool()>& done) {
    while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  test::TempDir run_;
  checkpoint::SaverOptions options_{.keep = 10, .first_retry_s = 0.01, .last_retry_s = 0.02};
};

TEST_F(RunCheckpointsTest, PartsOfAllRanksAreOneCheckpoint) {
  on_ranks(4, 4, [&](parallel::Comm&, Rows& state, RunCheckpoints& checkpoints) {
    EXPECT_TRUE(checkpoints.in_parts());
    for (const int64_t step : {3, 5, 8}) {
      state.set(step);
      checkpoints.save(meta(step));
      state.set(1);  // training goes on
    }
    checkpoints.finish(0);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{8, 5, 3}));
  EXPECT_EQ(entries(), 3) << "nothing temporary is left";
  const fs::path dir = checkpoint::list_checkpoints(run_.path()).front();
  EXPECT_TRUE(fs::exists(dir / "state-00004-of-00004.safetensors"));
  EXPECT_TRUE(fs::exists(dir / "model.pt")) << "no weight is split";
  EXPECT_EQ(checkpoint::open_checkpoint(dir).meta.info.at("note"), "rank 0's");
}

TEST_F(RunCheckpointsTest, WhatIsWholeIsWrittenAsByOneRank) {
  on_ranks(3, 1, [&](parallel::Comm&, Rows& state, RunCheckpoints& checkpoints) {
    EXPECT_FALSE(checkpoints.in_parts());
    state.set(7);
    checkpoints.save(meta(7));
    EXPECT_FALSE(checkpoints.part_written());
    checkpoints.commit_if_written();
    checkpoints.finish(0);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{7}));
  EXPECT_TRUE(fs::exists(checkpoint::list_checkpoints(run_.path()).front() / "state.safetensors"));
}

// The first rank that holds rows writes them.
TEST_F(RunCheckpointsTest, ReplicasAreWrittenOnce) {
  std::array<uint64_t, 2> bytes{};
  on_ranks(4, 2, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
    state.set(4);
    checkpoints.save(meta(4));
    checkpoints.finish(0);
    if (comm.main()) bytes[0] = checkpoints.bytes();
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{4}));
  const fs::path dir = checkpoint::list_checkpoints(run_.path()).front();
  const auto size = [&](int64_t part) { return fs::file_size(dir / checkpoint::part_file_name("state", part, 4)); };
  EXPECT_GT(size(2), size(1));
  EXPECT_EQ(size(1), size(3)) << "the second rank of a group writes nothing of it";
}

TEST_F(RunCheckpointsTest, CommittedWhenAllHaveWritten) {
  on_ranks(2, 2, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
    state.set(3);
    checkpoints.save(meta(3));
    await([&] { return checkpoints.part_written(); });
    comm.barrier();
    EXPECT_TRUE(checkpoint::list_checkpoints(run_.path()).empty()) << "not before all have said so";
    comm.barrier();
    checkpoints.commit_if_written();
    EXPECT_FALSE(checkpoints.part_written());
    if (comm.main()) await([&] { return !checkpoint::list_checkpoints(run_.path()).empty(); });
    comm.barrier();
    EXPECT_EQ(checkpoint::list_checkpoints(run_.path()).size(), 1u);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{3}));
}

TEST_F(RunCheckpointsTest, SynchronousSavingReturnsWhenItIsCommitted) {
  options_.asynchronous = false;
  on_ranks(2, 2, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
    state.set(3);
    checkpoints.save(meta(3));
    comm.barrier();
    EXPECT_EQ(checkpoint::list_checkpoints(run_.path()).size(), 1u);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{3}));
}

TEST_F(RunCheckpointsTest, AFailedWriteOfOneRankIsTriedAgain) {
  failpoint::arm("file.open:3:eio");
  on_ranks(2, 2, [&](parallel::Comm&, Rows& state, RunCheckpoints& checkpoints) {
    state.set(3);
    checkpoints.save(meta(3));
    checkpoints.finish(10);
    EXPECT_EQ(checkpoints.lost_in_a_row(), 0);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{3}));
  EXPECT_EQ(entries(), 1);
}

// Also where it is the commit that cannot be written.
TEST_F(RunCheckpointsTest, WhatCannotBeWrittenGivesWayOnEveryRank) {
  for (const char* where : {"file.write:1+:enospc", "checkpoint.commit:1+:throw", "file.open:5+:enospc"}) {
    SCOPED_TRACE(where);
    failpoint::arm(where);
    on_ranks(2, 2, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
      state.set(3);
      checkpoints.save(meta(3));
      expect_error(ExitCode::environment, {}, [&] { checkpoints.finish(0.05); });
      comm.barrier();
      if (comm.main()) failpoint::arm("");
      comm.barrier();
      state.set(5);
      checkpoints.save(meta(5));
      checkpoints.finish(10);
    });
    EXPECT_EQ(saved_steps(), (std::vector<int64_t>{5}));
    EXPECT_EQ(entries(), 1);
    fs::remove_all(run_ / "checkpoints");
  }
}

TEST_F(RunCheckpointsTest, LostOnesAreCountedOnEveryRank) {
  failpoint::arm("file.fsync:1+:eio");
  on_ranks(2, 2, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
    for (const int64_t step : {3, 4, 5}) {
      state.set(step);
      checkpoints.save(meta(step));
      await([&] { return !checkpoints.failure().empty(); });
    }
    EXPECT_EQ(checkpoints.lost_in_a_row(), 2);
    comm.barrier();
    if (comm.main()) failpoint::arm("");
    comm.barrier();
    checkpoints.finish(10);
  });
  EXPECT_EQ(saved_steps(), (std::vector<int64_t>{5}));
}

TEST_F(RunCheckpointsTest, ADumpIsWrittenAtOnce) {
  for (const int groups : {1, 2}) {
    on_ranks(2, groups, [&](parallel::Comm& comm, Rows& state, RunCheckpoints& checkpoints) {
      state.set(9);
      const fs::path dir = checkpoints.dump(run_ / "diverged", meta(9));
      EXPECT_EQ(dir.empty(), !comm.main());
    });
    Rows loaded(0, 1, 1);
    checkpoint::load_checkpoint(checkpoint::open_checkpoint(run_ / "diverged").dir, loaded);
    EXPECT_EQ(loaded.count, 9);
    EXPECT_TRUE(checkpoint::list_checkpoints(run_.path()).empty());
    failpoint::arm("file.write:1+:enospc");
    on_ranks(2, groups, [&](parallel::Comm&, Rows& state, RunCheckpoints& checkpoints) {
      state.set(10);
      expect_error(ExitCode::environment, {"step 10"}, [&] { checkpoints.dump(run_ / "diverged", meta(10)); });
    });
    failpoint::arm("");
  }
}

}  // namespace
}  // namespace hrm::train
