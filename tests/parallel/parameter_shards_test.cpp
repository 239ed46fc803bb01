#include "hrm/parallel/parameter_shards.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "hrm/base/error.h"
#include "hrm/optim/groups.h"
#include "hrm/parallel/replicas.h"
#include "parallel/small_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/whole_state.h"

namespace hrm::parallel {
namespace {

using config::OptimizerKind;
using test::build;
using test::Kind;
using test::pass;
using test::Ranks;

at::Tensor scalar(double value) {
  return at::full({}, value, at::kFloat);
}

// What a trainer has, with the optimizer's work shared out or not.
struct Training : Stateful {
  Training(Comm& comm, int64_t zero, OptimizerKind optimizer_kind, const std::string& arch = "hrm",
           at::ScalarType compute_dtype = at::kFloat)
      : model(build(arch, compute_dtype)),
        set(model->parameter_set()),
        reducer(set, comm, {.bucket_bytes = 50000, .zero = zero}) {
    optim::ParameterGroup group;
    if (reducer.layout() != nullptr) {
      shards = std::make_unique<ParameterShards>(set, comm, reducer, 0.9, optim::moment_names(optimizer_kind));
      group = shards->group(0.1);
    } else {
      average = std::make_unique<optim::Ema>(set, 0.9);
      group = optim::group_of(set, 0.1, average.get());
    }
    // Vectors do not decay, wherever a share cuts them.
    optim::GroupOptions options{.weight_decay = 0.1};
    options.defaults.decay_vectors = false;
    optimizer =
        optim::make_optimizer({.name = optimizer_kind, .average_decay = 0.9}, optim::make_groups(set, group, options));
  }

  void backward(int64_t sample) {
    reducer.clear();
    reducer.begin(/*last_micro_batch=*/true);
    pass(*model, sample);
    reducer.finish();
  }
  optim::GradNorm norm(double max_norm) const {
    return shards ? shards->global_norm(max_norm, {}) : optim::global_norm(set.flat_grad(), max_norm);
  }
  double step(const at::Tensor& coef, double skip = 0) {
    const at::Tensor ratio = at::full({}, 7, at::kDouble);
    if (shards) {
      shards->step(*optimizer, scalar(1e-2), coef, scalar(skip), ratio);
    } else {
      optimizer->step(scalar(1e-2), coef, scalar(skip), ratio);
    }
    return ratio.item<double>();
  }
  void visit_state(StateVisitor& visitor) override {
    for (auto& item : model->named_parameters()) visitor.tensor(item.key(), item.value(), StateRole::weight);
    optimizer->visit_state(visitor);
    if (average) average->visit_state(visitor);
    if (shards) shards->visit_state(visitor);
  }

  std::shared_ptr<models::PuzzleModel> model;
  nn::ParameterSet& set;
  GradientReducer reducer;
  std::unique_ptr<ParameterShards> shards;
  std::unique_ptr<optim::Ema> average;
  std::unique_ptr<optim::Optimizer> optimizer;
};

void expect_same(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

class ShardsTest : public testing::TestWithParam<Ranks> {};

// The same gradients and the same clipping: the same bits everywhere, and state that is that of whole parameters.
TEST_P(ShardsTest, StepsAsOneOptimizer) {
  for (const auto name : {OptimizerKind::adam_atan2, OptimizerKind::adamw, OptimizerKind::lion, OptimizerKind::sgd}) {
    for (const int64_t zero : {1, 2}) {
      test::on_ranks(GetParam(), [&](Comm& comm) {
        Training run(comm, zero, name), whole(comm, 0, name);
        for (int64_t step = 0; step < 3; ++step) {
          const int64_t sample = step * comm.ranks() + comm.rank();
          run.backward(sample);
          whole.backward(sample);
          const optim::GradNorm own = run.norm(1e-3), expected = whole.norm(1e-3);
          const double norm = expected.norm.item<double>();
          EXPECT_GT(norm, 1e-2);
          EXPECT_NEAR(own.norm.item<double>(), norm, 3e-7 * norm);
          EXPECT_NEAR(own.coef.item<double>(), expected.coef.item<double>(), 3e-7 * expected.coef.item<double>());
          EXPECT_EQ(own.nonfinite.item<double>(), 0);
          const at::Tensor norms = at::empty({comm.ranks()});
          comm.all_gather(norms, own.norm.view({1}));
          EXPECT_TRUE(norms.eq(norms[0]).all().item<bool>()) << norms;

          const double ratio = run.step(expected.coef), expected_ratio = whole.step(expected.coef);
          EXPECT_GT(ratio, 0);
          // On the CPU runs of squares are added in float32, and parts of parameters are cut into other runs.
          EXPECT_NEAR(ratio, expected_ratio, 1e-7 * expected_ratio);
        }
        expect_same(test::whole_state(run, comm), test::whole_state(whole, comm));
      });
    }
  }
}

TEST_P(ShardsTest, SkippedStepChangesNothing) {
  test::on_ranks(GetParam(), [&](Comm& comm) {
    Training run(comm, 2, OptimizerKind::adam_atan2);
    run.backward(comm.rank());
    run.step(scalar(1));
    const test::WholeState before = test::whole_state(run, comm);
    // Not finite on one rank alone.
    run.backward(comm.rank());
    if (comm.main()) run.reducer.share()[3].fill_(NAN);
    const at::Tensor skip = scalar(0);
    const at::Tensor nonfinite = run.shards->global_norm(1, {.skip = skip}).nonfinite;
    EXPECT_EQ(nonfinite.item<double>(), 1);
    EXPECT_EQ(skip.item<double>(), 1);
    EXPECT_EQ(run.step(scalar(1), 1), 0);
    expect_same(test::whole_state(run, comm), before);
  });
}

TEST_P(ShardsTest, CopiesFollow) {
  test::on_ranks(GetParam(), [&](Comm& comm) {
    Training run(comm, 1, OptimizerKind::adamw, "hrm", at::kBFloat16), whole(comm, 0, OptimizerKind::adamw);
    const at::Tensor before = run.set.all().back().compute.detach().clone();
    for (Training* each : {&run, &whole}) {
      each->reducer.clear();
      for (const nn::Parameter& parameter : each->set.all()) parameter.master.mutable_grad().fill_(1);
      each->reducer.begin(true);
      each->reducer.finish();
      each->step(scalar(1));
    }
    int copies = 0, shards = 0;
    for (size_t i = 0; i < run.set.all().size(); ++i) {
      const nn::Parameter& parameter = run.set.all()[i];
      const at::Tensor expected = whole.set.all()[i].master.detach();
      copies += parameter.compute.is_same(parameter.master) ? 0 : 1;
      EXPECT_TRUE(at::equal(parameter.compute, expected.to(parameter.compute.scalar_type()))) << parameter.name;
      // Those of blocks are only copies: nobody has all of their masters.
      shards += parameter.only_compute_is_read ? 1 : 0;
      EXPECT_EQ(at::equal(parameter.master, expected), !parameter.only_compute_is_read) << parameter.name;
    }
    EXPECT_GT(copies, 10);
    EXPECT_GT(shards, 10);
    EXPECT_LT(shards, copies);
    EXPECT_FALSE(at::equal(run.set.all().back().compute, before));
  });
}

// While it is evaluated every rank has the whole average; then exactly its weights again.
TEST_P(ShardsTest, AverageIsGathered) {
  test::on_ranks(GetParam(), [&](Comm& comm) {
    Training run(comm, 2, OptimizerKind::adam_atan2);
    std::vector<at::Tensor> start;
    for (const nn::Parameter& parameter : run.set.all()) start.push_back(parameter.master.detach().clone());
    run.backward(comm.rank());
    run.step(scalar(1));
    std::vector<at::Tensor> raw;
    for (const nn::Parameter& parameter : run.set.all()) raw.push_back(parameter.master.detach().clone());
    {
      const optim::EmaSwap swap(*run.shards->ema(), run.set, [&] { run.shards->gather(); });
      for (size_t i = 0; i < raw.size(); ++i) {
        const nn::Parameter& parameter = run.set.all()[i];
        EXPECT_TRUE(at::allclose(parameter.master, start[i] + (raw[i] - start[i]) * 0.1, 1e-6, 1e-7)) << parameter.name;
        EXPECT_FALSE(at::equal(parameter.master, raw[i])) << parameter.name;
      }
    }
    for (size_t i = 0; i < raw.size(); ++i) EXPECT_TRUE(at::equal(run.set.all()[i].master, raw[i]));
  });
}

// Moments and averages of a rank: its share of the parameters, and what fills buckets up.
TEST_P(ShardsTest, MemoryIsShared) {
  test::on_ranks(GetParam(), [&](Comm& comm) {
    Training run(comm, 1, OptimizerKind::adamw);
    int64_t bytes = 0;
    for (const TensorEntry& entry : list_state(*run.shards).tensors)
      bytes += static_cast<int64_t>(entry.tensor.nbytes());
    EXPECT_LE(bytes, 3 * 4 * run.reducer.layout()->share());
    const at::Tensor all = at::full({1}, bytes, at::kLong);
    comm.all_reduce(all);
    EXPECT_EQ(all.item<int64_t>(), 3 * 4 * run.set.count()) << "of all ranks";
    const int64_t alignment = nn::ParameterSet::kGradAlignment;
    const auto padding = static_cast<int64_t>(run.set.all().size() * alignment +
                                              run.reducer.buckets() * alignment * static_cast<size_t>(comm.ranks()));
    EXPECT_LE(bytes, 3 * 4 * (run.set.count() + padding) / comm.ranks());
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, ShardsTest,
                         testing::Values(Ranks{Kind::threads, 2}, Ranks{Kind::threads, 3}, Ranks{Kind::threads, 4}));
INSTANTIATE_TEST_SUITE_P(Gloo, ShardsTest, testing::Values(Ranks{Kind::gloo, 2}));

// What four ranks saved, handed out to two and to one that shares nothing.
TEST(ParameterShards, StateOfOtherRanks) {
  test::WholeState saved;
  test::on_ranks({Kind::threads, 4}, [&](Comm& comm) {
    Training run(comm, 2, OptimizerKind::adamw);
    for (int64_t step = 0; step < 2; ++step) {
      run.backward(comm.rank());
      run.step(scalar(1));
    }
    const test::WholeState whole = test::whole_state(run, comm);
    if (comm.main()) saved = whole;
  });
  ASSERT_GT(saved.size(), 40u);
  for (const int ranks : {1, 2}) {
    test::on_ranks({Kind::threads, ranks}, [&](Comm& comm) {
      Training run(comm, 1, OptimizerKind::adamw);
      test::fill_state(run, saved);
      check_replicas(run, comm);
      expect_same(test::whole_state(run, comm), saved);
    });
  }
}

TEST(ParameterShards, ModelTooSmall) {
  test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
    torch::nn::Module module;
    module.register_parameter("w", at::ones({10}));
    nn::ParameterSet set;
    set.build(module, at::kFloat);
    const GradientReducer reducer(set, comm, {.zero = 1});
    if (comm.main()) {
      const ParameterShards shards(set, comm, reducer, 0);
    } else {
      test::expect_error(ExitCode::usage, {"10 parameters are too few to give 2 ranks a share", "parallel.zero=0"},
                         [&] { const ParameterShards shards(set, comm, reducer, 0); });
    }
  });
}

}  // namespace
}  // namespace hrm::parallel
