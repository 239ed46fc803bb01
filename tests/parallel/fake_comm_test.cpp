#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/models/puzzle_model.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/gradient_reducer.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

using OperationKind = CommOperation::Kind;

TEST(FakeComm, ResultsAreTheRanksOwn) {
  const auto comm = make_fake_comm(2, 1000);
  EXPECT_EQ(comm->rank(), 2);
  EXPECT_EQ(comm->ranks(), 1000);
  EXPECT_NE(comm->describe().find("1000 ranks"), std::string::npos);
  const at::Tensor own = at::arange(6, at::kFloat).view({2, 3}), values = own.clone();
  comm->all_reduce(values);
  comm->all_reduce(values, Reduction::max);
  comm->broadcast(values, 999);
  comm->barrier();
  EXPECT_TRUE(at::equal(values, own));
  const at::Tensor all = at::full({2000, 3}, -1.0f);
  comm->all_gather(all, own);
  EXPECT_TRUE(at::equal(all, own.repeat({1000, 1})));
  const at::Tensor in_place = at::full({2000, 3}, -1.0f), part = in_place.narrow(0, 4, 2),
                   across = in_place.narrow(0, 3, 2);
  part.copy_(own);
  comm->all_gather(in_place, part);
  EXPECT_TRUE(at::equal(in_place, own.repeat({1000, 1})));
  across.copy_(own);
  comm->all_gather(in_place, across);  // of two parts
  EXPECT_TRUE(at::equal(in_place, own.repeat({1000, 1})));
  EXPECT_EQ(comm->all_gather_text("me"), std::vector<std::string>(1000, "me"));
}

TEST(FakeComm, CountsWhatTravels) {
  const auto comm = make_fake_comm(0, 8);
  comm->all_reduce(at::zeros({5}, at::kBFloat16));
  comm->all_gather(at::zeros({16, 3}, at::kInt), at::zeros({2, 3}, at::kInt));
  comm->all_reduce(at::zeros({7}, at::kDouble), Reduction::max);
  comm->broadcast(at::zeros({9}, at::kByte), 3);
  comm->barrier();
  const CommTraffic expected{{{OperationKind::all_reduce, 10},
                              {OperationKind::all_gather, 192},
                              {OperationKind::all_reduce, 56},
                              {OperationKind::broadcast, 9}},
                             1};
  EXPECT_EQ(comm->traffic(), expected);
  EXPECT_EQ(comm->traffic().calls(OperationKind::all_reduce), 2);
  EXPECT_EQ(comm->traffic().bytes(OperationKind::all_reduce), 66);
  EXPECT_EQ(comm->traffic().calls(OperationKind::all_gather), 1);
  EXPECT_EQ(comm->traffic().bytes(OperationKind::broadcast), 9);
  comm->forget();
  EXPECT_EQ(comm->traffic(), CommTraffic());
}

// What is split off counts into the same record, with its name.
TEST(FakeComm, CountsTheAxes) {
  const auto comm = make_fake_comm(3, 8);
  const auto tensor = comm->split({.name = "tensor", .members = {2, 3}, .priority = Priority::urgent});
  EXPECT_EQ(tensor->rank(), 1);
  EXPECT_EQ(tensor->ranks(), 2);
  comm->all_reduce(at::zeros({2}));
  tensor->all_to_all(at::zeros({4}), at::zeros({4}));
  comm->exchange({{at::zeros({3}), 4}}, {{at::zeros({5}), 2}, {at::zeros({5}), 4}});
  tensor->all_gather(at::zeros({2}), at::zeros({1}));
  const CommTraffic expected{{{OperationKind::all_reduce, 8, ""},
                              {OperationKind::all_to_all, 16, "tensor"},
                              {OperationKind::exchange, 40, ""},
                              {OperationKind::all_gather, 8, "tensor"}},
                             0};
  EXPECT_EQ(comm->traffic(), expected);
}

TEST(FakeComm, TensorsWithoutMemory) {
  const auto comm = make_fake_comm(0, 4);
  const auto meta = at::device(at::kMeta).dtype(at::kFloat);
  comm->all_reduce(at::empty({int64_t{1} << 40}, meta));
  comm->all_gather(at::empty({4, 3}, meta), at::empty({1, 3}, meta));
  EXPECT_EQ(comm->traffic().bytes(OperationKind::all_reduce), int64_t{4} << 40);
}

TEST(FakeComm, RefusesWhatARealOneWould) {
  test::expect_error(ExitCode::unexpected, {"rank 4 of 4 ranks"}, [] { make_fake_comm(4, 4); });
  test::expect_error(ExitCode::unexpected, {"rank -1 of"}, [] { make_fake_comm(-1, 4); });
  const auto comm = make_fake_comm(0, 4);
  test::expect_error(ExitCode::unexpected, {"an all-gather between 4 ranks of 9 elements", "and 3 of float for each"},
                     [&] { comm->all_gather(at::zeros({9}), at::zeros({3})); });
  test::expect_error(ExitCode::unexpected, {"a reduce-scatter between 4 ranks of 9 elements"},
                     [&] { comm->reduce_scatter(at::zeros({3}), at::zeros({9})); });
  test::expect_error(ExitCode::unexpected, {"with gaps"}, [&] { comm->all_reduce(at::zeros({4, 4}).t()[1]); });
  test::expect_error(ExitCode::unexpected, {"rank 4 of 4"}, [&] { comm->broadcast(at::zeros({4}), 4); });
}

// What goes through is counted, and comes out as without a count.
TEST(CountingComm, OfRealRanks) {
  std::vector<std::shared_ptr<Comm>> comms;
  for (auto& comm : make_thread_comms(3)) comms.push_back(std::move(comm));
  test::on_threads(3, [&](int rank) {
    CountingComm comm(comms[static_cast<size_t>(rank)]);
    EXPECT_EQ(comm.rank(), rank);
    EXPECT_EQ(comm.ranks(), 3);
    EXPECT_EQ(comm.describe(), comms[0]->describe());
    const at::Tensor sum = at::full({4}, rank, at::kLong), all = at::empty({3}, at::kInt);
    comm.all_reduce(sum);
    EXPECT_TRUE(at::equal(sum, at::full({4}, 3, at::kLong)));
    comm.all_reduce(sum.fill_(rank), Reduction::max);
    EXPECT_TRUE(at::equal(sum, at::full({4}, 2, at::kLong)));
    comm.all_gather(all, at::full({1}, rank, at::kInt));
    EXPECT_TRUE(at::equal(all, at::arange(3, at::kInt)));
    comm.broadcast(all.fill_(rank), 1);
    EXPECT_TRUE(at::equal(all, at::full({3}, 1, at::kInt)));
    comm.barrier();
    const CommTraffic expected{{{OperationKind::all_reduce, 32},
                                {OperationKind::all_reduce, 32},
                                {OperationKind::all_gather, 12},
                                {OperationKind::broadcast, 12}},
                               1};
    EXPECT_EQ(comm.traffic(), expected);
  });
}

// The buckets of a model without memory are those of the model.
TEST(FakeComm, ReducerOfAnOutline) {
  config::ModelConfig c;
  c.hidden_size = 16;
  c.num_heads = 2;
  c.L_layers = 3;
  c.H_layers = 2;
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = 9;
  const auto dims = models::resolve_dims(c, meta);
  const auto model = models::make_puzzle_model(c, dims, 0, at::kCPU, at::kFloat);
  const auto outline = models::make_puzzle_model_outline(c, dims);
  outline->parameter_set().build(*outline, at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t bucket : {int64_t{1}, int64_t{20000}, int64_t{8} << 20}) {
      const auto operations = [&](models::PuzzleModel& of) {
        const auto comm = make_fake_comm(0, 2);
        GradientReducer reducer(of.parameter_set(), *comm, {bucket, dtype});
        reducer.begin(true);
        for (int group = 0; group < 5; ++group) reducer.ready(group);
        reducer.finish();
        EXPECT_EQ(comm->traffic().bytes(OperationKind::all_reduce),
                  of.parameter_set().flat_grad().numel() * static_cast<int64_t>(c10::elementSize(dtype)));
        return comm->traffic();
      };
      EXPECT_EQ(operations(*model), operations(*outline)) << bucket;
    }
  }
}

}  // namespace
}  // namespace hrm::parallel
