#include "hrm/ops/diversity.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/diversity/diversity_impl.h"

namespace hrm::ops {

void check_semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  TORCH_CHECK(embeddings.dim() == 3 && embeddings.size(2) > 0 && at::isFloatingType(embeddings.scalar_type()),
              "hrm::semantic_diversity: embeddings must be (G, N, d) of a floating-point dtype with d above 0, got ",
              embeddings.sizes(), " ", embeddings.scalar_type());
  TORCH_CHECK(!counts || (counts->dim() == 1 && counts->size(0) == embeddings.size(0) &&
                          (counts->scalar_type() == at::kInt || counts->scalar_type() == at::kLong) &&
                          counts->device() == embeddings.device()),
              "hrm::semantic_diversity: counts must be (G) int32 or int64 where the embeddings are, got ",
              counts->sizes(), " ", counts->scalar_type(), " on ", counts->device(), " for ", embeddings.sizes(),
              " on ", embeddings.device());
}

Diversity semantic_diversity(const at::Tensor& embeddings, const at::Tensor& counts) {
  static const Op<DiversityResult(const at::Tensor&, const std::optional<at::Tensor>&)> op("hrm::semantic_diversity");
  auto [totals, rows, loo] = op(embeddings, optional_tensor(counts));
  return {std::move(totals), std::move(rows), std::move(loo)};
}

DiversityResult plain_semantic_diversity(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  return backend() == Backend::reference ? reference::semantic_diversity(embeddings, counts)
                                         : reference::semantic_diversity_closed(embeddings, counts);
}

namespace {

DiversityResult semantic_diversity_cpu(const at::Tensor& embeddings, const std::optional<at::Tensor>& counts) {
  check_semantic_diversity(embeddings, counts);
  return plain_semantic_diversity(embeddings, counts);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("semantic_diversity(Tensor embeddings, Tensor? counts=None) -> (Tensor totals, Tensor rows, Tensor loo)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("semantic_diversity", &semantic_diversity_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("semantic_diversity", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
