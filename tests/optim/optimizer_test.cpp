#include "hrm/optim/optimizer.h"

#include "optim/optim_cases.h"

namespace hrm::optim {
namespace {

using namespace testing;  // NOLINT

class Optimizers : public ::testing::TestWithParam<OptimizerKind> {};

TEST(Elementwise, FollowTheirEquations) {
  for (const OptimizerKind name : kElementwise) expect_exact_steps(name, at::kCPU);
}

TEST_P(Optimizers, SkipLeavesEverything) {
  expect_skip(GetParam(), at::kCPU);
}

// State copied into another optimizer, as a resume does, continues with the same bits.
TEST_P(Optimizers, StateResumes) {
  const auto start = [] {
    Problem problem = make_problem(at::kCPU);
    if (GetParam() == OptimizerKind::muon) mark_matrices(problem);
    return problem;
  };
  Problem straight = start();
  const auto first = make_optimizer({GetParam(), 0.9, 0.95, 1e-8}, straight.groups);
  const auto run = [](Problem& problem, Optimizer& optimizer, uint64_t from, uint64_t to) {
    for (uint64_t t = from; t <= to; ++t) {
      set_grads(problem, t);
      optimizer.step(problem.lr, problem.grad_scale, problem.skip);
    }
  };
  run(straight, *first, 1, 3);
  Problem resumed = start();
  const auto second = make_optimizer({GetParam(), 0.9, 0.95, 1e-8}, resumed.groups);
  {
    const at::NoGradGuard no_grad;
    const auto from = list_state(*first).tensors, to = list_state(*second).tensors;
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].name, to[i].name);
      ASSERT_EQ(from[i].role, StateRole::optimizer);
      to[i].tensor.copy_(from[i].tensor);
    }
    for (size_t g = 0; g < straight.groups.size(); ++g) {
      for (size_t i = 0; i < straight.groups[g].params.size(); ++i) {
        resumed.groups[g].params[i].copy_(straight.groups[g].params[i]);
      }
    }
  }
  run(straight, *first, 4, 6);
  run(resumed, *second, 4, 6);
  for (size_t g = 0; g < straight.groups.size(); ++g) {
    for (size_t i = 0; i < straight.groups[g].params.size(); ++i) {
      EXPECT_TRUE(at::equal(straight.groups[g].params[i], resumed.groups[g].params[i])) << g << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers,
                         ::testing::Values(OptimizerKind::adam_atan2, OptimizerKind::adamw, OptimizerKind::lion,
                                           OptimizerKind::sgd, OptimizerKind::muon),
                         [](const auto& info) { return std::string(config::name_of(info.param)); });

TEST(MakeOptimizer, RefusesGroupsThatDoNotFit) {
  const auto code_of = [](const OptimizerOptions& options, std::vector<ParameterGroup> groups) {
    try {
      make_optimizer(options, std::move(groups));
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  const Problem problem = make_problem(at::kCPU);
  EXPECT_EQ(code_of({OptimizerKind::adamw, 0.9, 0.95, 1e-8}, {}), ExitCode::unexpected);
  std::vector<ParameterGroup> uneven = problem.groups;
  uneven[0].grads.pop_back();
  EXPECT_EQ(code_of({OptimizerKind::adamw, 0.9, 0.95, 1e-8}, uneven), ExitCode::unexpected);
  EXPECT_EQ(code_of({OptimizerKind::muon}, uneven), ExitCode::usage) << "no group of matrices";
  std::vector<ParameterGroup> marked = problem.groups;
  marked[0].matrices = true;
  EXPECT_EQ(code_of({OptimizerKind::muon}, marked), ExitCode::unexpected) << "a vector is no matrix";
  std::vector<ParameterGroup> two_kinds = problem.groups;
  for (ParameterGroup& group : two_kinds) group.moments = {group.grads, group.grads};
  EXPECT_EQ(code_of({OptimizerKind::adamw}, two_kinds), ExitCode::done);
  EXPECT_EQ(code_of({OptimizerKind::lion}, two_kinds), ExitCode::unexpected) << "Lion has one moment alone";
}

TEST(Clip, GlobalNorm) {
  expect_norms(at::kCPU);
}

TEST(SparseSignSgd, FollowsItsEquation) {
  expect_sparse_signs(at::kCPU);
}

TEST(SparseSignSgd, BadInputIsNamed) {
  at::Tensor weights = at::zeros({4, 3});
  const at::Tensor lr = at::zeros({}), skip = at::zeros({});
  const auto message = [&](const at::Tensor& ids, const at::Tensor& grads, const at::Tensor& rate) -> std::string {
    try {
      sparse_sign_sgd_(weights, ids, grads, rate, 0.1, skip);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const at::Tensor ids = at::zeros({2}, at::kInt);
  EXPECT_EQ(message(ids, at::zeros({2, 3}), lr), "");
  EXPECT_NE(message(ids, at::zeros({2, 4}), lr).find("[2, 4]"), std::string::npos);
  EXPECT_NE(message(ids, at::zeros({3, 3}), lr).find("[3, 3]"), std::string::npos);
  EXPECT_NE(message(ids.to(at::kFloat), at::zeros({2, 3}), lr).find("int32 or int64"), std::string::npos);
  EXPECT_NE(message(ids, at::zeros({2, 3}), at::zeros({1})).find("0-dim"), std::string::npos);
}

}  // namespace
}  // namespace hrm::optim
