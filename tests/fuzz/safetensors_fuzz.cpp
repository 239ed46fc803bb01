// What is read is written again, and read again as the same.
#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/formats/safetensors.h"

using namespace hrm;

namespace {

SafetensorsFile parse(std::span<const std::byte> bytes) {
  return SafetensorsFile::parse(bytes, "x.safetensors", ExitCode::checkpoint);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::checkpoint, [&] {
    const SafetensorsFile file = parse(bytes);
    std::vector<SafetensorsEntry> entries;
    size_t sum = 0;
    for (const std::string& name : file.names()) {
      const ArrayView& view = file.at(name);
      fuzz::touch(view.bytes);
      sum += view.bytes.size();
      fuzz::check(array_bytes(view.dtype, view.shape) == static_cast<int64_t>(view.bytes.size()), "the shape fits");
      entries.push_back({name, view.dtype, view.shape, view.bytes});
    }
    fuzz::check(sum <= size, "the tensors lie in the file");
    const auto again = build_safetensors(entries, file.metadata());
    const SafetensorsFile copy = parse(again);
    fuzz::check(copy.metadata() == file.metadata() && copy.names() == file.names(), "the same names");
    for (const SafetensorsEntry& entry : entries) {
      const ArrayView& view = copy.at(entry.name);
      fuzz::check(view.dtype == entry.dtype && view.shape == entry.shape, "the same type and shape");
      fuzz::check(as_text(view.bytes) == as_text(entry.bytes), "the same bytes");
    }
  });
  return 0;
}
