#pragma once
// Checks of geometric_retrieval that hold on every device.

#include <limits>
#include <vector>

#include "hrm/ops/geometric_retrieval.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct RetrievalSize {
  int64_t rows, n, d;
  int64_t own;         // -1: no sequence
  int64_t slots = -1;  // -1: no bank
  int64_t filled = 0;
  bool masked = false;
};

struct RetrievalProblem {
  at::Tensor query, resilience, g;
  RetrievalCandidates candidates;

  at::Tensor operator()() const { return geometric_retrieval(query, candidates, resilience, g, 5.0, 1e-6); }
};

// Slots beyond the filled ones and masked candidates hold NaN.
inline RetrievalProblem retrieval_problem(const RetrievalSize& size, at::ScalarType states, at::Device device) {
  const at::ScalarType type = states == at::kDouble ? at::kDouble : at::kFloat;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  RetrievalProblem p{.query = normal({size.rows, size.n}, 1, type, device),
                     .resilience = normal({size.rows}, 2, type, device).abs(),
                     .g = normal({size.n}, 3, type, device).exp(),
                     .candidates = {}};
  RetrievalCandidates& c = p.candidates;
  if (size.own >= 0) {
    c.coords = normal({size.rows, size.own, size.n}, 4, type, device);
    c.states = normal({size.rows, size.own, size.d}, 5, states, device);
    if (size.masked) {
      c.mask = normal({size.rows, size.own}, 6, at::kFloat, device).gt(0);
      if (size.rows > 1) c.mask[1].fill_(false);  // a row without candidates of its own
      c.coords.masked_fill_(c.mask.logical_not().unsqueeze(2), kNan);
      c.states.masked_fill_(c.mask.logical_not().unsqueeze(2), kNan);
    }
  }
  if (size.slots >= 0) {
    c.bank_coords = normal({size.slots, size.n}, 7, type, device);
    c.bank_states = normal({size.slots, size.d}, 8, states, device);
    c.filled = at::full({}, size.filled, at::device(device).dtype(at::kLong));
    const int64_t used = std::min(size.filled, size.slots);
    c.bank_coords.narrow(0, used, size.slots - used).fill_(kNan);
    c.bank_states.narrow(0, used, size.slots - used).fill_(kNan);
  }
  return p;
}

// Row by row from what is left when all others are cut out, in `type`: an oracle that masks nothing.
inline at::Tensor retrieval_by_rows(const RetrievalProblem& p, at::ScalarType type) {
  const auto here = [&](const at::Tensor& t) { return t.to(at::kCPU).to(type); };
  const RetrievalCandidates& c = p.candidates;
  const int64_t rows = p.query.size(0);
  const int64_t d = c.states.defined() ? c.states.size(2) : c.bank_states.size(1);
  at::Tensor y = at::zeros({rows, d}, type);
  for (int64_t row = 0; row < rows; ++row) {
    at::Tensor coords = at::zeros({0, p.query.size(1)}, type), states = at::zeros({0, d}, type);
    const auto append = [](at::Tensor& all, const at::Tensor& more) { all = at::cat({all, more}); };
    if (c.coords.defined()) {
      const at::Tensor mask = c.mask.defined() ? c.mask[row].to(at::kCPU) : at::ones({c.coords.size(1)}, at::kBool);
      const at::Tensor chosen = mask.nonzero().squeeze(1);
      append(coords, here(c.coords[row]).index_select(0, chosen));
      append(states, here(c.states[row]).index_select(0, chosen));
    }
    if (c.bank_coords.defined()) {
      const int64_t filled = std::min(c.filled.item<int64_t>(), c.bank_coords.size(0));
      append(coords, here(c.bank_coords).narrow(0, 0, filled));
      append(states, here(c.bank_states).narrow(0, 0, filled));
    }
    if (coords.size(0) == 0) continue;
    const at::Tensor delta = coords - here(p.query)[row];
    const at::Tensor cost = ((delta * delta * here(p.g)).sum(1) + 1e-6).sqrt() * here(p.resilience)[row];
    y[row] = at::softmax(cost * -5.0, 0).unsqueeze(0).matmul(states).squeeze(0);
  }
  return y;
}

inline void expect_good_retrieval(const RetrievalSize& size, at::ScalarType states, at::Device device) {
  const std::string what = cat("B ", size.rows, ", n ", size.n, ", d ", size.d, ", T ", size.own, ", M ", size.slots,
                               ", filled ", size.filled, size.masked ? ", masked, " : ", ", states);
  const RetrievalProblem p = retrieval_problem(size, states, device);
  const at::Tensor exact = retrieval_by_rows(p, at::kDouble), plain = retrieval_by_rows(p, at::kFloat);
  // Scores of some ten carry roundings of 2^-24 of themselves into the exponent.
  expect_as_good(p().to(at::kCPU), plain, exact, what, 40);
}

inline std::vector<RetrievalSize> retrieval_sizes() {
  return {{1, 8, 16, 6},
          {3, 8, 16, 6, 8, 0},
          {3, 8, 16, 6, 8, 1},
          {3, 8, 16, 6, 8, 8},
          {3, 8, 16, 6, 8, 9},
          {8, 8, 16, -1, 40, 33},
          {9, 16, 12, -1, 100, 99, false},
          {2, 8, 16, -1, 8, 0},
          {5, 1, 1, 33},
          {17, 5, 7, 65, 70, 64, true},
          {16, 8, 515, 130, 257, 200, true},
          {4, 64, 20, 31, 32, 31, true},
          {4, 65, 20, 31, 32, 31, true},
          {3, 8, 16, 0, 8, 5},
          {0, 8, 16, 4, 8, 5},
          {64, 8, 8, 40, 2048, 700, true}};
}

}  // namespace hrm::ops::testing
