#pragma once
// Checks of attention that hold on every device.

#include <tuple>

#include "hrm/ops/attention.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct AttentionCase {
  at::Tensor qkv, cos, sin;
  int64_t heads;
};

// Angles as a model has them. `scale` multiplies q, k and v.
inline AttentionCase attention_case(int64_t batch, int64_t length, int64_t heads, int64_t head_dim, bool rotated,
                                    at::ScalarType dtype, at::Device device = at::kCPU, double scale = 1) {
  AttentionCase out;
  out.qkv = normal({batch, length, 3 * heads * head_dim}, 1 + length, at::kFloat, device).mul_(scale).to(dtype);
  out.heads = heads;
  if (rotated) {
    const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
    const at::Tensor angle = at::outer(at::arange(length, at::kFloat), at::pow(1e4, -exponent));
    out.cos = angle.cos().to(device);
    out.sin = angle.sin().to(device);
  }
  return out;
}

// The formula in plain ATen operations, differentiated by ATen itself: an oracle that shares no line with ours.
// Returns out and lse.
inline std::tuple<at::Tensor, at::Tensor> plain_attention(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos,
                                                          const at::Tensor& sin) {
  const int64_t B = qkv.size(0), L = qkv.size(1), D = qkv.size(2) / 3, half = D / heads / 2;
  const auto head_rows = [&](int64_t part) {
    return qkv.narrow(-1, part * D, D).reshape({B, L, heads, D / heads}).transpose(1, 2);
  };
  const auto rotate = [&](const at::Tensor& x) {
    if (!cos.defined()) return x;
    const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
    return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
  };
  const at::Tensor q = rotate(head_rows(0)), k = rotate(head_rows(1)), v = head_rows(2);
  const at::Tensor score = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(D / heads));
  return {at::matmul(at::softmax(score, -1), v).transpose(1, 2).reshape({B, L, D}), at::logsumexp(score, {-1})};
}

struct AttentionResult {
  at::Tensor out, grad;
};

template <class Attend>
AttentionResult run_attention(const Attend& attend, const at::Tensor& qkv, const at::Tensor& grad_out) {
  const at::Tensor leaf = qkv.detach().requires_grad_();
  const at::Tensor out = attend(leaf);
  return {out.detach(), torch::autograd::grad({out}, {leaf}, {grad_out})[0]};
}

inline AttentionResult run_ours(const AttentionCase& c, const at::Tensor& grad_out) {
  return run_attention([&](const at::Tensor& qkv) { return attention(qkv, c.heads, c.cos, c.sin); }, c.qkv, grad_out);
}

inline AttentionResult run_plain(const AttentionCase& c, const at::Tensor& grad_out) {
  return run_attention([&](const at::Tensor& qkv) { return std::get<0>(plain_attention(qkv, c.heads, c.cos, c.sin)); },
                       c.qkv, grad_out);
}

inline AttentionCase in_float64(const AttentionCase& c) {
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
  return {wide(c.qkv), wide(c.cos), wide(c.sin), c.heads};
}

inline at::Tensor grad_for(const AttentionCase& c) {
  return normal({c.qkv.size(0), c.qkv.size(1), c.qkv.size(2) / 3}, 3, c.qkv.scalar_type(), c.qkv.device());
}

// Value and gradient against float64, with at most twice the error of plain ATen; the function and its parts agree.
inline void expect_good_attention(const AttentionCase& c, const std::string& what) {
  const at::Tensor grad_out = grad_for(c);
  const AttentionResult ours = run_ours(c, grad_out);
  const AttentionResult plain = run_plain(c, grad_out);
  const AttentionResult exact = run_plain(in_float64(c), grad_out.to(at::kDouble));
  const AttentionCase wide = in_float64(c);
  const at::Tensor exact_lse = std::get<1>(plain_attention(wide.qkv, c.heads, wide.cos, wide.sin));
  // A weight is the exponential of a difference of scores, whose float32 rounding grows with them.
  const double score = exact_lse.abs().max().item<double>();
  EXPECT_TRUE(ours.out.is_contiguous() && ours.grad.is_contiguous()) << what;
  const double out_terms = score * exact.out.abs().max().item<double>();
  expect_as_good(ours.out, plain.out, exact.out, what + ", out", out_terms);
  // Where no gradient is recorded, a kernel of its own may run.
  expect_as_good(attention(c.qkv, c.heads, c.cos, c.sin), plain.out, exact.out, what + ", out alone", out_terms);
  // A softmax over one position has no gradient: what remains is the rounding of a difference of two equal sums.
  const double sum = (grad_out.to(at::kDouble) * exact.out).abs().sum(-1).max().item<double>();
  const double grad_terms =
      score * exact.grad.abs().max().item<double>() + sum * unit_roundoff(c.qkv.scalar_type()) * 0x1p22;
  const int64_t D = c.qkv.size(2) / 3;
  for (int64_t part = 0; part < 3; ++part) {  // each of its own magnitude
    const auto of = [&](const at::Tensor& grad) { return grad.narrow(-1, part * D, D); };
    expect_as_good(of(ours.grad), of(plain.grad), of(exact.grad), cat(what, ", gradient of ", "qkv"[part]), grad_terms);
  }

  const at::NoGradGuard no_grad;
  const at::Tensor alone = attention(c.qkv, c.heads, c.cos, c.sin);
  const auto [out, lse] = attention_forward(c.qkv, c.heads, c.cos, c.sin);
  const at::Tensor grad = attention_backward(grad_out, c.qkv, out, lse, c.heads, c.cos, c.sin);
  if (attention_fits(c.qkv, c.heads)) {
    expect_same_bits(alone, ours.out, what + ", without gradient");
    expect_same_bits(out, ours.out, what + ", attention_forward");
    expect_same_bits(grad, ours.grad, what + ", attention_backward");
  } else {
    expect_as_good(alone, plain.out, exact.out, what + ", without gradient", out_terms);
    expect_as_good(out, plain.out, exact.out, what + ", attention_forward", out_terms);
    expect_as_good(grad, plain.grad, exact.grad, what + ", attention_backward", grad_terms);
  }
  const at::Tensor plain_lse = std::get<1>(plain_attention(c.qkv, c.heads, c.cos, c.sin));
  ASSERT_EQ(lse.sizes(), exact_lse.sizes()) << what;
  EXPECT_LE(largest_difference(lse, exact_lse), std::max(2 * largest_difference(plain_lse, exact_lse),
                                                         unit_roundoff(c.qkv.scalar_type()) * score + 0x1p-20))
      << what << ", lse";
}

// While it lives, what at::empty returns is full of NaN.
class Poisoned {
 public:
  Poisoned()
      : before_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~Poisoned() { at::globalContext().setDeterministicAlgorithms(before_, warn_only_); }

 private:
  bool before_, warn_only_;
};

class WithSdpa {
 public:
  WithSdpa() : before_(attention_backend()) { set_attention_backend(AttentionBackend::sdpa); }
  ~WithSdpa() { set_attention_backend(before_); }

 private:
  AttentionBackend before_;
};

}  // namespace hrm::ops::testing
