// run.on_event, as users meet it: a command hears of each end of a run, and never changes it.

#include <nlohmann/json.hpp>

#include "cli/finished_run.h"

namespace hrm {
namespace {

using nlohmann::json;
using test::read;
using test::Result;
using test::run;
using test::TempDir;
using test::train_in;

std::vector<std::string> with_event(const TempDir& dir, std::vector<std::string> more = {}) {
  more.push_back("run.on_event=cat >> " + test::quoted((dir / "events").string()));
  return train_in(dir.path(), more);
}

json told(const TempDir& dir) {
  const std::string text = read(dir / "events");
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

TEST(OnEvent, FinishedOnce) {
  const TempDir dir;
  const Result result = run(with_event(dir));
  ASSERT_EQ(result.code, 0) << result.err;
  const json event = told(dir);
  ASSERT_TRUE(event.is_object()) << read(dir / "events");
  EXPECT_EQ(event["event"], "finished");
  EXPECT_EQ(event["step"], 4);
  EXPECT_EQ(event["steps"], 4);
  EXPECT_EQ(event["exit_code"], 0);
  EXPECT_TRUE(event["metrics"].contains("eval/exact_accuracy"));
  EXPECT_EQ(run(with_event(dir)).code, 0);
  EXPECT_EQ(told(dir), event) << "it was finished before";
}

TEST(OnEvent, StoppedAndAFailingCommand) {
  const TempDir dir;
  const Result stopped = run(with_event(dir, {"train.max_seconds=1e-9"}));
  EXPECT_EQ(stopped.code, static_cast<int>(ExitCode::stopped)) << stopped.err;
  EXPECT_EQ(told(dir)["event"], "stopped");
  EXPECT_EQ(told(dir)["exit_code"], 75);
  EXPECT_NE(told(dir)["message"].get<std::string>().find("of 4 (train.max_seconds)"), std::string::npos);
  const Result failing = run(train_in(dir.path(), {"run.on_event=echo heard; exit 5"}));
  EXPECT_EQ(failing.code, 0) << failing.err;
  EXPECT_EQ(failing.out, "") << "standard output is the program's";
  EXPECT_NE(failing.err.find("heard\n"), std::string::npos);
  EXPECT_NE(failing.err.find("warning: run.on_event (finished): it ended with code 5"), std::string::npos);
}

TEST(OnEvent, DivergedStuckAndFailed) {
  const TempDir diverged;
  EXPECT_EQ(
      run(with_event(diverged, {"train.max_nonfinite_steps=1"}), {.environment = "HRM_FAIL=step.gradient:2:nan"}).code,
      static_cast<int>(ExitCode::diverged));
  EXPECT_EQ(told(diverged)["event"], "diverged");
  EXPECT_EQ(told(diverged)["exit_code"], 6);
  EXPECT_NE(told(diverged)["message"].get<std::string>().find("step 2 is not finite"), std::string::npos);

  const TempDir stuck;
  EXPECT_EQ(run(with_event(stuck, {"train.stuck_after_s=2"}), {.environment = "HRM_FAIL=step.begin:3:sleep=50"}).code,
            static_cast<int>(ExitCode::rank_failed));
  EXPECT_EQ(told(stuck)["event"], "stuck");
  EXPECT_EQ(told(stuck)["exit_code"], 7);
  EXPECT_EQ(told(stuck)["step"], 2);

  const TempDir failed;
  EXPECT_EQ(run(with_event(failed, {"data.train=" + (failed / "none.csv").string()})).code,
            static_cast<int>(ExitCode::data));
  EXPECT_EQ(told(failed)["event"], "failed");
  EXPECT_TRUE(told(failed)["step"].is_null());
}

}  // namespace
}  // namespace hrm
