#include "hrm/formats/npy.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

template <class T>
void expect_array(const std::string& file, DType dtype, const std::vector<int64_t>& shape, std::vector<T> values) {
  SCOPED_TRACE(file);
  const NpyFile npy(fixture("formats/" + file));
  EXPECT_EQ(npy.array().dtype, dtype);
  EXPECT_EQ(npy.array().shape, shape);
  EXPECT_EQ(npy.array().numel(), static_cast<int64_t>(values.size()));
  EXPECT_EQ(values_of<T>(npy.array().bytes), values);
}

TEST(Npy, ReadsWhatNumpyWrites) {
  expect_array<uint8_t>("u1.npy", DType::u8, {2, 2}, {0, 1, 2, 3});
  expect_array<int8_t>("i1.npy", DType::i8, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<int16_t>("i2.npy", DType::i16, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<int32_t>("i4.npy", DType::i32, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<int64_t>("i8.npy", DType::i64, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<uint16_t>("u2.npy", DType::u16, {3}, {0, 1, 2});
  expect_array<uint16_t>("f2.npy", DType::f16, {2, 3}, {0xC000, 0xBC00, 0, 0x3C00, 0x4000, 0x4200});
  expect_array<float>("f4.npy", DType::f32, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<double>("f8.npy", DType::f64, {2, 3}, {-2, -1, 0, 1, 2, 3});
  expect_array<uint8_t>("b1.npy", DType::boolean, {3}, {1, 0, 1});
  expect_array<float>("scalar.npy", DType::f32, {}, {1.5f});
  expect_array<int32_t>("empty.npy", DType::i32, {0, 3}, {});
  expect_array<int32_t>("version2.npy", DType::i32, {4}, {0, 1, 2, 3});
}

TEST(Npy, ReadsADataset) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(fixture("dataset_sudoku"))) {
    if (entry.path().extension() != ".npy") continue;
    ++files;
    const NpyFile npy(entry.path());
    EXPECT_GT(npy.array().numel(), 0) << entry.path();
  }
  EXPECT_GE(files, 5u);
}

TEST(Npy, RefusesWhatItCannotRead) {
  const auto open = [](const std::string& file) { return [file] { NpyFile npy(fixture("formats/" + file)); }; };
  expect_error(open("fortran.npy"), ExitCode::data, {"fortran.npy", "Fortran order", "ascontiguousarray"});
  expect_error(open("big_endian.npy"), ExitCode::data, {"big_endian.npy", "big-endian", "'>i4'"});
  // A complex number has no meaning here.
  std::string complex = npy_header(DType::f64, {1}) + std::string(8, '\0');
  complex.replace(complex.find("<f8"), 3, "<c8");
  expect_error([&] { parse_npy(as_bytes(complex), "c8.npy"); }, ExitCode::data, {"c8.npy", "'<c8'", "not supported"});
  expect_error(open("fields.npy"), ExitCode::data, {"fields.npy", "structured"});
  expect_error(open("zip64.zip"), ExitCode::data, {"zip64.zip: this is a zip archive"});
  expect_error(open("missing.npy"), ExitCode::data, {"missing.npy", "does not exist"});
}

std::string file_with(const std::string& dict, const std::string& data = "") {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(dict.size() & 0xFF);
  file += static_cast<char>(dict.size() >> 8);
  return file + dict + data;
}

void expect_bad_header(const std::string& dict, const std::string& part, const std::string& data = "") {
  SCOPED_TRACE(dict);
  expect_error([&] { parse_npy(as_bytes(file_with(dict, data)), "x.npy"); }, ExitCode::data, {"x.npy", part});
}

TEST(Npy, HeadersAreChecked) {
  const std::string good = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n";
  EXPECT_EQ(parse_npy(as_bytes(file_with(good, "12345678")), "x.npy").numel(), 2);
  expect_bad_header(good, "truncated", "1234567");
  expect_bad_header(good, "longer than its array", "123456789");
  expect_bad_header("{'descr': '<i4', 'fortran_order': False}", "are needed");
  expect_bad_header("{'descr': '<i4', 'descr': '<i4'}", "twice");
  expect_bad_header("{'descr': '<i4', 'other': 1}", "unknown key");
  expect_bad_header("{'descr': '<i4', 'fortran_order': 0}", "True or False");
  expect_bad_header("{'shape': (-1,)}", "expected a size");
  expect_bad_header("{'shape': (99999999999999999999,)}", "expected a size");
  expect_bad_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", "too large");
  // Must not wrap around to a small number of bytes.
  expect_bad_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4), }", "too large");
  expect_bad_header("{'descr': '<i4", "unclosed string");
  expect_bad_header(good + "x", "after the closing brace");
  expect_bad_header("", "expected '{'");
}

TEST(Npy, WritesWhatItReads) {
  const TempFolder folder;
  const std::vector<int32_t> values{1, -2, 3, -4, 5, -6};
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{6}, {2, 3}, {1, 2, 3}, {6, 1}}) {
    write_npy(folder / "a.npy", DType::i32, shape, bytes_of(values));
    const NpyFile npy(folder / "a.npy");
    EXPECT_EQ(npy.array().shape, shape);
    EXPECT_EQ(npy.array().dtype, DType::i32);
    EXPECT_EQ(values_of<int32_t>(npy.array().bytes), values);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(npy.array().bytes.data()) % 64, 0u);
  }
  write_npy(folder / "s.npy", DType::f64, {}, bytes_of(std::vector<double>{0.5}));
  EXPECT_EQ(values_of<double>(NpyFile(folder / "s.npy").array().bytes), std::vector<double>{0.5});
}

TEST(Npy, WritesTheHeaderOfNumpy) {
  // numpy leaves more room behind short headers (for appending), so the dict alone is compared.
  const std::string numpy = read_text(fixture("formats/i4.npy"), ExitCode::data);
  const std::string dict = numpy.substr(10, numpy.find('}') - 9);
  const std::string header = npy_header(DType::i32, {2, 3});
  EXPECT_EQ(header.substr(10, dict.size()), dict);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_EQ(header.back(), '\n');
}

TEST(Npy, WriterChecksItsArguments) {
  const TempFolder folder;
  expect_error([&] { write_npy(folder / "a", DType::i32, {2}, as_bytes("123")); }, ExitCode::unexpected,
               {"[2]", "I32"});
  expect_error([&] { npy_header(DType::bf16, {2}); }, ExitCode::unexpected, {"BF16"});
  expect_error([&] { write_npy("/no/such/folder/a.npy", DType::u8, {1}, as_bytes("1")); }, ExitCode::environment,
               {"/no/such/folder/a.npy"});
}

TEST(Npy, DamageNeverCrashes) {
  const std::string good = read_text(fixture("formats/i4.npy"), ExitCode::data);
  const auto parse = [](std::span<const std::byte> bytes) { parse_npy(bytes, "x.npy"); };
  expect_truncations_fail(good, ExitCode::data, parse);
  EXPECT_GT(expect_flips_are_safe(good, 20000, ExitCode::data, parse), 1000);
}

}  // namespace
}  // namespace hrm
