#include <numeric>

#include "ops/diversity/diversity_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// 1 - cos of two vectors.
double distance(const at::Tensor& a, const at::Tensor& b) {
  double dot = 0, aa = 0, bb = 0;
  for (int64_t k = 0; k < a.size(0); ++k) {
    const double x = a[k].item<double>(), y = b[k].item<double>();
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  return 1 - dot / (std::max(std::sqrt(aa), 1e-8) * std::max(std::sqrt(bb), 1e-8));
}

// Mean over the pairs of the vectors in `members`.
double mean_of_pairs(const at::Tensor& vectors, const std::vector<int64_t>& members) {
  double sum = 0;
  int pairs = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    for (size_t j = i + 1; j < members.size(); ++j, ++pairs) sum += distance(vectors[members[i]], vectors[members[j]]);
  }
  return pairs == 0 ? 0 : sum / pairs;
}

// The definition word by word.
TEST(Diversity, LoopsOverPairs) {
  const std::vector<int64_t> counts{0, 1, 2, 3, 5, 6};
  const at::Tensor embeddings = related({6, 6, 7}, 1, at::kDouble, at::kCPU);
  embeddings[4][2].zero_();
  embeddings[5][1].mul_(1e-9);
  for (const bool all_pairs : {true, false}) {
    const at::Tensor numbers = counts_of(counts, at::kCPU);
    const Diversity ours = named(all_pairs ? reference::semantic_diversity(embeddings, numbers)
                                           : reference::semantic_diversity_closed(embeddings, numbers));
    for (int64_t g = 0; g < 6; ++g) {
      std::vector<int64_t> members(static_cast<size_t>(counts[static_cast<size_t>(g)]));
      std::iota(members.begin(), members.end(), 0);
      EXPECT_NEAR(ours.totals[g].item<double>(), mean_of_pairs(embeddings[g], members), 1e-14) << g;
      for (int64_t i = 0; i < 6; ++i) {
        const bool valid = i < counts[static_cast<size_t>(g)];
        double row = 0;
        std::vector<int64_t> others;
        for (const int64_t j : members) {
          if (valid && j != i) others.push_back(j);
        }
        for (const int64_t j : others) row += distance(embeddings[g][i], embeddings[g][j]) / others.size();
        EXPECT_NEAR(ours.rows[g][i].item<double>(), row, 1e-14) << g << ", " << i;
        EXPECT_NEAR(ours.loo[g][i].item<double>(), mean_of_pairs(embeddings[g], others), 1e-14) << g << ", " << i;
      }
    }
  }
}

// D is a score of the vectors' set: what one vector gains is 2/n (r_i - D_-i).
TEST(Diversity, AdvantageFromRows) {
  const int64_t n = 9;
  const Diversity d = semantic_diversity(related({4, n, 50}, 2, at::kDouble, at::kCPU));
  EXPECT_EQ(d.rows.scalar_type(), at::kDouble);
  EXPECT_LE(largest_difference(d.totals.unsqueeze(1) - d.loo, 2.0 / n * (d.rows - d.loo)), 1e-15);
  EXPECT_LE(largest_difference(d.rows.mean(1), d.totals), 1e-15);
}

TEST(Diversity, AllWaysAgree) {
  const std::vector<DiversitySize> sizes{{1, 1, 384}, {5, 2, 384}, {16, 3, 384}, {4, 5, 97}, {2, 32, 1}, {3, 64, 384}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_sizes(sizes, dtype, at::kCPU);
    const WithReference all_pairs;
    expect_sizes(sizes, dtype, at::kCPU);
  }
  expect_sizes({{1, 1000, 384}}, at::kFloat, at::kCPU);
}

TEST(Diversity, CloseVectors) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) expect_close_vectors(2, 8, dtype, at::kCPU);
}

TEST(Diversity, KnownValues) {
  for (const int64_t vectors : {2, 3, 10}) expect_known(vectors, at::kFloat, at::kCPU);
  expect_clamped_norms(10, at::kCPU);
  expect_nonfinite(4, at::kCPU);
}

TEST(Diversity, AnyStrides) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) expect_any_strides(dtype, at::kCPU);
}

TEST(Diversity, NoVectors) {
  expect_no_vectors(at::kCPU);
}

TEST(Diversity, BadInput) {
  expect_bad_embeddings_named(at::kCPU);
}

// ops.backend chooses the way: of 40,000 vectors only the closed form can say anything.
TEST(Diversity, ManyVectors) {
  const at::Tensor embeddings = normal({1, 40000, 8}, 3, at::kFloat);
  EXPECT_NEAR(semantic_diversity(embeddings).totals.item<double>(), 1, 1e-3);
}

}  // namespace
}  // namespace hrm::ops
