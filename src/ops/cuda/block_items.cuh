#pragma once
// One launch for several items, each of which has blocks of its own.

namespace hrm::ops::cuda {

// The item that a block works on: the last of `count` whose first block is not behind `block`. p.first_block is
// ascending and begins with 0.
template <class Params>
__device__ inline int item_of_block(const Params& p, int count, int block) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace hrm::ops::cuda
