#pragma once
// Zip archives as PyTorch writes them: stored (uncompressed) records, Zip64 if needed, CRC-32.
// PKWARE APPNOTE 6.3.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

// CRC-32 (IEEE 802.3), as in zip and zlib. Pass the previous value to continue.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t previous = 0);

// Copies bytes of a file, from an offset on.
using ReadBytes = std::function<void(uint64_t offset, std::span<std::byte> into)>;

// Reads memory that must outlive this object, or a file piece by piece.
class ZipReader {
 public:
  // Where a record's data are in the archive.
  struct Place {
    uint64_t offset = 0, size = 0;
  };

  // Reads and checks the central directory. Throws Error(code) for data that is not a zip archive or is truncated, and
  // for records that overlap or lie outside the file. A duplicate name, several disks, more than 2^20 records and names
  // above 4,096 bytes are also errors. Names are only keys: nothing is extracted to disk.
  ZipReader(std::span<const std::byte> archive, const std::string& origin, ExitCode code = ExitCode::data);
  // The same of a file of `size` bytes, of which it reads the directory, of at most 256 MiB, and the records' headers.
  ZipReader(uint64_t size, ReadBytes read, const std::string& origin, ExitCode code = ExitCode::data);

  // In the order of the central directory.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return records_.count(name) != 0; }
  // Of an archive in memory: the record's data, after a CRC-32 check. Throws Error(code) naming the record and the
  // archive. Compressed and encrypted records are errors (TorchScript archives compress the code next to the tensors).
  std::span<const std::byte> at(const std::string& name) const;
  // A copy of the same, of any archive.
  std::string text(const std::string& name) const;
  // Where they are; without a look at the data. Throws likewise.
  Place place(const std::string& name) const;

 private:
  struct Record {
    uint64_t offset = 0;  // of the data, in the archive
    uint64_t size = 0;
    uint32_t crc = 0;
    const char* refused = nullptr;  // why at() cannot give the data: "compressed" or "encrypted"
  };

  void read_directory(uint64_t archive_size);
  const Record& record_of(const std::string& name) const;
  void check_crc(const std::string& name, const Record& record, std::span<const std::byte> data) const;

  std::span<const std::byte> archive_;  // in memory
  ReadBytes read_;
  std::string origin_;
  ExitCode code_;
  std::vector<std::string> names_;
  std::map<std::string, Record> records_;
};

// Builds an archive in memory. The data of each record starts at a multiple of 64, with a padding extra field as in
// torch, so that tensors can be mapped. Times are fixed: equal inputs give equal bytes.
class ZipWriter {
 public:
  // Throws Error(unexpected) for a duplicate name.
  void add(const std::string& name, std::span<const std::byte> data);
  void add(const std::string& name, std::string_view text);
  // Returns the archive and leaves the writer empty.
  std::vector<std::byte> finish();

 private:
  struct Record {
    std::string name;
    uint64_t header = 0;  // offset of the local header
    uint64_t size = 0;
    uint32_t crc = 0;
  };

  std::vector<std::byte> out_;
  std::vector<Record> records_;
  std::set<std::string> names_;
};

}  // namespace hrm
