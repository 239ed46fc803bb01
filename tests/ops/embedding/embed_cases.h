#pragma once
// Checks of the input embedding that hold on every device.

#include "hrm/ops/embed.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct EmbedCase {
  at::Tensor inputs, table, puzzle_rows, grad_x;
  int64_t prefix;
  double scale;
  at::ScalarType dtype;

  std::optional<at::Tensor> puzzles() const { return prefix > 0 ? std::optional(puzzle_rows) : std::nullopt; }
};

inline EmbedCase make_embed(int64_t samples, int64_t tokens, int64_t entries, int64_t width, int64_t prefix,
                            int64_t puzzle_width, at::ScalarType dtype, at::Device device) {
  auto generator = at::detail::createCPUGenerator(7);
  const at::ScalarType type = dtype == at::kDouble ? at::kDouble : at::kFloat;
  EmbedCase c;
  c.inputs = at::randint(0, entries, {samples, tokens}, generator, at::kInt).to(device);
  c.table = normal({entries, width}, 1, type, device);
  if (prefix > 0) c.puzzle_rows = normal({samples, puzzle_width}, 2, type, device);
  c.grad_x = normal({samples, prefix + tokens, width}, 3, dtype, device);
  c.prefix = prefix;
  c.scale = std::sqrt(static_cast<double>(width));
  c.dtype = dtype;
  return c;
}

struct EmbedResult {
  at::Tensor x, grad_table, grad_puzzles;
};

// The formula in plain ATen operations, differentiated by ATen itself; what is wider than `dtype` only in exact ones.
inline at::Tensor plain_embed(const EmbedCase& c, const at::Tensor& table, const at::Tensor& puzzles,
                              at::ScalarType dtype) {
  const int64_t width = table.size(1);
  at::Tensor rows = table.to(dtype).index({c.inputs.to(at::kLong)});
  if (c.prefix > 0) {
    const at::Tensor slots = at::constant_pad_nd(puzzles.to(dtype), {0, c.prefix * width - puzzles.size(1)});
    rows = at::cat({slots.view({-1, c.prefix, width}), rows}, 1);
  }
  return rows * c.scale;
}

template <class Make>
EmbedResult run_embed(const EmbedCase& c, at::ScalarType type, const Make& make, const at::Tensor& grad_x) {
  const at::Tensor table = c.table.to(type).detach().clone().requires_grad_();
  at::Tensor puzzles;
  if (c.prefix > 0) puzzles = c.puzzle_rows.to(type).detach().clone().requires_grad_();
  const at::Tensor x = make(table, puzzles);
  std::vector<at::Tensor> leaves{table};
  if (c.prefix > 0) leaves.push_back(puzzles);
  const auto grads = torch::autograd::grad({x}, leaves, {grad_x});
  return {x.detach(), grads[0], c.prefix > 0 ? grads[1] : at::Tensor()};
}

inline EmbedResult run_embed(const EmbedCase& c) {
  return run_embed(
      c, c.table.scalar_type(),
      [&](const at::Tensor& table, const at::Tensor& puzzles) {
        return embed(c.inputs, table, c.prefix > 0 ? std::optional(puzzles) : std::nullopt, c.prefix, c.scale, c.dtype);
      },
      c.grad_x);
}

inline void expect_good_embed(const EmbedCase& c, const std::string& what) {
  const EmbedResult ours = run_embed(c);
  const auto plain_in = [&](at::ScalarType type, at::ScalarType dtype) {
    return run_embed(
        c, type,
        [&](const at::Tensor& table, const at::Tensor& puzzles) { return plain_embed(c, table, puzzles, dtype); },
        c.grad_x.to(dtype));
  };
  const EmbedResult plain = plain_in(c.table.scalar_type(), c.dtype);
  expect_same_bits(ours.x, plain.x, what + ", the rounding of plain ATen");
  // The gradients are float32 sums whatever the dtype of x is: they are held to what float32 loses.
  const EmbedResult wide = plain_in(c.table.scalar_type(), c.table.scalar_type());
  const EmbedResult exact = plain_in(at::kDouble, at::kDouble);
  const at::Tensor one_hot = c.inputs.reshape({1, -1}).eq(at::arange(c.table.size(0), c.inputs.options()).unsqueeze(1));
  const at::Tensor rows =
      c.grad_x.narrow(1, c.prefix, c.inputs.size(1)).to(at::kDouble).abs().reshape({-1, c.table.size(1)});
  const double terms = c.scale * one_hot.to(at::kDouble).mm(rows).max().item<double>();
  expect_as_good(ours.grad_table, wide.grad_table, exact.grad_table, what + ", gradient of the table", terms);
  if (c.prefix > 0) {
    expect_as_good(ours.grad_puzzles, wide.grad_puzzles, exact.grad_puzzles, what + ", gradient of the puzzle rows");
  }
  const at::NoGradGuard no_grad;
  expect_same_bits(embed(c.inputs, c.table, c.puzzles(), c.prefix, c.scale, c.dtype), ours.x, what + ", no gradient");
}

// Both sides of every choice: vectors or elements, tiles of columns, lanes that share them, the ways of summing.
inline void expect_good_embeds(at::ScalarType dtype, at::Device device) {
  const auto check = [&](int64_t samples, int64_t tokens, int64_t entries, int64_t width, int64_t prefix,
                         int64_t puzzle) {
    expect_good_embed(make_embed(samples, tokens, entries, width, prefix, puzzle, dtype, device),
                      cat(dtype, " ", samples, "x", tokens, ", ", entries, " x ", width, ", prefix ", prefix));
  };
  check(3, 5, 11, 32, 1, 32);
  check(3, 5, 11, 32, 0, 0);
  check(3, 5, 11, 32, 2, 40);  // padded with zeros
  check(2, 7, 4, 7, 1, 5);     // no vector
  check(1, 1, 1, 8, 1, 8);
  check(5, 300, 6, 1536, 1, 1536);  // several tiles
  check(4, 9, 40, 512, 16, 512);
  check(3, 50, 300, 16, 1, 16);  // more entries than are summed in shared memory
}

}  // namespace hrm::ops::testing
