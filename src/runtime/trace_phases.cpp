#include "trace_phases.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "hrm/base/text.h"
#include "hrm/runtime/phase.h"

namespace hrm {
namespace {

constexpr std::string_view kEvents = "\"traceEvents\": [", kKernel = "\"cat\": \"kernel\"";

// The track of phases. They begin and end inside other ranges of their stream, and ranges of a track must nest.
constexpr int kTrack = 2000000;

// Identifiers, as kernels have them in their names.
constexpr std::string_view kIdentifiers[] = {
#define HRM_PHASE_IDENTIFIER(identifier, name) #identifier,
    HRM_PHASES(HRM_PHASE_IDENTIFIER)
#undef HRM_PHASE_IDENTIFIER
};

struct Mark {
  const char* phase = nullptr;  // null: begins only
  std::string_view process;
  double end_us = 0;
};

// The value of a field of the event whose fields begin at `from`; empty if it has none.
std::string_view field(std::string_view trace, size_t from, std::string_view name) {
  const std::string key = cat("\"", name, "\": ");
  const size_t end = std::min(trace.find('{', from), trace.find('}', from));
  const size_t at = trace.find(key, from);
  if (at == std::string_view::npos || at > end) return {};
  const size_t begin = at + key.size();
  const size_t stop = trace.find_first_of(",\n}", begin);
  return trace.substr(begin, stop - begin);
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

const char* phase_of(std::string_view kernel) {
  const size_t end = kernel.find('>');
  std::string_view identifier = kernel.substr(0, end);
  if (const size_t colon = identifier.rfind(':'); colon != std::string_view::npos) identifier.remove_prefix(colon + 1);
  const auto found = std::find(std::begin(kIdentifiers), std::end(kIdentifiers), identifier);
  return found == std::end(kIdentifiers) ? nullptr : kPhaseNames[found - std::begin(kIdentifiers)];
}

std::vector<Mark> marks_of(std::string_view trace) {
  constexpr std::string_view kEnd = "phase_end<", kBegin = "phase_begin(";
  std::vector<Mark> marks;
  for (size_t at = trace.find("phase_"); at != std::string_view::npos; at = trace.find("phase_", at + 1)) {
    const bool ends = trace.substr(at).starts_with(kEnd);
    if (!ends && !trace.substr(at).starts_with(kBegin)) continue;
    // Of kernels only: their name is behind their category.
    const size_t event = trace.rfind('{', at);
    if (event == std::string_view::npos || trace.substr(event, at - event).find(kKernel) == std::string_view::npos)
      continue;
    const size_t rest = trace.find('"', at);
    const auto start = number(field(trace, rest, "ts")), duration = number(field(trace, rest, "dur"));
    Mark mark{.phase = ends ? phase_of(trace.substr(at + kEnd.size(), 100)) : nullptr,
              .process = field(trace, rest, "pid")};
    if (!start || !duration || mark.process.empty()) continue;
    mark.end_us = *start + *duration;
    marks.push_back(mark);
  }
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.end_us < b.end_us; });
  return marks;
}

std::string microseconds(double value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, 3);
  return {text.data(), end.ptr};
}

}  // namespace

std::string with_phase_ranges(std::string trace) {
  const size_t events = trace.find(kEvents);
  if (events == std::string::npos) return trace;
  const std::vector<Mark> marks = marks_of(trace);
  std::string ranges;
  for (size_t i = 1; i < marks.size(); ++i) {
    const Mark& mark = marks[i];
    if (mark.phase == nullptr) continue;
    const std::string place = cat("\"pid\": ", mark.process, ", \"tid\": ", kTrack);
    if (ranges.empty()) {
      ranges = cat("\n  {\"ph\": \"M\", \"name\": \"thread_name\", ", place, ", \"args\": {\"name\": \"phases\"}},",
                   "\n  {\"ph\": \"M\", \"name\": \"thread_sort_index\", ", place, ", \"args\": {\"sort_index\": 0}},");
    }
    ranges += cat("\n  {\"ph\": \"X\", \"cat\": \"gpu_user_annotation\", \"name\": \"", mark.phase, "\", ", place,
                  ", \"ts\": ", microseconds(marks[i - 1].end_us),
                  ", \"dur\": ", microseconds(mark.end_us - marks[i - 1].end_us), "},");
  }
  trace.insert(events + kEvents.size(), ranges);
  return trace;
}

}  // namespace hrm
