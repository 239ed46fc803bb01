#include "ops/geometry/geometric_retrieval_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GeometricRetrieval, AsGoodAsRowByRow) {
  for (const at::ScalarType states : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const RetrievalSize& size : retrieval_sizes()) expect_good_retrieval(size, states, at::kCPU);
  }
}

TEST(GeometricRetrieval, Float64IsExact) {
  for (const RetrievalSize& size : retrieval_sizes()) {
    const RetrievalProblem p = retrieval_problem(size, at::kDouble, at::kCPU);
    EXPECT_LE(largest_difference(p(), retrieval_by_rows(p, at::kDouble)), 1e-12) << size.rows << " " << size.slots;
  }
}

TEST(GeometricRetrieval, RowsWithoutCandidatesGiveZeros) {
  RetrievalProblem p = retrieval_problem({.rows = 3, .n = 4, .d = 5, .own = 6, .slots = 7, .filled = 0, .masked = true},
                                         at::kFloat, at::kCPU);
  EXPECT_EQ(p()[1].abs().max().item<float>(), 0);
  EXPECT_GT(p()[0].abs().max().item<float>(), 0);
}

// One row for all, the rotor of the two forms, and that a rotor which turns q alone is not one that turns both.
TEST(GeometricRetrieval, FormsAndSharedResilience) {
  const RetrievalProblem p = retrieval_problem(
      {.rows = 3, .n = 8, .d = 5, .own = 6, .slots = 7, .filled = 4, .masked = true}, at::kDouble, at::kCPU);
  const at::Tensor theta = normal({6}, 9, at::kDouble), q = rotor_matrix(theta, 8);
  const auto run = [&](const at::Tensor& r, RetrievalForm form) {
    return geometric_retrieval(p.query, p.candidates, r, p.g, theta, form, 5.0, 1e-6);
  };
  const at::Tensor sound = run(p.resilience, RetrievalForm::sound), compat = run(p.resilience, RetrievalForm::compat);
  EXPECT_GT(largest_difference(sound, compat), 1e-3);
  RetrievalProblem turned = p;
  turned.query = p.query.matmul(q.t());
  EXPECT_LT(largest_difference(compat, turned()), 1e-13);
  turned.candidates.coords = p.candidates.coords.matmul(q.t());
  turned.candidates.bank_coords = p.candidates.bank_coords.matmul(q.t());
  EXPECT_LT(largest_difference(sound, turned()), 1e-13);
  EXPECT_LT(largest_difference(run(at::full({}, 1.5, at::kDouble), RetrievalForm::compat),
                               run(at::full({3}, 1.5, at::kDouble), RetrievalForm::compat)),
            1e-14);
}

TEST(GeometricRetrieval, BadInputIsNamed) {
  const auto problem = [] {
    return retrieval_problem({.rows = 3, .n = 4, .d = 5, .own = 6, .slots = 7, .filled = 2}, at::kFloat, at::kCPU);
  };
  const auto message = [&](const auto& spoil) {
    RetrievalProblem p = problem();
    spoil(p);
    return error_of([&] { p(); });
  };
  EXPECT_EQ(message([](RetrievalProblem&) {}), "");
  const std::string op = "hrm::geometric_retrieval";
  expect_message(message([](RetrievalProblem& p) { p.g = at::ones({5}); }), {op, "[5]", "[3, 4]"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.coords = at::ones({3, 6, 5}); }), {op, "[3, 6, 5]"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.states = at::ones({3, 5, 5}); }), {op, "[3, 5, 5]"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.mask = at::ones({3, 6}); }), {op, "bool", "Float"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.bank_states = at::ones({7, 6}); }), {op, "[7, 6]"});
  expect_message(message([](RetrievalProblem& p) {
                   p.candidates.bank_states = at::ones({7, 5}, at::kHalf);
                 }),
                 {op, "Half"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.filled = at::ones({}); }), {op, "int64", "Float"});
  expect_message(message([](RetrievalProblem& p) { p.candidates.filled = at::Tensor(); }), {op, "filled"});
  expect_message(message([](RetrievalProblem& p) { p.candidates = {}; }), {op, "neither"});
}

}  // namespace
}  // namespace hrm::ops
