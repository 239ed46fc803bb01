// Ranks that hold the same must agree, and one of them writes it.
#include "hrm/parallel/replicas.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "hrm/base/error.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

// On four ranks: a weight that all hold, rows that pairs of ranks (0, 2) and (1, 3) hold, rows of each rank's own, and
// a tensor of which the last rank holds nothing.
struct Mixed : Stateful {
  explicit Mixed(int rank) : rank_(rank) {
    pairs.fill_(rank % 2);
    own.fill_(rank);
    few = at::zeros({rank < 3 ? 1 : 0});
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.tensor("weight", weight, StateRole::weight);
    visitor.tensor("pairs", pairs, pairs_role, rows_part(pairs.sizes(), rank_ % 2 * 2, 4));
    visitor.tensor("own", own, StateRole::carry, rows_part(own.sizes(), rank_ * 2, 8));
    visitor.tensor("few", few, StateRole::optimizer, run_part({3}, rank_, rank_ < 3 ? 1 : 0));
    if (whole_somewhere && rank_ == 3) {
      visitor.tensor("odd", odd, StateRole::loop);
    } else if (whole_somewhere) {
      visitor.tensor("odd", odd, StateRole::loop, rows_part(odd.sizes(), rank_ * 2, 6));
    }
    visitor.integer("count", count);
    visitor.real("rate", rate);
  }
  at::Tensor weight = at::ones({3}), pairs = at::zeros({2, 3}), own = at::zeros({2}), few, odd = at::zeros({2});
  StateRole pairs_role = StateRole::optimizer;
  bool whole_somewhere = false;
  int64_t count = 5;
  double rate = 0.5;

 private:
  int rank_;
};

void on_four(const std::function<void(Comm&, Mixed&)>& body) {
  test::on_ranks({test::Kind::threads, 4}, [&](Comm& comm) {
    Mixed state(comm.rank());
    body(comm, state);
  });
}

TEST(Replicas, EachEntryHasOneOwner) {
  on_four([](Comm& comm, Mixed& state) {
    const OwnedEntries owned = owned_entries(state, comm);
    EXPECT_TRUE(owned.any_split);
    EXPECT_FALSE(owned.split_weights);
    EXPECT_EQ(owned.scalars, comm.main());
    EXPECT_EQ(owned.names.count("weight"), comm.rank() == 0 ? 1u : 0u);
    EXPECT_EQ(owned.names.count("pairs"), comm.rank() < 2 ? 1u : 0u);
    EXPECT_EQ(owned.names.count("own"), 1u);
    OwnedState own(state, owned);
    const StateListing listing = list_state(own);
    EXPECT_EQ(listing.tensors.size(), owned.names.size());
    EXPECT_EQ(listing.integers.size(), comm.main() ? 1u : 0u);
    EXPECT_EQ(listing.reals.size(), comm.main() ? 1u : 0u);
    state.pairs_role = StateRole::ema;
    EXPECT_TRUE(owned_entries(state, comm).split_weights);
  });
}

TEST(Replicas, OneRankOwnsAll) {
  const auto comm = make_single_comm();
  struct Two : Stateful {
    void visit_state(StateVisitor& visitor) override {
      visitor.tensor("a", a, StateRole::weight);
      visitor.tensor("b", a, StateRole::carry, rows_part(a.sizes(), 0, 2));
    }
    at::Tensor a = at::zeros({2});
  } two;
  const OwnedEntries owned = owned_entries(two, *comm);
  EXPECT_FALSE(owned.any_split);
  EXPECT_TRUE(owned.scalars);
  EXPECT_EQ(owned.names.size(), 2u);
}

TEST(Replicas, WholeOnOneRankAloneIsRefused) {
  on_four([](Comm& comm, Mixed& state) {
    state.whole_somewhere = true;
    test::expect_error(ExitCode::unexpected, {"rank 3 holds all of 'odd'"}, [&] { owned_entries(state, comm); });
  });
}

TEST(Replicas, ThatDifferAreNamed) {
  struct Case {
    const char* what;
    int rank;
    std::function<void(Mixed&)> change;
    std::string sentence;  // empty: none
  };
  const std::vector<Case> cases = {
      {"nothing", 0, [](Mixed&) {}, ""},
      {"a weight", 2, [](Mixed& s) { s.weight[1] = 7; }, "rank 2 has another state than rank 0, first in 'weight'"},
      {"one of two that hold the same rows", 3, [](Mixed& s) { s.pairs[0][0] = 7; },
       "rank 3 has another state than rank 1, first in 'pairs'"},
      {"what one rank alone holds", 1, [](Mixed& s) { s.own[0] = 7; }, ""},
      {"a counter", 1, [](Mixed& s) { s.count = 6; }, "rank 1 has another state than rank 0, first in 'count'"},
      {"the last bit of a number", 1, [](Mixed& s) { s.rate = std::nextafter(0.5, 1); }, "first in 'rate'"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    on_four([&](Comm& comm, Mixed& state) {
      if (comm.rank() == one.rank) one.change(state);
      if (one.sentence.empty()) {
        EXPECT_NO_THROW(check_replicas(state, comm));
      } else {
        test::expect_error(ExitCode::rank_failed, {one.sentence}, [&] { check_replicas(state, comm); });
      }
    });
  }
}

}  // namespace
}  // namespace hrm::parallel
