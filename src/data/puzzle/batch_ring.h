#pragma once
// The buffers of puzzle batches.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/buffer_ring.h"
#include "hrm/data/batch.h"

namespace hrm::data::internal {

struct BatchBuffer {
  PuzzleBatch batch;  // undefined in a ring of picks
  at::Tensor picks;   // in a ring of picks: (rows, 3) int64
  int64_t position_before = 0;
  int64_t position_after = 0;
};

class BatchRing : public BufferRing<BatchBuffer> {
 public:
  // Allocates `count` buffers of `rows` rows, or of the picks for this many rows; page-locked if pinned.
  BatchRing(int64_t count, int64_t rows, const PuzzleMeta& meta, bool pinned, bool picks);
};

}  // namespace hrm::data::internal
