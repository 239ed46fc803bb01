#include "hrm/base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>

namespace hrm {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "hrm_file_test.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Runs `action`, which must throw an Error with this code whose sentence holds all of `parts`.
  template <class Action>
  static void expect_error(Action action, ExitCode code, const std::vector<std::string>& parts) {
    try {
      action();
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  fs::path folder_;
};

TEST_F(FileTest, MapsWhatWasWritten) {
  const fs::path path = folder_ / "a.bin";
  const std::array parts{as_bytes("one "), as_bytes(""), as_bytes("two")};
  write_file(path, parts);
  const MappedFile file(path);
  EXPECT_EQ(as_text(file.bytes()), "one two");
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(read_text(path, ExitCode::data), "one two");
}

TEST_F(FileTest, LinksAreRefusedWhereTheNameIsForeign) {
  write_file(folder_ / "a", as_bytes("text"));
  fs::create_symlink("a", folder_ / "link");
  fs::create_directory_symlink(folder_, folder_ / "here");
  EXPECT_EQ(as_text(MappedFile(folder_ / "link").bytes()), "text");
  EXPECT_EQ(as_text(MappedFile(folder_ / "here/a", ExitCode::data, Links::refuse).bytes()), "text");
  expect_error([&] { MappedFile(folder_ / "link", ExitCode::checkpoint, Links::refuse); }, ExitCode::checkpoint,
               {"link' is a symbolic link"});
}

TEST_F(FileTest, APipeIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_error([&] { MappedFile(folder_ / "pipe"); }, ExitCode::data, {"pipe' is not a regular file"});
  expect_error([&] { read_text(folder_ / "pipe", ExitCode::usage); }, ExitCode::usage, {"not a regular file"});
}

TEST_F(FileTest, TextsCanHaveALimit) {
  write_file(folder_ / "a", as_bytes("12345"));
  EXPECT_EQ(read_text(folder_ / "a", ExitCode::data, 5), "12345");
  expect_error([&] { read_text(folder_ / "a", ExitCode::usage, 4); }, ExitCode::usage, {"a' is larger than the 4 B"});
  // A hole of a terabyte takes no room on the disk, but would in memory.
  fs::resize_file(folder_ / "a", uintmax_t{1} << 40);
  expect_error([&] { read_text(folder_ / "a", ExitCode::data, 1000); }, ExitCode::data, {"larger than the 1000 B"});
  // Its size is not known before it has been read.
  expect_error([] { read_text("/proc/self/status", ExitCode::data, 10); }, ExitCode::data, {"larger than the 10 B"});
}

TEST_F(FileTest, OverwritingShortens) {
  const fs::path path = folder_ / "a.bin";
  write_file(path, as_bytes("a long text"));
  write_file(path, as_bytes("short"));
  EXPECT_EQ(read_text(path, ExitCode::data), "short");
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  write_file(folder_ / "empty", std::span<const std::byte>{});
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  EXPECT_EQ(read_text(folder_ / "empty", ExitCode::data), "");
}

TEST_F(FileTest, MapsSurviveAMove) {
  write_file(folder_ / "a", as_bytes("aa"));
  write_file(folder_ / "b", as_bytes("b"));
  MappedFile a(folder_ / "a");
  const std::byte* memory = a.bytes().data();
  MappedFile moved(std::move(a));
  EXPECT_EQ(moved.bytes().data(), memory);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move): documented to be empty
  moved = MappedFile(folder_ / "b");
  EXPECT_EQ(as_text(moved.bytes()), "b");
}

TEST_F(FileTest, MissingFileIsNamedWithTheCallersCode) {
  const fs::path path = folder_ / "nothing.npy";
  expect_error([&] { MappedFile file(path); }, ExitCode::data, {path.string(), "does not exist"});
  expect_error([&] { MappedFile file(path, ExitCode::checkpoint); }, ExitCode::checkpoint, {path.string()});
  expect_error([&] { read_text(path, ExitCode::usage); }, ExitCode::usage, {path.string(), "does not exist"});
}

TEST_F(FileTest, DirectoryIsNotAFile) {
  expect_error([&] { MappedFile file(folder_); }, ExitCode::data, {folder_.string(), "is a directory"});
  expect_error([&] { read_text(folder_, ExitCode::data); }, ExitCode::data, {"is a directory"});
}

TEST_F(FileTest, UnreadableFileGivesTheReason) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  write_file(folder_ / "secret", as_bytes("x"));
  ASSERT_EQ(chmod((folder_ / "secret").c_str(), 0), 0);
  expect_error([&] { MappedFile file(folder_ / "secret"); }, ExitCode::data, {"secret", "Permission denied"});
}

TEST_F(FileTest, ReadsFilesWithoutASize) {
  EXPECT_FALSE(read_text("/proc/self/stat", ExitCode::data).empty());
}

TEST_F(FileTest, FullDiskIsReported) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  expect_error([&] { write_file("/dev/full", as_bytes("x")); }, ExitCode::environment,
               {"/dev/full", "No space left on device"});
}

TEST_F(FileTest, WritingIntoAMissingFolderIsReported) {
  expect_error([&] { write_file(folder_ / "no" / "a", as_bytes("x")); }, ExitCode::environment,
               {(folder_ / "no" / "a").string(), "No such file"});
  expect_error([&] { write_text_atomic(folder_ / "no" / "a", "x"); }, ExitCode::environment, {"No such file"});
}

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNothingBehind) {
  write_text_atomic(folder_ / "latest", "step-1");
  write_text_atomic(folder_ / "latest", "step-2");
  EXPECT_EQ(read_text(folder_ / "latest", ExitCode::data), "step-2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

// A rename would put a file into the place of the device, for every program of the machine.
TEST_F(FileTest, AtomicWriteLeavesDevicesAndPipesWhatTheyAre) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0666), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_text_atomic(pipe, "through");
  std::array<char, 16> got{};
  EXPECT_EQ(read(reader, got.data(), got.size()), 7);
  close(reader);
  EXPECT_STREQ(got.data(), "through");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(FileTest, AtomicWriteFollowsLinks) {
  fs::create_directories(folder_ / "other");
  write_file(folder_ / "other" / "file", as_bytes("old"));
  fs::create_symlink("other/file", folder_ / "link");
  write_text_atomic(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text(folder_ / "other" / "file", ExitCode::data), "new");
}

TEST_F(FileTest, FailedAtomicWriteNamesTheFileThatWasAskedFor) {
  const fs::path path = folder_ / "no" / "a";
  expect_error([&] { write_text_atomic(path, "x"); }, ExitCode::environment, {"'" + path.string() + "'"});
}

TEST_F(FileTest, FailedAtomicWriteKeepsTheTargetAndCleansUp) {
  fs::create_directories(folder_ / "target" / "full");  // a folder that is not empty cannot be replaced
  expect_error([&] { write_text_atomic(folder_ / "target", "x"); }, ExitCode::environment, {"target"});
  EXPECT_TRUE(fs::is_directory(folder_ / "target"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, MakesFoldersAndSaysWhyNot) {
  make_directories(folder_ / "a" / "b");
  make_directories(folder_ / "a" / "b");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b"));
  write_file(folder_ / "file", as_bytes("x"));
  expect_error([&] { make_directories(folder_ / "file"); }, ExitCode::environment, {"file", "cannot create"});
  expect_error([&] { make_directories(folder_ / "file" / "b"); }, ExitCode::environment, {"Not a directory"});
}

TEST_F(FileTest, FreeSpaceAndFolderSync) {
  EXPECT_GT(free_bytes(folder_), 0u);
  EXPECT_NO_THROW(fsync_directory(folder_));
  expect_error([&] { free_bytes(folder_ / "no"); }, ExitCode::environment, {"no"});
  expect_error([&] { fsync_directory(folder_ / "no"); }, ExitCode::environment, {"No such file"});
}

}  // namespace
}  // namespace hrm
