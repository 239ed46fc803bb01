// The input as it stands, and as the body of a manifest whose digest fits: without it no change would come any further.
// What is read is written again, and read again as the same.
#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/manifest.h"

using namespace hrm;
using checkpoint::Manifest;

namespace {

void read(const std::string& text) {
  fuzz::parses(ExitCode::checkpoint, [&] {
    Manifest manifest = checkpoint::parse_manifest(text);
    for (const auto& [name, fact] : manifest.files) {
      fuzz::check(is_plain_file_name(name) && fact.digest.size() == 32, "names and digests are checked");
    }
    // The writer makes values printable and refuses other keys, which a foreign manifest may have.
    std::map<std::string, std::string> info;
    for (const auto& [key, value] : manifest.info) {
      if (printable(key) == key) info[key] = printable(value);
    }
    manifest.info = info;
    const Manifest again = checkpoint::parse_manifest(checkpoint::manifest_text(manifest));
    for (auto& [key, value] : info) value = printable(value);
    fuzz::check(again.info == info, "the same facts");
    manifest.info = again.info;
    fuzz::check(again == manifest, "the same manifest");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  read(text);
  read(cat(text, "  \"digest\": \"", digest_hex(as_bytes(text)), "\"\n}\n"));
  return 0;
}
