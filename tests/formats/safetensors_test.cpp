#include "hrm/formats/safetensors.h"

#include "formats/format_testing.h"
#include "hrm/base/file.h"

namespace hrm {
namespace {

std::string with_header(const std::string& header, const std::string& data = "") {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

SafetensorsFile parse_safetensors(const std::string& file) {
  return SafetensorsFile::parse(as_bytes(file), "x.safetensors");
}

TEST(Safetensors, ReadsWhatPythonWrites) {
  const SafetensorsFile file(fixture("formats/python.safetensors"));
  EXPECT_EQ(file.names().size(), 9u);
  EXPECT_EQ(file.at("a.f32").dtype, DType::f32);
  EXPECT_EQ(file.at("a.f32").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values_of<float>(file.at("a.f32").bytes), (std::vector<float>{0, .25f, .5f, .75f, 1, 1.25f}));
  EXPECT_EQ(file.at("b.bf16").dtype, DType::bf16);
  EXPECT_EQ(values_of<uint16_t>(file.at("b.bf16").bytes), (std::vector<uint16_t>{0x3F80, 0xC000, 0x3F00}));
  EXPECT_EQ(file.at("c.i64").shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(values_of<int64_t>(file.at("c.i64").bytes), (std::vector<int64_t>{1, -(int64_t{1} << 40)}));
  EXPECT_EQ(file.at("d.bool").dtype, DType::boolean);
  EXPECT_EQ(values_of<uint8_t>(file.at("d.bool").bytes), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(file.at("e.scalar").numel(), 1);
  EXPECT_TRUE(file.at("e.scalar").shape.empty());
  EXPECT_EQ(values_of<double>(file.at("e.scalar").bytes), std::vector<double>{2.5});
  EXPECT_EQ(file.at("f.empty").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(file.at("f.empty").numel(), 0);
  EXPECT_EQ(values_of<uint8_t>(file.at("g.u8").bytes), (std::vector<uint8_t>{0, 255}));
  EXPECT_EQ(values_of<int32_t>(file.at("h.i32").bytes), std::vector<int32_t>{-7});
  EXPECT_EQ(file.at("i.f16").dtype, DType::f16);
  EXPECT_EQ(file.metadata().at("note"), "zw\u00f6lf \"12\"\n");
}

TEST(Safetensors, AMovedFileKeepsItsTensors) {
  SafetensorsFile file(fixture("formats/python.safetensors"));
  const SafetensorsFile moved = std::move(file);
  EXPECT_EQ(values_of<int32_t>(moved.at("h.i32").bytes), std::vector<int32_t>{-7});
}

TEST(Safetensors, MissingTensorsAreNamed) {
  const SafetensorsFile file(fixture("formats/python.safetensors"), ExitCode::checkpoint);
  EXPECT_FALSE(file.contains("a.f23"));
  expect_error([&] { file.at("a.f23"); }, ExitCode::checkpoint,
               {"python.safetensors", "'a.f23'", "did you mean 'a.f32'"});
  expect_error([&] { file.at("something else"); }, ExitCode::checkpoint, {"no tensor 'something else'"});
}

TEST(Safetensors, UnknownTypesAreNamed) {
  const std::filesystem::path file = fixture("formats/float8.safetensors");
  EXPECT_EQ(SafetensorsFile(file).at("x").dtype, DType::f8_e4m3);
  std::string text = read_text(file, ExitCode::data);
  text.replace(text.find("F8_E4M3"), 7, "F8_E5M2");
  expect_error([&] { SafetensorsFile::parse(as_bytes(text), "float8.safetensors"); }, ExitCode::data,
               {"float8.safetensors", "'x'", "F8_E5M2", "quantised"});
}

TEST(Safetensors, RoundTripIsExactAndDeterministic) {
  const std::vector<float> a{1, 2, 3, 4};
  const std::vector<int64_t> b{-1};
  const std::vector<SafetensorsEntry> entries{{"z", DType::f32, {2, 2}, bytes_of(a)},
                                              {"e", DType::bf16, {0, 3}, {}},
                                              {"\"quoted\" \u00fc", DType::i64, {}, bytes_of(b)}};
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"line", "a\nb"}};
  const auto bytes = build_safetensors(entries, metadata);
  EXPECT_EQ(bytes, build_safetensors(entries, metadata));
  EXPECT_EQ(safetensors_header(entries, metadata).size() % 8, 0u);

  const auto file = SafetensorsFile::parse(bytes, "memory");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names(), (std::vector<std::string>{"z", "e", "\"quoted\" \u00fc"}));
  for (const auto& entry : entries) {
    EXPECT_EQ(file.at(entry.name).dtype, entry.dtype);
    EXPECT_EQ(file.at(entry.name).shape, entry.shape);
    EXPECT_EQ(as_text(file.at(entry.name).bytes), as_text(entry.bytes));
  }

  const TempFolder folder;
  write_safetensors(folder / "a.safetensors", entries, metadata);
  EXPECT_EQ(read_text(folder / "a.safetensors", ExitCode::data), as_text(bytes));
}

TEST(Safetensors, NothingToStoreIsAFileToo) {
  const auto bytes = build_safetensors({}, {});
  EXPECT_TRUE(SafetensorsFile::parse(bytes, "memory").names().empty());
}

TEST(Safetensors, WriterChecksItsArguments) {
  const std::vector<float> a{1};
  expect_error([&] { build_safetensors({{"a", DType::f32, {2}, bytes_of(a)}}, {}); }, ExitCode::unexpected, {"'a'"});
  expect_error(
      [&] {
        build_safetensors({{"a", DType::f32, {1}, bytes_of(a)}, {"a", DType::f32, {1}, bytes_of(a)}}, {});
      },
      ExitCode::unexpected, {"'a'", "twice"});
  expect_error(
      [&] {
        build_safetensors({{"__metadata__", DType::f32, {1}, bytes_of(a)}}, {});
      },
      ExitCode::unexpected, {"__metadata__"});
  expect_error(
      [&] {
        build_safetensors({{"\xff", DType::f32, {1}, bytes_of(a)}}, {});
      },
      ExitCode::unexpected, {"UTF-8"});
}

TEST(Safetensors, HeadersAreChecked) {
  const auto bad = [](const std::string& header, const std::string& data, const std::vector<std::string>& parts) {
    SCOPED_TRACE(header);
    expect_error([&] { parse_safetensors(with_header(header, data)); }, ExitCode::data, parts);
  };
  const auto tensor = [](const std::string& name, const std::string& type, const std::string& shape,
                         const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  EXPECT_EQ(parse_safetensors(with_header("{" + tensor("a", "U8", "[4]", "[0,4]") + "}", "1234")).at("a").numel(), 4);

  bad("{" + tensor("a", "U8", "[4]", "[0,4]") + "}", "123", {"'a'", "truncated"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4]") + "}", "12345", {"1 bytes follow"});
  bad("{" + tensor("a", "U8", "[4]", "[0,3]") + "}", "123", {"'a'", "takes 4 bytes"});
  bad("{" + tensor("a", "U8", "[4]", "[1,5]") + "}", "12345", {"'a'", "gap"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[2]", "[2,4]") + "}", "1234",
      {"'b'", "overlaps"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("a", "U8", "[4]", "[0,4]") + "}", "1234",
      {"'a'", "twice"});
  bad("{" + tensor("a", "U8", "[-4]", "[0,4]") + "}", "1234", {"'a'", "zero or more"});
  bad("{" + tensor("a", "U8", "[4.0]", "[0,4]") + "}", "1234", {"'a'", "zero or more"});
  bad("{" + tensor("a", "U8", "[4]", "[4,0]") + "}", "1234", {"'a'", "leave the file"});
  bad("{" + tensor("a", "U8", "[18446744073709551615]", "[0,4]") + "}", "1234", {"too large"});
  bad("{" + tensor("a", "F32", "[4611686018427387904, 4]", "[0,0]") + "}", "", {"too large"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4]").insert(5, "\"more\":1,") + "}", "1234", {"'a'", "other keys"});
  bad("{\"a\":{\"dtype\":\"U8\"}}", "", {"no shape"});
  bad("{\"a\":3}", "", {"not an object"});
  bad("{\"__metadata__\":{\"a\":3}}", "", {"not text"});
  bad("{\"a\":", "", {"not JSON"});
  bad("[]", "", {"no JSON header"});
  bad("{\"a\":" + std::string(100000, '[') + "}", "", {"'a'", "not an object"});
  bad("{\"a\":{\"shape\":" + std::string(100000, '[') + "}}", "", {"'a'", "zero or more"});
  // Keys of a tensor and of the metadata have nothing to do with each other.
  parse_safetensors(
      with_header("{" + tensor("a", "U8", "[4]", "[0,4]") + ",\"__metadata__\":{\"dtype\":\"\"}}", "1234"));
  bad("{\"__metadata__\":{\"b\":{}}}", "", {"'b'", "not text"});
  bad("{\"__metadata__\":{\"b\":\"1\",\"b\":\"2\"}}", "", {"'b'", "twice"});
  bad("{\"__metadata__\":{},\"__metadata__\":{}}", "", {"'__metadata__'", "twice"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4]").insert(5, "\"dtype\":\"U8\",") + "}", "1234", {"'dtype'", "twice"});
  bad("{" + tensor("a", "U8", "[4]", "[0]") + "}", "1234", {"'a'", "fewer than two"});
  bad("{" + tensor("a", "U8", "[4]", "[0,4,4]") + "}", "1234", {"'a'", "more than two"});
  bad("{" + tensor("a", "U8", "[4]", "[0.0,4]") + "}", "1234", {"'a'", "data_offsets must be whole"});
  bad("{" + tensor(std::string(1025, 'n'), "U8", "[4]", "[0,4]") + "}", "1234", {"a name is longer than 1024"});
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  bad("{" + tensor("a", "U8", shape + "]", "[0,1]") + "}", "1", {"'a'", "more than 64 dimensions"});
  std::string many = "{";
  for (int i = 0; i <= 100000; ++i) many += (i ? "," : "") + tensor(std::to_string(i), "U8", "[0]", "[0,0]");
  bad(many + "}", "", {"more than 100000 tensors"});
  // One byte above 16 MiB of header, all of which is there.
  bad("{" + std::string(size_t{16} << 20, ' '), "", {"its header would take 16777217 bytes"});
  expect_error([] { parse_safetensors("short"); }, ExitCode::data, {"too short"});
  expect_error([] { parse_safetensors(std::string(16, '\xff')); }, ExitCode::data, {"not a safetensors file"});
  expect_error([] { parse_safetensors(std::string("\x40\0\0\0\0\0\0\0{}", 10)); }, ExitCode::data,
               {"ends inside its header"});
}

TEST(Safetensors, DamageNeverCrashes) {
  const std::string good = read_text(fixture("formats/python.safetensors"), ExitCode::data);
  const auto read = [](std::span<const std::byte> bytes) { SafetensorsFile::parse(bytes, "x"); };
  expect_truncations_fail(good, ExitCode::data, read);
  EXPECT_GT(expect_flips_are_safe(good, 5000, ExitCode::data, read), 1000);
}

}  // namespace
}  // namespace hrm
