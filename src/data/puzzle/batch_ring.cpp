#include "data/puzzle/batch_ring.h"

#include <ATen/ATen.h>

namespace hrm::data::internal {

BatchRing::BatchRing(int64_t count, int64_t rows, const PuzzleMeta& meta, bool pinned, bool picks)
    : BufferRing("puzzles") {
  const auto ints = at::TensorOptions().dtype(at::kInt).pinned_memory(pinned);
  for (int64_t i = 0; i < count; ++i) {
    auto buffer = std::make_unique<BatchBuffer>();
    if (picks) {
      buffer->picks = at::empty({rows, 3}, ints.dtype(at::kLong));
    } else {
      buffer->batch.inputs = at::empty({rows, meta.seq_len}, ints);
      buffer->batch.labels = at::empty({rows, meta.seq_len}, ints);
      buffer->batch.puzzle_identifiers = at::empty({rows}, ints);
    }
    buffer->batch.valid_rows = rows;
    add(std::move(buffer));
  }
}

}  // namespace hrm::data::internal
