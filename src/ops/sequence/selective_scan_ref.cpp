// Both forms of the recurrence in plain ATen. The sequential one is to be read; the chunked one is what trains where
// there is no kernel, and the oracle of kernels.
//
// Inside a chunk of Q positions, with a_t = dt_t A, s its running sum (s_i <= 0), X_j = dt_j x_j, E the state before
// it:
//   M_ij = exp(s_i - s_j) (C_i . B_j) for j <= i, otherwise 0
//   Y_i  = sum_j M_ij X_j + exp(s_i) E C_i + D x_i
//   E'   = exp(s_last) E + Z,  Z = sum_j exp(s_last - s_j) X_j B_j^T
#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "ops/common/optional_tensor.h"
#include "ops/sequence/selective_scan_impl.h"

namespace hrm::ops::reference {
namespace {

// (B, T, G, N) -> (B, T, H, N): each group's row for all of its heads.
at::Tensor for_heads(const at::Tensor& t, int64_t heads) {
  return t.repeat_interleave(heads / t.size(2), 2);
}

// The gradient of that.
at::Tensor sum_heads(const at::Tensor& t, int64_t groups) {
  return t.unflatten(2, {groups, t.size(2) / groups}).sum(3);
}

// (B, T, H, ...) -> (B, n, H, Q, ...) with zeros behind the last position: dt = 0 leaves the state as it is.
at::Tensor in_chunks(const at::Tensor& t, int64_t chunk) {
  const int64_t T = t.size(1), padded = (T + chunk - 1) / chunk * chunk;
  at::Tensor out = t;
  if (padded > T) {
    std::vector<int64_t> sizes = t.sizes().vec();
    sizes[1] = padded - T;
    out = at::cat({t, at::zeros(sizes, t.options())}, 1);
  }
  return out.unflatten(1, {padded / chunk, chunk}).transpose(2, 3);
}

// And back: (B, n, H, Q, ...) -> (B, T, H, ...).
at::Tensor from_chunks(const at::Tensor& t, int64_t T) {
  return t.transpose(2, 3).flatten(1, 2).narrow(1, 0, T);
}

// Everything of the forward pass that both passes need. All (B, n, H, ...) in dt's type.
struct Chunks {
  Chunks(const at::Tensor& x_, const at::Tensor& dt_, const at::Tensor& A_, const at::Tensor& B_, const at::Tensor& C_,
         int64_t chunk, const OptionalTensor& initial) {
    const at::ScalarType wide = dt_.scalar_type();
    const int64_t heads = x_.size(2);
    x = in_chunks(x_.to(wide), chunk);
    dt = in_chunks(dt_, chunk);
    B = in_chunks(for_heads(B_.to(wide), heads), chunk);
    C = in_chunks(for_heads(C_.to(wide), heads), chunk);
    X = x * dt.unsqueeze(-1);
    s = (dt * A_.view({-1, 1})).cumsum(-1);
    // Masked before exp: above the diagonal the difference is positive and could overflow.
    const at::Tensor above = at::ones({chunk, chunk}, at::device(dt_.device()).dtype(at::kBool)).triu(/*diagonal=*/1);
    L = (s.unsqueeze(-1) - s.unsqueeze(-2)).masked_fill(above, -std::numeric_limits<double>::infinity()).exp_();
    M = at::matmul(C, B.transpose(-1, -2)).mul_(L);
    const at::Tensor last = s.narrow(-1, s.size(-1) - 1, 1);
    from_start = s.exp();
    to_end = (last - s).exp();
    whole = last.exp().unsqueeze(-1);  // (B, n, H, 1, 1)
    const at::Tensor Z = at::matmul((X * to_end.unsqueeze(-1)).transpose(-1, -2), B);
    at::Tensor state = initial ? *initial : at::zeros_like(Z.select(1, 0));
    std::vector<at::Tensor> before;
    for (int64_t n = 0; n < Z.size(1); ++n) {
      before.push_back(state);
      state = whole.select(1, n) * state + Z.select(1, n);
    }
    E = at::stack(before, 1);
    final_state = state;
  }

  at::Tensor x, dt, B, C, X;  // (..., Q, P), (..., Q), (..., Q, N) twice, (..., Q, P)
  at::Tensor s;               // (..., Q)
  at::Tensor L, M;            // (..., Q, Q)
  at::Tensor from_start;      // exp(s_i)
  at::Tensor to_end, whole;   // exp(s_last - s_j), exp(s_last)
  at::Tensor E;               // (..., P, N), the state before each chunk
  at::Tensor final_state;     // (B, H, P, N)
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> ssd_scan_sequential(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                       const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                       const OptionalTensor& initial) {
  const at::ScalarType wide = dt.scalar_type();
  const int64_t heads = x.size(2);
  const at::Tensor xs = x.to(wide), Bs = for_heads(B.to(wide), heads), Cs = for_heads(C.to(wide), heads);
  at::Tensor S = initial ? *initial : at::zeros({x.size(0), heads, x.size(3), B.size(3)}, dt.options());
  std::vector<at::Tensor> y;
  for (int64_t t = 0; t < x.size(1); ++t) {
    const at::Tensor step = dt.select(1, t).unsqueeze(-1).unsqueeze(-1), x_t = xs.select(1, t);  // (B, H, P)
    S = at::exp(step * A.view({-1, 1, 1})) * S + step * x_t.unsqueeze(-1) * Bs.select(1, t).unsqueeze(-2);
    y.push_back(at::matmul(S, Cs.select(1, t).unsqueeze(-1)).squeeze(-1) + D.view({-1, 1}) * x_t);
  }
  return {(y.empty() ? xs : at::stack(y, 1)).to(x.scalar_type()), S};
}

std::tuple<at::Tensor, at::Tensor> ssd_scan_chunked(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                    const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                    int64_t chunk, const OptionalTensor& initial) {
  const Chunks c(x, dt, A, B, C, chunk, initial);
  at::Tensor y = at::matmul(c.M, c.X);
  y.add_(at::matmul(c.C, c.E.transpose(-1, -2)).mul_(c.from_start.unsqueeze(-1)));
  y.addcmul_(c.x, D.view({-1, 1, 1}));
  return {from_chunks(y, x.size(1)).to(x.scalar_type()).contiguous(), c.final_state};
}

SsdScanGradients ssd_scan_chunked_backward(const at::Tensor& grad_y, const OptionalTensor& grad_final,
                                           const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                           const at::Tensor& B, const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                           const OptionalTensor& initial) {
  const Chunks c(x, dt, A, B, C, chunk, initial);
  const int64_t T = x.size(1), groups = B.size(2);
  const at::Tensor dY = in_chunks(grad_y.to(dt.scalar_type()), chunk);          // (B, n, H, Q, P)
  const at::Tensor dY_start = dY * c.from_start.unsqueeze(-1);                  // exp(s_i) dY_i
  const at::Tensor from_outputs = at::matmul(dY_start.transpose(-1, -2), c.C);  // of E, by Y alone

  // The state's gradient, chunk by chunk from the right. after[n]: of the state that chunk n leaves.
  at::Tensor grad_state = grad_final ? *grad_final : at::zeros_like(c.final_state);
  std::vector<at::Tensor> after(static_cast<size_t>(c.E.size(1)));
  for (int64_t n = c.E.size(1); n-- > 0;) {
    after[static_cast<size_t>(n)] = grad_state;
    grad_state = c.whole.select(1, n) * grad_state + from_outputs.select(1, n);
  }
  const at::Tensor dZ = at::stack(after, 1);  // (B, n, H, P, N)

  const at::Tensor dM = at::matmul(dY, c.X.transpose(-1, -2));  // above the diagonal without meaning: L, M are 0 there
  const at::Tensor dG = dM * c.L, W = dM * c.M;
  const at::Tensor X_end = c.X * c.to_end.unsqueeze(-1), B_end = c.B * c.to_end.unsqueeze(-1);
  const at::Tensor dZ_B = at::matmul(B_end, dZ.transpose(-1, -2));  // exp(s_last - s_j) dZ B_j
  const at::Tensor dX = at::matmul(c.M.transpose(-1, -2), dY) + dZ_B;
  const at::Tensor dC = at::matmul(dG, c.B) + at::matmul(dY_start, c.E);
  const at::Tensor dB = at::matmul(dG.transpose(-1, -2), c.C) + at::matmul(X_end, dZ);

  const at::Tensor q = (c.X * dZ_B).sum(-1);  // of -s_j and of s_last
  at::Tensor ds = W.sum(-1) - W.sum(-2) - q + (dY_start * at::matmul(c.C, c.E.transpose(-1, -2))).sum(-1);
  ds.select(-1, chunk - 1).add_(q.sum(-1) + (dZ * c.E * c.whole).sum({-1, -2}));
  const at::Tensor da = ds.flip(-1).cumsum(-1).flip(-1);  // (B, n, H, Q)

  const auto back = [&](const at::Tensor& t, const at::Tensor& like) {
    return from_chunks(t, T).to(like.scalar_type()).contiguous();
  };
  const auto of_group = [&](const at::Tensor& t, const at::Tensor& like) {
    return sum_heads(from_chunks(t, T), groups).to(like.scalar_type()).contiguous();
  };
  return {back(dX * c.dt.unsqueeze(-1) + dY * D.view({-1, 1, 1}), x),
          back(da * A.view({-1, 1}) + (dX * c.x).sum(-1), dt),
          (da * c.dt).sum({0, 1, 3}),
          of_group(dB, B),
          of_group(dC, C),
          (dY * c.x).sum({0, 1, 3, 4}),
          grad_state};
}

}  // namespace hrm::ops::reference
