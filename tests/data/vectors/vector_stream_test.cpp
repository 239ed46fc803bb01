#include <set>

#include "data/vectors/vector_stream_cases.h"

namespace hrm::data {
namespace {

std::vector<int64_t> next_rows(VectorStream& stream) {
  const VectorPicks picks = stream.next();
  const int64_t* rows = picks.rows.data_ptr<int64_t>();
  return {rows, rows + picks.rows.size(0)};
}

std::vector<int64_t> some_rows(int64_t dataset_rows, const VectorStreamOptions& options, int64_t position,
                               int batches) {
  VectorStream stream(dataset_rows, options, position);
  std::vector<int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const std::vector<int64_t> rows = next_rows(stream);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

TEST(VectorStream, EachEpochVisitsEveryRowOnceInANewOrder) {
  const std::vector<int64_t> rows = some_rows(50, {.seed = 3, .global_batch_size = 20}, 0, 10);
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const std::vector<int64_t> order(rows.begin() + epoch * 50, rows.begin() + (epoch + 1) * 50);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 50u) << epoch;
    EXPECT_EQ(*std::max_element(order.begin(), order.end()), 49);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4u);
  EXPECT_EQ(rows, some_rows(50, {.seed = 3, .global_batch_size = 20}, 0, 10));
  EXPECT_NE(rows, some_rows(50, {.seed = 4, .global_batch_size = 20}, 0, 10));
}

TEST(VectorStream, ResumesAtAnyPosition) {
  const VectorStreamOptions options{.seed = 9, .global_batch_size = 24};
  const std::vector<int64_t> rows = some_rows(7, options, 0, 5);
  VectorStream stream(7, options, 0);
  for (int i = 0; i < 3; ++i) {
    const VectorPicks picks = stream.next();
    EXPECT_EQ(picks.position_before, 24 * i);
    EXPECT_EQ(picks.position_after, 24 * (i + 1));
  }
  EXPECT_EQ(stream.position(), 72);
  EXPECT_EQ(std::vector<int64_t>(rows.begin() + 72, rows.end()), some_rows(7, options, 72, 2));
  // Not only at the beginning of a batch.
  EXPECT_EQ(std::vector<int64_t>(rows.begin() + 5, rows.begin() + 29), some_rows(7, options, 5, 1));
}

TEST(VectorStream, RanksShareTheGlobalBatch) {
  const std::vector<int64_t> whole = some_rows(13, {.seed = 1, .global_batch_size = 12}, 6, 1);
  std::vector<int64_t> parts;
  for (int64_t rank = 0; rank < 3; ++rank) {
    VectorStream stream(13, {.seed = 1, .global_batch_size = 12, .rank = rank, .ranks = 3}, 6);
    const std::vector<int64_t> rows = next_rows(stream);
    EXPECT_EQ(stream.position(), 18);
    parts.insert(parts.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(parts, whole);
  // Where the ranks' parts lie in two epochs, the next batch still fits.
  VectorStream first(13, {.seed = 1, .global_batch_size = 12, .rank = 0, .ranks = 2}, 0);
  next_rows(first);
  EXPECT_EQ(next_rows(first), [&] {
    const std::vector<int64_t> rows = some_rows(13, {.seed = 1, .global_batch_size = 12}, 12, 1);
    return std::vector<int64_t>(rows.begin(), rows.begin() + 6);
  }());
  expect_error(ExitCode::usage, {"batch of 12", "5 ranks"},
               [] { VectorStream(13, {.global_batch_size = 12, .ranks = 5}, 0); });
  expect_error(ExitCode::usage, {"batch of 0"}, [] { VectorStream(13, {}, 0); });
}

TEST(VectorStream, BuffersComeBack) {
  VectorStream stream(5, {.global_batch_size = 4}, 0);
  const VectorPicks a = stream.next(), b = stream.next();
  {
    const VectorPicks c = stream.next();
    EXPECT_NE(a.rows.data_ptr(), c.rows.data_ptr());
    expect_error(ExitCode::unexpected, {"all 3 batch buffers"}, [&] { stream.next(); });
  }
  EXPECT_NE(stream.next().rows.data_ptr(), b.rows.data_ptr());
}

TEST(VectorStream, DigestIsThatOfTheNextGlobalBatch) {
  const VectorDataset data = counted_vectors(40);
  const VectorStreamOptions options{.seed = 2, .global_batch_size = 8};
  const std::string first = batch_digest(data, options, 0);
  EXPECT_EQ(first, batch_digest(data, {.seed = 2, .global_batch_size = 8, .rank = 1, .ranks = 2}, 0));
  EXPECT_NE(first, batch_digest(data, options, 8));
  EXPECT_NE(first, batch_digest(data, {.seed = 3, .global_batch_size = 8}, 0));
  const VectorDataset changed(data.inputs() + 1, data.labels(), {2}, "changed");
  EXPECT_NE(first, batch_digest(changed, options, 0));
}

TEST(VectorStream, GathersScaledRows) {
  expect_gathers(at::kCPU);
}

}  // namespace
}  // namespace hrm::data
