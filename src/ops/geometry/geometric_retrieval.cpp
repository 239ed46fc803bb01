#include "hrm/ops/geometric_retrieval.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/geometry/geometric_retrieval_impl.h"

namespace hrm::ops {
namespace {

bool like_query(const at::Tensor& tensor, const at::Tensor& query) {
  return tensor.scalar_type() == query.scalar_type() && tensor.device() == query.device();
}

bool are_states(const at::Tensor& states, const RetrievalArgs& args) {
  const bool type = args.query.scalar_type() == at::kDouble
                        ? states.scalar_type() == at::kDouble
                        : at::isFloatingType(states.scalar_type()) && states.scalar_type() != at::kDouble;
  return type && states.device() == args.query.device() && states.scalar_type() == args.any_states().scalar_type() &&
         states.size(-1) == args.width();
}

}  // namespace

void check_geometric_retrieval(const RetrievalArgs& args) {
  const RetrievalCandidates& c = args.candidates;
  const at::Tensor& query = args.query;
  TORCH_CHECK(query.dim() == 2 && (query.scalar_type() == at::kFloat || query.scalar_type() == at::kDouble),
              "hrm::geometric_retrieval: the query must be (B, n) of dtype float32 or float64, got ", query.sizes(),
              " ", query.scalar_type());
  TORCH_CHECK((args.resilience.dim() == 0 || args.resilience.sizes() == query.sizes().slice(0, 1)) &&
                  args.g.sizes() == query.sizes().slice(1) && like_query(args.resilience, query) &&
                  like_query(args.g, query),
              "hrm::geometric_retrieval: the resilience must be (B) or 0-dim and g (n), with dtype and device of the "
              "query, got ",
              args.resilience.sizes(), " ", args.resilience.scalar_type(), " and ", args.g.sizes(), " ",
              args.g.scalar_type(), " for ", query.sizes(), " ", query.scalar_type());
  TORCH_CHECK(args.has_own() || args.has_bank(),
              "hrm::geometric_retrieval: there is neither a sequence nor a bank for ", query.sizes());
  TORCH_CHECK(c.coords.defined() == c.states.defined() && (c.coords.defined() || !c.mask.defined()) &&
                  c.bank_coords.defined() == c.bank_states.defined() && c.bank_coords.defined() == c.filled.defined(),
              "hrm::geometric_retrieval: a sequence needs coordinates and states, a bank also its filled count (query ",
              query.sizes(), ")");
  if (args.has_own()) {
    TORCH_CHECK(c.coords.dim() == 3 && c.coords.size(0) == query.size(0) && c.coords.size(2) == query.size(1) &&
                    like_query(c.coords, query) && c.states.dim() == 3 &&
                    c.states.sizes().slice(0, 2) == c.coords.sizes().slice(0, 2) && are_states(c.states, args),
                "hrm::geometric_retrieval: the sequence must have coordinates (B, T, n) and states (B, T, d), got ",
                c.coords.sizes(), " ", c.coords.scalar_type(), " and ", c.states.sizes(), " ", c.states.scalar_type(),
                " for ", query.sizes(), " ", query.scalar_type());
    TORCH_CHECK(!c.mask.defined() || (c.mask.sizes() == c.coords.sizes().slice(0, 2) &&
                                      c.mask.scalar_type() == at::kBool && c.mask.device() == query.device()),
                "hrm::geometric_retrieval: the mask must be (B, T) of bool, got ", c.mask.sizes(), " ",
                c.mask.scalar_type(), " for ", c.coords.sizes());
  }
  if (args.has_bank()) {
    TORCH_CHECK(c.bank_coords.dim() == 2 && c.bank_coords.size(1) == query.size(1) &&
                    like_query(c.bank_coords, query) && c.bank_states.dim() == 2 &&
                    c.bank_states.size(0) == c.bank_coords.size(0) && are_states(c.bank_states, args),
                "hrm::geometric_retrieval: the bank must have coordinates (M, n) and states (M, d) with the dtype of "
                "the sequence's, got ",
                c.bank_coords.sizes(), " ", c.bank_coords.scalar_type(), " and ", c.bank_states.sizes(), " ",
                c.bank_states.scalar_type(), " for ", query.sizes(), " ", query.scalar_type());
    TORCH_CHECK(c.filled.dim() == 0 && c.filled.scalar_type() == at::kLong && c.filled.device() == query.device(),
                "hrm::geometric_retrieval: the filled count must be a 0-dim int64 tensor on the query's device, got ",
                c.filled.sizes(), " ", c.filled.scalar_type(), " on ", c.filled.device());
  }
}

namespace {

using RetrievalSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                      const OptionalTensor&, const OptionalTensor&, double, double);

at::Tensor geometric_retrieval_cpu(const at::Tensor& query, const at::Tensor& resilience, const at::Tensor& g,
                                   const OptionalTensor& coords, const OptionalTensor& states,
                                   const OptionalTensor& mask, const OptionalTensor& bank_coords,
                                   const OptionalTensor& bank_states, const OptionalTensor& filled, double beta,
                                   double eps) {
  const RetrievalArgs args =
      retrieval_args(query, resilience, g, coords, states, mask, bank_coords, bank_states, filled, beta, eps);
  check_geometric_retrieval(args);
  return reference::geometric_retrieval(args);
}

}  // namespace

at::Tensor geometric_retrieval(const at::Tensor& query, const RetrievalCandidates& c, const at::Tensor& resilience,
                               const at::Tensor& g, double beta, double eps) {
  static const Op<RetrievalSignature> op("hrm::geometric_retrieval");
  return op(query, resilience, g, optional_tensor(c.coords), optional_tensor(c.states), optional_tensor(c.mask),
            optional_tensor(c.bank_coords), optional_tensor(c.bank_states), optional_tensor(c.filled), beta, eps);
}

at::Tensor geometric_retrieval(const at::Tensor& query, const RetrievalCandidates& candidates,
                               const at::Tensor& resilience, const at::Tensor& g, const at::Tensor& theta,
                               RetrievalForm form, double beta, double eps) {
  TORCH_CHECK(query.dim() == 2, "hrm::geometric_retrieval: the query must be (B, n), got ", query.sizes());
  const at::Tensor rotate = rotor_matrix(theta, query.size(1)).t();
  RetrievalCandidates rotated = candidates;
  if (form == RetrievalForm::sound) {
    if (rotated.coords.defined()) rotated.coords = rotated.coords.matmul(rotate);
    if (rotated.bank_coords.defined()) rotated.bank_coords = rotated.bank_coords.matmul(rotate);
  }
  return geometric_retrieval(query.matmul(rotate), rotated, resilience, g, beta, eps);
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "geometric_retrieval(Tensor query, Tensor resilience, Tensor g, Tensor? coords, Tensor? states, Tensor? mask, "
      "Tensor? bank_coords, Tensor? bank_states, Tensor? filled, float beta, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("geometric_retrieval", &geometric_retrieval_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("geometric_retrieval", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
