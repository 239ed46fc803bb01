#pragma once
// How well the threads that prepare batches keep up, for the metrics. Process-wide and thread-safe.

#include <cstdint>
#include <map>
#include <string>

namespace hrm::data {

// Of the batches that steps have taken from one source.
struct PrefetchStats {
  int64_t batches = 0;
  double ready = 0;    // sum over them: batches that were ready when a step asked for one
  double wait_ms = 0;  // sum: what steps waited
  double fill_ms = 0;  // sum: what the thread took to prepare them
};

// Adds one batch. `source`: puzzles, text, vectors.
void add_prefetched(const std::string& source, int64_t ready, double wait_ms);
void add_filled(const std::string& source, double fill_ms);

// By source, since the last call.
std::map<std::string, PrefetchStats> take_prefetch_stats();

}  // namespace hrm::data
