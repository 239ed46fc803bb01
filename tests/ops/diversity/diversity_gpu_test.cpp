#include "ops/diversity/cuda/diversity.h"

#include <array>

#include "ops/diversity/diversity_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

using Tensors = std::vector<at::Tensor>;

Tensors results_of(const at::Tensor& embeddings, const at::Tensor& counts = {}) {
  const Diversity d = semantic_diversity(embeddings, counts);
  return {d.totals, d.rows, d.loo};
}

// A block for each group; vectors that shared memory holds and such as it does not; 16 bytes at a time or one element.
TEST(DiversityGpu, SmallGroups) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_sizes({{1, 1, 384},
                  {16, 2, 384},
                  {16, 3, 384},
                  {7, 4, 96},
                  {64, 5, 384},
                  {5, 8, 388},
                  {3, 9, 1},
                  {64, 10, 384},
                  {4, 17, 97},
                  {8, 32, 384},
                  {64, 64, 384},
                  {1, 64, 768},
                  {2, 64, 5001},
                  {2, 50, 4096},
                  {1, 3, 40000}},
                 dtype, at::kCUDA);
  }
}

// Many blocks for a group, or many groups for a block.
TEST(DiversityGpu, SlicedGroups) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_sizes({{1, 65, 384},
                  {3, 100, 97},
                  {200, 66, 32},
                  {1, 1000, 384},
                  {5, 1000, 384},
                  {64, 130, 384},
                  {2, 70, 5001},
                  {1, 300, 4096},
                  {2, 67, 1}},
                 dtype, at::kCUDA);
  }
}

TEST(DiversityGpu, Large) {
  HRM_NEEDS_GPU();
  const WithoutTf32 full;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_sizes({{1, 4096, 384}, {2, 4096, 384}, {64, 1000, 384}}, dtype, at::kCUDA);
  }
  expect_sizes({{1, 12000, 384}, {1, 4096, 1001}}, at::kFloat, at::kCUDA);
}

// Plain ATen: vectors of float64, and such as no block has room for.
TEST(DiversityGpu, PlainAten) {
  HRM_NEEDS_GPU();
  const at::Tensor embeddings = related({3, 9, 97}, 1, at::kDouble, at::kCUDA),
                   counts = counts_of({9, 3, 1}, at::kCUDA);
  const Diversity exact = exact_diversity(embeddings, counts);
  EXPECT_LE(largest_difference(semantic_diversity(embeddings, counts).loo, exact.loo), 1e-14);
  const at::Tensor small = embeddings.to(at::kFloat);
  {
    const WithReference all_pairs;
    EXPECT_LE(largest_difference(semantic_diversity(small, counts).rows, exact.rows), 1e-6);
  }
  expect_exact(related({2, 3, 100000}, 2, at::kFloat, at::kCUDA), {}, "long vectors");
}

void expect_same_scores(const Diversity& a, const Diversity& b, const std::string& what) {
  EXPECT_LE(largest_difference(a.totals, b.totals), 1e-6) << what;
  EXPECT_LE(largest_difference(a.rows, b.rows), 1e-6) << what;
  EXPECT_LE(largest_difference(a.loo, b.loo), 2e-6) << what;
}

// All pairs, the closed form, and the kernel. Small groups also by the kernel for large ones, with padding behind them.
TEST(DiversityGpu, AllWaysAgree) {
  HRM_NEEDS_GPU();
  for (const int64_t N : {2, 3, 31, 64, 300, 1000}) {
    const at::Tensor embeddings = related({3, N, 384}, 3, at::kFloat, at::kCUDA);
    const Diversity ours = semantic_diversity(embeddings);
    expect_same_scores(ours, named(reference::semantic_diversity(embeddings, {})), cat("all pairs, N ", N));
    expect_same_scores(ours, named(reference::semantic_diversity_closed(embeddings, {})), cat("closed form, N ", N));
    const at::Tensor padded = at::constant_pad_nd(embeddings, {0, 0, 0, 500}, 7);
    const Diversity large = semantic_diversity(padded, at::full({3}, N, at::device(at::kCUDA).dtype(at::kLong)));
    expect_same_scores(ours, {large.totals, large.rows.narrow(1, 0, N), large.loo.narrow(1, 0, N)}, cat("padded ", N));
  }
}

TEST(DiversityGpu, CloseVectors) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    for (const int64_t vectors : {8, 64, 200}) expect_close_vectors(2, vectors, dtype, at::kCUDA);
  }
}

TEST(DiversityGpu, KnownValues) {
  HRM_NEEDS_GPU();
  for (const int64_t vectors : {2, 3, 10, 64, 65, 1000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_known(vectors, dtype, at::kCUDA);
    const WithoutTf32 full;
    expect_clamped_norms(vectors, at::kCUDA);
    expect_nonfinite(vectors, at::kCUDA);
  }
  // Squares beyond float32 are no small numbers.
  for (const int64_t vectors : {3, 100}) {
    const at::Tensor huge = normal({1, vectors, 384}, 4, at::kFloat, at::kCUDA);
    huge[0][1].mul_(1e30);
    EXPECT_TRUE(semantic_diversity(huge).rows.isnan().all().item<bool>()) << vectors;
  }
}

TEST(DiversityGpu, AnyStrides) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_any_strides(dtype, at::kCUDA);
}

TEST(DiversityGpu, NoVectors) {
  HRM_NEEDS_GPU();
  expect_no_vectors(at::kCUDA);
}

TEST(DiversityGpu, BadInput) {
  HRM_NEEDS_GPU();
  expect_bad_embeddings_named(at::kCUDA);
}

TEST(DiversityGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  for (const auto& [G, N, d] : std::vector<DiversitySize>{
           {16, 3, 384}, {5, 64, 384}, {2, 64, 5001}, {3, 100, 97}, {1, 1000, 384}, {200, 66, 32}}) {
    const at::Tensor embeddings = related({G, N, d}, 5, at::kFloat, at::kCUDA);
    expect_same_each_time([&, &x = embeddings] { return results_of(x); }, 20, cat("G ", G, " N ", N, " d ", d));
  }
}

// Vectors and counts that change from replay to replay.
TEST(DiversityGpu, Captured) {
  HRM_NEEDS_GPU();
  for (const auto& [G, N] : {std::pair<int64_t, int64_t>{4, 3}, {4, 64}, {4, 100}, {1, 1000}, {150, 70}}) {
    const at::Tensor embeddings = related({G, N, 384}, 6, at::kFloat, at::kCUDA);
    const at::Tensor counts = at::full({G}, N, at::device(at::kCUDA).dtype(at::kLong));
    Tensors results;
    Captured captured([&] { results = results_of(embeddings, counts); });
    for (uint64_t step = 0; step < 5; ++step) {
      embeddings.copy_(related(embeddings.sizes(), 10 + step, at::kFloat, at::kCUDA));
      counts.copy_(at::arange(G, counts.options()).add_(static_cast<int64_t>(step) * 7).remainder_(N + 1));
      captured.replay();
      const Tensors eager = results_of(embeddings, counts);
      for (size_t k = 0; k < eager.size(); ++k) expect_same_bits(results[k], eager[k], cat("N ", N, " step ", step));
    }
  }
}

// Two streams at once do not disturb each other.
TEST(DiversityGpu, TwoStreams) {
  HRM_NEEDS_GPU();
  const at::Tensor embeddings = related({1, 1000, 384}, 7, at::kFloat, at::kCUDA);
  const Tensors want = results_of(embeddings);
  at::cuda::device_synchronize();
  const std::array<c10::cuda::CUDAStream, 2> streams{c10::cuda::getStreamFromPool(), c10::cuda::getStreamFromPool()};
  std::vector<Tensors> results;
  for (int round = 0; round < 20; ++round) {
    for (const c10::cuda::CUDAStream& stream : streams) {
      const c10::cuda::CUDAStreamGuard guard(stream);
      results.push_back(results_of(embeddings));
    }
  }
  at::cuda::device_synchronize();
  for (const Tensors& result : results) {
    for (size_t k = 0; k < want.size(); ++k) expect_same_bits(result[k], want[k]);
  }
}

cuda::DiversityParams contiguous_params(const DiversitySize& size, cuda::Element element) {
  cuda::DiversityParams params{};
  params.group_pitch = size.vectors * size.dim;
  params.row_pitch = params.dim = size.dim;
  params.groups = size.groups;
  params.vectors = size.vectors;
  params.element = element;
  return params;
}

void expect_plan_fits(const DiversitySize& size, cuda::Element element, int processors, int64_t limit) {
  const auto& [G, N, d] = size;
  const cuda::DiversityPlan plan = cuda::plan(contiguous_params(size, element), processors, limit);
  const std::string what = cat(processors, " processors, ", limit, " bytes, G ", G, " N ", N, " d ", d);
  if (plan.blocks == 0) {
    EXPECT_GT(d, 4000) << what << ": refused";
    return;
  }
  const int64_t slices = std::max(plan.slices, 1);
  EXPECT_GT(plan.shared, 0) << what;
  EXPECT_LE(plan.shared + 1024, limit) << what;
  EXPECT_EQ(plan.slices > 0, N > 64) << what;
  if (plan.slices > 0) {
    EXPECT_LE(plan.blocks, processors) << what << ": they must all run at once";
  }
  if (plan.kept) {
    EXPECT_GE(plan.tile * slices, N) << what;
    EXPECT_EQ(plan.blocks, G * slices) << what;
  }
}

// The plans of GPUs that are not here: shared memory is never more than a block may have, and no vector is forgotten.
TEST(DiversityGpu, PlansFit) {
  using Gpu = std::pair<int, int64_t>;
  for (const auto& [processors, limit] : {Gpu{132, 232448}, Gpu{108, 166912}, Gpu{170, 101376}, Gpu{20, 49152}}) {
    for (const int64_t groups : {1, 3, 64, 500}) {
      for (const int64_t vectors : {1, 3, 10, 64, 65, 1000, 4096, 100000}) {
        for (const int64_t dim : {1, 96, 384, 768, 4096, 30000}) {
          for (const cuda::Element element : {cuda::Element::f32, cuda::Element::bf16}) {
            expect_plan_fits({groups, vectors, dim}, element, processors, limit);
          }
        }
      }
    }
  }
  const cuda::DiversityPlan plan = cuda::plan(contiguous_params({1, 4096, 384}, cuda::Element::f32), 132, 232448);
  EXPECT_TRUE(plan.kept) << "4,096 vectors of a sentence encoder are read once";
  EXPECT_GE(plan.blocks, 128);
}

}  // namespace
}  // namespace hrm::ops
