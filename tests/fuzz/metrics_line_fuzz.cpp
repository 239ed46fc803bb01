// Lines of metrics.jsonl by one reader: what is read stays within its limits, and a second reader that knows nothing of
// the lines before reads the same.
#include <algorithm>
#include <cmath>
#include <string>

#include "fuzz/fuzz.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/metrics_line.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = as_text(fuzz::bytes_of(data, size));
  MetricsLineReader reader;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    MetricsLineReader fresh;
    const bool good = reader.read(line);
    fuzz::check(good == fresh.read(line), "a line is good whatever came before");
    if (!good) continue;
    fuzz::check(reader.step() == fresh.step(), "the same step");
    if (reader.keys().size() < kMaxMetricsKeys) {
      fuzz::check(reader.values().size() == fresh.values().size(), "as many values");
      for (size_t i = 0; i < reader.values().size(); ++i) {
        const MetricsValue &a = reader.values()[i], &b = fresh.values()[i];
        fuzz::check(reader.keys()[a.key] == fresh.keys()[b.key], "the same key");
        fuzz::check(a.number == b.number || (std::isnan(a.number) && std::isnan(b.number)), "the same number");
      }
    }
    for (const MetricsValue& value : reader.values()) fuzz::check(!std::isinf(value.number), "finite or NaN");
    for (const MetricsText& value : reader.texts()) {
      fuzz::check(is_utf8(value.text) && value.text.size() <= kMaxMetricsText, "a text within its limit");
    }
  }
  fuzz::check(reader.keys().size() <= kMaxMetricsKeys, "a limited number of keys");
  return 0;
}
