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

// Checks the header against the length of `bytes` and returns a view into them. `origin` names the source in errors.
// Throws Error(code) for anything that is not such a file, including surplus bytes.
ArrayView parse_npy(std::span<const std::byte> bytes, const std::string& origin, ExitCode code = ExitCode::data);

// A .npy file mapped into memory. The array lives as long as this object.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path, ExitCode code = ExitCode::data);
  const ArrayView& array() const { return array_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  ArrayView array_;
};

// The bytes before the data of a version 1 file, padded so that the data starts at a multiple of 64. bfloat16 has no
// .npy form: Error(unexpected).
std::string npy_header(DType dtype, const std::vector<int64_t>& shape);

// Writes and fsyncs a file that numpy.load opens. bytes.size() must fit the shape, otherwise Error(unexpected). Throws
// Error(environment) if the file cannot be written.
void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<int64_t>& shape,
               std::span<const std::byte> bytes);

}  // namespace hrm
