#pragma once
// Checks of the way from a projection's rows to heads that hold on every device.

#include "hrm/ops/qkv_heads.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct QkvCase {
  int64_t batch = 2, length = 5;
  QkvSizes sizes;
  bool norm = false, rotary = true, by_row = false;  // by_row: a row of the table for each sample, where length is 1
};

struct QkvInputs {
  at::Tensor qkv, cos, sin, q_weight, k_weight, grad_q, grad_k, grad_v;

  QkvInputs(const QkvCase& c, at::ScalarType dtype, at::Device device) {
    const QkvSizes& s = c.sizes;
    qkv = normal({c.batch, c.length, (s.heads + 2 * s.kv_heads) * s.head_dim}, 1, dtype, device);
    if (c.rotary) {
      const at::Tensor angles = 3 * normal({c.by_row ? c.batch : c.length, s.head_dim / 2}, 2, at::kFloat, device);
      const auto shaped = [&](const at::Tensor& t) {
        return c.by_row ? t.view({c.batch, 1, 1, s.head_dim / 2}).contiguous() : t;
      };
      cos = shaped(angles.cos());
      sin = shaped(angles.sin());
    }
    if (c.norm) {
      q_weight = normal({s.head_dim}, 3, at::kFloat, device);
      k_weight = normal({s.head_dim}, 4, at::kFloat, device);
    }
    // As SDPA's backward pass gives them: (B, H, T, hd) in one order of memory or another.
    grad_q = normal({c.batch, s.heads, c.length, s.head_dim}, 5, dtype, device).transpose(1, 2);
    grad_k = normal({c.batch, c.length, s.kv_heads, s.head_dim}, 6, dtype, device);
    grad_v = normal({c.batch, s.kv_heads, c.length, s.head_dim}, 7, dtype, device).transpose(1, 2);
  }

  QkvInputs wide() const {
    QkvInputs out = *this;
    for (at::Tensor* t : {&out.qkv, &out.q_weight, &out.k_weight, &out.grad_q, &out.grad_k, &out.grad_v}) {
      if (t->defined()) *t = t->to(at::kDouble);
    }
    return out;
  }
};

// The formula in plain ATen operations, everything in the widest type until the end.
inline QkvHeads plain_qkv_heads(const at::Tensor& qkv, const QkvSizes& s, const QkvHeadOptions& o) {
  const at::Tensor wide = qkv.scalar_type() == at::kDouble ? qkv : qkv.to(at::kFloat);
  const auto parts =
      wide.unflatten(2, {s.heads + 2 * s.kv_heads, s.head_dim}).split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 2);
  const auto turned = [&](at::Tensor x, const at::Tensor& weight) {
    if (weight.defined()) x = x * at::rsqrt(x.square().mean(-1, true) + o.eps) * weight;
    if (!o.cos.defined()) return x.to(qkv.scalar_type());
    const int64_t half = s.head_dim / 2;
    const at::Tensor cos = o.cos.reshape({-1, 1, half}), sin = o.sin.reshape({-1, 1, half});
    const auto rows = [&](const at::Tensor& t) { return o.cos.dim() == 2 ? t : t.unsqueeze(1); };
    const auto halves = x.chunk(2, -1);
    return at::cat({halves[0] * rows(cos) - halves[1] * rows(sin), halves[1] * rows(cos) + halves[0] * rows(sin)}, -1)
        .to(qkv.scalar_type());
  };
  return {turned(parts[0], o.q_weight), turned(parts[1], o.k_weight), parts[2].to(qkv.scalar_type())};
}

struct QkvResult {
  QkvHeads heads;
  std::vector<at::Tensor> grads;  // of qkv and where there are any of the weights
};

template <class Heads>
QkvResult run_qkv_heads(const Heads& split, const QkvInputs& in, const QkvSizes& sizes) {
  const at::Tensor leaf = in.qkv.detach().clone().requires_grad_();
  std::vector<at::Tensor> leaves{leaf};
  QkvHeadOptions options{.cos = in.cos, .sin = in.sin, .eps = 1e-4};
  if (in.q_weight.defined()) {
    options.q_weight = in.q_weight.detach().requires_grad_();
    options.k_weight = in.k_weight.detach().requires_grad_();
    leaves.insert(leaves.end(), {options.q_weight, options.k_weight});
  }
  const QkvHeads heads = split(leaf, sizes, options);
  return {{heads.q.detach().clone(), heads.k.detach().clone(), heads.v.detach().clone()},
          torch::autograd::grad({heads.q, heads.k, heads.v}, leaves, {in.grad_q, in.grad_k, in.grad_v})};
}

// Value and gradients against float64, with at most twice the error of plain ATen.
inline void expect_good_qkv_heads(const QkvCase& c, at::ScalarType dtype, at::Device device) {
  const QkvSizes& s = c.sizes;
  const std::string what = cat(dtype, " heads ", s.heads, "/", s.kv_heads, " of ", s.head_dim, " rows ", c.batch, "x",
                               c.length, c.norm ? " norm" : "", c.rotary ? " rotary" : "", c.by_row ? " by row" : "");
  const QkvInputs in(c, dtype, device), wide = in.wide();
  // The leaf's memory is written over; autograd must not mind.
  const auto ours_split = [](const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options) {
    return qkv_heads_(qkv.clone(), sizes, options);
  };
  const QkvResult ours = run_qkv_heads(ours_split, in, s), plain = run_qkv_heads(plain_qkv_heads, in, s),
                  exact = run_qkv_heads(plain_qkv_heads, wide, s);
  const double size = 4 * std::max(1.0, exact.heads.q.abs().max().item<double>());
  expect_as_good(ours.heads.q, plain.heads.q, exact.heads.q, what + ", q", size);
  expect_as_good(ours.heads.k, plain.heads.k, exact.heads.k, what + ", k", size);
  expect_same_bits(ours.heads.v, plain.heads.v, what + ", v");
  ASSERT_EQ(ours.grads.size(), exact.grads.size()) << what;
  EXPECT_TRUE(ours.grads[0].is_contiguous()) << what;
  expect_as_good(ours.grads[0], plain.grads[0], exact.grads[0], what + ", gradient",
                 8 * exact.grads[0].abs().max().item<double>());
  for (size_t i = 1; i < ours.grads.size(); ++i) {
    const double terms = static_cast<double>(c.batch * c.length * s.heads);
    expect_as_good(ours.grads[i], plain.grads[i], exact.grads[i], what + ", gradient of a weight", terms);
  }

  const at::NoGradGuard no_grad;
  QkvHeadOptions options{in.cos, in.sin, in.q_weight, in.k_weight, 1e-4};
  const at::Tensor qkv = in.qkv.clone();
  const QkvHeads without = qkv_heads_(qkv, s, options);
  expect_same_bits(without.q, ours.heads.q, what + ", q without gradient");
  expect_same_bits(without.k, ours.heads.k, what + ", k without gradient");
  EXPECT_EQ(without.v.const_data_ptr(),
            qkv.unflatten(2, {-1, s.head_dim}).narrow(2, s.heads + s.kv_heads, 1).const_data_ptr());
  if (c.norm) expect_same_bits(qkv, in.qkv, what + ", qkv");
}

// qkv_heads_of against the plain product and the plain heads: values, and the gradients of x, the master (whose buffer
// starts at 0.5) and the norms' weights.
inline void expect_good_qkv_projection(const QkvCase& c, int64_t width, at::ScalarType dtype, at::Device device) {
  const QkvSizes& s = c.sizes;
  const std::string what = cat(dtype, " projection of ", width, " to heads ", s.heads, "/", s.kv_heads, " of ",
                               s.head_dim, " rows ", c.batch, "x", c.length, c.norm ? " norm" : "");
  const QkvInputs in(c, dtype, device);
  const at::Tensor x = normal({c.batch, c.length, width}, 8, dtype, device);
  const at::Tensor weight =
      (normal({(s.heads + 2 * s.kv_heads) * s.head_dim, width}, 9, at::kFloat, device) / std::sqrt(1.0 * width))
          .to(dtype);
  const auto run = [&](at::ScalarType type, bool ours) {
    const auto leaf = [](const at::Tensor& t) { return t.defined() ? t.detach().clone().requires_grad_() : t; };
    const auto norm = [&](const at::Tensor& t) { return leaf(t.defined() && type == at::kDouble ? t.to(type) : t); };
    const at::Tensor x_leaf = leaf(x.to(type)), master = leaf(weight.to(ours ? at::kFloat : type));
    QkvHeadOptions options{in.cos, in.sin, norm(in.q_weight), norm(in.k_weight), 1e-4};
    std::vector<at::Tensor> leaves{x_leaf};
    if (!ours) leaves.push_back(master);
    if (c.norm) leaves.insert(leaves.end(), {options.q_weight, options.k_weight});
    if (ours) master.mutable_grad() = at::full_like(master, 0.5, master.options().requires_grad(false));
    const QkvHeads heads = ours ? qkv_heads_of(x_leaf, dtype == at::kFloat ? master : weight, master, s, options)
                                : plain_qkv_heads(at::linear(x_leaf, master), s, options);
    std::vector<at::Tensor> grads = torch::autograd::grad({heads.q, heads.k, heads.v}, leaves,
                                                          {in.grad_q.to(type), in.grad_k.to(type), in.grad_v.to(type)});
    if (ours) grads.insert(grads.begin() + 1, master.grad() - 0.5);
    return QkvResult{{heads.q.detach(), heads.k.detach(), heads.v.detach()}, grads};
  };
  const QkvResult ours = run(dtype, true), plain = run(dtype, false), exact = run(at::kDouble, false);
  const double size = 4 * std::max(1.0, exact.heads.q.abs().max().item<double>());
  expect_as_good(ours.heads.q, plain.heads.q, exact.heads.q, what + ", q", size);
  expect_as_good(ours.heads.k, plain.heads.k, exact.heads.k, what + ", k", size);
  expect_as_good(ours.heads.v, plain.heads.v, exact.heads.v, what + ", v", size);
  ASSERT_EQ(ours.grads.size(), exact.grads.size()) << what;
  const double terms = static_cast<double>(c.batch * c.length * s.heads);
  for (size_t i = 0; i < ours.grads.size(); ++i) {
    // The master's is float32, but the rows' gradients of which it is made are rounded as plain ATen's are.
    const at::Tensor grad = i == 1 ? ours.grads[i].to(dtype) : ours.grads[i];
    expect_as_good(grad, plain.grads[i], exact.grads[i], cat(what, ", gradient ", i),
                   std::max(terms, 8 * exact.grads[i].abs().max().item<double>()));
  }
  const at::NoGradGuard no_grad;
  const QkvHeads without = qkv_heads_of(x, weight, weight, s, {in.cos, in.sin, in.q_weight, in.k_weight, 1e-4});
  expect_same_bits(without.q, ours.heads.q, what + ", q without gradient");
  expect_same_bits(without.k, ours.heads.k, what + ", k without gradient");
  expect_same_bits(without.v, ours.heads.v, what + ", v without gradient");
}

inline std::vector<QkvCase> qkv_cases() {
  std::vector<QkvCase> cases;
  for (const bool norm : {false, true}) {
    for (const QkvSizes sizes : {QkvSizes{12, 12, 64}, QkvSizes{6, 2, 128}, QkvSizes{4, 1, 32}, QkvSizes{3, 3, 6},
                                 QkvSizes{2, 1, 16}, QkvSizes{2, 2, 96}, QkvSizes{1, 1, 2}}) {
      cases.push_back({.sizes = sizes, .norm = norm});
      cases.push_back({.batch = 3, .length = 1, .sizes = sizes, .norm = norm, .by_row = true});
      if (norm) cases.push_back({.batch = 3, .length = 70, .sizes = sizes, .norm = true, .rotary = false});
    }
  }
  return cases;
}

}  // namespace hrm::ops::testing
