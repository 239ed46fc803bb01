#pragma once
// What the files of semantic_diversity share: the input check, and both ways of plain ATen.

#include <optional>
#include <tuple>

#include "hrm/ops/diversity.h"

namespace hrm::ops {

using DiversityResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // totals, rows, loo

// Throws c10::Error with the op's name and the shapes.
void check_semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts);

namespace reference {

// All pairs, as the definition says: O(N^2 d) work, O(N^2) memory. In float64.
DiversityResult semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts);

// From the sum of the unit vectors: O(N d). In float64, in which the differences of vectors that nearly agree survive.
DiversityResult semantic_diversity_closed(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts);

}  // namespace reference

// The one of both that ops.backend asks for.
DiversityResult plain_semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts);

}  // namespace hrm::ops
