#include "hrm/formats/zip.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

std::string as_string(const std::vector<std::byte>& bytes) {
  return std::string(as_text(bytes));
}

std::string small_archive() {
  ZipWriter writer;
  writer.add("a/one", "hello");
  writer.add("a/empty", "");
  writer.add("a/two", std::string(1000, 'x'));
  return as_string(writer.finish());
}

void read_all(std::span<const std::byte> bytes) {
  const ZipReader zip(bytes, "x.zip");
  for (const auto& name : zip.names()) zip.at(name);
}

TEST(Crc32, KnownValues) {
  EXPECT_EQ(crc32(as_bytes("")), 0u);
  EXPECT_EQ(crc32(as_bytes("123456789")), 0xCBF43926u);
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(crc32(as_bytes(text)), 0x414FA339u);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(
        crc32(as_bytes(std::string_view(text).substr(cut)), crc32(as_bytes(std::string_view(text).substr(0, cut)))),
        0x414FA339u);
  }
}

TEST(Zip, RoundTrip) {
  const std::string archive = small_archive();
  const ZipReader zip(as_bytes(archive), "x.zip");
  EXPECT_EQ(zip.names(), (std::vector<std::string>{"a/one", "a/empty", "a/two"}));
  EXPECT_EQ(as_text(zip.at("a/one")), "hello");
  EXPECT_EQ(as_text(zip.at("a/empty")), "");
  EXPECT_EQ(as_text(zip.at("a/two")), std::string(1000, 'x'));
  for (const auto& name : zip.names()) {
    EXPECT_EQ((zip.at(name).data() - reinterpret_cast<const std::byte*>(archive.data())) % 64, 0) << name;
  }
  EXPECT_EQ(archive, small_archive());
  EXPECT_FALSE(zip.contains("a/three"));
  expect_error([&] { zip.at("a/three"); }, ExitCode::data, {"x.zip", "no record 'a/three'"});
}

TEST(Zip, AnEmptyArchive) {
  ZipWriter writer;
  const auto bytes = writer.finish();
  EXPECT_TRUE(ZipReader(bytes, "x").names().empty());
}

TEST(Zip, ZipSixtyFourForManyRecords) {
  ZipWriter writer;
  for (int i = 0; i < 66000; ++i) writer.add(std::to_string(i), "");
  writer.add("last", "data");
  const auto bytes = writer.finish();
  const ZipReader zip(bytes, "x");
  EXPECT_EQ(zip.names().size(), 66001u);
  EXPECT_EQ(as_text(zip.at("last")), "data");
}

TEST(Zip, ReadsZipSixtyFourFieldsAndComments) {
  const MappedFile file(fixture("formats/zip64.zip"));
  EXPECT_EQ(as_text(ZipReader(file.bytes(), "x").at("a/one")), "hello");
}

TEST(Zip, RefusesCompressedRecordsByName) {
  const MappedFile file(fixture("formats/deflated.zip"));
  const ZipReader zip(file.bytes(), "deflated.zip", ExitCode::checkpoint);
  EXPECT_EQ(as_text(zip.at("a/plain")), "x");
  expect_error([&] { zip.at("a/packed"); }, ExitCode::checkpoint, {"deflated.zip", "'a/packed'", "compressed"});
}

TEST(Zip, RefusesEncryptedRecordsByName) {
  std::string archive = small_archive();
  const size_t entry = archive.find("PK\x01\x02");
  archive[entry + 8] |= 1;
  const ZipReader zip(as_bytes(archive), "x.zip");
  expect_error([&] { zip.at("a/one"); }, ExitCode::data, {"'a/one'", "encrypted"});
}

TEST(Zip, FindsDamagedData) {
  std::string archive = small_archive();
  archive[archive.find("hello") + 1] = 'a';
  const ZipReader zip(as_bytes(archive), "x.zip");
  expect_error([&] { zip.at("a/one"); }, ExitCode::data, {"x.zip", "'a/one'", "damaged", "CRC-32"});
  EXPECT_EQ(as_text(zip.at("a/two")), std::string(1000, 'x'));
}

TEST(Zip, RefusesRecordsThatOverlapOrRepeat) {
  ZipWriter writer;
  writer.add("a", "1");
  writer.add("b", "1");
  const std::string archive = as_string(writer.finish());
  const size_t first = archive.find("PK\x01\x02");
  const size_t second = archive.find("PK\x01\x02", first + 1);
  std::string overlapping = archive;
  overlapping.replace(second + 42, 4, archive.substr(first + 42, 4));
  expect_error([&] { ZipReader zip(as_bytes(overlapping), "x"); }, ExitCode::data, {"overlap"});
  std::string twice = archive;
  twice[second + 46] = 'a';
  expect_error([&] { ZipReader zip(as_bytes(twice), "x"); }, ExitCode::data, {"'a' twice"});
  expect_error([&] { writer.add("c", "1"), writer.add("c", "2"); }, ExitCode::unexpected, {"'c'", "twice"});
}

TEST(Zip, RefusesTooManyRecordsAndTooLongNames) {
  ZipWriter writer;
  expect_error([&] { writer.add(std::string(4097, 'a'), "1"); }, ExitCode::unexpected, {"so long a name"});
  writer.add(std::string(4096, 'a'), "1");
  const std::string good = as_string(writer.finish());
  EXPECT_EQ(ZipReader(as_bytes(good), "x").names()[0].size(), 4096u);
  // A directory entry of 5,000 bytes of name.
  std::string long_name = good;
  const size_t entry = long_name.find("PK\x01\x02"), end = long_name.find("PK\x05\x06");
  const auto put = [&](size_t at, size_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) long_name[at + i] = static_cast<char>(value >> (8 * i));
  };
  put(entry + 28, 5000, 2);
  put(end + 12, end - entry + 904, 4);
  long_name.insert(entry + 46, 904, 'b');
  expect_error([&] { ZipReader zip(as_bytes(long_name), "x.zip"); }, ExitCode::data, {"x.zip", "a name of 5000 bytes"});

  // 2^20 + 1 entries as the Zip64 end record counts them, in a directory that is long enough for them.
  const size_t count = (size_t{1} << 20) + 1;
  std::string many(46 * count, '\0');
  const auto store = [&](uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) many += static_cast<char>(value >> (8 * i));
  };
  many += "PK\x06\x06";
  store(44, 8);
  store(0, 12);
  for (const uint64_t value : {uint64_t{count}, uint64_t{count}, uint64_t{46 * count}, uint64_t{0}}) store(value, 8);
  many += "PK\x06\x07";
  store(0, 4);
  store(46 * count, 8);
  store(1, 4);
  many += "PK\x05\x06";
  store(0, 4);
  store(0xFFFFFFFF, 4);
  store(0xFFFFFFFFFFFFFFFF, 8);
  store(0, 2);
  expect_error([&] { ZipReader zip(as_bytes(many), "x.zip"); }, ExitCode::data, {"holds 1048577 records"});
}

TEST(Zip, RefusesOtherFiles) {
  expect_error([] { ZipReader zip(as_bytes("not a zip archive at all"), "x"); }, ExitCode::data, {"not a zip archive"});
  expect_error([] { ZipReader zip({}, "x"); }, ExitCode::data, {"not a zip archive"});
}

TEST(Zip, DamageNeverCrashes) {
  const std::string good = small_archive();
  expect_truncations_fail(good, ExitCode::data, read_all);
  EXPECT_GT(expect_flips_are_safe(good, 10000, ExitCode::data, read_all), 1000);
  const std::string zip64 = read_text(fixture("formats/zip64.zip"), ExitCode::data);
  expect_truncations_fail(zip64, ExitCode::data, read_all);
  expect_flips_are_safe(zip64, 10000, ExitCode::data, read_all);
}

}  // namespace
}  // namespace hrm
