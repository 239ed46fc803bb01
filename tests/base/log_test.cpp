#include "hrm/base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <vector>

#include "hrm/base/file.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;

TEST(Log, TheFileHoldsEveryLineWithItsLevel) {
  std::string pattern = (fs::temp_directory_path() / "hrm_log_test.XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path file = fs::path(pattern) / "rank_0.log";
  testing::internal::CaptureStderr();
  log::open_file(file);
  log::set_level(log::Level::warn);
  log::debug("hidden on the screen ", 1);
  log::warn("disk ", 97, " % full");
  log::progress("step 3");
  log::progress_done();
  log::set_level(log::Level::info);
  const std::string screen = testing::internal::GetCapturedStderr();
  EXPECT_NE(screen.find("warning: disk 97 % full"), std::string::npos) << screen;
  EXPECT_NE(screen.find("step 3"), std::string::npos) << screen;
  EXPECT_EQ(screen.find("hidden"), std::string::npos) << screen;

  std::istringstream text(read_text(file, ExitCode::data));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find(" debug hidden on the screen 1"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find(" warning disk 97 % full"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find(" info step 3"), std::string::npos) << lines[2];
  EXPECT_EQ(lines[0][4], '-');  // a date stands first
  EXPECT_EQ(lines[0][10], 'T');
  fs::remove_all(pattern);
}

TEST(Log, NothingSteersATerminal) {
  testing::internal::CaptureStderr();
  log::info("puzzle \033[31mred\x07, line 1\nline 2");
  log::progress("step \033[2J 1");
  log::progress_done();
  const std::string screen = testing::internal::GetCapturedStderr();
  EXPECT_NE(screen.find("puzzle \\x1B[31mred\\x07, line 1\nline 2"), std::string::npos) << screen;
  EXPECT_NE(screen.find("step \\x1B[2J 1"), std::string::npos) << screen;
}

// A device that is always full stands for a disk that is.
TEST(Log, AFullDiskCostsLinesAlone) {
  testing::internal::CaptureStderr();
  log::open_file("/dev/full");
  for (int i = 0; i < 3; ++i) log::info("line ", i);
  const std::string screen = testing::internal::GetCapturedStderr();
  EXPECT_NE(screen.find("lines of the log file are lost"), std::string::npos) << screen;
  EXPECT_EQ(screen.find("are lost", screen.find("are lost") + 1), std::string::npos) << "said once: " << screen;
  for (const char* line : {"line 0", "line 1", "line 2"}) EXPECT_NE(screen.find(line), std::string::npos) << screen;
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
  try {
    log::open_file(fs::temp_directory_path());
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::environment);
    EXPECT_NE(std::string(e.what()).find("cannot open the log file"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hrm
