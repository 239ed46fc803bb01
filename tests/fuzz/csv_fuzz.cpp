#include "fuzz/fuzz.h"
#include "hrm/formats/csv.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    CsvReader csv(bytes, "x.csv");
    for (const std::string& column : csv.columns()) {
      fuzz::touch(column);
      fuzz::check(csv.has_column(column) && csv.columns()[csv.column(column)] == column, "each column is found");
    }
    CsvRow row;
    size_t line = 0;
    while (csv.next(row)) {
      fuzz::check(row.fields.size() == csv.columns().size(), "a field for each column");
      fuzz::check(row.line > line, "lines go on");
      line = row.line;
      for (const std::string_view field : row.fields) fuzz::touch(field);
    }
  });
  return 0;
}
