// What is read is packed again, and read again as the same.
#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/formats/zip.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const ZipReader zip(bytes, "x.zip");
    ZipWriter writer;
    std::vector<std::pair<std::string, std::string>> records;
    for (const std::string& name : zip.names()) {
      fuzz::check(zip.contains(name), "each name is there");
      // Damaged and compressed records are refused one by one.
      fuzz::parses(ExitCode::data, [&] {
        const auto record = zip.at(name);
        fuzz::touch(record);
        records.emplace_back(name, as_text(record));
        writer.add(name, record);
      });
    }
    const auto again = writer.finish();
    const ZipReader copy(again, "again.zip");
    fuzz::check(copy.names().size() == records.size(), "as many records");
    for (const auto& [name, text] : records) fuzz::check(as_text(copy.at(name)) == text, "the same bytes");
  });
  return 0;
}
