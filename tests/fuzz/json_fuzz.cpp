// What is read keeps its limits, and is the same when it is written and read again.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/formats/json.h"

using namespace hrm;

namespace {

int depth_of(const nlohmann::json& value) {
  int depth = 0;
  for (const auto& item : value) {
    if (value.is_structured()) depth = std::max(depth, depth_of(item));
  }
  return depth + (value.is_structured() ? 1 : 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const nlohmann::json value = parse_json(text, "x.json", ExitCode::data, {.bytes = 65536, .depth = 5});
    fuzz::check(depth_of(value) <= 5, "no deeper than allowed");
    fuzz::check(parse_json(value.dump(), "x.json", ExitCode::data, {.depth = 5}) == value, "the same value");
  });
  return 0;
}
