#include "hrm/formats/csv.h"

#include <chrono>

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Rows = std::vector<std::vector<std::string>>;

CsvReader reader(std::string_view text) {
  return CsvReader(as_bytes(text), "x.csv");
}

Rows rows_of(std::string_view text, std::vector<size_t>* lines = nullptr) {
  CsvReader csv = reader(text);
  Rows rows;
  CsvRow row;
  while (csv.next(row)) {
    rows.emplace_back(row.fields.begin(), row.fields.end());
    if (lines) lines->push_back(row.line);
  }
  return rows;
}

TEST(Csv, ReadsPlainRows) {
  const std::string text = "source,q,a,rating\nx,1..2,1342,5\ny,,,\n";
  CsvReader csv = reader(text);
  EXPECT_EQ(csv.columns(), (std::vector<std::string>{"source", "q", "a", "rating"}));
  EXPECT_EQ(csv.column("a"), 2u);
  EXPECT_TRUE(csv.has_column("rating"));
  EXPECT_FALSE(csv.has_column("Rating"));
  EXPECT_EQ(rows_of(text), (Rows{{"x", "1..2", "1342", "5"}, {"y", "", "", ""}}));
}

TEST(Csv, LineEndsBlankLinesAndByteOrderMark) {
  std::vector<size_t> lines;
  EXPECT_EQ(rows_of("\xEF\xBB\xBF\n"
                    "a,b\r\n\r\n1,2\r\n\n3,4",
                    &lines),
            (Rows{{"1", "2"}, {"3", "4"}}));
  EXPECT_EQ(lines, (std::vector<size_t>{4, 6}));
  EXPECT_EQ(rows_of("a\n 1 \n"), (Rows{{" 1 "}}));
}

TEST(Csv, QuotedFields) {
  std::vector<size_t> lines;
  EXPECT_EQ(rows_of("a,\"b\"\n\"x,y\",\"say \"\"hi\"\" \"\"\"\n\"two\nlines\",2\r\n\"\",\"z\"\r\n4,\"5\"", &lines),
            (Rows{{"x,y", "say \"hi\" \""}, {"two\nlines", "2"}, {"", "z"}, {"4", "5"}}));
  EXPECT_EQ(lines, (std::vector<size_t>{2, 3, 5, 6}));
  EXPECT_EQ(rows_of("a,b\n\"1\",\n"), (Rows{{"1", ""}}));
  EXPECT_EQ(rows_of("a,b\n\"1\","), (Rows{{"1", ""}}));
  EXPECT_EQ(rows_of("a,b\n1,\"\"\"2\"\"\"\n"), (Rows{{"1", "\"2\""}}));
}

TEST(Csv, HeaderMayBeMissingAboveNumbers) {
  const auto optional = [](std::string_view text) {
    return CsvReader(as_bytes(text), "x.csv", ExitCode::data, CsvHeader::unless_numbers);
  };
  CsvReader numbers = optional("\n1, 2.5 ,-3e2\n4,5,x\n");
  EXPECT_FALSE(numbers.has_header());
  EXPECT_EQ(numbers.columns(), (std::vector<std::string>{"1", "2", "3"}));
  CsvRow row;
  ASSERT_TRUE(numbers.next(row));
  EXPECT_EQ(row.line, 2u);
  EXPECT_EQ(std::vector<std::string>(row.fields.begin(), row.fields.end()),
            (std::vector<std::string>{"1", " 2.5 ", "-3e2"}));
  ASSERT_TRUE(numbers.next(row));
  EXPECT_EQ(row.fields.back(), "x");
  EXPECT_FALSE(numbers.next(row));
  // A quoted first row, and a reader that is moved before it gives that row out.
  CsvReader opened = optional("\"1\",\"2\"\n");
  CsvReader moved = std::move(opened);
  ASSERT_TRUE(moved.next(row));
  EXPECT_EQ(row.fields[1], "2");
  for (const std::string_view text : {"1,b\n2,3\n", "1,\n2,3\n", "1,nan\n2,3\n", "1,2 3\n2,3\n"}) {
    CsvReader named = optional(text);
    EXPECT_TRUE(named.has_header()) << text;
    ASSERT_TRUE(named.next(row));
    EXPECT_EQ(row.fields[0], "2");
  }
  expect_error(
      [&] {
        CsvReader csv = optional("1,2\n3\n");
        CsvRow next;
        while (csv.next(next)) {
        }
      },
      ExitCode::data, {"x.csv:2: ", "1 fields", "first row has 2"});
  expect_error([&] { optional(""); }, ExitCode::data, {"x.csv: the file is empty"});
}

TEST(Csv, ErrorsNameTheLine) {
  expect_error([] { rows_of("a,b\n1,2\n\n1,2,3\n"); }, ExitCode::data, {"x.csv:4: ", "3 fields", "has 2"});
  expect_error([] { rows_of("a,b\n1\n"); }, ExitCode::data, {"x.csv:2: ", "1 fields"});
  expect_error([] { rows_of("a,b\n1,\"2\n3,4\n"); }, ExitCode::data, {"x.csv:2: ", "not closed"});
  expect_error([] { rows_of("a,b\n\"1\"x,2\n"); }, ExitCode::data, {"x.csv:2: ", "after the closing quote"});
  expect_error([] { rows_of("a,b\n1,2\"2\"\n"); }, ExitCode::data, {"x.csv:2: ", "a quote inside"});
  expect_error([] { rows_of("a,a\n"); }, ExitCode::data, {"x.csv:1: ", "'a' occurs twice"});
  expect_error([] { rows_of("a\n" + std::string(4096, ',')); }, ExitCode::data, {"x.csv:2: ", "more than 4096 fields"});
  expect_error([] { rows_of("a\n\"\"" + std::string(4096, ',')); }, ExitCode::data, {"more than 4096 fields"});
  expect_error([] { rows_of(std::string(4096, ',') + "\n"); }, ExitCode::data, {"x.csv:1: ", "more than 4096 fields"});
  expect_error([] { rows_of(""); }, ExitCode::data, {"x.csv: ", "empty"});
  expect_error([] { rows_of("\n\n"); }, ExitCode::data, {"empty"});
  expect_error([] { reader("a,b\n").column("c"); }, ExitCode::data, {"x.csv", "no column 'c'", "a, b"});
  expect_error([] { reader("a,b\n").fail_at(3, "not a digit"); }, ExitCode::data, {"x.csv:3: not a digit"});
  expect_error([] { CsvReader csv(fixture("no.csv")); }, ExitCode::data, {"no.csv", "does not exist"});
}

TEST(Csv, ReadsAFileThatIsMoved) {
  const TempFolder folder;
  write_file(folder / "a.csv", as_bytes("q,a\n1,\"2\"\n"));
  CsvReader opened(folder / "a.csv");
  CsvReader csv = std::move(opened);
  CsvRow row;
  ASSERT_TRUE(csv.next(row));
  EXPECT_EQ(row.fields, (std::vector<std::string_view>{"1", "2"}));
  EXPECT_FALSE(csv.next(row));
}

TEST(Csv, IsFast) {
  std::string text = "source,question,answer,rating\n";
  while (text.size() < (size_t{32} << 20)) {
    text += "puzzles," + std::string(81, '.') + "," + std::string(81, '7') + ",12\n";
  }
  const auto start = std::chrono::steady_clock::now();
  CsvReader csv = reader(text);
  CsvRow row;
  size_t rows = 0;
  while (csv.next(row)) rows += row.fields[1].size() == 81;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double rate = static_cast<double>(text.size()) / seconds / 1e6;
  RecordProperty("megabytes_per_second", static_cast<int>(rate));
  EXPECT_EQ(rows, (text.size() - 30) / 175);
  // About 3,700 MB/s on a server core; the bound only catches a change of kind.
  EXPECT_GT(rate, 50);
}

TEST(Csv, DamageNeverCrashes) {
  const std::string good = "a,\"b\",c\n1,\"2,\"\"3\",4\r\n\"x\ny\",,\n5,6,7\n";
  const auto read = [](std::span<const std::byte> bytes) {
    CsvReader csv(bytes, "x.csv");
    CsvRow row;
    while (csv.next(row)) {
      for (const auto field : row.fields) ASSERT_LE(field.size(), bytes.size());
    }
  };
  for (size_t length = 0; length <= good.size(); ++length) {
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    try {
      read(as_bytes(std::string_view(cut.data(), cut.size())));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::data);
    }
  }
  EXPECT_GT(expect_flips_are_safe(good, 20000, ExitCode::data, read), 1000);
}

}  // namespace
}  // namespace hrm
