// The readable version, which is the oracle of the others, and the closed form, which every device can afford.
#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/diversity/diversity_impl.h"

namespace hrm::ops::reference {
namespace {

constexpr double kLeastNorm = 1e-8;

struct Groups {
  at::Tensor units;  // (G, N, d) float64: vectors of length 1, or shorter where the norm is clamped; padding is zero
  at::Tensor valid;  // (G, N) bool
  at::Tensor count;  // (G) float64: valid vectors
};

Groups groups_of(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  const int64_t G = embeddings.size(0), N = embeddings.size(1);
  const auto wide = embeddings.options().dtype(at::kDouble);
  const at::Tensor count = counts ? counts->to(at::kDouble).clamp(0, N) : at::full({G}, N, wide);
  const at::Tensor valid = at::arange(N, wide).lt(count.unsqueeze(1));
  const at::Tensor x = embeddings.to(at::kDouble).masked_fill(valid.logical_not().unsqueeze(2), 0);
  const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  return {x / norm.clamp_min(kLeastNorm), valid, count};
}

// From the sums over j of 1 - cos_ij, (G, N), whatever they are for padding.
DiversityResult result_of(const at::Tensor& sums, const Groups& groups, at::ScalarType input_type) {
  const at::Tensor distances = sums.masked_fill(groups.valid.logical_not(), 0);
  const at::Tensor all = distances.sum(1, /*keepdim=*/true);  // every pair twice
  const at::Tensor n = groups.count.unsqueeze(1);
  const auto mean = [](const at::Tensor& sum, const at::Tensor& number) {
    return (sum / number.clamp_min(1)).clamp_min(0).masked_fill(number.lt(1), 0);
  };
  const at::Tensor totals = mean(all, n * (n - 1)).squeeze(1);
  const at::Tensor rows = mean(distances, (n - 1).expand_as(distances));
  const at::Tensor loo = mean(all - 2 * distances, ((n - 1) * (n - 2)).clamp_min(0).expand_as(distances))
                             .masked_fill(groups.valid.logical_not(), 0);
  const at::ScalarType type = accumulate_type(input_type);
  return {totals.to(type), rows.to(type), loo.to(type)};
}

}  // namespace

DiversityResult semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  const Groups groups = groups_of(embeddings, counts);
  const int64_t N = embeddings.size(1);
  const at::Tensor pairs = groups.valid.unsqueeze(2)
                               .logical_and(groups.valid.unsqueeze(1))
                               .logical_and(at::eye(N, groups.valid.options()).logical_not());
  const at::Tensor cosines = at::matmul(groups.units, groups.units.transpose(1, 2));  // (G, N, N)
  return result_of((1 - cosines).masked_fill(pairs.logical_not(), 0).sum(2), groups, embeddings.scalar_type());
}

DiversityResult semantic_diversity_closed(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  const Groups groups = groups_of(embeddings, counts);
  const at::Tensor sum = groups.units.sum(1, /*keepdim=*/true);  // (G, 1, d)
  const at::Tensor with_all = at::matmul(groups.units, sum.transpose(1, 2)).squeeze(2);
  const at::Tensor with_itself = groups.units.square().sum(2);
  return result_of((groups.count - 1).unsqueeze(1) - (with_all - with_itself), groups, embeddings.scalar_type());
}

}  // namespace hrm::ops::reference
