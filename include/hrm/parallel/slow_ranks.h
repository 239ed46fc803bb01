#pragma once
// Finds ranks that hold up the others: a throttled or shared GPU, a host with too few cores.

#include <cstdint>
#include <string>
#include <vector>

namespace hrm::parallel {

class SlowRanks {
 public:
  // A rank is slow if its median over `steps` steps is more than `factor` times that of the median rank (for an even
  // number, the lower of the two in the middle).
  explicit SlowRanks(int ranks, int64_t steps = 50, double factor = 1.5);

  // What each rank worked in the next step (StepClock), in order; NaN where it is not known. After every `steps`-th
  // step returns a sentence that names the slow ranks which were not slow in the steps before, else "".
  std::string add(const double* own_ms);

 private:
  int ranks_;
  int64_t steps_;
  double factor_;
  std::vector<std::vector<double>> own_ms_;  // by rank
  std::vector<bool> slow_;
};

}  // namespace hrm::parallel
