#include "hrm/parallel/comm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "hrm/base/error.h"
#include "hrm/parallel/rendezvous.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

using test::free_port;
using test::Kind;
using test::launch_of;
using test::on_threads;
using test::Ranks;

class CommTest : public testing::TestWithParam<Ranks> {
 protected:
  void on_ranks(const std::function<void(Comm&)>& body) { test::on_ranks(GetParam(), body); }
};

TEST_P(CommTest, KnowsItsPlace) {
  on_ranks([](Comm& comm) {
    EXPECT_EQ(comm.ranks(), GetParam().count);
    EXPECT_EQ(comm.main(), comm.rank() == 0);
    EXPECT_EQ(comm.alone(), comm.ranks() == 1);
    EXPECT_NE(comm.describe().find(std::to_string(comm.ranks())), std::string::npos);
  });
}

TEST_P(CommTest, AllReduce) {
  on_ranks([](Comm& comm) {
    const int n = comm.ranks();
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
      const at::Tensor sum = at::arange(1000, dtype) + comm.rank();
      comm.all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::arange(1000, dtype) * n + n * (n - 1) / 2)) << dtype;
      const at::Tensor max = at::full({3}, comm.rank() == n / 2 ? 7 : comm.rank() - n, dtype);
      comm.all_reduce(max, Reduction::max);
      EXPECT_TRUE(at::equal(max, at::full({3}, 7, dtype))) << dtype;
    }
  });
}

// With one rank nothing is done; with several the time counts as waiting.
TEST_P(CommTest, AllReduceInAStep) {
  on_ranks([](Comm& comm) {
    StepClock clock(at::kCPU);
    comm.set_clock(&clock);
    const at::Tensor own = at::zeros({}, at::kDouble), waited = at::zeros({}, at::kDouble);
    clock.begin_step(own, waited);
    const at::Tensor sum = at::full({3}, comm.rank() + 1, at::kLong);
    comm.all_reduce_in_step(sum);
    EXPECT_EQ(sum[0].item<int64_t>(), comm.ranks() * (comm.ranks() + 1) / 2);
    const at::Tensor largest = at::full({}, comm.rank(), at::kLong);
    comm.all_reduce_in_step(largest, Reduction::max);
    EXPECT_EQ(largest.item<int64_t>(), comm.ranks() - 1);
    clock.begin_step(own, waited);
    EXPECT_EQ(waited.item<double>() > 0, !comm.alone());
    comm.set_clock(nullptr);
  });
}

// In the order they were started in, and waited for in any.
TEST_P(CommTest, SeveralAtATime) {
  on_ranks([](Comm& comm) {
    const at::Tensor a = at::full({5}, 1.0f), b = at::full({70000}, 2.0f);
    const auto first = comm.start_all_reduce(a, Reduction::sum), second = comm.start_all_reduce(b, Reduction::sum);
    second->wait();
    first->wait();
    EXPECT_TRUE(at::equal(a, at::full({5}, 1.0f * static_cast<float>(comm.ranks()))));
    EXPECT_TRUE(at::equal(b, at::full({70000}, 2.0f * static_cast<float>(comm.ranks()))));
  });
}

TEST_P(CommTest, SumsHaveTheSameBitsEverywhere) {
  on_ranks([](Comm& comm) {
    at::Tensor values = at::sin(at::arange(10007, at::kFloat) * (1.7f + static_cast<float>(comm.rank())));
    comm.all_reduce(values);
    const at::Tensor all = at::empty({comm.ranks() * 10007}, at::kFloat);
    comm.all_gather(all, values);
    for (int rank = 0; rank < comm.ranks(); ++rank) EXPECT_TRUE(at::equal(all.narrow(0, rank * 10007, 10007), values));
  });
}

TEST_P(CommTest, AllGather) {
  on_ranks([](Comm& comm) {
    const at::Tensor own = at::full({2, 3}, comm.rank(), at::kInt);
    const at::Tensor all = at::empty({2 * comm.ranks(), 3}, at::kInt);
    comm.all_gather(all, own);
    for (int rank = 0; rank < comm.ranks(); ++rank) {
      EXPECT_TRUE(at::equal(all.narrow(0, 2 * rank, 2), at::full({2, 3}, rank, at::kInt)));
    }
  });
}

// Each rank's part of the sum, into a tensor of its own and into its place in the input.
TEST_P(CommTest, ReduceScatter) {
  on_ranks([](Comm& comm) {
    const int n = comm.ranks(), rank = comm.rank();
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
      const auto input = [&] { return at::arange(n * 6, dtype).view({n * 2, 3}) + rank; };
      const at::Tensor expected =
          ((at::arange(n * 6, at::kDouble).view({n * 2, 3}) * n + n * (n - 1) / 2).narrow(0, rank * 2, 2)).to(dtype);
      const at::Tensor out = at::zeros({2, 3}, dtype);
      comm.reduce_scatter(out, input());
      EXPECT_TRUE(at::equal(out, expected)) << dtype;
      const at::Tensor in_place = input();
      comm.reduce_scatter(in_place.narrow(0, rank * 2, 2), in_place);
      EXPECT_TRUE(at::equal(in_place.narrow(0, rank * 2, 2), expected)) << dtype;
    }
  });
}

TEST_P(CommTest, GatherInPlace) {
  on_ranks([](Comm& comm) {
    const at::Tensor a = at::zeros({comm.ranks() * 50}), b = at::zeros({comm.ranks() * 7});
    const auto own = [&](const at::Tensor& all) {
      return all.narrow(0, comm.rank() * all.size(0) / comm.ranks(), all.size(0) / comm.ranks());
    };
    own(a).fill_(comm.rank() + 1);
    own(b).fill_(comm.rank() + 10);
    const auto first = comm.start_all_gather(a, own(a)), second = comm.start_all_gather(b, own(b));
    first->wait();
    second->wait();
    for (int rank = 0; rank < comm.ranks(); ++rank) {
      EXPECT_TRUE(a.narrow(0, rank * 50, 50).eq(rank + 1).all().item<bool>());
      EXPECT_TRUE(b.narrow(0, rank * 7, 7).eq(rank + 10).all().item<bool>());
    }
  });
}

TEST_P(CommTest, PartsMustFit) {
  if (GetParam().count == 1) return;
  on_ranks([](Comm& comm) {
    const at::Tensor whole = at::zeros({comm.ranks() * 4});
    test::expect_error(ExitCode::unexpected, {"a reduce-scatter between"},
                       [&] { comm.reduce_scatter(at::zeros({5}), whole); });
    test::expect_error(ExitCode::unexpected, {"an all-gather between"},
                       [&] { comm.all_gather(whole, at::zeros({4}, at::kDouble)); });
  });
}

TEST_P(CommTest, AllToAll) {
  on_ranks([](Comm& comm) {
    const int n = comm.ranks(), rank = comm.rank();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kInt, at::kByte}) {
      // Row 2 r + i goes to rank r; it says from whom it comes and to whom it goes.
      const auto row = [&](int from, int to) {
        return at::tensor({from, to, 7}, at::kInt).to(dtype).expand({2, 3}).contiguous();
      };
      std::vector<at::Tensor> sent, expected;
      for (int other = 0; other < n; ++other) {
        sent.push_back(row(rank, other));
        expected.push_back(row(other, rank));
      }
      const at::Tensor out = at::zeros({n * 2, 3}, dtype);
      comm.all_to_all(out, at::cat(sent));
      EXPECT_TRUE(at::equal(out, at::cat(expected))) << dtype;
    }
    test::expect_error(ExitCode::unexpected, {"an all-to-all between"},
                       [&] { comm.all_to_all(at::zeros({n}), at::zeros({n + 1})); });
    const at::Tensor same = at::zeros({n});
    test::expect_error(ExitCode::unexpected, {"in place"}, [&] { comm.all_to_all(same, same); });
  });
}

// Round a ring in both directions, of different sizes, and several calls before the first wait.
TEST_P(CommTest, Exchange) {
  on_ranks([](Comm& comm) {
    const int n = comm.ranks(), rank = comm.rank();
    if (n == 1) {
      comm.exchange({}, {});
      return;
    }
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    std::vector<std::unique_ptr<Pending>> pending;
    std::vector<at::Tensor> from_previous, from_next;
    for (int turn = 0; turn < 3; ++turn) {
      from_previous.push_back(at::zeros({4 + turn}));
      from_next.push_back(at::zeros({2, 3}, at::kLong));
      pending.push_back(comm.start_exchange(
          {{at::full({4 + turn}, 10.0f * static_cast<float>(rank) + static_cast<float>(turn)), next},
           {at::full({2, 3}, 100 * rank + turn, at::kLong), previous}},
          {{from_previous.back(), previous}, {from_next.back(), next}}));
    }
    for (auto& one : pending) one->wait();
    for (int turn = 0; turn < 3; ++turn) {
      const auto at_turn = static_cast<size_t>(turn);
      EXPECT_TRUE(from_previous[at_turn].eq(10 * previous + turn).all().item<bool>()) << from_previous[at_turn];
      EXPECT_TRUE(from_next[at_turn].eq(100 * next + turn).all().item<bool>()) << from_next[at_turn];
    }
    // One way, between two of them; the others have nothing to do with it.
    const at::Tensor message = at::full({5}, rank + 1);
    if (rank == 0) comm.exchange({{message, n - 1}}, {});
    if (rank == n - 1) comm.exchange({}, {{message, 0}});
    if (rank == n - 1) {
      EXPECT_TRUE(message.eq(1).all().item<bool>());
    }
    test::expect_error(ExitCode::unexpected, {"in an exchange with rank"}, [&] {
      comm.exchange({{message, rank}}, {});
    });
    test::expect_error(ExitCode::unexpected, {"in an exchange with rank"}, [&] { comm.exchange({{message, n}}, {}); });
  });
}

// Even and odd ranks, twice under one name; what one group does the other does not see.
TEST_P(CommTest, Split) {
  on_ranks([](Comm& comm) {
    const int n = comm.ranks(), rank = comm.rank();
    std::vector<int> members;
    for (int other = rank % 2; other < n; other += 2) members.push_back(other);
    for (int turn = 0; turn < 2; ++turn) {
      const auto part = comm.split({.name = "half", .members = members});
      ASSERT_EQ(part->ranks(), static_cast<int>(members.size()));
      ASSERT_EQ(part->rank(), rank / 2);
      const at::Tensor sum = at::full({3}, rank + 1), all = at::empty({part->ranks()}, at::kLong);
      for (int i = 0; i <= rank % 2; ++i) part->all_reduce(sum);  // odd ranks twice
      part->all_gather(all, at::full({1}, rank, at::kLong));
      double expected = 0;
      for (const int member : members) expected += member + 1;
      if (rank % 2 == 1) expected *= static_cast<double>(members.size());
      EXPECT_TRUE(sum.eq(expected).all().item<bool>()) << sum << expected;
      for (size_t i = 0; i < members.size(); ++i) EXPECT_EQ(all[static_cast<int64_t>(i)].item<int64_t>(), members[i]);
      comm.barrier();
    }
    const auto refused = [&](std::vector<int> wrong) {
      test::expect_error(ExitCode::unexpected, {"cannot be in the group 'wrong'"},
                         [&] { comm.split({.name = "wrong", .members = std::move(wrong)}); });
    };
    refused({});
    refused({rank, n});
    refused({rank, rank});
    refused({rank + 1});
  });
}

TEST_P(CommTest, Broadcast) {
  on_ranks([](Comm& comm) {
    const int root = comm.ranks() - 1;
    const at::Tensor tensor = at::full({4}, comm.rank(), at::kBFloat16);
    comm.broadcast(tensor, root);
    EXPECT_TRUE(at::equal(tensor, at::full({4}, root, at::kBFloat16)));
  });
}

TEST_P(CommTest, Texts) {
  on_ranks([](Comm& comm) {
    const auto texts = comm.all_gather_text(std::string(static_cast<size_t>(comm.rank()) * 3, 'x'));
    ASSERT_EQ(texts.size(), static_cast<size_t>(comm.ranks()));
    for (size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], std::string(rank * 3, 'x'));
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, CommTest, testing::Values(Ranks{Kind::threads, 1}, Ranks{Kind::threads, 3}));
INSTANTIATE_TEST_SUITE_P(Gloo, CommTest,
                         testing::Values(Ranks{Kind::gloo, 1}, Ranks{Kind::gloo, 2}, Ranks{Kind::gloo, 4}));

TEST(SingleComm, DoesNothing) {
  const auto comm = make_single_comm();
  const at::Tensor values = at::arange(4, at::kFloat), out = at::zeros({4}, at::kFloat);
  comm->all_reduce(values);
  comm->broadcast(values, 0);
  comm->barrier();
  comm->all_gather(out, values);
  EXPECT_TRUE(at::equal(values, at::arange(4, at::kFloat)));
  EXPECT_TRUE(at::equal(out, values));
  EXPECT_EQ(comm->all_gather_text("me"), std::vector<std::string>{"me"});
}

std::string what_is_thrown(const std::function<void()>& body, ExitCode code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Rendezvous, NamesTheRanksThatHaveNotCome) {
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  on_threads(2, [&](int index) {
    const int rank = index * 2;  // 0 and 2 of 4
    const std::string said = what_is_thrown(
        [&] { Rendezvous(launch_of(rank, 4, port), {.meet_timeout_s = 2, .timeout_s = 2}); }, ExitCode::rank_failed);
    // Rank 0 leaves first and takes the store along.
    if (rank == 0) {
      EXPECT_NE(said.find("these of 4 ranks have not come"), std::string::npos) << said;
      EXPECT_NE(said.find(": 1, 3"), std::string::npos) << said;
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(7));
}

TEST(Rendezvous, NobodyListens) {
  const std::string said = what_is_thrown(
      [] { Rendezvous(launch_of(1, 2, free_port()), {.meet_timeout_s = 1, .timeout_s = 1}); }, ExitCode::rank_failed);
  EXPECT_NE(said.find("rank 1 found nobody at 127.0.0.1:"), std::string::npos) << said;
}

TEST(Rendezvous, PortInUse) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin6_port);
  const std::string said = what_is_thrown(
      [&] { Rendezvous(launch_of(0, 2, port), {.meet_timeout_s = 2, .timeout_s = 2}); }, ExitCode::rank_failed);
  EXPECT_NE(said.find("MASTER_PORT"), std::string::npos) << said;
  close(fd);
}

TEST(Rendezvous, StoreKeepsAttemptsApart) {
  const int port = free_port();
  Launch first = launch_of(0, 1, port), second = first;
  second.attempt = "1";
  second.agent_store = true;  // joins the server of the first
  const Rendezvous a(first, {}), b(second, {});
  const auto in_a = a.connect(), again = a.connect(), in_b = b.connect();
  EXPECT_EQ(in_a->get("key"), std::nullopt);
  in_a->set("key", "value");
  EXPECT_EQ(again->get("key"), "value");
  EXPECT_EQ(again->wait("key", 5), "value");
  EXPECT_EQ(in_b->get("key"), std::nullopt);
  EXPECT_EQ(in_b->wait("key", 0.1), std::nullopt);
}

TEST(Rendezvous, StoreOfSeveralKeys) {
  const Rendezvous rendezvous(launch_of(0, 1, free_port()), {});
  const auto store = rendezvous.connect();
  EXPECT_EQ(store->set_once("a", ""), "");
  EXPECT_EQ(store->set_once("a", "1"), "1");
  EXPECT_EQ(store->set_once("a", "2"), "1");
  using Values = std::vector<std::optional<std::string>>;
  EXPECT_EQ(store->get_all({"a", "b"}), (Values{"1", std::nullopt}));
  EXPECT_EQ(store->set_once("b", "3"), "3");
  EXPECT_EQ(store->get_all({"b", "a"}), (Values{"3", "1"}));
}

// A rank that leaves is noticed by those that wait for it.
TEST(GlooComm, RankThatLeaves) {
  const int port = free_port();
  on_threads(2, [&](int rank) {
    Rendezvous rendezvous(launch_of(rank, 2, port), {.meet_timeout_s = 30, .timeout_s = 30});
    auto comm = rendezvous.make_gloo_comm();
    if (rank == 1) return;
    const std::string said = what_is_thrown([&] { comm->all_reduce(at::ones({10})); }, ExitCode::rank_failed);
    EXPECT_NE(said.find("rank 0 lost another rank in an all-reduce"), std::string::npos) << said;
  });
}

// The one before notices, the others do not, and those who part miss nobody.
TEST(NeighbourWatch, NoticesWhoIsGone) {
  constexpr int kRanks = 3;
  for (const bool lost : {false, true}) {
    const int port = test::free_port();
    std::array<std::atomic<int>, kRanks> broken{};
    test::on_threads(kRanks, [&](int rank) {
      Rendezvous rendezvous(test::launch_of(rank, kRanks, port), {.meet_timeout_s = 30, .timeout_s = 30});
      auto comm = rendezvous.make_gloo_comm();
      auto watch = watch_neighbour(*comm, [&, rank] { ++broken[static_cast<size_t>(rank)]; });
      at::Tensor sum = at::ones({3});
      comm->all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::full({3}, kRanks, at::kFloat)));
      comm->barrier();
      if (!lost) {
        watch->part();
        return;
      }
      if (rank == 2) {
        watch.reset();
        comm.reset();
      } else if (rank == 1) {
        for (int i = 0; i < 1000 && broken[1] == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    EXPECT_EQ(broken[1], lost ? 1 : 0);
    EXPECT_EQ(broken[2], 0);
  }
}

TEST(NeighbourWatch, NeedsSeveralRanks) {
  const auto alone = make_single_comm();
  test::expect_error(ExitCode::unexpected, {"several ranks over gloo"}, [&] { watch_neighbour(*alone, [] {}); });
}

}  // namespace
}  // namespace hrm::parallel
