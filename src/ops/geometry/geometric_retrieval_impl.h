#pragma once
// What the files of geometric_retrieval share: the arguments, the input check and the plain ATen reference.

#include "hrm/ops/geometric_retrieval.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

struct RetrievalArgs {
  const at::Tensor& query;
  const at::Tensor& resilience;
  const at::Tensor& g;
  RetrievalCandidates candidates;
  double beta;
  double eps;

  bool has_own() const { return candidates.coords.defined(); }
  bool has_bank() const { return candidates.bank_coords.defined(); }
  const at::Tensor& any_states() const { return has_own() ? candidates.states : candidates.bank_states; }
  int64_t width() const { return any_states().size(-1); }
};

// From what the dispatcher passes on.
inline RetrievalArgs retrieval_args(const at::Tensor& query, const at::Tensor& resilience, const at::Tensor& g,
                                    const OptionalTensor& coords, const OptionalTensor& states,
                                    const OptionalTensor& mask, const OptionalTensor& bank_coords,
                                    const OptionalTensor& bank_states, const OptionalTensor& filled, double beta,
                                    double eps) {
  const auto tensor = [](const OptionalTensor& optional) { return optional ? *optional : at::Tensor(); };
  return {query,
          resilience,
          g,
          {.coords = tensor(coords),
           .states = tensor(states),
           .mask = tensor(mask),
           .bank_coords = tensor(bank_coords),
           .bank_states = tensor(bank_states),
           .filled = tensor(filled)},
          beta,
          eps};
}

// Throws c10::Error with the op's name and the shapes.
void check_geometric_retrieval(const RetrievalArgs& args);

namespace reference {

at::Tensor geometric_retrieval(const RetrievalArgs& args);

}  // namespace reference
}  // namespace hrm::ops
