// Lines, arrays and what is compressed: the lines of records go on, none is above the limit, and an array that is read
// to its end is that of the JSON library, as long as its elements are JSON.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/formats/record_file.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    RecordFile file(bytes, "x.json");
    size_t line = 1, count = 0;
    for (JsonlLine record; file.next(record); ++count) {
      fuzz::check(record.number >= line, "lines go on");
      fuzz::check(!record.text.empty() && record.text.size() <= kMaxJsonlLine + 1, "a record of some length");
      line = record.number;
      fuzz::touch(record.text);
      fuzz::touch(spread_record_advice(record.text));
    }
    const std::string_view text = fuzz::text_of(data, size);
    if (!file.is_array() || text.empty() || static_cast<unsigned char>(text[0]) >= 0x80) return;
    const nlohmann::json all = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!all.is_discarded()) fuzz::check(all.is_array() && all.size() == count, "as many records as elements");
  });
  return 0;
}
