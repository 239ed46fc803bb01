#pragma once
// Batches gathered on a device beside the rows of the file.

#include "data/vectors/vectors_support.h"

namespace hrm::data {

inline void expect_gathers(at::Device device) {
  const auto data = open_vectors(std::filesystem::path(test::source_dir()) / "data/digits", "train");
  const VectorScaling scaling = vector_scaling(*data);
  const at::Tensor inputs = scaled(data->inputs(), scaling);
  const VectorTable table(*data, scaling, device);
  const VectorBatch batch = empty_vector_batch(96, data->features(), device);
  const void *inputs_at = batch.inputs.data_ptr(), *labels_at = batch.labels.data_ptr();
  VectorStream stream(data->rows(), {.seed = 7, .global_batch_size = 96, .pinned = device.is_cuda()}, 5);
  for (int step = 0; step < 20; ++step) {
    const VectorPicks picks = stream.next();
    ASSERT_EQ(picks.rows.is_pinned(), device.is_cuda());
    table.load(picks.rows, batch);
    EXPECT_TRUE(at::equal(batch.inputs.cpu(), inputs.index_select(0, picks.rows)));
    EXPECT_TRUE(at::equal(batch.labels.cpu(), data->labels().index_select(0, picks.rows)));
  }
  // Captured steps read these addresses.
  EXPECT_EQ(batch.inputs.data_ptr(), inputs_at);
  EXPECT_EQ(batch.labels.data_ptr(), labels_at);
  EXPECT_EQ(VectorTable::bytes(*data), static_cast<int64_t>(table.inputs().nbytes() + table.labels().nbytes()));
}

}  // namespace hrm::data
