#pragma once
// Checks of products with a scale for each row that hold on every device.

#include "hrm/ops/fp8_rows.h"
#include "ops/quantized/fp8_linear_cases.h"
#include "ops/quantized/weight8_cases.h"
#include "ops/quantized/weight8_impl.h"

namespace hrm::ops::testing {

// What quantised rows stand for, in float64.
inline at::Tensor rows_stand_for(const std::tuple<at::Tensor, at::Tensor>& rows) {
  return std::get<0>(rows).to(at::kDouble) * std::get<1>(rows).to(at::kDouble).unsqueeze(1);
}

// Each value and each scale, from the definition. The third row is of zeros.
inline void check_quantize_fp8_rows(int64_t rows, int64_t width, at::ScalarType dtype, bool factored,
                                    at::Device device) {
  const std::string what = cat(dtype, " ", rows, " x ", width, factored ? ", factors" : "", " on ", device);
  const at::Tensor x = normal({rows, width}, 3, dtype, device) * 40;
  if (rows > 2) x[2].zero_();
  const at::Tensor factors = normal({width}, 4, at::kFloat, device) / 1000;
  const auto [values, scales] = quantize_fp8_rows(x, factored ? std::optional(factors) : std::nullopt);
  ASSERT_EQ(values.sizes(), x.sizes()) << what;
  ASSERT_EQ(values.scalar_type(), at::kFloat8_e4m3fn) << what;
  ASSERT_EQ(scales.sizes(), at::IntArrayRef{rows}) << what;
  ASSERT_EQ(scales.scalar_type(), at::kFloat) << what;
  at::Tensor floats = x.to(at::kCPU, at::kFloat).contiguous();
  if (factored) floats = floats * factors.to(at::kCPU);
  const at::Tensor got = weight8_bytes_of(values), got_scales = scales.to(at::kCPU);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = floats.const_data_ptr<float>() + row * width;
    float largest = 0;
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(from[i]));
    const float scale = std::max(largest / 448.0f, std::numeric_limits<float>::min());
    ASSERT_EQ(got_scales[row].item<float>(), scale) << what << " row " << row;
    const float inverse = 1 / scale;
    const uint8_t* bytes = got.const_data_ptr<uint8_t>() + row * width;
    for (int64_t i = 0; i < width; ++i) {
      const double want = weight8_number(nearest_byte(from[i] * inverse, at::kFloat8_e4m3fn), at::kFloat8_e4m3fn);
      ASSERT_EQ(weight8_number(bytes[i], at::kFloat8_e4m3fn), want) << what << " row " << row << " element " << i;
    }
  }
}

// A row with infinity or not-a-number stands for nothing finite, and changes no other row; zeros stay zeros.
inline void check_fp8_rows_not_finite(int64_t width, at::ScalarType dtype, at::Device device) {
  const std::string what = cat(dtype, " of ", width, " on ", device);
  const at::Tensor x = normal({5, width}, 3, dtype, device), clean = x.clone();
  x[1][width - 1].fill_(NAN);
  x[3][0].fill_(INFINITY);
  clean[1].zero_();
  clean[3].zero_();
  const auto rows = quantize_fp8_rows(x), want = quantize_fp8_rows(clean);
  const at::Tensor stand = rows_stand_for(rows), wanted = rows_stand_for(want);
  for (const int64_t row : {0, 2, 4}) expect_same_bits(stand[row], wanted[row], what);
  EXPECT_TRUE(wanted[1].eq(0).all().item<bool>()) << what;
  const at::Tensor weight = normal({16, width}, 4, at::kFloat, device);
  const Weight8 q = quantize_weight8(weight, at::kFloat8_e4m3fn);
  const at::ScalarType narrow = dtype == at::kFloat ? at::kBFloat16 : dtype;
  const auto product = [&](const std::tuple<at::Tensor, at::Tensor>& r) {
    return fp8_rows_product(std::get<0>(r), q.values, std::get<1>(r), q.scales, narrow);
  };
  const at::Tensor y = product(rows), good = product(want);
  for (const int64_t row : {1, 3}) EXPECT_FALSE(at::isfinite(y[row]).any().item<bool>()) << what << " row " << row;
  for (const int64_t row : {0, 2, 4}) expect_same_bits(y[row], good[row], what);
  EXPECT_TRUE(good[1].eq(0).all().item<bool>()) << what;
}

// Every byte goes to its place, with ones beside it, and nothing else is written.
inline void check_transpose_fp8(int64_t rows, int64_t columns, at::Device device, int64_t offset = 0) {
  const std::string what = cat(rows, " x ", columns, " from ", offset, " on ", device);
  const auto bytes = at::device(device).dtype(at::kByte);
  const at::Tensor values = at::arange(rows * columns, at::device(device).dtype(at::kLong))
                                .mul_(7)
                                .remainder_(251)
                                .to(at::kByte)
                                .view({rows, columns});
  const at::Tensor all = at::full({rows * columns + 64}, 255, bytes);
  const at::Tensor ones = at::zeros({columns + 8}, at::device(device).dtype(at::kFloat));
  const auto view8 = [](const at::Tensor& t) { return t.view(at::kFloat8_e4m3fn); };
  const at::Tensor to = all.narrow(0, offset, rows * columns).view({columns, rows});
  transpose_fp8_(view8(to), ones.narrow(0, 0, columns), view8(values));
  expect_same_bits(to, values.t(), what);
  EXPECT_TRUE(all.narrow(0, 0, offset).eq(255).all().item<bool>()) << what;
  EXPECT_TRUE(all.narrow(0, offset + rows * columns, 64 - offset).eq(255).all().item<bool>()) << what;
  EXPECT_TRUE(ones.narrow(0, 0, columns).eq(1).all().item<bool>()) << what;
  EXPECT_TRUE(ones.narrow(0, columns, 8).eq(0).all().item<bool>()) << what;
}

// Terms of a sum that stay in tensor cores, for expect_product.
inline int64_t fast_terms(int64_t terms) {
  return terms > 2048 ? 0 : terms;
}

inline void check_fp8_rows_product(int64_t m, int64_t n, int64_t k, at::ScalarType dtype, bool adds,
                                   at::Device device) {
  const std::string what = cat(dtype, " ", m, " x ", k, " -> ", n, adds ? ", added" : "", " on ", device);
  // Rows of very different sizes: no single scale would do.
  const auto matrix = [&](int64_t rows, uint64_t seed) {
    const at::Tensor sizes = at::arange(rows, at::device(device).dtype(at::kFloat)).remainder_(7).sub_(3).exp2_();
    return quantize_fp8_rows(normal({rows, k}, seed, at::kFloat, device) * sizes.unsqueeze(1) /
                             std::sqrt(static_cast<double>(k)));
  };
  const auto a = matrix(m, 1), b = matrix(n, 2);
  const at::Tensor residual = normal({m, n}, 3, dtype, device);
  const at::Tensor y = fp8_rows_product(std::get<0>(a), std::get<0>(b), std::get<1>(a), std::get<1>(b), dtype,
                                        adds ? std::optional(residual) : std::nullopt);
  ASSERT_EQ(y.scalar_type(), dtype) << what;
  const at::Tensor left = rows_stand_for(a), right = rows_stand_for(b);
  at::Tensor exact = left.mm(right.t());
  // Four standard deviations of the sums of these two rows.
  at::Tensor sizes = 4 / std::sqrt(static_cast<double>(k)) * left.norm(2, 1, true) * right.norm(2, 1, true).t();
  if (adds) {
    exact += residual.to(at::kDouble);
    sizes += residual.to(at::kDouble).abs();
  }
  expect_product(y, exact, fast_terms(k), what, sizes);
}

struct Weight8RowsCase {
  at::Tensor x, residual, grad, workspace, weight;
  Weight8 q;
};

inline Weight8RowsCase weight8_rows_case(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype,
                                         at::Device device) {
  Weight8RowsCase c;
  c.x = normal({rows, in}, 1, dtype, device);
  c.residual = normal({rows, out}, 2, dtype, device);
  c.grad = normal({rows, out}, 3, dtype, device);
  c.workspace = at::full({out, in}, 5, at::device(device).dtype(dtype));
  // Outputs of different sizes: scales that were left out would show.
  const at::Tensor sizes = at::arange(out, at::device(device).dtype(at::kFloat)).remainder_(5).sub_(2).exp2_();
  c.weight = normal({out, in}, 4, at::kFloat, device) * sizes.unsqueeze(1) / std::sqrt(static_cast<double>(in));
  c.q = quantize_weight8(c.weight, at::kFloat8_e4m3fn);
  return c;
}

// y and the gradients of x and of the residual. On a GPU by the op and its derivative, on a CPU by the parts of it,
// because the op dequantises there.
struct Weight8RowsResult {
  at::Tensor y, grad_x;
};
inline Weight8RowsResult run_weight8_rows(const Weight8RowsCase& c, bool adds) {
  const std::optional<at::Tensor> added = adds ? std::optional(c.residual) : std::nullopt;
  if (c.x.is_cpu()) {
    return {linear_weight8_by_rows(c.x, c.q, added, &fp8_rows_product),
            linear_weight8_grad_x_by_rows(c.grad, c.q, c.workspace, &fp8_rows_product)};
  }
  const at::Tensor x = c.x.detach().clone().requires_grad_();
  const at::Tensor y = linear_weight8(x, c.q, added, c.workspace, /*fp8_products=*/true);
  c.workspace.fill_(-3);  // another layer's
  return {y.detach(), torch::autograd::grad({y}, {x}, {c.grad})[0]};
}

// Against float64 products of what the 8-bit operands stand for, and against the layer without quantised rows.
inline void check_weight8_rows(int64_t rows, int64_t in, int64_t out, at::ScalarType dtype, at::Device device) {
  const Weight8RowsCase c = weight8_rows_case(rows, in, out, dtype, device);
  const at::Tensor w = rows_stand_for({c.q.values, c.q.scales});
  for (const bool adds : {false, true}) {
    const std::string what = cat(dtype, " ", rows, " x ", in, " -> ", out, adds ? ", added" : "", " on ", device);
    const Weight8RowsResult got = run_weight8_rows(c, adds);
    at::Tensor exact = rows_stand_for(quantize_fp8_rows(c.x)).mm(w.t());
    if (adds) exact += c.residual.to(at::kDouble);
    expect_product(got.y, exact, fast_terms(in), what + ", y");
    const at::Tensor grad = rows_stand_for(quantize_fp8_rows(c.grad, c.q.scales));
    expect_product(got.grad_x, grad.mm(c.q.values.to(at::kDouble)), fast_terms(out), what + ", gradient");
    const auto expect_rounded = [&](const at::Tensor& ours, const at::Tensor& plain, const char* of) {
      const double error = (ours.to(at::kDouble) - plain).norm().item<double>() / plain.norm().item<double>();
      EXPECT_LE(error, 0.06) << what << ", " << of;
      EXPECT_GT(error, 0.001) << what << ", " << of << ": nothing was rounded";
    };
    at::Tensor plain = c.x.to(at::kDouble).mm(w.t());
    if (adds) plain += c.residual.to(at::kDouble);
    expect_rounded(got.y, plain, "y");
    expect_rounded(got.grad_x, c.grad.to(at::kDouble).mm(w), "gradient");
  }
}

// Weights all at once: each has the bits of its rows, and of those of its transpose. Slots get the maxima.
inline void check_fp8_weight_rows(const std::vector<std::vector<int64_t>>& sizes, at::ScalarType dtype,
                                  at::ScalarType compute, at::Device device) {
  std::vector<at::Tensor> weights, values, transposed, scales, transposed_scales;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t rows = sizes[i][0], columns = sizes[i][1];
    weights.push_back(normal({rows, columns}, i + 1, dtype, device) *
                      (i == 1 ? 0.0 : 0.1 * static_cast<double>(i + 1)));
    if (i == 2) weights[i][rows - 1][1].fill_(NAN);
    values.push_back(at::empty({rows, columns}, weights[i].options().dtype(at::kFloat8_e4m3fn)));
    transposed.push_back(at::empty({columns, rows}, values[i].options()));
    scales.push_back(at::empty({rows}, weights[i].options().dtype(at::kFloat)));
    transposed_scales.push_back(at::empty({columns}, scales[i].options()));
  }
  const at::Tensor slots = make_fp8_wide_slots(static_cast<int64_t>(sizes.size()), false, device);
  for (int round = 0; round < 2; ++round) {
    quantize_fp8_weight_rows_({weights, values, transposed, scales, transposed_scales}, slots, compute);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string what = cat(dtype, " as ", compute, ", weight ", i, ", ", weights[i].sizes(), ", round ", round);
      const at::Tensor weight = weights[i].to(compute);
      const auto expect_rows = [&](const at::Tensor& of, const at::Tensor& got, const at::Tensor& got_scales) {
        const auto [want, want_scales] = quantize_fp8_rows(of);
        // Which not-a-number it is does not matter.
        const auto number = [](const at::Tensor& t) { return at::nan_to_num(t.to(at::kFloat), 1e6); };
        expect_same_bits(number(got), number(want), what);
        expect_same_bits(number(got_scales), number(want_scales), what + ", scales");
      };
      expect_rows(weight, values[i], scales[i]);
      expect_rows(weight.t(), transposed[i], transposed_scales[i]);
      const float amax = weight.abs().max().to(at::kFloat).item<float>();
      const at::Tensor slot = slots[static_cast<int64_t>(i)].to(at::kCPU);
      EXPECT_EQ(std::isnan(slot[2].item<float>()), std::isnan(amax)) << what;
      if (std::isnan(amax)) continue;
      EXPECT_EQ(slot[2].item<float>(), amax) << what;
      EXPECT_FLOAT_EQ(slot[0].item<float>(), amax > 0 ? static_cast<float>(kFp8Max) / amax : 1) << what;
      EXPECT_EQ(slot[5].item<float>(), 0) << what << ": weights count nothing";
    }
  }
}

}  // namespace hrm::ops::testing
