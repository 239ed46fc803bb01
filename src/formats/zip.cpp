#include "hrm/formats/zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "hrm/base/file.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;
constexpr uint32_t kFull32 = 0xFFFFFFFF;  // "the value is in the Zip64 field"
constexpr uint16_t kFull16 = 0xFFFF;
constexpr uint16_t kZip64Field = 0x0001;
// Extra field that torch uses for padding ("FB").
constexpr uint16_t kPaddingField = 0x4246;
constexpr size_t kEntryAlignment = 64;
// Bounds on what a directory can claim; torch.save makes one record per tensor, named by a number.
constexpr uint64_t kMaxRecords = uint64_t{1} << 20;
constexpr size_t kMaxEntryName = 4096;
constexpr uint64_t kMaxDirectory = uint64_t{256} << 20;
constexpr uint16_t kEncrypted = 1 << 0 | 1 << 6 | 1 << 13;
constexpr uint16_t kUtf8Names = 1 << 11;
// 1 January 1980, the first day that the format knows.
constexpr uint16_t kDate = 1 << 5 | 1;

// Slicing by 8 (Kounavis and Berry): eight table look-ups per eight bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0xEDB88320u : 0);
    tables[0][i] = crc;
  }
  for (size_t t = 1; t < 8; ++t) {
    for (size_t i = 0; i < 256; ++i) tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
  }
  return tables;
}

constexpr auto kCrcTables = make_crc_tables();

template <class Int>
Int load(std::span<const std::byte> bytes, size_t at) {
  Int value = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) value |= static_cast<Int>(static_cast<Int>(bytes[at + i]) << (8 * i));
  return value;
}

template <class Int>
void store(std::vector<std::byte>& out, Int value) {
  for (size_t i = 0; i < sizeof(Int); ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void append_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Where the end record starts: the last signature whose comment reaches exactly to the end of the file.
size_t find_end(std::span<const std::byte> archive) {
  if (archive.size() < kEndSize) return std::string::npos;
  const size_t last = archive.size() - kEndSize;
  const size_t first = last > kFull16 ? last - kFull16 : 0;
  for (size_t at = last + 1; at-- > first;) {
    if (load<uint32_t>(archive, at) == kEnd && load<uint16_t>(archive, at + 20) == archive.size() - at - kEndSize) {
      return at;
    }
  }
  return std::string::npos;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t previous) {
  uint32_t crc = ~previous;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = kCrcTables[7][low & 0xFF] ^ kCrcTables[6][(low >> 8) & 0xFF] ^ kCrcTables[5][(low >> 16) & 0xFF] ^
          kCrcTables[4][low >> 24] ^ kCrcTables[3][high & 0xFF] ^ kCrcTables[2][(high >> 8) & 0xFF] ^
          kCrcTables[1][(high >> 16) & 0xFF] ^ kCrcTables[0][high >> 24];
  }
  for (; left > 0; --left, ++data) crc = (crc >> 8) ^ kCrcTables[0][(crc ^ *data) & 0xFF];
  return ~crc;
}

ZipReader::ZipReader(std::span<const std::byte> archive, const std::string& origin, ExitCode code)
    : archive_(archive), origin_(origin), code_(code) {
  read_ = [archive](uint64_t offset, std::span<std::byte> into) {
    if (!into.empty()) std::memcpy(into.data(), archive.data() + offset, into.size());
  };
  read_directory(archive.size());
}

ZipReader::ZipReader(uint64_t size, ReadBytes read, const std::string& origin, ExitCode code)
    : read_(std::move(read)), origin_(origin), code_(code) {
  read_directory(size);
}

void ZipReader::read_directory(uint64_t archive_size) {
  const std::string& origin = origin_;
  const ExitCode code = code_;
  const auto bytes_at = [&](uint64_t offset, uint64_t count) {
    std::vector<std::byte> bytes(count);
    read_(offset, bytes);
    return bytes;
  };
  // The end record, its comment, and what stands before it in a large archive.
  const uint64_t tail_size = std::min<uint64_t>(archive_size, kLocatorSize + kEndSize + kFull16);
  const std::vector<std::byte> tail = bytes_at(archive_size - tail_size, tail_size);
  const uint64_t tail_start = archive_size - tail_size;
  const size_t end_in_tail = find_end(tail);
  require(end_in_tail != std::string::npos, code, origin, ": not a zip archive, or truncated (no end record)");
  const uint64_t end = tail_start + end_in_tail;
  require(load<uint16_t>(tail, end_in_tail + 4) == 0 && load<uint16_t>(tail, end_in_tail + 6) == 0, code, origin,
          ": a zip archive in several parts");
  uint64_t count = load<uint16_t>(tail, end_in_tail + 10);
  uint64_t size = load<uint32_t>(tail, end_in_tail + 12);
  uint64_t start = load<uint32_t>(tail, end_in_tail + 16);
  uint64_t limit = end;  // the central directory ends here at the latest
  if (count == kFull16 || size == kFull32 || start == kFull32) {
    // Without a locator these are plain numbers.
    if (end_in_tail >= kLocatorSize && load<uint32_t>(tail, end_in_tail - kLocatorSize) == kEnd64Locator) {
      const uint64_t end64 = load<uint64_t>(tail, end_in_tail - kLocatorSize + 8);
      limit = end - kLocatorSize;
      const bool inside = end64 <= limit && limit - end64 >= kEnd64Size;
      const std::vector<std::byte> record = inside ? bytes_at(end64, kEnd64Size) : std::vector<std::byte>();
      require(inside && load<uint32_t>(record, 0) == kEnd64, code, origin,
              ": the zip archive is damaged (Zip64 end record)");
      count = load<uint64_t>(record, 32);
      size = load<uint64_t>(record, 40);
      start = load<uint64_t>(record, 48);
      limit = end64;
    }
  }
  require(start <= limit && size <= limit - start && count <= size / kCentralSize, code, origin,
          ": the zip archive is damaged (central directory)");
  require(count <= kMaxRecords, code, origin, ": the zip archive holds ", count, " records; at most ", kMaxRecords,
          " are read");
  require(size <= kMaxDirectory, code, origin, ": the zip archive has a directory of ", size, " bytes; at most ",
          kMaxDirectory, " are read");

  std::vector<std::pair<uint64_t, uint64_t>> extents;  // [local header, end of data) of every record
  const std::vector<std::byte> whole_directory = bytes_at(start, size);
  const std::span<const std::byte> directory = whole_directory;
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    require(directory.size() - at >= kCentralSize && load<uint32_t>(directory, at) == kCentralHeader, code, origin,
            ": the zip archive is damaged (directory entry ", i, ")");
    const uint16_t flags = load<uint16_t>(directory, at + 8);
    const uint16_t method = load<uint16_t>(directory, at + 10);
    Record record;
    record.crc = load<uint32_t>(directory, at + 16);
    uint64_t packed = load<uint32_t>(directory, at + 20);
    record.size = load<uint32_t>(directory, at + 24);
    const size_t name_size = load<uint16_t>(directory, at + 28);
    const size_t extra_size = load<uint16_t>(directory, at + 30);
    const size_t comment_size = load<uint16_t>(directory, at + 32);
    uint64_t header = load<uint32_t>(directory, at + 42);
    at += kCentralSize;
    require(directory.size() - at >= name_size + extra_size + comment_size, code, origin,
            ": the zip archive is damaged (directory entry ", i, ")");
    require(name_size <= kMaxEntryName, code, origin, ": the zip archive holds a name of ", name_size,
            " bytes; at most ", kMaxEntryName, " are read");
    std::string name(as_text(directory.subspan(at, name_size)));

    // The Zip64 field holds, in this order, those of the three values that are all ones above.
    auto extra = directory.subspan(at + name_size, extra_size);
    while (extra.size() >= 4) {
      const uint16_t id = load<uint16_t>(extra, 0);
      const size_t length = load<uint16_t>(extra, 2);
      if (length > extra.size() - 4) break;
      if (id == kZip64Field) {
        auto field = extra.subspan(4, length);
        for (uint64_t* value : {&record.size, &packed, &header}) {
          if (*value == kFull32 && field.size() >= 8) {
            *value = load<uint64_t>(field, 0);
            field = field.subspan(8);
          }
        }
      }
      extra = extra.subspan(4 + length);
    }
    at += name_size + extra_size + comment_size;

    const std::string where = "the record '" + printable(name) + "'";
    const bool inside = header <= start && start - header >= kLocalSize;
    std::array<std::byte, kLocalSize> local{};
    if (inside) read_(header, local);
    require(inside && load<uint32_t>(local, 0) == kLocalHeader, code, origin, ": the zip archive is damaged (", where,
            " has no local header)");
    const uint64_t gap = kLocalSize + uint64_t{load<uint16_t>(local, 26)} + load<uint16_t>(local, 28);
    require(start - header >= gap && start - header - gap >= packed, code, origin, ": the zip archive is damaged (",
            where, " leaves the archive)");
    record.offset = header + gap;
    if (flags & kEncrypted) {
      record.refused = "encrypted";
    } else if (method != 0) {
      record.refused = "compressed";
    } else {
      require(packed == record.size, code, origin, ": the zip archive is damaged (", where, " has two sizes)");
    }
    extents.emplace_back(header, record.offset + packed);
    require(records_.emplace(name, record).second, code, origin, ": the zip archive holds ", where, " twice");
    names_.push_back(std::move(name));
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    require(extents[i - 1].second <= extents[i].first, code, origin, ": the zip archive is damaged (records overlap)");
  }
}

const ZipReader::Record& ZipReader::record_of(const std::string& name) const {
  const auto found = records_.find(name);
  require(found != records_.end(), code_, origin_, ": the archive has no record '", printable(name), "'");
  const Record& record = found->second;
  require(!record.refused, code_, origin_, ": the record '", printable(name), "' is ",
          record.refused ? record.refused : "", "; only stored records are read");
  return record;
}

void ZipReader::check_crc(const std::string& name, const Record& record, std::span<const std::byte> data) const {
  require(crc32(data) == record.crc, code_, origin_, ": the record '", printable(name),
          "' is damaged (its CRC-32 does not match",
          record.crc == 0 ? "; the file may have been written without CRC-32)" : ")");
}

std::span<const std::byte> ZipReader::at(const std::string& name) const {
  const Record& record = record_of(name);
  const auto data = archive_.subspan(record.offset, record.size);
  check_crc(name, record, data);
  return data;
}

std::string ZipReader::text(const std::string& name) const {
  const Record& record = record_of(name);
  std::string text(record.size, '\0');
  read_(record.offset, std::as_writable_bytes(std::span(text)));
  check_crc(name, record, as_bytes(text));
  return text;
}

ZipReader::Place ZipReader::place(const std::string& name) const {
  const Record& record = record_of(name);
  return {record.offset, record.size};
}

void ZipWriter::add(const std::string& name, std::string_view text) {
  add(name, as_bytes(text));
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> data) {
  require(names_.insert(name).second, ExitCode::unexpected, "the zip record '", printable(name), "' is added twice");
  require(name.size() <= kMaxEntryName && records_.size() < kMaxRecords, ExitCode::unexpected,
          "a zip archive cannot hold so long a name or so many records");
  const Record record{name, out_.size(), data.size(), crc32(data)};
  const bool large = record.size >= kFull32;
  // The padding needs at least its own header of 4 bytes.
  const size_t unpadded = out_.size() + kLocalSize + name.size() + (large ? 20 : 0) + 4;
  const size_t padding = (kEntryAlignment - unpadded % kEntryAlignment) % kEntryAlignment;
  const size_t needed = unpadded + padding + data.size();
  if (needed > out_.capacity()) out_.reserve(std::max(needed, 2 * out_.capacity()));

  store<uint32_t>(out_, kLocalHeader);
  store<uint16_t>(out_, large ? 45 : 20);
  store<uint16_t>(out_, kUtf8Names);
  store<uint16_t>(out_, 0);  // stored
  store<uint16_t>(out_, 0);  // time
  store<uint16_t>(out_, kDate);
  store<uint32_t>(out_, record.crc);
  store<uint32_t>(out_, large ? kFull32 : static_cast<uint32_t>(record.size));
  store<uint32_t>(out_, large ? kFull32 : static_cast<uint32_t>(record.size));
  store<uint16_t>(out_, static_cast<uint16_t>(name.size()));
  store<uint16_t>(out_, static_cast<uint16_t>((large ? 20 : 0) + 4 + padding));
  append_bytes(out_, as_bytes(name));
  if (large) {
    store<uint16_t>(out_, kZip64Field);
    store<uint16_t>(out_, 16);
    store<uint64_t>(out_, record.size);
    store<uint64_t>(out_, record.size);
  }
  store<uint16_t>(out_, kPaddingField);
  store<uint16_t>(out_, static_cast<uint16_t>(padding));
  out_.insert(out_.end(), padding, std::byte{'Z'});
  append_bytes(out_, data);
  records_.push_back(record);
}

std::vector<std::byte> ZipWriter::finish() {
  const uint64_t start = out_.size();
  for (const Record& record : records_) {
    const bool large = record.size >= kFull32;
    const bool far = record.header >= kFull32;
    const uint16_t field = static_cast<uint16_t>((large ? 16 : 0) + (far ? 8 : 0));
    store<uint32_t>(out_, kCentralHeader);
    store<uint16_t>(out_, 45);  // made by: 4.5, no host attributes
    store<uint16_t>(out_, field ? 45 : 20);
    store<uint16_t>(out_, kUtf8Names);
    store<uint16_t>(out_, 0);
    store<uint16_t>(out_, 0);
    store<uint16_t>(out_, kDate);
    store<uint32_t>(out_, record.crc);
    store<uint32_t>(out_, large ? kFull32 : static_cast<uint32_t>(record.size));
    store<uint32_t>(out_, large ? kFull32 : static_cast<uint32_t>(record.size));
    store<uint16_t>(out_, static_cast<uint16_t>(record.name.size()));
    store<uint16_t>(out_, field ? field + 4 : 0);
    store<uint16_t>(out_, 0);  // comment
    store<uint16_t>(out_, 0);  // disk
    store<uint16_t>(out_, 0);  // internal attributes
    store<uint32_t>(out_, 0);  // external attributes
    store<uint32_t>(out_, far ? kFull32 : static_cast<uint32_t>(record.header));
    append_bytes(out_, as_bytes(record.name));
    if (field) {
      store<uint16_t>(out_, kZip64Field);
      store<uint16_t>(out_, field);
      if (large) {
        store<uint64_t>(out_, record.size);
        store<uint64_t>(out_, record.size);
      }
      if (far) store<uint64_t>(out_, record.header);
    }
  }
  const uint64_t end = out_.size();
  const uint64_t count = records_.size();
  if (count >= kFull16 || start >= kFull32 || end - start >= kFull32) {
    store<uint32_t>(out_, kEnd64);
    store<uint64_t>(out_, kEnd64Size - 12);
    store<uint16_t>(out_, 45);
    store<uint16_t>(out_, 45);
    store<uint32_t>(out_, 0);
    store<uint32_t>(out_, 0);
    store<uint64_t>(out_, count);
    store<uint64_t>(out_, count);
    store<uint64_t>(out_, end - start);
    store<uint64_t>(out_, start);
    store<uint32_t>(out_, kEnd64Locator);
    store<uint32_t>(out_, 0);
    store<uint64_t>(out_, end);
    store<uint32_t>(out_, 1);
  }
  store<uint32_t>(out_, kEnd);
  store<uint16_t>(out_, 0);
  store<uint16_t>(out_, 0);
  store<uint16_t>(out_, static_cast<uint16_t>(std::min<uint64_t>(count, kFull16)));
  store<uint16_t>(out_, static_cast<uint16_t>(std::min<uint64_t>(count, kFull16)));
  store<uint32_t>(out_, static_cast<uint32_t>(std::min<uint64_t>(end - start, kFull32)));
  store<uint32_t>(out_, static_cast<uint32_t>(std::min<uint64_t>(start, kFull32)));
  store<uint16_t>(out_, 0);
  records_.clear();
  names_.clear();
  return std::exchange(out_, {});
}

}  // namespace hrm
