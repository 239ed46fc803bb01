#pragma once
// Checks of the token embeddings' gradient that hold on every device.

#include "hrm/ops/embed_tokens.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// ids (N) of `entries`; the buffer starts at 0.5, which must still be in it afterwards.
inline void expect_good_embed_tokens(const at::Tensor& ids, int64_t entries, int64_t width, at::ScalarType dtype,
                                     const std::string& what) {
  const at::Device device = ids.device();
  const at::Tensor grad = normal({ids.size(0), width}, 1, dtype, device);
  const at::Tensor table = normal({entries, width}, 2, at::kFloat, device).requires_grad_();
  table.mutable_grad() = at::full_like(table, 0.5).detach();
  const at::Tensor x = embed_tokens(ids, table, dtype);
  expect_same_bits(x.detach(), table.detach().index_select(0, ids.to(at::kLong)).to(dtype), what);
  const at::Tensor copy = table.detach().to(dtype), leaf = at::empty_like(table).detach().requires_grad_();
  leaf.mutable_grad() = table.grad().clone();
  const at::Tensor of_copy = embed_tokens(ids, leaf, copy);
  expect_same_bits(of_copy.detach(), x.detach(), what + ", of a copy");
  of_copy.backward(grad);
  x.backward(grad);
  expect_same_bits(leaf.grad(), table.grad(), what + ", gradient of a copy");
  const auto sums = [&](at::ScalarType type) {
    return at::full({entries, width}, 0.5, at::device(device).dtype(type))
        .index_add(0, ids.to(at::kLong), grad.to(type));
  };
  const at::Tensor magnitude =
      at::zeros({entries, width}, at::device(device)).index_add(0, ids.to(at::kLong), grad.to(at::kFloat).abs());
  expect_as_good(table.grad(), sums(at::kFloat), sums(at::kDouble), what + ", gradient",
                 magnitude.max().item<double>());
}

inline void expect_good_embed_tokens(at::Device device) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {1, 24, 97, 768, 1032}) {
      for (const int64_t tokens : {1, 31, 32, 33, 300}) {
        // Many entries, a few that stand in several pieces each, one alone, and one between others.
        for (const int64_t entries : {500, 5, 1}) {
          const at::Tensor ids = at::randint(0, entries, {tokens}, tokens % 2 == 0 ? at::kInt : at::kLong);
          expect_good_embed_tokens(ids.to(device), entries, width, dtype,
                                   cat(dtype, " width ", width, " tokens ", tokens, " entries ", entries));
        }
        at::Tensor mostly = at::arange(tokens, at::kLong);
        mostly.narrow(0, tokens / 3, tokens / 2).fill_(tokens / 2);
        expect_good_embed_tokens(mostly.to(device), tokens, width, dtype, cat(dtype, " mostly one, tokens ", tokens));
      }
    }
  }
}

}  // namespace hrm::ops::testing
