#include "hrm/parallel/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

constexpr std::array kAll{Axis::tensor, Axis::shard, Axis::replica, Axis::data};

TEST(MeshPlace, TensorRanksAreNeighbours) {
  const MeshPlace place(13, 24, {.tensor = 2, .replicas = 3});  // 24 = 2 tensor x 4 shards x 3 replicas
  EXPECT_EQ(place.size(Axis::shard), 4);
  EXPECT_EQ(place.size(Axis::data), 12);
  EXPECT_EQ(place.coordinate(Axis::tensor), 1);
  EXPECT_EQ(place.coordinate(Axis::shard), 2);
  EXPECT_EQ(place.coordinate(Axis::replica), 1);
  EXPECT_EQ(place.coordinate(Axis::data), 6);
  EXPECT_EQ(place.members(Axis::tensor), (std::vector{12, 13}));
  EXPECT_EQ(place.members(Axis::shard), (std::vector{9, 11, 13, 15}));
  EXPECT_EQ(place.members(Axis::replica), (std::vector{5, 13, 21}));
  EXPECT_FALSE(place.speaks());
  EXPECT_EQ(place.describe(), "replica 1 of 3, shard 2 of 4, tensor 1 of 2");
  EXPECT_EQ(MeshPlace(6, 8, {.tensor = 2}).describe(), "data 3 of 4, tensor 0 of 2");
  EXPECT_EQ(MeshPlace(0, 1, {}).describe(), "the only rank");
}

// Along every axis the groups are disjoint and hold all ranks, in the order of their coordinates; the coordinates of
// two ranks differ somewhere; one rank of each tensor axis speaks.
TEST(MeshPlace, EveryRankHasItsPlace) {
  for (const int ranks : {1, 2, 6, 8, 12, 24}) {
    for (int tensor = 1; tensor <= ranks; ++tensor) {
      for (int replicas = 1; replicas <= ranks; ++replicas) {
        if (ranks % (tensor * replicas) != 0) continue;
        SCOPED_TRACE(testing::Message() << ranks << " ranks, tensor " << tensor << ", replicas " << replicas);
        std::vector<std::array<int, 3>> places;
        int speakers = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const MeshPlace place(rank, ranks, {tensor, replicas});
          places.push_back(
              {place.coordinate(Axis::tensor), place.coordinate(Axis::shard), place.coordinate(Axis::replica)});
          speakers += place.speaks() ? 1 : 0;
          for (const Axis axis : kAll) {
            const auto members = place.members(axis);
            ASSERT_EQ(members.size(), static_cast<size_t>(place.size(axis)));
            EXPECT_EQ(members[static_cast<size_t>(place.coordinate(axis))], rank);
            EXPECT_TRUE(std::is_sorted(members.begin(), members.end()));
            for (const int member : members) {
              EXPECT_EQ(MeshPlace(member, ranks, {tensor, replicas}).members(axis), members);
            }
          }
        }
        EXPECT_EQ(speakers * tensor, ranks);
        std::sort(places.begin(), places.end());
        EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
      }
    }
  }
}

TEST(MeshPlace, RefusesWhatDoesNotDivide) {
  test::expect_error(ExitCode::usage, {"6 ranks", "parallel.tensor = 4", "multiple of 4"},
                     [] { MeshPlace(0, 6, {.tensor = 4}); });
  test::expect_error(ExitCode::usage, {"4 data ranks", "8 ranks", "parallel.replicas = 3", "divisor of 4"},
                     [] { MeshPlace(0, 8, {.tensor = 2, .replicas = 3}); });
}

TEST(MeshPlace, SaysWhereZeroSplitsNothing) {
  const auto text = [](int ranks, int64_t zero, int64_t tensor) {
    const config::ParallelConfig config{.zero = zero, .tensor = tensor};
    return idle_zero_text(MeshPlace(0, ranks, mesh_shape(config)), config);
  };
  EXPECT_EQ(text(1, 0, 1), "");
  EXPECT_EQ(text(2, 1, 1), "");
  EXPECT_EQ(text(4, 3, 2), "");
  EXPECT_TRUE(text(1, 2, 1).starts_with("parallel.zero = 2 has nothing to split: this is the only rank"));
  EXPECT_TRUE(text(4, 3, 4).starts_with("parallel.zero = 3 has nothing to split: all 4 ranks read the same rows"));
}

class MeshTest : public testing::TestWithParam<test::Ranks> {};

// On each axis a sum of what only this axis's members have.
TEST_P(MeshTest, AxesAddUpTheirMembers) {
  for (const MeshShape shape : {MeshShape{1, 1}, MeshShape{2, 1}, MeshShape{2, 2}, MeshShape{1, 2}, MeshShape{4, 1}}) {
    if (GetParam().count % (shape.tensor * shape.replicas) != 0) continue;
    // The meshes of all ranks live until all have finished, as their Comms do.
    test::on_ranks(GetParam(), [&](Comm& comm) {
      const Mesh mesh(std::shared_ptr<Comm>(&comm, [](Comm*) {}), shape);
      for (const Axis axis : kAll) {
        int64_t expected = 0;
        for (const int member : mesh.place().members(axis)) expected += int64_t{1} << (4 * member);
        const at::Tensor sum = at::full({1}, int64_t{1} << (4 * comm.rank()), at::kLong);
        mesh.axis(axis).all_reduce(sum);
        EXPECT_EQ(sum.item<int64_t>(), expected) << axis_name(axis) << " of rank " << comm.rank();
        EXPECT_EQ(mesh.axis(axis).rank(), mesh.coordinate(axis));
        EXPECT_EQ(mesh.axis(axis).ranks(), mesh.size(axis));
      }
      std::set<const Comm*> comms{&mesh.world()};
      for (const Axis axis : kAll) {
        if (!mesh.axis(axis).alone()) comms.insert(&mesh.axis(axis));
      }
      EXPECT_EQ(mesh.place().comms(), static_cast<int>(comms.size())) << shape.tensor << ", " << shape.replicas;
      comm.barrier();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, MeshTest,
                         testing::Values(test::Ranks{test::Kind::threads, 2}, test::Ranks{test::Kind::threads, 8},
                                         test::Ranks{test::Kind::gloo, 4}));

// A rank that is lost is named by its axis.
TEST(MeshGloo, AFailureNamesTheAxis) {
  const int port = test::free_port();
  test::on_threads(4, [&](int rank) {
    Rendezvous rendezvous(test::launch_of(rank, 4, port), {.meet_timeout_s = 30, .timeout_s = 1});
    const auto comm = rendezvous.make_gloo_comm();
    const Mesh mesh(std::shared_ptr<Comm>(comm.get(), [](Comm*) {}), {.tensor = 2});
    const at::Tensor value = at::ones({1});
    EXPECT_EQ(mesh.waiting(), "");
    if (rank == 2) {  // rank 3 stays away
      std::thread watcher([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        EXPECT_EQ(mesh.waiting(), "an all-reduce: tensor axis, rank 0 of 2 (global rank 2)");
      });
      test::expect_error(ExitCode::rank_failed,
                         {"tensor axis, rank 0 of 2 (global rank 2): lost another rank in an all-reduce"},
                         [&] { mesh.axis(Axis::tensor).all_reduce(value); });
      watcher.join();
    }
    if (rank < 2) mesh.axis(Axis::tensor).all_reduce(value);
    std::this_thread::sleep_for(std::chrono::milliseconds(rank == 2 ? 0 : 1500));  // rank 0 keeps the store
  });
}

}  // namespace
}  // namespace hrm::parallel
