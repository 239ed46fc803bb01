#include "hrm/formats/input_window.h"

#include "formats/format_testing.h"
#include "hrm/formats/csv.h"
#include "support/packed.h"

namespace hrm {
namespace {

using test::gzip_packed;
using test::zstd_packed;

// All of it, in steps of which none is a divisor of another.
std::string read_through(InputWindow& input) {
  std::string all;
  for (size_t step = 1;; step = step * 3 + 1) {
    const std::string_view text = input.view(step);
    if (text.empty()) return all;
    const size_t taken = std::min(step, text.size());
    all += text.substr(0, taken);
    input.skip(taken);
  }
}

std::string unpacked(std::string_view bytes) {
  InputWindow input(as_bytes(bytes), "x.gz");
  return read_through(input);
}

std::string long_text() {
  std::string text;
  CounterRng rng(3, Stream::generate, 0);
  while (text.size() < 3'000'000) text += std::to_string(rng.below(1'000'000)) + " ";
  return text;
}

TEST(InputWindow, UnpacksGzipAndZstd) {
  const std::string text = long_text();
  EXPECT_EQ(unpacked(text), text);
  EXPECT_EQ(unpacked(gzip_packed(text)), text);
  EXPECT_EQ(unpacked(zstd_packed(text)), text);
  for (const std::string& empty : {std::string(), gzip_packed(""), zstd_packed("")}) EXPECT_EQ(unpacked(empty), "");
}

TEST(InputWindow, JoinedFilesAreOne) {
  EXPECT_EQ(unpacked(gzip_packed("a\n") + gzip_packed("") + gzip_packed("b") + std::string(512, '\0')), "a\nb");
  const std::string skippable("\x51\x2A\x4D\x18\x03\0\0\0abc", 11);
  EXPECT_EQ(unpacked(skippable + zstd_packed("a\n") + skippable + zstd_packed("b")), "a\nb");
}

TEST(InputWindow, ByteOrderMarksAreTakenAway) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(unpacked(mark + "a" + mark), "a" + mark);
  EXPECT_EQ(unpacked(gzip_packed(mark + "a")), "a");
  EXPECT_EQ(unpacked(zstd_packed(mark)), "");
  const std::string text = long_text(), packed = gzip_packed(mark + text);
  InputWindow whole(as_bytes(packed), "x.gz");
  EXPECT_TRUE(whole.rest() == text);
  EXPECT_EQ(whole.rest(), "");
}

TEST(InputWindow, ShowsAtLeastWhatIsAskedFor) {
  const std::string text = long_text(), packed = gzip_packed(text);
  InputWindow input(as_bytes(packed), "x.gz");
  EXPECT_GE(input.view(10).size(), 10u);
  EXPECT_FALSE(input.at_end());
  EXPECT_LT(input.view(10).size(), text.size()) << "only a window of a compressed file is in memory";
  EXPECT_EQ(input.view(2'000'000).substr(0, 2'000'000), std::string_view(text).substr(0, 2'000'000));
  EXPECT_EQ(input.view(4'000'000), text);
  EXPECT_TRUE(input.at_end());
}

TEST(InputWindow, SurvivesAMove) {
  const std::string text = long_text(), packed = zstd_packed(text);
  InputWindow first(as_bytes(packed), "x.zst");
  first.view(5);
  InputWindow second = std::move(first);
  EXPECT_EQ(read_through(second), text);
}

TEST(InputWindow, DamagedFilesAreRefused) {
  const std::string text = long_text().substr(0, 4'000);
  for (const std::string& packed : {gzip_packed(text), zstd_packed(text)}) {
    // The first four bytes say that it is packed.
    for (size_t size = 4; size < packed.size(); size += 23) {
      expect_error([&] { unpacked(std::string_view(packed).substr(0, size)); }, ExitCode::data,
                   {"x.gz: the compressed file ends too early"});
    }
    std::string flipped = packed;
    flipped[packed.size() / 2] = static_cast<char>(flipped[packed.size() / 2] ^ 0x10);
    expect_error([&] { unpacked(flipped); }, ExitCode::data, {"x.gz: the compressed file is damaged"});
    EXPECT_GT(expect_flips_are_safe(packed, 200, ExitCode::data,
                                    [](std::span<const std::byte> bytes) { unpacked(as_text(bytes)); }),
              150);
  }
  expect_error([] { unpacked(gzip_packed("a") + "tail"); }, ExitCode::data, {"goes on behind its end"});
}

TEST(InputWindow, TellsTheSuffixOfTheContent) {
  EXPECT_EQ(content_suffix("a/b.csv"), ".csv");
  EXPECT_EQ(content_suffix("S.CSV"), ".csv");
  EXPECT_EQ(content_suffix("a.b.JsonL.GZ"), ".jsonl");
  EXPECT_EQ(content_suffix("a.csv.zst"), ".csv");
  EXPECT_EQ(content_suffix("a.gz"), "");
  EXPECT_EQ(content_suffix("csv"), "");
}

TEST(InputWindow, CompressedCsvIsTheSame) {
  std::string text = "a,b\n";
  for (int i = 0; i < 100'000; ++i) text += cat(i, i % 7 == 0 ? ",\"x\"\"\n,y\"\n" : ",plain and long enough\r\n");
  const auto rows = [](std::string_view bytes) {
    CsvReader csv(as_bytes(bytes), "x.csv");
    std::vector<std::string> fields;
    std::vector<size_t> lines;
    for (CsvRow row; csv.next(row);) {
      fields.insert(fields.end(), row.fields.begin(), row.fields.end());
      lines.push_back(row.line);
    }
    return std::pair(fields, lines);
  };
  const auto plain = rows(text);
  EXPECT_EQ(plain.second.size(), 100'000u);
  EXPECT_EQ(rows(gzip_packed(text)), plain);
  EXPECT_EQ(rows(zstd_packed(text)), plain);
  const std::string long_row = "a\n1\n" + std::string(3 << 20, 'x') + "\n";
  EXPECT_EQ(rows(long_row).second.size(), 2u);
  expect_error([&] { rows(gzip_packed(long_row)); }, ExitCode::data, {"x.csv:3: the row has more than 1.0 MiB"});
}

}  // namespace
}  // namespace hrm
