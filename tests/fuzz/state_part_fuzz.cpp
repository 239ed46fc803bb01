// The first line as the sizes of a tensor in a part file of a checkpoint, the second as the boxes that it is.
#include "fuzz/fuzz.h"
#include "hrm/state/part.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const size_t line = std::min(text.find('\n'), text.size());
  StatePart here, part;
  if (!parse_part(text.substr(std::min(line + 1, text.size())), part)) return 0;
  fuzz::check(part.split, "a text is of a part");
  StatePart again;
  fuzz::check(parse_part(part_text(part), again) && again == part, "the text comes back");
  // As many elements as a file of this size has at most.
  if (!parse_part(text.substr(0, line), here) || count_of(here.sizes) > (1 << 16)) return 0;
  fuzz::parses(ExitCode::unexpected, [&] {
    const int64_t own = count_of(here.sizes), whole = count_of(part.sizes);
    int64_t end = 0, held = 0;
    for (const StateRun& run : runs_of(part, here.sizes)) {
      fuzz::check(run.size > 0 && run.here >= 0 && run.size <= own - run.here, "a run lies in the part");
      fuzz::check(run.there >= end && run.size <= whole - run.there, "runs lie in the whole, in order, and apart");
      end = run.there + run.size;
      held += run.size;
    }
    fuzz::check(holds_all(part, here.sizes) == (held == whole), "all elements are held or not");
  });
  return 0;
}
