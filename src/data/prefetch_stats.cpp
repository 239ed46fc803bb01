#include "hrm/data/prefetch_stats.h"

#include <mutex>
#include <utility>

namespace hrm::data {
namespace {

std::mutex stats_mutex;
std::map<std::string, PrefetchStats> stats_by_source;

}  // namespace

void add_prefetched(const std::string& source, int64_t ready, double wait_ms) {
  const std::lock_guard lock(stats_mutex);
  PrefetchStats& stats = stats_by_source[source];
  ++stats.batches;
  stats.ready += static_cast<double>(ready);
  stats.wait_ms += wait_ms;
}

void add_filled(const std::string& source, double fill_ms) {
  const std::lock_guard lock(stats_mutex);
  stats_by_source[source].fill_ms += fill_ms;
}

std::map<std::string, PrefetchStats> take_prefetch_stats() {
  const std::lock_guard lock(stats_mutex);
  return std::exchange(stats_by_source, {});
}

}  // namespace hrm::data
