#pragma once
// What this process captures in CUDA graphs, for `bench graphs`.

#include <cstdint>
#include <string>
#include <vector>

namespace hrm {

struct CapturedWork {
  std::string name;        // CapturedStepOptions::name
  bool enabled = false;    // runtime.cuda_graphs, on a GPU
  int64_t graphs = 0;      // one for each shape
  int64_t eager_runs = 0;  // warm-up included
  int64_t replays = 0;
  std::string reason;  // why no further shape is captured; empty while it may be
};

// Of all CapturedStep objects that exist, in the order of their construction.
std::vector<CapturedWork> captured_works();

}  // namespace hrm
