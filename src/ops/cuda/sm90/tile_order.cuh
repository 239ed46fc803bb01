#pragma once
// The order in which the tiles of a product are worked on.

#include <cuda_runtime.h>

#include <cstdint>

namespace hrm::ops::cuda::sm90 {

struct TilePlace {
  int row;    // of row tiles
  int slice;  // of the columns
};

// Slices in turn, so that what is loaded of the rows serves them all.
__device__ inline TilePlace place_by_slices(int tile, int slices) {
  return {tile / slices, tile % slices};
}

// Of a weight with many slices, all tiles that run at a time would share one or two row tiles, and each read a part of
// the weight of its own. Here `band` row tiles take turns at each slice. A tile behind the last has some place.
__device__ inline TilePlace place_in_bands(int tile, int slices, int band, int row_tiles) {
  if (band == 1) return place_by_slices(tile, slices);
  const int first = tile / (band * slices) * band, inside = tile % (band * slices);
  const int rows = max(1, min(band, row_tiles - first));
  return {first + inside % rows, inside / rows};
}

// Eight row tiles and sixteen slices are about as many tiles as a Hopper GPU runs at a time.
inline int tile_band(int64_t slices) {
  return slices > 16 ? 8 : 1;
}

}  // namespace hrm::ops::cuda::sm90
