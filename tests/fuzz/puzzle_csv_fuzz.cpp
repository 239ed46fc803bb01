// The first byte chooses options; the rest is the file.
#include "fuzz/fuzz.h"
#include "hrm/data/puzzle_csv.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  data::PuzzleCsvOptions options;
  options.kind = static_cast<config::PuzzleFileKind>(data[0] % 3);
  options.min_rating = (data[0] & 4) != 0 ? 2 : 0;
  // A search for a second solution may take as long as it likes.
  options.check_unique_up_to = 0;
  const auto bytes = fuzz::bytes_of(data + 1, size - 1);
  // Which boxes a 5x5 grid has is a matter of the options: Error(usage).
  fuzz::parses({ExitCode::data, ExitCode::usage}, [&] {
    const data::PuzzleCsv csv = data::parse_puzzle_csv(bytes, "x.csv", options);
    const data::PuzzleMeta& meta = csv.rows.meta;
    fuzz::check(csv.rows.inputs.size() == csv.rows.labels.size(), "a label for each input");
    fuzz::check(csv.rows.inputs.size() % static_cast<size_t>(meta.seq_len) == 0, "whole rows");
    for (const auto* tokens : {&csv.rows.inputs, &csv.rows.labels}) {
      for (const uint8_t token : *tokens) fuzz::check(token < meta.vocab_size, "tokens of the vocabulary");
    }
  });
  return 0;
}
