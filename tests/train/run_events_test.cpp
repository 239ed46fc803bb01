#include "train/run_events.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/small_run.h"

namespace hrm::train {
namespace {

using nlohmann::json;
using testing::fresh_folder;

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RunWithInput, GivesTheInputAndSaysHowItFailed) {
  const auto dir = fresh_folder("run");
  const std::string big(1 << 20, 'x');
  EXPECT_EQ(run_with_input("cat > '" + (dir / "got").string() + "'", big, 20), "");
  EXPECT_EQ(text_of(dir / "got"), big);
  EXPECT_EQ(run_with_input("true", big, 20), "") << "who does not read it keeps nobody waiting";
  EXPECT_EQ(run_with_input("exit 7", "", 20), "it ended with code 7");
  EXPECT_EQ(run_with_input("kill -9 $$", "", 20), "it ended by signal 9");
  EXPECT_EQ(run_with_input("no-such-command-of-ours 2>/dev/null", "", 20), "it ended with code 127");
}

TEST(RunWithInput, EndsWhatTakesTooLongWithAllThatItStarted) {
  const auto dir = fresh_folder("run");
  const auto begin = std::chrono::steady_clock::now();
  const std::string child = (dir / "child").string();
  EXPECT_EQ(run_with_input("sleep 60 & echo $! > '" + child + "'; wait", "", 0.2),
            "it took longer than 0.20 s and was ended");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  const int pid = std::stoi(text_of(child));
  const auto gone = [&] {
    const std::string state = text_of("/proc/" + std::to_string(pid) + "/stat");
    return state.empty() || state.find(") Z") != std::string::npos;
  };
  for (int i = 0; i < 1000 && !gone(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(gone());
}

// Ignored signals and masks of the training are not those of the command.
TEST(RunWithInput, TheCommandHasSignalsAsUsual) {
  const auto before = signal(SIGTERM, SIG_IGN);
  EXPECT_EQ(run_with_input("kill -TERM $$; exit 0", "", 20), "it ended by signal 15");
  signal(SIGTERM, before);
}

class RunEventsTest : public ::testing::Test {
 protected:
  config::RunConfig config(const std::string& command) {
    config::RunConfig run;
    run.name = "small";
    run.on_event = command;
    return run;
  }
  std::string to_file() { return "cat >> '" + (dir_ / "events").string() + "'"; }
  json told() {
    const std::string text = text_of(dir_ / "events");
    return text.empty() ? json() : json::parse(text);
  }
  std::filesystem::path dir_ = fresh_folder("run");
};

TEST_F(RunEventsTest, TellsWhatIsKnown) {
  std::ofstream(dir_ / "metrics.jsonl") << R"({"step": 4, "train/loss": 2.5})"
                                        << "\n"
                                        << R"({"step": 8, "train/loss": 1.5, "perf/mfu": null})"
                                        << "\n"
                                        << R"({"step": 9, "tra)";
  RunEvents events(config(to_file()), dir_, /*main=*/true);
  events.tell(RunEvent::stopped, ExitCode::stopped, "stopped at step 8 of 20 (SIGTERM)");
  events.tell(RunEvent::failed, ExitCode::unexpected, "a run has one end");
  const json event = told();
  EXPECT_EQ(event["event"], "stopped");
  EXPECT_EQ(event["run"], "small");
  EXPECT_EQ(event["folder"], std::filesystem::absolute(dir_).string());
  EXPECT_EQ(event["step"], 8);
  EXPECT_TRUE(event["steps"].is_null());
  EXPECT_EQ(event["exit_code"], 75);
  EXPECT_EQ(event["message"], "stopped at step 8 of 20 (SIGTERM)");
  EXPECT_EQ(event["metrics"]["train/loss"], 1.5);
  EXPECT_EQ(event["time"].get<std::string>().size(), 20U);
}

TEST_F(RunEventsTest, KnowsTheStepsOfTheRunAndItsLastLine) {
  testing::SmallRun run(dir_, {"train.steps=4", "train.log_every=2"});
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), Outcome::finished);
  RunEvents events(config(to_file()), dir_ / "small", /*main=*/true);
  events.trains(run.trainer);
  events.tell(RunEvent::finished, ExitCode::done, "finished 4 steps");
  EXPECT_EQ(told()["step"], 4);
  EXPECT_EQ(told()["steps"], 4);
  EXPECT_TRUE(told()["metrics"].contains("eval/exact_accuracy"));
}

TEST_F(RunEventsTest, HostileTextIsTextAndNothingIsKnown) {
  RunEvents events(config(to_file()), dir_ / "no such folder", /*main=*/true);
  events.tell(RunEvent::failed, ExitCode::data, "'; rm -rf / #\n\xff\"");
  EXPECT_EQ(told()["message"].get<std::string>().substr(0, 14), "'; rm -rf / #\n");
  EXPECT_TRUE(told()["metrics"].is_null());
  EXPECT_TRUE(told()["step"].is_null());
}

TEST_F(RunEventsTest, AFailureOfTheCommandIsAWarning) {
  RunEvents events(config("exit 3"), dir_, /*main=*/true);
  ::testing::internal::CaptureStderr();
  events.tell(RunEvent::finished, ExitCode::done, "");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("warning: run.on_event (finished): it ended with code 3"),
            std::string::npos);
}

TEST_F(RunEventsTest, OfSeveralRanksOneTells) {
  const auto told_by = [&](int rank, const parallel::Failure& failure) -> std::string {
    std::filesystem::remove(dir_ / "events");
    RunEvents events(config(to_file()), dir_, /*main=*/rank == 0);
    events.tell_failure(failure, rank);
    return told().is_null() ? "" : told()["event"].get<std::string>();
  };
  const parallel::Failure stuck{1, "rank 1 is stuck", ExitCode::rank_failed, /*stuck=*/true};
  EXPECT_EQ(told_by(0, stuck), "stuck");
  EXPECT_EQ(told_by(1, stuck), "");
  const parallel::Failure first_stuck{0, "rank 0 is stuck", ExitCode::rank_failed, /*stuck=*/true};
  EXPECT_EQ(told_by(0, first_stuck), "stuck");
  EXPECT_EQ(told_by(1, first_stuck), "");
  const parallel::Failure first_gone{0, "rank 0 is gone", ExitCode::rank_failed, /*stuck=*/false};
  EXPECT_EQ(told_by(1, first_gone), "failed");
  EXPECT_EQ(told_by(2, first_gone), "");
  const parallel::Failure diverged{0, "not finite", ExitCode::diverged, /*stuck=*/false};
  EXPECT_EQ(told_by(0, diverged), "diverged");
  EXPECT_EQ(told_by(1, diverged), "");
}

}  // namespace
}  // namespace hrm::train
