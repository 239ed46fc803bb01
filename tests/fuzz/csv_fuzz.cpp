#include "fuzz/fuzz.h"
#include "hrm/formats/csv.h"

using namespace hrm;

namespace {

void read_all(std::span<const std::byte> bytes, CsvHeader header) {
  CsvReader csv(bytes, "x.csv", ExitCode::data, header);
  for (const std::string& column : csv.columns()) {
    fuzz::touch(column);
    fuzz::check(csv.has_column(column) && csv.columns()[csv.column(column)] == column, "each column is found");
  }
  CsvRow row;
  size_t line = 0;
  while (csv.next(row)) {
    fuzz::check(row.fields.size() == csv.columns().size(), "a field for each column");
    fuzz::check(row.line > line, "lines go on");
    fuzz::check(line > 0 || csv.has_header() || csv_number(row.fields[0]).has_value(), "a first row of numbers");
    line = row.line;
    for (const std::string_view field : row.fields) fuzz::touch(field);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  for (const CsvHeader header : {CsvHeader::required, CsvHeader::unless_numbers}) {
    fuzz::parses(ExitCode::data, [&] { read_all(bytes, header); });
  }
  return 0;
}
