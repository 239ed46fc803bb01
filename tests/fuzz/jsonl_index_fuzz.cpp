// The lines of a file and their index: what is found is inside the file, and the index reads as it was written. The
// first byte says whether the rest is an index itself.
#include "fuzz/fuzz.h"
#include "hrm/base/hash.h"
#include "hrm/formats/jsonl.h"

using namespace hrm;

namespace {

void use(const JsonlIndex& index) {
  for (const uint64_t offset : index.offsets) fuzz::check(offset < index.file_bytes, "a record inside the file");
  for (const uint64_t offset : index.malformed) fuzz::check(offset < index.file_bytes, "a line inside the file");
  fuzz::check(index.facts.size() == index.offsets.size(), "facts of each record");
  const std::string bytes = jsonl_index_bytes(index);
  fuzz::check(jsonl_index_bytes(parse_jsonl_index(as_bytes(bytes), ExitCode::data)) == bytes, "the same index");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = fuzz::bytes_of(data + 1, size - 1);
  if (data[0] == 'i') {
    fuzz::parses(ExitCode::data, [&] {
      // No change would survive the digest, so it is made here.
      const std::string text(as_text(bytes));
      use(parse_jsonl_index(as_bytes(text + digest_hex(bytes)), ExitCode::data));
    });
    return 0;
  }
  JsonlIndex index;
  index.file_bytes = bytes.size();
  index.probe = index.content = index.rules = digest_hex(bytes);
  JsonlLines lines(bytes);
  JsonlLine line;
  uint64_t before = 0;
  while (lines.next(line)) {
    fuzz::touch(line.text);
    fuzz::check(line.offset >= before && line.offset + line.text.size() <= lines.offset(), "lines go on");
    before = lines.offset();
    fuzz::check(jsonl_line_at(bytes, line.offset).text == line.text, "the same line by its offset");
    if (index.offsets.size() < 64) {
      fuzz::check(jsonl_line_number(bytes, line.offset) == line.number, "the number of the line");
    }
    if (fuzz::parses(ExitCode::data, [&] { check_jsonl_line(line.text, ExitCode::data, 64); })) {
      index.offsets.push_back(line.offset);
      index.facts.push_back({1, 2});
    } else {
      index.malformed.push_back(line.offset);
    }
  }
  fuzz::check(lines.offset() == bytes.size(), "all of the file was read");
  use(index);
  return 0;
}
