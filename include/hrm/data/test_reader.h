#pragma once
// Evaluation batches: all examples in order, as in the official loader.

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/data/batch.h"
#include "hrm/data/dataset.h"

namespace hrm::data {

struct TestReaderOptions {
  int64_t global_batch_size = 0;
  int64_t rank = 0;
  int64_t ranks = 1;        // must divide global_batch_size
  int64_t max_samples = 0;  // use this many examples, evenly spaced over the set; 0 = all
  bool pinned = false;      // page-locked memory
};

struct TestBatch {
  // This rank's rows, padded to global_batch_size / ranks: inputs pad_id, labels kIgnoreLabel, id blank_identifier_id.
  PuzzleBatch batch;
  int64_t global_valid_rows = 0;  // rows before padding on all ranks ("effective batch" in the official code)
  std::vector<int64_t> examples;  // (valid_rows) indices into the dataset
};

// Stateless: any thread may read any batch at any time.
class TestReader {
 public:
  // Throws Error(usage) if ranks does not divide the batch.
  TestReader(std::shared_ptr<const PuzzleDataset> dataset, const TestReaderOptions& options);

  int64_t num_samples() const { return samples_; }
  int64_t num_batches() const;
  // Batch `index` in newly allocated tensors. Throws Error(data) for a malformed row.
  TestBatch batch(int64_t index) const;

 private:
  int64_t example_of(int64_t sample) const;

  std::shared_ptr<const PuzzleDataset> dataset_;
  TestReaderOptions options_;
  int64_t samples_ = 0;
};

}  // namespace hrm::data
