#pragma once
// Zip archives as PyTorch writes them: stored (uncompressed) records, Zip64 if needed, CRC-32.
// PKWARE APPNOTE 6.3.

#include <cstddef>
#include <cstdint>
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

// Reads memory that must outlive this object.
class ZipReader {
 public:
  // Reads and checks the central directory. Throws Error(code) for data that is not a zip archive or is truncated, and
  // for records that overlap or lie outside the file. A duplicate name, several disks, more than 2^20 records and names
  // above 4,096 bytes are also errors. Names are only keys: nothing is extracted to disk.
  ZipReader(std::span<const std::byte> archive, const std::string& origin, ExitCode code = ExitCode::data);

  // In the order of the central directory.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return records_.count(name) != 0; }
  // The record's data, after a CRC-32 check. Throws Error(code) naming the record and the archive. Compressed and
  // encrypted records are errors (TorchScript archives compress the code next to the tensors).
  std::span<const std::byte> at(const std::string& name) const;

 private:
  struct Record {
    uint64_t offset = 0;  // of the data, in the archive
    uint64_t size = 0;
    uint32_t crc = 0;
    const char* refused = nullptr;  // why at() cannot give the data: "compressed" or "encrypted"
  };

  std::span<const std::byte> archive_;
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
