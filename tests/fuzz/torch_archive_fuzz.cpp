// Whole files: zip, byte order, pickle, storages. CRC-32 keeps most changes from the pickle: see pickle_fuzz.cpp. Then
// the same without the storages.
#include "fuzz/torch_support.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  std::optional<TorchArchive> archive;
  fuzz::parses(ExitCode::checkpoint, [&] { archive.emplace(TorchArchive::parse(bytes, "x.pt")); });
  if (archive) fuzz::use(*archive);
  fuzz::parses(ExitCode::checkpoint, [&] {
    const auto read = [&](uint64_t offset, std::span<std::byte> into) {
      fuzz::check(offset <= size && into.size() <= size - offset, "only bytes of the file are read");
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    };
    for (const TorchPlace& place : torch_places(size, read, "x.pt")) {
      const auto count = static_cast<uint64_t>(array_bytes(place.dtype, place.shape).value());
      fuzz::check(place.begin <= size && count <= size - place.begin, "a tensor lies in the file");
      if (!archive) continue;
      const NamedTensor& tensor = archive->at(place.name);
      fuzz::check(tensor.dtype == place.dtype && tensor.shape == place.shape, "the same type and shape");
      fuzz::check(as_text(tensor.bytes) == as_text(bytes.subspan(place.begin, count)), "the same bytes");
    }
  });
  return 0;
}
