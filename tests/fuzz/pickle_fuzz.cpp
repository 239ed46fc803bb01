// The input is the pickle of a file that is sound otherwise and has four storages of 64 bytes.
#include "fuzz/torch_support.h"
#include "hrm/formats/zip.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ZipWriter zip;
  zip.add("archive/data.pkl", fuzz::bytes_of(data, size));
  std::string storage;
  for (int i = 0; i < 64; ++i) storage += static_cast<char>(i);
  for (const char* key : {"0", "1", "2", "3"}) zip.add(std::string("archive/data/") + key, storage);
  const std::vector<std::byte> file = zip.finish();
  fuzz::parses(ExitCode::checkpoint, [&] { fuzz::use(TorchArchive::parse(file, "x.pt")); });
  return 0;
}
