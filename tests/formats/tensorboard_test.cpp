#include "hrm/formats/tensorboard.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

// The data of all records; checks their framing.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  const std::string file = read_text(path, ExitCode::data);
  const auto number = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(file.at(at + i))} << (8 * i);
    return value;
  };
  const auto masked = [](const std::string& text) {
    const uint32_t crc = crc32c(text);
    return static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const size_t length = number(at, 8);
    EXPECT_EQ(number(at + 8, 4), masked(file.substr(at, 8)));
    const std::string data = file.substr(at + 12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(number(at + 12 + length, 4), masked(data));
    records.push_back(data);
    at += 16 + length;
  }
  return records;
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
}

TEST(Tensorboard, WritesEvents) {
  using namespace std::string_literals;
  const TempFolder folder;
  TensorboardWriter writer(folder / "tensorboard", ".hrm");
  writer.scalar("train/loss", 0.5, 300, 2.0);
  writer.text("config", "a: 1", 7, 2.0);
  writer.scalar("back", 1, -1, 2.0);
  EXPECT_EQ(std::filesystem::file_size(writer.path()), 0u);  // buffered
  writer.flush();
  const auto records = records_of(writer.path());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_NE(records[0].find("\x1A\x0D"
                            "brain.Event:2"),
            std::string::npos);
  const std::string time = "\x09\x00\x00\x00\x00\x00\x00\x00\x40"s;  // field 1, 2.0
  EXPECT_EQ(records[1], time + "\x10\xAC\x02\x2A\x13\x0A\x11\x0A\x0Atrain/loss\x15\x00\x00\x00\x3F"s);
  EXPECT_EQ(records[2], time +
                            "\x10\x07\x2A\x24\x0A\x22\x0A\x06"
                            "config\x42\x0E\x08\x07\x12\x04\x12\x02\x08\x01\x42\x04"
                            "a: 1\x4A\x08\x0A\x06\x0A\x04text"s);
  EXPECT_NE(records[3].find("\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), std::string::npos);

  const std::string name = writer.path().filename().string();
  EXPECT_EQ(name.substr(0, 20), "events.out.tfevents.");
  EXPECT_EQ(name.substr(name.size() - 4), ".hrm");
}

TEST(Tensorboard, WritesTheValuesOfAStepAsOneEvent) {
  using namespace std::string_literals;
  const TempFolder folder;
  TensorboardWriter writer(folder.path());
  writer.scalars({{"a", 0.5}, {"bc", 2}}, 3, 2.0);
  writer.scalars({{"a", 0.5}}, 3, 2.0);
  writer.scalar("a", 0.5, 3, 2.0);
  writer.flush();
  const auto records = records_of(writer.path());
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[1],
            "\x09\x00\x00\x00\x00\x00\x00\x00\x40\x10\x03\x2A\x15"s  // 2.0, step 3, a summary of 21 bytes
            "\x0A\x08\x0A\x01"
            "a\x15\x00\x00\x00\x3F"
            "\x0A\x09\x0A\x02"
            "bc\x15\x00\x00\x00\x40"s);
  EXPECT_EQ(records[2], records[3]);
}

TEST(Tensorboard, RestartsSayFromWhichStep) {
  using namespace std::string_literals;
  const TempFolder folder;
  TensorboardWriter writer(folder.path());
  writer.restart(300, 2.0);
  writer.flush();
  const auto records = records_of(writer.path());
  ASSERT_EQ(records.size(), 2u);
  // Event{wall_time = 1, step = 2, session_log = 7 {status = 1: START}}; TensorBoard drops steps from this one on.
  EXPECT_EQ(records[1], "\x09\x00\x00\x00\x00\x00\x00\x00\x40\x10\xAC\x02\x3A\x02\x08\x01"s);
}

// TensorBoard reads them by name: a restart in the same second, or by a clock that was set back, comes last.
TEST(Tensorboard, LaterFilesAreReadLater) {
  const TempFolder folder;
  const auto name_of = [](const TensorboardWriter& writer) { return writer.path().filename().string(); };
  std::string last = "events.out.tfevents.4000000000.other.1.0.hrm";
  write_file(folder / last, as_bytes(""));
  write_file(folder / "events.out.tfevents.x", as_bytes(""));
  for (int i = 0; i < 12; ++i) {
    const std::string next = name_of(TensorboardWriter(folder.path()));
    EXPECT_LT(last, next);
    last = next;
  }
}

TEST(Tensorboard, TheDestructorAndMovesLoseNothing) {
  const TempFolder folder;
  std::filesystem::path first, second;
  {
    TensorboardWriter a(folder.path());
    TensorboardWriter b(folder.path());
    first = a.path();
    second = b.path();
    EXPECT_NE(first, second);
    TensorboardWriter c(std::move(a));
    c.scalar("x", 1, 1);
    b = std::move(c);
    b.scalar("x", 2, 2);
  }
  EXPECT_EQ(records_of(first).size(), 3u);
  EXPECT_EQ(records_of(second).size(), 1u);
}

TEST(Tensorboard, LongRunsReachTheDiskWithoutFlush) {
  const TempFolder folder;
  TensorboardWriter writer(folder.path());
  for (int i = 0; i < 3000; ++i) writer.scalar("train/loss", i, i);
  EXPECT_GT(std::filesystem::file_size(writer.path()), 60000u);
  writer.flush();
  EXPECT_EQ(records_of(writer.path()).size(), 3001u);
}

TEST(Tensorboard, FoldersThatCannotBeMadeAreNamed) {
  const TempFolder folder;
  write_file(folder / "file", as_bytes("x"));
  expect_error([&] { TensorboardWriter writer(folder / "file"); }, ExitCode::environment, {"file"});
}

}  // namespace
}  // namespace hrm
