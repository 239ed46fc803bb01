#pragma once
// Products of rows with several weights, one for each 128 rows.

namespace hrm::ops::cuda::sm90 {

// Of several weights that stand one below the other, row tile i is multiplied with number tile_experts[i]. Rows from
// `ends[0]`, a multiple of 128, on are neither read nor written. Both are on the device, so the host need not know
// them.
struct TileGroups {
  const int* tile_experts;
  const int* ends;
  int weight_rows;  // rows of one weight as it is in memory
};

}  // namespace hrm::ops::cuda::sm90
