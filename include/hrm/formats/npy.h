#pragma once
// NumPy's .npy files (format versions 1, 2 and 3), C order, little-endian: uint8/16/32, int8/16/32/64, float16/32/64,
// bool. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/formats/dtype.h"

namespace hrm {

// Checks the header against the size of `bytes` and returns a view into them. `origin` names the source in errors.
// Throws Error(code) for anything else, including extra bytes at the end.
ArrayView parse_npy(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);

// A memory-mapped .npy file. The array is valid as long as this object.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  const ArrayView& array() const { return array_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  ArrayView array_;
};

// The header of a version 1 file, padded so that the data starts at a multiple of 64. Throws Error(unexpected) for
// bfloat16, which .npy cannot represent.
std::string npy_header(DType dtype, const std::vector<int64_t>& shape);

// Writes and fsyncs a file that numpy.load can open. Throws Error(unexpected) if bytes.size() does not match the shape,
// and Error(environment) if writing fails.
void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<int64_t>& shape,
               std::span<const std::byte> bytes);

}  // namespace hrm
