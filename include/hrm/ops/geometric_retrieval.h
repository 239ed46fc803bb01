#pragma once
// Retrieval from a memory by the LIoR cost: cost, masked softmax and mix in one pass over the candidates.

#include <ATen/core/Tensor.h>

#include "hrm/ops/geometry.h"

namespace hrm::ops {

// What a query retrieves from: its own sequence, followed by a bank that all rows share. Either may be undefined.
struct RetrievalCandidates {
  at::Tensor coords = {};       // (B, T, n), like the query
  at::Tensor states = {};       // (B, T, d)
  at::Tensor mask = {};         // (B, T) bool, false: not a candidate; undefined: all are
  at::Tensor bank_coords = {};  // (M, n), like the query
  at::Tensor bank_states = {};  // (M, d)
  at::Tensor filled = {};       // 0-dim int64 on the device: the first slots are candidates; clamped to 0..M
};

// y (B, d) = sum_k w_k state_k, w = softmax_k(-beta cost_k), cost_k = R sqrt(sum_i g_i (c_k - q)_i^2 + eps).
//
// query: q (B, n). resilience: R, (B) or 0-dim. g: (n). All three and the coordinates are float32 (float64 for tests);
// the states have one dtype, float32, bfloat16 or float16 (float64 with float64 coordinates). All tensors are on one
// device, with any strides. Returns the dtype of the query.
//
// Slots beyond the filled ones and masked candidates may hold NaN: they change nothing. A row without candidates gives
// zeros. Sums are float32 (float64 for float64) in one fixed order, so results are deterministic. Not differentiable.
//
// On a GPU: two launches on the current stream for n <= 64, without a host read, so it can be captured. Rows are tiled
// by eight, so a tile reads the bank once and nothing expands it over the batch; the softmax is online. Larger n uses
// plain ATen. Throws c10::Error that names the shapes when the inputs do not fit.
at::Tensor geometric_retrieval(const at::Tensor& query, const RetrievalCandidates& candidates,
                               const at::Tensor& resilience, const at::Tensor& g, double beta, double eps);

// Which displacement the rotor Q acts on before it is measured by g.
enum class RetrievalForm {
  sound,   // Q (c - q): the metric is Q^T diag(g) Q
  compat,  // c - Q q, as in Trainer2: the candidates are not rotated
};

// The same for a rotor with the angles theta (k), as for rotor_matrix. The sound form copies the candidates'
// coordinates; a caller with constant ones rotates them once.
at::Tensor geometric_retrieval(const at::Tensor& query, const RetrievalCandidates& candidates,
                               const at::Tensor& resilience, const at::Tensor& g, const at::Tensor& theta,
                               RetrievalForm form, double beta, double eps);

}  // namespace hrm::ops
