#pragma once
// What the page asks for, as JSON texts. May be called by several threads.

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "commands/dashboard/run_files.h"
#include "commands/dashboard/run_reader.h"

namespace hrm::dashboard {

struct MetricsRequest {
  std::vector<uint32_t> keys;  // indices in the answer's list of keys
  bool all_keys = false;       // instead of `keys`
  uint64_t generation = 0;     // that `keys` are of; points are left out where it is another one
  std::string have;            // the version that the page has
  int64_t from = INT64_MIN, to = INT64_MAX;
  size_t columns = 600;  // clamped to 16..4000
};

class Runs {
 public:
  static constexpr size_t kOpen = 8;  // runs whose curves are kept, the last used

  explicit Runs(RunFiles files) : files_(std::move(files)) {}

  // {"folder", "now", "runs": [{"id", "name", "bytes", "modified"}]}. Ids are digests of names. The folder is looked
  // through at most once a second.
  std::string list();

  // Nothing: no such run. An empty text: nothing is new since `have`. Reads on for at most `budget`, a
  // quarter of it at the beginning of a file.
  std::optional<std::string> metrics(const std::string& id, const MetricsRequest& request,
                                     std::chrono::milliseconds budget);

  // Configuration, environment, the end of the log, and solved puzzles and completions. Nothing: no such run.
  std::optional<std::string> details(const std::string& id);

  // All of it as one JSON text, with at most `columns` columns for each curve.
  std::string everything(size_t columns);

 private:
  struct Open {
    explicit Open(std::function<Descriptor()> open) : reader(std::move(open)) {}
    std::mutex mutex;
    RunReader reader;
  };

  const std::vector<FoundRun>& found_runs();
  std::optional<FoundRun> find(const std::string& id);
  std::shared_ptr<Open> open(const std::string& name);

  RunFiles files_;
  std::mutex mutex_;
  std::vector<FoundRun> found_;
  std::map<std::string, size_t> by_id_;
  std::optional<std::chrono::steady_clock::time_point> looked_;
  std::list<std::pair<std::string, std::shared_ptr<Open>>> open_;  // the last used first
};

}  // namespace hrm::dashboard
