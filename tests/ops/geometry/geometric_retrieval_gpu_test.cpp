#include "ops/geometry/geometric_retrieval_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GeometricRetrievalGpu, AsGoodAsRowByRow) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  for (const at::ScalarType states : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const RetrievalSize& size : retrieval_sizes()) expect_good_retrieval(size, states, at::kCUDA);
  }
}

TEST(GeometricRetrievalGpu, ReferenceAsGoodAsRowByRow) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  const WithReference plain;
  for (const RetrievalSize& size : retrieval_sizes()) expect_good_retrieval(size, at::kFloat, at::kCUDA);
}

// The columns one at a time where a row of states is not aligned.
TEST(GeometricRetrievalGpu, Misaligned) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType states : {at::kFloat, at::kHalf}) {
    RetrievalProblem p = retrieval_problem(
        {.rows = 9, .n = 8, .d = 16, .own = 70, .slots = 90, .filled = 80, .masked = true}, states, at::kCUDA);
    const at::Tensor want = p();
    const auto shifted = [](const at::Tensor& t) {
      at::Tensor room = at::empty({t.numel() + 1}, t.options()).narrow(0, 1, t.numel()).view(t.sizes());
      return room.copy_(t);
    };
    p.candidates.states = shifted(p.candidates.states);
    p.candidates.bank_states = shifted(p.candidates.bank_states);
    expect_same_bits(p(), want, cat(states));
  }
}

TEST(GeometricRetrievalGpu, SameBitsEachTimeAndInAGraphWhileTheBankFills) {
  HRM_NEEDS_GPU();
  for (const RetrievalSize& size : retrieval_sizes()) {
    if (size.rows == 0) continue;
    const RetrievalProblem p = retrieval_problem(size, at::kFloat, at::kCUDA);
    const std::string what = cat("B ", size.rows, ", d ", size.d, ", M ", size.slots);
    expect_same_each_time([&] { return std::vector<at::Tensor>{p()}; }, 20, what);
    at::Tensor got;
    Captured captured([&] { got = p(); });
    for (int64_t filled = 0; filled <= 2; ++filled) {
      p.query.copy_(normal({size.rows, size.n}, static_cast<uint64_t>(20 + filled), at::kFloat));
      if (size.slots > 0) p.candidates.filled.fill_(filled * size.filled / 2);
      captured.replay();
      expect_same_bits(got, p(), what);
    }
  }
}

}  // namespace
}  // namespace hrm::ops
