// What is read is written again, and read again as the same.
#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/formats/npy.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const ArrayView array = parse_npy(bytes, "x.npy");
    fuzz::touch(array.bytes);
    fuzz::check(array_bytes(array.dtype, array.shape) == static_cast<int64_t>(array.bytes.size()), "the shape fits");
    const std::string again = npy_header(array.dtype, array.shape) + std::string(as_text(array.bytes));
    const ArrayView copy = parse_npy(as_bytes(again), "again.npy");
    fuzz::check(copy.dtype == array.dtype && copy.shape == array.shape, "the same type and shape");
    fuzz::check(as_text(copy.bytes) == as_text(array.bytes), "the same bytes");
  });
  return 0;
}
