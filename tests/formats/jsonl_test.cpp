#include "hrm/formats/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>

#include "formats/format_testing.h"
#include "hrm/base/hash.h"
#include "hrm/formats/triples.h"

namespace hrm {
namespace {

std::vector<std::string> lines_of(std::string_view text, std::vector<size_t>* numbers = nullptr) {
  JsonlLines lines(as_bytes(text));
  JsonlLine line;
  std::vector<std::string> result;
  while (lines.next(line)) {
    EXPECT_EQ(text.substr(line.offset, line.text.size()), line.text);
    result.emplace_back(line.text);
    if (numbers != nullptr) numbers->push_back(line.number);
  }
  EXPECT_EQ(lines.offset(), text.size());
  return result;
}

// Lines are numbers; the facts are their length and value.
JsonlFacts number_line(std::string_view line) {
  uint32_t value = 0;
  for (const char c : line) {
    require(c >= '0' && c <= '9', ExitCode::data, "no number");
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return {static_cast<uint32_t>(line.size()), value};
}

class JsonlIndexTest : public ::testing::Test {
 protected:
  void write(const std::string& text) { write_file(path(), as_bytes(text)); }
  std::filesystem::path path() const { return folder_ / "a.jsonl"; }
  std::filesystem::path index_path() const { return folder_ / "a.jsonl.idx"; }
  // Counts how many lines were read.
  JsonlIndex index(uint64_t max_malformed = 0, const std::string& rules = "r") {
    read_ = 0;
    const MappedFile file(path());
    return index_jsonl(file,
                       [&](std::string_view line) {
                         ++read_;
                         return number_line(line);
                       },
                       {.rules = rules, .max_malformed = max_malformed, .line_bytes = 100});
  }
  // The time of change as it was, whatever was written since.
  void keep_time(const struct stat& facts) {
    const timespec times[] = {facts.st_atim, facts.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, path().c_str(), times, 0), 0);
  }
  TempFolder folder_;
  int read_ = 0;
};

TEST(Jsonl, LinesBlankLinesAndLineEnds) {
  std::vector<size_t> numbers;
  EXPECT_EQ(lines_of("\xEF\xBB\xBF{}\r\n\n  \t\r\n[1]\n2", &numbers), (std::vector<std::string>{"{}", "[1]", "2"}));
  EXPECT_EQ(numbers, (std::vector<size_t>{1, 4, 5}));
  EXPECT_TRUE(lines_of("").empty());
  EXPECT_TRUE(lines_of("\n\n").empty());
  EXPECT_EQ(lines_of("1"), (std::vector<std::string>{"1"}));
}

TEST(Jsonl, LinesByTheirOffset) {
  const std::string text = "11\n\n333\r\n4";
  EXPECT_EQ(jsonl_line_at(as_bytes(text), 4).text, "333");
  EXPECT_EQ(jsonl_line_number(as_bytes(text), 4), 3u);
  EXPECT_EQ(jsonl_line_at(as_bytes(text), 9).text, "4");
  expect_error([&] { jsonl_line_at(as_bytes(text), 10); }, ExitCode::unexpected, {"no line at byte 10"});
}

TEST(Jsonl, RefusesGiganticLinesAndOtherThanUtf8) {
  expect_error([] { check_jsonl_line(std::string(101, '1'), ExitCode::data, 100); }, ExitCode::data,
               {"a line of 101 B", "at most 100 B"});
  expect_error([] { check_jsonl_line("\"\xC0\xAF\"", ExitCode::data); }, ExitCode::data, {"not valid UTF-8"});
  check_jsonl_line(std::string(100, '1'), ExitCode::data, 100);
}

TEST_F(JsonlIndexTest, FindsRecordsAndKeepsThem) {
  write("7\n\n12\n345\n");
  const JsonlIndex first = index();
  EXPECT_EQ(read_, 3);
  EXPECT_EQ(first.offsets, (std::vector<uint64_t>{0, 3, 6}));
  EXPECT_EQ(first.facts[2].second, 345u);
  EXPECT_EQ(first.content, digest_hex(as_bytes("7\n\n12\n345\n")));
  const JsonlIndex again = index();
  EXPECT_EQ(read_, 0) << "the index beside the file was not used";
  EXPECT_EQ(again.offsets, first.offsets);
  EXPECT_EQ(again.facts[1].first, 2u);
  EXPECT_EQ(again.content, first.content);
  index(0, "other rules");
  EXPECT_EQ(read_, 3);
}

TEST_F(JsonlIndexTest, NoticesAChangedFile) {
  write("7\n12\n");
  index();
  write("7\n12\n3\n");  // another size
  EXPECT_EQ(index().records(), 3u);
  struct stat facts {};
  ASSERT_EQ(stat(path().c_str(), &facts), 0);
  write("7\n12\n4\n");  // the same size and time
  keep_time(facts);
  EXPECT_EQ(index().facts[2].second, 4u);
  EXPECT_EQ(read_, 3);
  timespec times[] = {facts.st_atim, facts.st_mtim};
  times[1].tv_sec += 5;  // only the time
  ASSERT_EQ(utimensat(AT_FDCWD, path().c_str(), times, 0), 0);
  index();
  EXPECT_EQ(read_, 3);
}

TEST_F(JsonlIndexTest, ADamagedIndexIsMadeAgain) {
  write("7\n12\n");
  index();
  std::string bytes = read_text(index_path(), ExitCode::data);
  bytes[bytes.size() / 2] ^= 1;
  write_file(index_path(), as_bytes(bytes));
  EXPECT_EQ(index().records(), 2u);
  EXPECT_EQ(read_, 2);
  index();
  EXPECT_EQ(read_, 0);
}

TEST_F(JsonlIndexTest, CountsMalformedLinesUpToTheBudget) {
  write("7\nx\n" + std::string(101, '1') + "\n\xFF\n12\n");
  const JsonlIndex found = index(3);
  EXPECT_EQ(found.records(), 2u);
  EXPECT_EQ(found.malformed.size(), 3u);
  const MappedFile file(path());
  const auto lines = malformed_jsonl_lines(file, found, number_line, 100, 10);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("a.jsonl:2: no number"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("a.jsonl:3: a line of 101 B"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("a.jsonl:4: the line is not valid UTF-8"), std::string::npos) << lines[2];
  // From the index, and without one.
  for (int start = 0; start < 2; ++start) {
    expect_error([&] { index(2); }, ExitCode::data, {"a.jsonl:2: no number", "a.jsonl:4", "max_malformed: 2"});
    expect_error([&] { index(0); }, ExitCode::data, {"a.jsonl:2: no number", "max_malformed: 0"});
    std::filesystem::remove(index_path());
  }
}

TEST_F(JsonlIndexTest, AnEmptyFileIsAnError) {
  for (const std::string text : {"", "\n \n"}) {
    write(text);
    expect_error([&] { index(); }, ExitCode::data, {"a.jsonl: has no record"});
  }
  write("x\n");
  expect_error([&] { index(5); }, ExitCode::data, {"a.jsonl: has no record"});
}

TEST_F(JsonlIndexTest, BytesOfAnIndexAreChecked) {
  write("7\nx\n12\n");
  const std::string good = jsonl_index_bytes(index(1));
  EXPECT_EQ(parse_jsonl_index(as_bytes(good), ExitCode::data).malformed, (std::vector<uint64_t>{2}));
  const auto parse = [](std::span<const std::byte> bytes) { parse_jsonl_index(bytes, ExitCode::data); };
  expect_truncations_fail(good, ExitCode::data, parse);
  // But for the few that change a byte into itself.
  EXPECT_GT(expect_flips_are_safe(good, 2000, ExitCode::data, parse), 1950);
  // With a digest that fits: offsets out of the file, and more records than there are bytes for.
  JsonlIndex bad = index(1);
  bad.offsets[1] = 7;
  expect_error([&] { parse(as_bytes(jsonl_index_bytes(bad))); }, ExitCode::data, {"points out of its file"});
  bad.offsets = {3, 3};
  expect_error([&] { parse(as_bytes(jsonl_index_bytes(bad))); }, ExitCode::data, {"points out of its file"});
  std::string counts = good.substr(0, good.size() - 32);
  counts[8 + 8 + 8 + 96 + 7] = '\x7F';
  counts += digest_hex(as_bytes(counts));
  expect_error([&] { parse(as_bytes(counts)); }, ExitCode::data, {"damaged"});
}

Triple triple(std::string_view line, int64_t vocab_size = 100) {
  return parse_triple(line, {.vocab_size = vocab_size, .tokens = 8}, ExitCode::data);
}

std::vector<int32_t> ids(std::string_view array, int64_t count) {
  std::vector<int32_t> result(count);
  read_ids(array, result.data(), count);
  return result;
}

TEST(Triples, ReadsRecords) {
  const Triple all = triple(R"( { "encoder_ids" : [1, 2,99] , "decoder_input_ids":[4 ,5],"labels":[-100, 0] } )");
  EXPECT_EQ(all.encoder_tokens, 3u);
  EXPECT_EQ(all.decoder_tokens, 2u);
  EXPECT_EQ(ids(all.encoder_ids, 3), (std::vector<int32_t>{1, 2, 99}));
  EXPECT_EQ(ids(all.decoder_ids, 2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(ids(all.labels, 2), (std::vector<int32_t>{-100, 0}));
  EXPECT_EQ(ids(all.encoder_ids, 1), (std::vector<int32_t>{1}));
  const Triple other = triple(R"({"targets":[7,8],"input_ids":[1,2]})");
  EXPECT_EQ(ids(other.decoder_ids, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids(other.labels, 2), (std::vector<int32_t>{7, 8}));
}

TEST(Triples, RefusalsSayWhy) {
  const auto refused = [](const std::string& line, const std::string& why) {
    expect_error([&] { triple(line); }, ExitCode::data, {why});
  };
  refused("", "expected '{'");
  refused("[]", "expected '{'");
  refused("{}", "encoder_ids (or input_ids) are missing");
  refused(R"({"encoder_ids":[1]})", "labels (or targets) are missing");
  refused(R"({"labels":[1]})", "encoder_ids (or input_ids) are missing");
  refused(R"({"encoder_ids":[1],"labels":[1],"decoder_ids":[1]})", "unknown key 'decoder_ids'");
  refused(R"({"encoder_ids":[1],"input_ids":[1],"labels":[1]})", "occurs twice, or beside its other name");
  refused(R"({"labels":[1],"encoder_ids":[1],"labels":[1]})", "'labels' occurs twice");
  refused(R"({"encoder_ids":[100],"labels":[1]})", "id 100 in encoder_ids is outside 0 to 99");
  refused(R"({"encoder_ids":[-1],"labels":[1]})", "id -1 in encoder_ids is outside");
  refused(R"({"encoder_ids":[-100],"labels":[1]})", "id -100 in encoder_ids is outside");
  refused(R"({"encoder_ids":[1],"labels":[-1]})", "id -1 in labels is outside 0 to 99 and not -100");
  refused(R"({"encoder_ids":[1],"labels":[100]})", "id 100 in labels");
  for (const char* number :
       {"1.0", "1e1", "01", "+1", "true", "\"1\"", "[1]", "", "-", "1 2", "99999999999999999999"}) {
    refused(cat("{\"encoder_ids\":[", number, "],\"labels\":[1]}"), *number == '\0' ? "is empty" : "");
  }
  refused(R"({"encoder_ids":[1,],"labels":[1]})", "something else than a whole number");
  refused(R"({"encoder_ids":[1],"labels":[1,2]})", "2 labels for 1 decoder ids");
  refused(R"({"encoder_ids":[],"labels":[1]})", "encoder_ids is empty");
  refused(R"({"encoder_ids":[1,1,1,1,1,1,1,1,1],"labels":[1]})", "more than 8 ids");
  refused(R"({"encoder_ids":[1],"labels":[1]}x)", "text after the record");
  refused(R"({"encoder_ids":[1],"labels":[1])", "expected '}'");
  refused("{\"encoder_ids", "unclosed string");
  refused(std::string("{\"\x1b[2J\":[1]}"), "unknown key '\\x1B[2J'");
}

TEST(Triples, DamageNeverCrashes) {
  const std::string good = R"({"encoder_ids":[1,2,3],"decoder_input_ids":[4,5,6],"labels":[-100,5,6]})";
  const auto parse = [](std::span<const std::byte> bytes) {
    const Triple one = triple(as_text(bytes));
    for (const int32_t id : ids(one.encoder_ids, one.encoder_tokens)) EXPECT_LT(static_cast<uint32_t>(id), 100u);
    for (const int32_t id : ids(one.decoder_ids, one.decoder_tokens)) EXPECT_LT(static_cast<uint32_t>(id), 100u);
    for (const int32_t id : ids(one.labels, one.decoder_tokens)) EXPECT_TRUE(id == -100 || (id >= 0 && id < 100));
  };
  expect_truncations_fail(good, ExitCode::data, parse);
  EXPECT_GT(expect_flips_are_safe(good, 20000, ExitCode::data, parse), 10000);
}

TEST(Triples, AreReadFast) {
  std::string array = "[1";
  for (int i = 0; i < 511; ++i) array += "," + std::to_string(i * 61 % 32000);
  array += "]";
  const std::string line = "{\"encoder_ids\":" + array + ",\"labels\":" + array + "}";
  const auto start = std::chrono::steady_clock::now();
  int64_t bytes = 0, sum = 0;
  std::vector<int32_t> out(512);
  while (bytes < (int64_t{16} << 20)) {
    const Triple one = parse_triple(line, {.vocab_size = 32000}, ExitCode::data);
    read_ids(one.encoder_ids, out.data(), one.encoder_tokens);
    read_ids(one.labels, out.data(), one.decoder_tokens);
    sum += out[511];
    bytes += static_cast<int64_t>(line.size());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double rate = static_cast<double>(bytes) / seconds / 1e6;
  RecordProperty("megabytes_per_second", static_cast<int>(rate));
  EXPECT_GT(sum, 0);
  // The bound only catches a change of kind.
  EXPECT_GT(rate, 10);
}

}  // namespace
}  // namespace hrm
