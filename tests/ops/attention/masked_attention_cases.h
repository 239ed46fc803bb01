#pragma once
// Checks of attention within windows and documents that hold on every device.

#include <limits>

#include "hrm/ops/attention.h"
#include "hrm/ops/masked_attention.h"
#include "ops/attention/masked_attention_impl.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct MaskedCase {
  int64_t rows = 2, positions = 40, heads = 4, kv_heads = 2, head_dim = 16, window = 0;
  std::vector<int64_t> documents = {};  // lengths, over and over; the next row begins with the next one. Empty: none
  int64_t unused = 0;                   // documents more than there are that `most` speaks of; -1: most is not known
};

struct MaskedInputs {
  at::Tensor q, k, v, grad, documents;
  AttentionSpans spans;

  std::vector<at::Tensor> leaves() const { return {q, k, v}; }
  at::Tensor run() const { return masked_attention(q, k, v, spans); }
};

// (B, T) int32, numbered from 0 in each row.
inline at::Tensor document_ids(const MaskedCase& c, int64_t& most) {
  const at::Tensor ids = at::empty({c.rows, c.positions}, at::kInt);
  size_t next = 0;
  most = 1;
  for (int64_t row = 0; row < c.rows; ++row) {
    int number = 0;
    for (int64_t at = 0, left = c.documents[next++ % c.documents.size()]; at < c.positions; ++at, --left) {
      if (left == 0) {
        left = c.documents[next++ % c.documents.size()];
        ++number;
      }
      ids.data_ptr<int>()[row * c.positions + at] = number;
    }
    most = std::max<int64_t>(most, number + 1);
  }
  return ids;
}

// q, k and v are views of one product, as in a model.
inline MaskedInputs masked_inputs(const MaskedCase& c, at::ScalarType dtype, at::Device device, uint64_t seed = 1) {
  MaskedInputs in;
  const at::Tensor qkv = normal({c.rows, c.positions, c.heads + 2 * c.kv_heads, c.head_dim}, seed, dtype, device);
  in.q = qkv.narrow(2, 0, c.heads);
  in.k = qkv.narrow(2, c.heads, c.kv_heads);
  in.v = qkv.narrow(2, c.heads + c.kv_heads, c.kv_heads);
  in.grad = normal({c.rows, c.positions, c.heads, c.head_dim}, seed + 1, dtype, device);
  int64_t most = 0;
  if (!c.documents.empty()) in.documents = document_ids(c, most).to(device);
  in.spans = attention_spans(in.documents, c.unused < 0 ? 0 : most + c.unused, c.window);
  return in;
}

// softmax(q k^T / sqrt(hd)) v in float64, from the document ids themselves, and its gradients.
struct MaskedResult {
  at::Tensor out;
  std::vector<at::Tensor> grads;
};
inline MaskedResult gradients_of(const at::Tensor& out, const std::vector<at::Tensor>& leaves, const at::Tensor& grad) {
  return {out.detach(), torch::autograd::grad({out}, leaves, {grad})};
}
inline std::vector<at::Tensor> as_leaves(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : tensors) leaves.push_back(t.detach().to(dtype).requires_grad_());
  return leaves;
}
inline MaskedResult plain_masked(const MaskedInputs& in) {
  const std::vector<at::Tensor> leaf = as_leaves(in.leaves(), at::kDouble);
  const int64_t T = in.q.size(1), share = in.q.size(2) / in.k.size(2);
  const at::Tensor index = at::arange(T, at::device(in.q.device()).dtype(at::kLong));
  const at::Tensor back = index.unsqueeze(1) - index;
  at::Tensor seen = back.ge(0).unsqueeze(0);
  if (in.spans.window > 0) seen = seen.logical_and(back.lt(in.spans.window));
  if (in.documents.defined()) seen = seen.logical_and(in.documents.unsqueeze(2).eq(in.documents.unsqueeze(1)));
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < in.q.size(2); ++h) {
    const at::Tensor scores = at::matmul(leaf[0].select(2, h), leaf[1].select(2, h / share).transpose(1, 2)) /
                              std::sqrt(static_cast<double>(in.q.size(3)));
    const at::Tensor hidden = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
    heads.push_back(at::matmul(at::softmax(hidden, -1), leaf[2].select(2, h / share)));
  }
  return gradients_of(at::stack(heads, 2), leaf, in.grad.to(at::kDouble));
}

inline std::vector<MaskedCase> masked_cases() {
  return {
      {.window = 7},
      {.window = 1},
      {.window = 40},   // no limit
      {.window = 900},  // nor this one
      {.documents = {5, 1, 13, 2}},
      {.documents = {5, 1, 13, 2}, .unused = 3},
      {.documents = {5, 1, 13, 2}, .unused = -1},
      {.window = 4, .documents = {5, 1, 13, 2}},
      {.documents = {1}},
      {.documents = {1000}},
      {.rows = 1, .positions = 1, .window = 3, .documents = {1}},
      // More than a block, and ends that fit no tile.
      {.rows = 3, .positions = 601, .heads = 3, .kv_heads = 3, .head_dim = 8, .window = 65},
      {.rows = 3, .positions = 601, .heads = 2, .kv_heads = 1, .head_dim = 32, .documents = {257, 300, 1, 90}},
      {.rows = 1, .positions = 530, .heads = 8, .kv_heads = 1, .head_dim = 64, .window = 300, .documents = {420, 3}},
      {.positions = 33, .head_dim = 5, .window = 6, .documents = {17, 9}},  // heads that no kernel takes
      {.positions = 70, .heads = 2, .kv_heads = 1, .head_dim = 128, .documents = {33}},
      {.rows = 0, .window = 3, .documents = {4}}};
}

inline std::string name_of(const MaskedCase& c, at::ScalarType dtype) {
  return cat(dtype, " ", c.rows, " x ", c.positions, ", ", c.heads, "/", c.kv_heads, " heads of ", c.head_dim,
             ", window ", c.window, ", documents ", at::IntArrayRef(c.documents), ", unused ", c.unused);
}

// Value and gradients.
inline void expect_good_masked(const MaskedCase& c, at::ScalarType dtype, at::Device device) {
  const std::string what = name_of(c, dtype);
  const MaskedInputs in = masked_inputs(c, dtype, device);
  const auto run = [&] {
    const std::vector<at::Tensor> leaf = as_leaves(in.leaves(), dtype);
    return gradients_of(masked_attention(leaf[0], leaf[1], leaf[2], in.spans), leaf, in.grad);
  };
  const MaskedResult ours = run(), exact = plain_masked(in);
  MaskedResult plain;
  {
    const WithReference reference;
    plain = run();
  }
  expect_as_good(ours.out, plain.out, exact.out, what, 8);
  expect_as_good(in.run(), plain.out, exact.out, what + ", without gradients", 8);
  const char* names[] = {", gradient of q", ", gradient of k", ", gradient of v"};
  for (size_t i = 0; i < 3; ++i) {
    // Of a position that sees only itself, the gradients of q and k are differences that cancel.
    double terms = c.rows > 0 ? 8 * (exact.grads[i].abs().max() + in.grad.abs().max()).item<double>() : 0;
    // Flash attention rounds gradients of scores to the dtype, which plain ATen keeps in float32.
    if (c.rows > 0 && device.is_cuda() && unit_roundoff(dtype) > 0x1p-20) {
      terms += 0x1p22 * 2 * unit_roundoff(dtype) * exact.grads[i].abs().max().item<double>();
    }
    expect_as_good(ours.grads[i], plain.grads[i], exact.grads[i], what + names[i], terms);
  }
}

}  // namespace hrm::ops::testing
