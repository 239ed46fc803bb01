// The input is the pickle of a file that is sound otherwise and has four storages of 64 bytes. Their bytes are below
// 64, those around them in the file are not: so a tensor that leaves its storage shows although it stays in the file.
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
  fuzz::parses(ExitCode::checkpoint, [&] {
    const TorchArchive archive = TorchArchive::parse(file, "x.pt");
    for (const NamedTensor& tensor : archive.tensors()) {
      for (const std::byte byte : tensor.bytes) fuzz::check(static_cast<int>(byte) < 64, "bytes of a storage");
    }
    fuzz::use(archive);
  });
  return 0;
}
