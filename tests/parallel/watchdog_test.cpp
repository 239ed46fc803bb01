#include "hrm/parallel/watchdog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>

#include "hrm/base/error.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temp_dir.h"

namespace hrm::parallel {
namespace {

using test::free_port;
using test::launch_of;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void pass_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

constexpr WatchdogOptions quick{.heartbeat_s = 0.05, .timeout_s = 1, .stuck_s = 0};
// Where what is tested needs no timeout.
constexpr WatchdogOptions patient{.heartbeat_s = 0.05, .timeout_s = 60, .stuck_s = 0};
constexpr double slack_s = 8;  // of a machine that others use, too

// What on_failure was called with.
class Reports {
 public:
  void add(const Failure& failure) {
    std::lock_guard lock(mutex_);
    all_.push_back(failure);
    came_.notify_all();
  }
  // The first, once it is there.
  Failure first(double seconds) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !all_.empty(); });
    return all_.empty() ? Failure{-2, "nothing was reported"} : all_[0];
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Failure> all_;
};

struct Faults {
  std::atomic<bool> mute{false};   // what is written does not arrive
  std::atomic<bool> hangs{false};  // reads do not return
};

class FaultyStore : public Store {
 public:
  FaultyStore(std::unique_ptr<Store> store, std::shared_ptr<Faults> faults)
      : store_(std::move(store)), faults_(std::move(faults)) {}
  void set(const std::string& key, const std::string& value) override {
    if (!faults_->mute) store_->set(key, value);
  }
  std::optional<std::string> get(const std::string& key) override { return store_->get(key); }
  std::vector<std::optional<std::string>> get_all(const std::vector<std::string>& keys) override {
    while (faults_->hangs) pass_seconds(0.01);
    return store_->get_all(keys);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return store_->set_once(key, value);
  }
  std::optional<std::string> wait(const std::string& key, double seconds) override {
    return store_->wait(key, seconds);
  }

 private:
  std::unique_ptr<Store> store_;
  std::shared_ptr<Faults> faults_;
};

struct Member {
  Reports reports;
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  std::unique_ptr<Watchdog> dog;
};

// The watchdogs of several ranks, each with its own connection to one store.
class WatchdogTest : public testing::Test {
 protected:
  // Returns when all have begun.
  void start(int ranks, const WatchdogOptions& options, const std::vector<int>& absent = {}) {
    rendezvous_ = std::make_unique<Rendezvous>(launch_of(0, 1, free_port()), RendezvousOptions{});
    store_ = rendezvous_->connect();
    std::vector<std::unique_ptr<Store>> connections;
    for (int rank = 0; rank < ranks; ++rank) connections.push_back(rendezvous_->connect());
    for (int rank = 0; rank < ranks; ++rank) {
      members_.push_back(std::make_unique<Member>());
      if (std::count(absent.begin(), absent.end(), rank)) continue;
      Member& one = member(rank);
      auto store = std::make_unique<FaultyStore>(std::move(connections[static_cast<size_t>(rank)]), one.faults);
      one.dog = std::make_unique<Watchdog>(std::move(store), rank, ranks, options,
                                           [&one](const Failure& failure) { one.reports.add(failure); });
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (member(rank).dog) expect_written(rank, "start");
    }
  }

  // A heartbeat of the rank with this text reaches the store.
  void expect_written(int rank, const std::string& text) {
    const auto start = Clock::now();
    while (store_->get("watchdog/" + std::to_string(rank)).value_or("").find(text) == std::string::npos) {
      ASSERT_LT(seconds_since(start), slack_s);
      pass_seconds(0.005);
    }
  }

  Member& member(int rank) { return *members_[static_cast<size_t>(rank)]; }
  Watchdog& dog(int rank) { return *member(rank).dog; }
  Reports& reports(int rank) { return member(rank).reports; }

  void everyone_at(int64_t step, const char* doing) {
    for (const auto& one : members_) one->dog->at(step, doing);
  }

  // These ranks report, once and within `seconds`, the failure of `rank` with all these parts.
  void expect_failure(const std::vector<int>& who, int rank, const std::vector<std::string>& parts, double seconds) {
    const auto start = Clock::now();
    for (const int observer : who) {
      SCOPED_TRACE("rank " + std::to_string(observer));
      const Failure failure = reports(observer).first(std::max(seconds - seconds_since(start), 0.0));
      EXPECT_EQ(failure.rank, rank) << failure.sentence;
      EXPECT_EQ(failure.stuck, failure.sentence.find("stuck") != std::string::npos) << failure.sentence;
      for (const std::string& part : parts) {
        EXPECT_NE(failure.sentence.find(part), std::string::npos) << "'" << part << "' is not in: " << failure.sentence;
      }
    }
    for (const int observer : who) EXPECT_EQ(reports(observer).count(), 1u);
  }

  void expect_peace() {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      EXPECT_EQ(members_[rank]->reports.count(), 0u)
          << "rank " << rank << ": " << members_[rank]->reports.first(0).sentence;
    }
  }

  void close_store() {
    store_.reset();
    rendezvous_.reset();
  }

  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Store> store_;
  std::vector<std::unique_ptr<Member>> members_;
};

TEST_F(WatchdogTest, AllIsWell) {
  start(3, quick);
  for (int step = 0; step < 25; ++step) {
    everyone_at(step, "step");
    pass_seconds(0.1);
  }
  for (const int rank : {1, 0, 2}) dog(rank).stop();
  expect_peace();
}

TEST_F(WatchdogTest, RankWithoutHeartbeatsIsNamed) {
  start(3, quick);
  everyone_at(41, "checkpoint");
  expect_written(1, " 41 r checkpoint");
  const auto since = Clock::now();
  member(1).faults->mute = true;
  expect_failure({0, 2}, 1, {"rank 1 is gone: no heartbeat for 1.0 s, last at step 41 (checkpoint)"},
                 quick.timeout_s + 2 * quick.heartbeat_s + slack_s);
  EXPECT_GT(seconds_since(since), quick.timeout_s - 2 * quick.heartbeat_s);
  // It is told, too, if it lives.
  expect_failure({1}, 1, {"the others have given this rank up: rank 1 is gone"}, slack_s);
  pass_seconds(4 * quick.heartbeat_s);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(reports(rank).count(), 1u);
}

TEST_F(WatchdogTest, SeveralRanksThatWereNeverThere) {
  start(4, quick, {1, 3});
  expect_failure({0, 2}, 1, {"ranks 1, 3 are gone: no heartbeat for 1.0 s, nor before"}, quick.timeout_s + slack_s);
}

TEST_F(WatchdogTest, ErrorOfARankReachesTheOthers) {
  start(3, patient);
  const Failure own = dog(2).failed("'data.csv' has no line 7");
  EXPECT_EQ(own.rank, 2);
  EXPECT_EQ(own.sentence, "rank 2 failed: 'data.csv' has no line 7");
  // The consequence elsewhere, before that watchdog has spoken or after.
  EXPECT_EQ(dog(1).failed("rank 1 lost another rank").sentence, own.sentence);
  expect_failure({0}, 2, {own.sentence}, slack_s);
  pass_seconds(4 * patient.heartbeat_s);
  EXPECT_EQ(reports(2).count(), 0u);
}

TEST_F(WatchdogTest, ErrorOfTheRankThatTakesTheStoreAlong) {
  start(4, patient);
  const auto since = Clock::now();
  dog(0).failed("the disk is full");
  EXPECT_LT(seconds_since(since), patient.farewell_s);
  close_store();
  expect_failure({1, 2, 3}, 0, {"rank 0 failed: the disk is full"}, slack_s);
}

TEST_F(WatchdogTest, ExceptionThatPasses) {
  start(2, patient);
  try {
    const std::unique_ptr<Watchdog> local = std::move(member(1).dog);
    throw std::runtime_error("something");
  } catch (const std::runtime_error&) {
  }
  expect_failure({0}, 1, {"rank 1 failed: it ended by an error"}, slack_s);
}

TEST_F(WatchdogTest, FinishedRanksAreNotGone) {
  start(3, quick);
  dog(2).stop();
  member(2).dog.reset();
  pass_seconds(1.5 * quick.timeout_s);
  dog(0).stop();
  close_store();
  pass_seconds(4 * quick.heartbeat_s);
  dog(1).stop();
  expect_peace();
}

TEST_F(WatchdogTest, StoreThatIsGone) {
  start(3, patient);
  close_store();
  expect_failure({1, 2}, 0, {"rank 0, which keeps the store, is gone: it has closed the connection"}, slack_s);
}

TEST_F(WatchdogTest, AgentThatIsGone) {
  WatchdogOptions options = patient;
  options.agent_store = true;
  start(2, options);
  close_store();
  expect_failure({0, 1}, -1, {"the launcher's agent, which keeps the store, is gone"}, slack_s);
}

// A read hangs: it is reported, and left to itself in the end.
TEST_F(WatchdogTest, StoreThatDoesNotAnswer) {
  start(2, quick);
  member(1).faults->hangs = true;
  expect_failure({1}, 0, {"rank 0, which keeps the store, is gone: no answer for 1.0 s"}, quick.timeout_s + slack_s);
  const auto since = Clock::now();
  member(1).dog.reset();
  EXPECT_LT(seconds_since(since), quick.farewell_s);
  member(1).faults->hangs = false;
}

TEST_F(WatchdogTest, StopDoesNotWaitForAStoreThatHangs) {
  WatchdogOptions options = patient;
  options.farewell_s = 0.1;
  start(2, options);
  member(1).faults->hangs = true;
  pass_seconds(0.2);
  const auto since = Clock::now();
  member(1).dog.reset();
  EXPECT_LT(seconds_since(since), slack_s);
  member(1).faults->hangs = false;
  EXPECT_EQ(reports(1).count(), 0u);
}

constexpr WatchdogOptions strict{.heartbeat_s = 0.05, .timeout_s = 60, .stuck_s = 1};

TEST_F(WatchdogTest, StuckRankHasTheLowestStep) {
  start(3, strict);
  everyone_at(8, "step");
  dog(1).at(7, "data");
  expect_failure({0, 1, 2}, 1,
                 {"rank 1 is stuck at step 7 (data): no rank has moved for 1.0 s, rank 0 waits at step 8 (step)"},
                 strict.stuck_s + slack_s);
}

TEST_F(WatchdogTest, StuckRankDoesSomethingElse) {
  start(3, strict);
  everyone_at(8, "step");
  dog(0).at(8, "checkpoint");
  expect_failure({0, 1, 2}, 0, {"rank 0 is stuck at step 8 (checkpoint)", "rank 1 waits at step 8 (step)"},
                 strict.stuck_s + slack_s);
}

TEST_F(WatchdogTest, NobodyIsBehind) {
  start(2, strict);
  everyone_at(8, "step");
  dog(1).at(8, "evaluation");
  expect_failure({0, 1}, -1, {"none is behind: at step 8 (step), at step 8 (evaluation)"}, strict.stuck_s + slack_s);
}

// In a mesh the others say on which axis they wait. Who waits for nobody is behind.
TEST_F(WatchdogTest, StuckRankWaitsForNobody) {
  start(4, strict);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string waits = rank == 2 ? "" : "an all-reduce: data axis, rank 0 of 2 (global rank 0)";
    dog(rank).set_mesh([](int of) { return of % 2 == 0 ? "tensor 0 of 2" : ""; }, [waits] { return waits; });
  }
  everyone_at(8, "step");
  expect_failure({0, 1, 2, 3}, 2,
                 {"rank 2 (tensor 0 of 2) is stuck at step 8 (step)",
                  "rank 0 waits at step 8 (step) in an all-reduce: data axis, rank 0 of 2 (global rank 0)"},
                 strict.stuck_s + slack_s);
}

TEST_F(WatchdogTest, NobodyIsBehindInAMesh) {
  start(2, strict);
  for (int rank : {0, 1})
    dog(rank).set_mesh({}, [rank] { return "a barrier: data axis, rank " + std::to_string(rank); });
  everyone_at(8, "step");
  expect_failure(
      {0, 1}, -1,
      {"none is behind: at step 8 (step) in a barrier: data axis, rank 0, at step 8 (step) in a barrier: data "
       "axis, rank 1"},
      strict.stuck_s + slack_s);
}

TEST_F(WatchdogTest, LostRankIsNamedByItsPlaceInTheMesh) {
  start(3, quick);
  for (int rank = 0; rank < 3; ++rank) {
    dog(rank).set_mesh([](int of) { return "tensor " + std::to_string(of) + " of 3"; }, {});
  }
  everyone_at(3, "step");
  pass_seconds(0.3);
  member(1).faults->mute = true;
  expect_failure({0, 2}, 1, {"rank 1 (tensor 1 of 3) is gone: no heartbeat for", "last at step 3 (step)"},
                 quick.timeout_s + slack_s);
}

// A rank that waits for another one, which works for long and says so.
TEST_F(WatchdogTest, WaitingIsNotStuck) {
  start(2, strict);
  everyone_at(8, "step");
  for (int i = 0; i < 20; ++i) {
    dog(0).at(8, "evaluation");
    pass_seconds(0.1);
  }
  expect_peace();
}

// A step has a limit of its own; whoever does something else, and those who wait for it, have the longer one.
TEST_F(WatchdogTest, StepsAreStuckSooner) {
  WatchdogOptions options = strict;
  options.stuck_s = 60;
  options.stuck_step_s = 1;
  start(2, options);
  everyone_at(8, "step");
  dog(1).at(8, "checkpoint");
  pass_seconds(1.5);
  expect_peace();
  dog(1).at(7, "step");
  expect_failure({0, 1}, 1, {"rank 1 is stuck at step 7 (step): no rank has moved for 1.0 s"},
                 options.stuck_step_s + slack_s);
}

// One that is silent is not stuck: it is gone, by the limit for that.
TEST_F(WatchdogTest, GoneIsNotStuck) {
  WatchdogOptions options = strict;
  options.timeout_s = 2.5;
  options.stuck_step_s = 0.5;
  start(2, options);
  everyone_at(8, "step");
  member(1).faults->mute = true;
  expect_failure({0}, 1, {"rank 1 is gone: no heartbeat"}, options.timeout_s + slack_s);
}

TEST_F(WatchdogTest, ManyRanksWatchRankZero) {
  WatchdogOptions options = quick;
  options.watch_all_up_to = 3;
  start(4, options);
  member(3).faults->mute = true;
  expect_failure({0, 1, 2}, 3, {"rank 3 is gone"}, options.timeout_s + slack_s);
}

TEST_F(WatchdogTest, ManyRanksMissRankZero) {
  WatchdogOptions options = quick;
  options.watch_all_up_to = 3;
  start(4, options);
  member(0).faults->mute = true;
  expect_failure({1, 2, 3}, 0, {"rank 0 is gone"}, options.timeout_s + slack_s);
}

TEST(Watchdog, OneRankAloneIsStuck) {
  Reports reports;
  WatchdogOptions options = quick;
  options.stuck_s = 0.5;
  Watchdog dog(make_local_store(), 0, 1, options, [&](const Failure& failure) { reports.add(failure); });
  for (int i = 0; i < 8; ++i, pass_seconds(0.1)) dog.at(7, "step");
  EXPECT_EQ(reports.count(), 0u);
  const Failure failure = reports.first(slack_s);
  EXPECT_EQ(failure.rank, 0);
  EXPECT_EQ(failure.code, ExitCode::rank_failed);
  EXPECT_TRUE(failure.stuck);
  EXPECT_NE(failure.sentence.find("stuck at step 7 (step): it has not moved for 0.50 s"), std::string::npos)
      << failure.sentence;
}

TEST(Watchdog, OneRankAloneLeaves) {
  const auto start = Clock::now();
  {
    Watchdog dog(make_local_store(), 0, 1, {});
    dog.at(1, "step");
    EXPECT_EQ(dog.failed("no reason").sentence, "rank 0 failed: no reason");
  }
  Watchdog(make_local_store(), 0, 1, {}).stop();
  EXPECT_LT(seconds_since(start), 0.9);  // less than a heartbeat: nobody is waited for
}

TEST(Watchdog, TimesThatMakeNoSense) {
  test::expect_error(ExitCode::usage, {"timeout", "heartbeat"},
                     [] { Watchdog(nullptr, 0, 2, {.heartbeat_s = 1, .timeout_s = 1}); });
  test::expect_error(ExitCode::usage, {"negative"}, [] { Watchdog(nullptr, 0, 2, {.stuck_s = -1}); });
  test::expect_error(ExitCode::usage, {"negative"}, [] { Watchdog(nullptr, 0, 2, {.stuck_step_s = -1}); });
}

// ---- Ranks that are processes ----

constexpr const char* child_variable = "HRM_WATCHDOG_TEST_RANK";
constexpr WatchdogOptions of_processes{.heartbeat_s = 0.05, .timeout_s = 2, .stuck_s = 0};

// Not a test: what a child process runs, as rank N of 2 at port P ("N P"), until it is killed or its watchdog ends it.
TEST(WatchdogProcess, DISABLED_Rank) {
  const char* variable = std::getenv(child_variable);
  ASSERT_NE(variable, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int rank = 0, port = 0;
  std::istringstream(variable) >> rank >> port;
  Rendezvous rendezvous(launch_of(rank, 2, port), {.meet_timeout_s = 60});
  Watchdog dog(rendezvous.connect(), rank, 2, of_processes);
  rendezvous.connect()->set("child is there", "yes");
  for (int step = 0; step < 6000; ++step) {
    dog.at(step, "step");
    pass_seconds(0.01);
  }
  FAIL() << "it was not ended";
}

class Child {
 public:
  Child(int rank, int port) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, (dir_ / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    std::string task = std::string(child_variable) + "=" + std::to_string(rank) + " " + std::to_string(port);
    std::string words[] = {"test_parallel", "--gtest_filter=WatchdogProcess.DISABLED_Rank",
                           "--gtest_also_run_disabled_tests"};
    char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    std::vector<char*> environment{task.data()};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&id_, "/proc/self/exe", &files, nullptr, arguments, environment.data()), 0);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Child() {
    if (id_ <= 0) return;
    signal(SIGKILL);
    wait(30);
  }
  void signal(int number) { kill(id_, number); }
  // Its exit code; -1 if a signal ended it, -2 if it still runs after so many seconds.
  int wait(double seconds) {
    const auto start = Clock::now();
    int status = 0;
    while (waitpid(id_, &status, WNOHANG) == 0) {
      if (seconds_since(start) > seconds) return -2;
      pass_seconds(0.01);
    }
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string errors() const {
    std::stringstream text;
    text << std::ifstream(dir_ / "err").rdbuf();
    return text.str();
  }

 private:
  test::TempDir dir_;
  pid_t id_ = -1;
};

// This process and the child are the two ranks.
class WatchdogProcessTest : public testing::Test {
 protected:
  void start(int child_rank, const WatchdogOptions& own_options = of_processes) {
    const int port = free_port(), rank = 1 - child_rank;
    child_ = std::make_unique<Child>(child_rank, port);
    rendezvous_ = std::make_unique<Rendezvous>(launch_of(rank, 2, port), RendezvousOptions{.meet_timeout_s = 60});
    dog_ = std::make_unique<Watchdog>(rendezvous_->connect(), rank, 2, own_options,
                                      [this](const Failure& f) { reports_.add(f); });
    ASSERT_EQ(rendezvous_->connect()->wait("child is there", 60), "yes");
  }
  void expect_gone(int rank, const std::string& part) {
    const Failure failure = reports_.first(of_processes.timeout_s + slack_s);
    EXPECT_EQ(failure.rank, rank) << failure.sentence;
    EXPECT_NE(failure.sentence.find(part), std::string::npos) << failure.sentence;
  }

  std::unique_ptr<Child> child_;
  std::unique_ptr<Rendezvous> rendezvous_;
  Reports reports_;
  std::unique_ptr<Watchdog> dog_;
};

TEST_F(WatchdogProcessTest, KilledRank) {
  start(1);
  child_->signal(SIGKILL);
  expect_gone(1, "rank 1 is gone: no heartbeat for 2.0 s");
}

TEST_F(WatchdogProcessTest, StoppedRankLeavesWhenItGoesOn) {
  start(1);
  child_->signal(SIGSTOP);
  expect_gone(1, "rank 1 is gone: no heartbeat for 2.0 s");
  child_->signal(SIGCONT);
  EXPECT_EQ(child_->wait(slack_s), static_cast<int>(ExitCode::rank_failed));
  const std::string said = child_->errors();
  EXPECT_NE(said.find("error: rank 1 leaves: the others have given this rank up: rank 1 is gone"), std::string::npos)
      << said;
  EXPECT_NE(said.find("the training thread of rank 1 is in:\n  libc.so.6: "), std::string::npos) << said;
  EXPECT_NE(said.find("nanosleep"), std::string::npos) << said;
}

// Where the others have more patience: it must not take them for gone because of the time that it missed.
TEST_F(WatchdogProcessTest, StoppedRankThatIsNotGivenUpGoesOn) {
  start(1, patient);
  child_->signal(SIGSTOP);
  pass_seconds(of_processes.timeout_s * 1.2);
  child_->signal(SIGCONT);
  EXPECT_EQ(child_->wait(1), -2) << child_->errors();
  EXPECT_EQ(reports_.count(), 0u) << reports_.first(0).sentence;
}

TEST_F(WatchdogProcessTest, KilledKeeperOfTheStore) {
  start(0);
  child_->signal(SIGKILL);
  expect_gone(0, "rank 0, which keeps the store, is gone: it has closed the connection");
}

TEST_F(WatchdogProcessTest, StoppedKeeperOfTheStore) {
  start(0);
  child_->signal(SIGSTOP);
  expect_gone(0, "rank 0, which keeps the store, is gone: no answer for 2.0 s");
}

}  // namespace
}  // namespace hrm::parallel
