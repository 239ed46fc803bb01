#pragma once
// Finds ranks that hold up the others: a throttled or shared GPU, a host with too few cores.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hrm::parallel {

class SlowRanks {
 public:
  // A rank is slow if its median over `steps` steps is more than `factor` times that of the median rank (for an even
  // number, the lower of the two in the middle).
  explicit SlowRanks(int ranks, int64_t steps = 50, double factor = 1.5);

  // Of a mesh of several axes: the place of a rank in it (MeshPlace::describe), and the names of axes.
  void set_mesh(std::function<std::string(int rank)> place_of, std::vector<std::string> axes);

  // What each rank worked in the next step (StepClock), in order; NaN where it is not known. After every `steps`-th
  // step returns a sentence that names the slow ranks which were not slow in the steps before, else "". `waited_ms`:
  // what all ranks together waited on each of the axes, of which the sentence names the longest; null: not known.
  std::string add(const double* own_ms, const double* waited_ms = nullptr);

 private:
  int ranks_;
  int64_t steps_;
  double factor_;
  std::vector<std::vector<double>> own_ms_;  // by rank
  std::vector<bool> slow_;
  std::function<std::string(int rank)> place_of_;  // empty: ranks have numbers alone
  std::vector<std::string> axes_;
  std::vector<double> waited_ms_;  // by axis, of the steps so far
};

}  // namespace hrm::parallel
