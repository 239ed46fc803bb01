// The choices of algorithms that a checkpoint carries: what is read is written again, and read again as the same.
#include "fuzz/fuzz.h"
#include "hrm/runtime/tuning_cache.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = TuningCache::from_text(std::string(fuzz::text_of(data, size)));
  if (!read) return 0;
  const auto again = TuningCache::from_text(TuningCache::to_text(*read));
  fuzz::check(again && again->device == read->device && again->library == read->library, "the same device");
  fuzz::check(again->choices.size() == read->choices.size(), "as many choices");
  for (const auto& [key, choice] : read->choices) {
    fuzz::check(again->choices.at(key).algorithm == choice.algorithm, "the same algorithm");
  }
  return 0;
}
