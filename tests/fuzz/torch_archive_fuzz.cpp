// Whole files: zip, byte order, pickle, storages. CRC-32 keeps most changes from the pickle: see pickle_fuzz.cpp.
#include "fuzz/torch_support.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::checkpoint, [&] { fuzz::use(TorchArchive::parse(bytes, "x.pt")); });
  return 0;
}
