#include "hrm/formats/record_file.h"

#include "formats/format_testing.h"
#include "support/packed.h"

namespace hrm {
namespace {

using Texts = std::vector<std::string>;
using Numbers = std::vector<size_t>;

std::pair<Texts, Numbers> records_in(std::string_view bytes) {
  RecordFile file(as_bytes(bytes), "x.json");
  std::pair<Texts, Numbers> out;
  for (JsonlLine record; file.next(record);) {
    out.first.emplace_back(record.text);
    out.second.push_back(record.number);
  }
  JsonlLine more;
  EXPECT_FALSE(file.next(more));
  return out;
}

// The same of the file compressed in either way.
std::pair<Texts, Numbers> records_in_any_form(const std::string& text) {
  const auto plain = records_in(text);
  EXPECT_EQ(records_in(test::gzip_packed(text)), plain);
  EXPECT_EQ(records_in(test::zstd_packed(text)), plain);
  return plain;
}

TEST(RecordFile, ReadsLines) {
  const auto [texts, numbers] = records_in_any_form("\xEF\xBB\xBF{\"a\": 1}\r\n\n \t\n{\"b\": [1,\n{}");
  EXPECT_EQ(texts, (Texts{"{\"a\": 1}", "{\"b\": [1,", "{}"}));
  EXPECT_EQ(numbers, (Numbers{1, 4, 5}));
  EXPECT_TRUE(records_in_any_form("").first.empty());
  EXPECT_TRUE(records_in_any_form("\n\n").first.empty());
}

TEST(RecordFile, ReadsAnArray) {
  const std::string first = "{\n  \"a]\": \"b\\\"}\",\n  \"c\": [[1], {}]\n}";
  const auto [texts, numbers] = records_in_any_form("\xEF\xBB\xBF\n [" + first + ",\n\n{} , 17,\"x,]\", [] ]\n\n");
  EXPECT_EQ(texts, (Texts{first, "{}", "17", "\"x,]\"", "[]"}));
  EXPECT_EQ(numbers, (Numbers{2, 7, 7, 7, 7}));
  EXPECT_TRUE(records_in_any_form("[ ]").first.empty());
}

TEST(RecordFile, ReadsLongFiles) {
  Texts expected;
  std::string lines, array = "[";
  for (int i = 0; i < 20'000; ++i) {
    expected.push_back(cat("{\"n\": ", i, ", \"text\": \"", std::string(static_cast<size_t>(i % 300), 'x'), "\"}"));
    lines += expected.back() + "\n";
    array += (i == 0 ? "\n" : ",\n") + expected.back();
  }
  EXPECT_EQ(records_in_any_form(lines).first, expected);
  const auto [texts, numbers] = records_in_any_form(array + "\n]\n");
  EXPECT_EQ(texts, expected);
  EXPECT_EQ(numbers.back(), 20'001u);
}

TEST(RecordFile, LinesThatAreTooLongAreCut) {
  const std::string longest(kMaxJsonlLine + 1'000'000, 'x');
  for (const std::string& bytes : {longest + "\n{}\n", test::gzip_packed(longest + "\n{}\n")}) {
    const auto [texts, numbers] = records_in(bytes);
    ASSERT_EQ(texts.size(), 2u);
    EXPECT_EQ(texts[0].size(), kMaxJsonlLine + 1);
    EXPECT_EQ(texts[1], "{}");
    EXPECT_EQ(numbers, (Numbers{1, 2}));
  }
  expect_error([&] { records_in("[\n\"" + longest + "\"]"); }, ExitCode::data,
               {"x.json:2: a record is larger than 16 MiB"});
}

TEST(RecordFile, RefusesBrokenArrays) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    expect_error([&] { records_in(text); }, ExitCode::data, parts);
    expect_error([&] { records_in(test::gzip_packed(text)); }, ExitCode::data, parts);
  };
  refused("[", {"x.json:1: the array that the file begins with is not closed"});
  refused("[\n{},\n{\"a\": [1, 2", {"x.json:3: ", "is not closed"});
  refused("[{}\n", {"x.json:2: ", "is not closed"});
  refused("[{},\n", {"x.json:2: ", "is not closed"});
  refused("[1", {"x.json:1: ", "is not closed"});
  refused("[{}\n{}]", {"x.json:2: the array has no comma between two records"});
  refused("[{},]", {"has a comma, but no record behind it"});
  refused("[{}]\n[{}]", {"x.json:2: something follows the end of the array"});
}

TEST(RecordFile, DamagedArraysAreSafe) {
  const std::string good = "[{\"a\": \"b\\\\\", \"c\": [1, {\"d\": null}]}, {\"e\": \"f\\\"\"}, [], 12]";
  const auto parse = [](std::span<const std::byte> bytes) { records_in(as_text(bytes)); };
  // The empty file is one of lines.
  for (size_t size = 1; size < good.size(); ++size) {
    expect_error([&] { parse(as_bytes(std::string_view(good).substr(0, size))); }, ExitCode::data, {"is not closed"});
  }
  EXPECT_GT(expect_flips_are_safe(good, 2000, ExitCode::data, parse), 200);
}

TEST(RecordFile, AdviceForRecordsOverSeveralLines) {
  EXPECT_NE(spread_record_advice("{").find("jq -s"), std::string::npos);
  EXPECT_NE(spread_record_advice(" {\"data\": [").find("must be one array"), std::string::npos);
  for (const char* line : {"", "{}", "{\"a\": \"{\"}", "x{", "{\"a", "{\"a\": 1}}"}) {
    EXPECT_EQ(spread_record_advice(line), "") << line;
  }
}

TEST(RecordFile, NamesOfRecords) {
  for (const char* name : {"a.jsonl", "A.JSON", "a.json.gz", "b/a.jsonl.zst"}) EXPECT_TRUE(is_record_file_name(name));
  for (const char* name : {"a.csv", "a.gz", "json", "a.json.bz2"}) EXPECT_FALSE(is_record_file_name(name));
}

}  // namespace
}  // namespace hrm
