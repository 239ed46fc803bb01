#include "hrm/base/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <set>

#include "hrm/base/file.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

using failpoint::Action;
using failpoint::hit;
using test::expect_error;

class FailpointTest : public testing::Test {
 protected:
  ~FailpointTest() override { failpoint::arm(""); }
  test::TempDir folder_;
};

TEST_F(FailpointTest, NothingHappensUnarmed) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(hit(Failpoint::file_write), Action::none);
  EXPECT_EQ(failpoint::armed_text(), "");
}

TEST_F(FailpointTest, OnceOrFromThenOn) {
  failpoint::arm("file.write:2:eio,step.gradient:2+:nan");
  EXPECT_EQ(failpoint::armed_text(), "file.write:2:eio,step.gradient:2+:nan");
  const auto reached = [](Failpoint point) {
    std::vector<Action> all;
    for (int i = 0; i < 4; ++i) all.push_back(hit(point));
    return all;
  };
  EXPECT_EQ(reached(Failpoint::file_write), (std::vector{Action::none, Action::eio, Action::none, Action::none}));
  EXPECT_EQ(reached(Failpoint::step_gradient), (std::vector{Action::none, Action::nan, Action::nan, Action::nan}));
  EXPECT_EQ(hit(Failpoint::step_begin), Action::none);
}

TEST_F(FailpointTest, ArmingBeginsToCountAnew) {
  failpoint::arm("file.write:2:eio");
  hit(Failpoint::file_write);
  failpoint::arm("file.write:2:eio");
  EXPECT_EQ(hit(Failpoint::file_write), Action::none);
  failpoint::arm("");
  EXPECT_EQ(hit(Failpoint::file_write), Action::none);
}

TEST_F(FailpointTest, ThrowsAndSleeps) {
  failpoint::arm("step.begin:1:throw,step.end:1:sleep=0.05");
  expect_error(ExitCode::unexpected, {"HRM_FAIL", "step.begin"}, [] { hit(Failpoint::step_begin); });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(hit(Failpoint::step_end), Action::none);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
}

TEST(FailpointDeathTest, Kills) {
  EXPECT_EXIT(
      {
        failpoint::arm("step.begin:2:kill");
        hit(Failpoint::step_begin);
        hit(Failpoint::step_begin);
      },
      testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailpointTest, OrdersThatMakeNoSense) {
  const std::pair<const char*, const char*> wrong[] = {
      {"file.write", "malformed"},
      {"file.write:1", "malformed"},
      {"file.wirte:1:eio", "did you mean file.write?"},
      {"file.write:0:eio", "no count above 0"},
      {"file.write::eio", "no count above 0"},
      {"file.write:+:eio", "no count above 0"},
      {"file.write:x:eio", "no count above 0"},
      {"file.write:1:nan", "does not know"},
      {"step.begin:1:eio", "does not know"},
      {"file.write:1:", "does not know"},
      {"file.write:1+:eintr", "for ever"},
      {"file.write:1:sleep=", "number of seconds"},
      {"file.write:1:sleep=-1", "number of seconds"},
      {"file.write:1:eio,file.write:2:eio", "second order"},
      {",", "malformed"},
  };
  for (const auto& [text, reason] : wrong) {
    SCOPED_TRACE(text);
    expect_error(ExitCode::usage, {"HRM_FAIL", reason}, [text = text] { failpoint::arm(text); });
    EXPECT_EQ(hit(Failpoint::file_write), Action::none);
  }
}

TEST_F(FailpointTest, EachPlaceHasANameOfItsOwn) {
  ASSERT_EQ(failpoint::list().size(), static_cast<size_t>(Failpoint::number));
  std::set<std::string> names;
  for (const auto& info : failpoint::list()) EXPECT_TRUE(names.insert(info.name).second) << info.name;
  // The list is in the order of the enumeration.
  EXPECT_STREQ(failpoint::list()[static_cast<size_t>(Failpoint::file_open)].name, "file.open");
  EXPECT_STREQ(failpoint::list()[static_cast<size_t>(Failpoint::step_gradient)].name, "step.gradient");
  EXPECT_STREQ(failpoint::list()[static_cast<size_t>(Failpoint::tensorboard_write)].name, "tensorboard.write");
}

// Each system call of a writer, failing by each of its reasons: one sentence with the path and the reason.
TEST_F(FailpointTest, FailuresOfFilesAreReported) {
  const std::string path = folder_ / "file";
  const auto write = [&] {
    std::filesystem::remove(path);
    FileWriter file(path, 100);
    file.write(as_bytes("some text"));
    file.finish();
    fsync_directory(folder_.path());
  };
  for (const char* name : {"file.open", "file.reserve", "file.write", "file.fsync", "file.close", "directory.fsync"}) {
    for (const auto& [action, error] : {std::pair("eio", EIO), std::pair("enospc", ENOSPC)}) {
      SCOPED_TRACE(cat(name, " ", action));
      failpoint::arm(cat(name, ":1:", action));
      expect_error(ExitCode::environment, {folder_.path().string(), std::system_category().message(error)}, write);
    }
    SCOPED_TRACE(name);
    failpoint::arm(cat(name, ":1:eintr"));
    EXPECT_NO_THROW(write());
    EXPECT_EQ(read_text(path, ExitCode::data), "some text");
  }
  failpoint::arm("file.write:1+:short");
  write();
  EXPECT_EQ(read_text(path, ExitCode::data), "some text");
}

TEST_F(FailpointTest, FailedReplacementLeavesTheOldFile) {
  const std::string path = folder_ / "file";
  write_text_atomic(path, "old");
  for (const char* point : {"file.open", "file.write", "file.fsync", "file.close", "file.rename"}) {
    failpoint::arm(cat(point, ":1:eio"));
    expect_error(ExitCode::environment, {path}, [&] { write_text_atomic(path, "new"); });
    EXPECT_EQ(read_text(path, ExitCode::data), "old") << point;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << point;
  }
}

}  // namespace
}  // namespace hrm
