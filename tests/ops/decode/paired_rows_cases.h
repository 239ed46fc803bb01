#pragma once
// Pairs of e4m3 numbers (src/ops/linear/cuda/e4m3_pairs.h) in plain ATen.

#include "hrm/ops/paired_rows.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// Of x (rows, columns), whose columns are a multiple of 64.
inline at::Tensor pairs_of(const at::Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1), padding = (rows + 7) / 8 * 8 - rows;
  const at::Tensor runs = at::constant_pad_nd(x.to(at::kDouble), {0, 0, 0, padding}).view({-1, columns / 64, 64});
  const at::Tensor largest = runs.abs().amax(-1, /*keepdim=*/true).clamp_min(0x1p-119);
  const at::Tensor scales = at::pow(2, at::floor(at::log2(largest)) - 7);
  const at::Tensor scaled = runs / scales, high = scaled.to(at::kFloat).to(at::kFloat8_e4m3fn);
  const at::Tensor low = (16 * (scaled - high.to(at::kDouble))).to(at::kFloat).to(at::kFloat8_e4m3fn);
  const auto eights = [&](const at::Tensor& t) { return t.view({-1, 8, columns}).view(at::kByte); };
  const at::Tensor values = at::stack({eights(high), eights(low)}, 1).flatten();
  return at::cat({scales.squeeze(-1).t().to(at::kFloat).contiguous().view(at::kByte).flatten(), values});
}

// (rows, columns) float64.
inline at::Tensor numbers_of(const at::Tensor& pairs, int64_t rows, int64_t columns) {
  const int64_t padded = (rows + 7) / 8 * 8, bytes = padded * columns / 64 * 4;
  const at::Tensor scales =
      pairs.narrow(0, 0, bytes).view(at::kFloat).view({columns / 64, padded}).t().to(at::kDouble).unsqueeze(-1);
  const at::Tensor both = pairs.narrow(0, bytes, pairs.numel() - bytes).view({-1, 2, 8, columns});
  const auto part = [&](int64_t i) {
    const at::Tensor numbers = both.select(1, i).contiguous().view(at::kFloat8_e4m3fn).to(at::kFloat).to(at::kDouble);
    return numbers.view({padded, columns / 64, 64});
  };
  return (scales * (part(0) + part(1) / 16)).reshape({padded, columns}).narrow(0, 0, rows);
}

// Whether these pairs are x: exactly, if a number is above 2^-13 of the largest of its run of 64, and but for 2^-21 of
// that one otherwise.
inline void expect_pairs_of(const at::Tensor& pairs, const at::Tensor& x, const std::string& what) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).to(at::kDouble);
  ASSERT_EQ(pairs.sizes(), pairs_of(rows).sizes()) << what;
  const at::Tensor error = (numbers_of(pairs, rows.size(0), rows.size(1)) - rows).abs().view({rows.size(0), -1, 64});
  const at::Tensor sizes = rows.abs().view(error.sizes()), largest = sizes.amax(-1, /*keepdim=*/true);
  const at::Tensor allowed = at::where(sizes > largest * 0x1p-13, 0.0, largest * 0x1p-21);
  EXPECT_TRUE((error <= allowed).all().item<bool>()) << what << ": " << (error - allowed).max().item<double>();
}

}  // namespace hrm::ops::testing
