#pragma once
// The file of a trace: what LibTorch's profiler (Kineto) writes, made complete for the viewers that people use:
// Perfetto, chrome://tracing and Holistic Trace Analysis (HTA). Format: "Trace Event Format", Google, with Kineto's
// additions.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace hrm {

// Values of one counter track at one time.
struct TraceCounter {
  std::string track;                                    // e.g. "memory of GPU 0"
  int64_t time_ns = 0;                                  // since 1970, UTC
  std::vector<std::pair<std::string, int64_t>> values;  // name and value of each series
};

// What Kineto does not know.
struct TraceInfo {
  int64_t rank = 0;
  int64_t ranks = 1;
  std::string backend = "none";  // of the collective operations: nccl, gloo, none
  int64_t process = 0;           // whose tracks the counters are
  std::vector<TraceCounter> counters;
};

// Reads `raw`, which Kineto wrote, and creates `file`, which must not exist; packed by gzip if its name ends in ".gz".
//
// - "distributedInfo" with the rank, in the spelling that HTA searches for.
// - One event a line, sorted by time, so that times on a track never go back.
// - An arrow ("ac2g") from each call that started work on a GPU to each kernel or copy that it started: one start and
//   one end with an id of its own. A replayed graph has one for each of its kernels. Arrows with one end are dropped.
// - Kernels of one stream that overlap get a track of their own beside it. Viewers expect that events of a track nest.
// - Counter tracks: `info.counters`, and the bytes in use at each "[memory]" event.
//
// Throws Error(environment) if a file cannot be read or written, Error(unexpected) if `raw` is no trace.
void write_trace_file(const std::filesystem::path& raw, const std::filesystem::path& file, const TraceInfo& info);

}  // namespace hrm
