#pragma once
// Checks of the linear layers of a decoding step that hold on every device.

#include "hrm/ops/decode_linear.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct DecodeLinearInput {
  at::Tensor x, weight;  // of one dtype
  DecodeLinearOptions options;
  Weight8 weight8 = {};   // if defined, `weight` is what it stands for, rounded
  at::Tensor pairs = {};  // of x

  DecodeWeight stored() const { return weight8.defined() ? DecodeWeight(weight8) : DecodeWeight(weight); }
  at::Tensor run() const { return run_paired().rows; }
  PairedRows run_paired() const { return decode_linear_paired({x, pairs}, stored(), options); }
};

// What stands around the product.
enum class Around { nothing, norm, residual, norm_and_residual, gate, norm_and_gate };
constexpr Around kAround[] = {Around::nothing,           Around::norm, Around::residual,
                              Around::norm_and_residual, Around::gate, Around::norm_and_gate};

inline DecodeLinearInput decode_linear_input(int64_t rows, int64_t inner, int64_t width, Around around,
                                             at::ScalarType dtype, at::Device device, uint64_t seed = 1) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  DecodeLinearInput in;
  in.options.eps = 1e-5;
  in.options.gated = around == Around::gate || around == Around::norm_and_gate;
  in.x = normal({rows, inner}, seed, dtype, device);
  in.weight = normal({in.options.gated ? 2 * width : width, inner}, seed + 1, dtype, device) /
              std::sqrt(static_cast<double>(inner));
  if (around == Around::norm || around == Around::norm_and_residual || around == Around::norm_and_gate) {
    in.options.norm = normal({inner}, seed + 2, wide, device);
  }
  if (around == Around::residual || around == Around::norm_and_residual) {
    in.options.residual = normal({rows, width}, seed + 3, dtype, device);
  }
  return in;
}

// The same with the weight in 8 bits.
inline DecodeLinearInput in_8_bits(DecodeLinearInput in, at::ScalarType format) {
  in.weight8 = quantize_weight8(in.weight, format);
  // The weight is read while the kernel queued before still runs, so the device is waited for.
  TORCH_CHECK(at::isfinite(in.weight8.scales).all().item<bool>(), "scales that are not finite");
  in.weight = dequantize_weight8(in.weight8, in.x.scalar_type());
  return in;
}

// The same with an adapter on runs of columns, of which all but the last eight are in one of the slices.
inline DecodeLinearInput with_adapter(DecodeLinearInput in, int64_t rank, int64_t slices, double scale,
                                      uint64_t seed = 31) {
  const int64_t out = in.weight.size(0), each = out / slices / 8 * 8;
  DecodeAdapter adapter{.scale = scale};
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t rows = i + 1 < slices ? each : out - (slices - 1) * each - (out >= 16 ? 8 : 0);
    adapter.slices.push_back({.out = i * each, .first = i * each, .rows = rows});
  }
  adapter.u = normal({in.x.size(0), slices * rank}, seed, in.x.scalar_type(), in.x.device());
  adapter.B = normal({out, rank}, seed + 1, in.x.scalar_type(), in.x.device()) / std::sqrt(static_cast<double>(rank));
  in.options.adapter = std::move(adapter);
  return in;
}

// Some of the rows.
inline DecodeLinearInput rows_of(DecodeLinearInput in, int64_t first, int64_t rows) {
  in.x = in.x.narrow(0, first, rows);
  if (in.options.residual) in.options.residual = in.options.residual->narrow(0, first, rows);
  if (in.options.adapter) in.options.adapter->u = in.options.adapter->u.narrow(0, first, rows);
  return in;
}

inline DecodeLinearInput in_float64(DecodeLinearInput in) {
  const auto widen = [](at::Tensor& t) { t = t.to(at::kDouble); };
  widen(in.x);
  in.weight = in.weight8.defined()
                  ? in.weight8.values.to(at::kFloat).to(at::kDouble) * in.weight8.scales.to(at::kDouble).unsqueeze(1)
                  : in.weight.to(at::kDouble);
  if (in.options.norm) widen(*in.options.norm);
  if (in.options.residual) widen(*in.options.residual);
  if (in.options.adapter) {
    widen(in.options.adapter->u);
    widen(in.options.adapter->B);
  }
  return in;
}

// In the dtype of x, rounded where the op rounds; of float64 x exact.
inline at::Tensor plain_decode_linear(const DecodeLinearInput& in) {
  at::Tensor rows = in.x;
  if (in.options.norm) {
    const at::Tensor wide = in.x.scalar_type() == at::kDouble ? in.x : in.x.to(at::kFloat);
    rows = (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + in.options.eps) * *in.options.norm)
               .to(in.x.scalar_type());
  }
  at::Tensor product = at::linear(rows, in.weight);
  if (const auto& adapter = in.options.adapter) {
    const int64_t rank = adapter->B.size(1);
    for (size_t i = 0; i < adapter->slices.size(); ++i) {
      const LoraSlice& s = adapter->slices[i];
      const at::Tensor u = adapter->u.narrow(-1, static_cast<int64_t>(i) * rank, rank) * adapter->scale;
      product.narrow(-1, s.out, s.rows).add_(at::linear(u, adapter->B.narrow(0, s.first, s.rows)));
    }
  }
  if (in.options.residual) return product + *in.options.residual;
  if (!in.options.gated) return product;
  const auto halves = product.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

inline void expect_good(const DecodeLinearInput& in, const std::string& what) {
  expect_as_good(in.run(), plain_decode_linear(in), plain_decode_linear(in_float64(in)), what, 4);
}

inline std::string describe(const DecodeLinearInput& in, Around around) {
  return cat(in.x.scalar_type(), " ", in.x.size(0), " rows, ", in.weight8.defined() ? "8 bits " : "", in.weight.sizes(),
             ", around ", static_cast<int>(around), in.options.adapter ? ", with an adapter" : "");
}

inline void expect_good_decode_linear(int64_t rows, int64_t inner, int64_t width, at::ScalarType dtype,
                                      at::Device device) {
  for (const Around around : kAround) {
    const DecodeLinearInput in = decode_linear_input(rows, inner, width, around, dtype, device);
    expect_good(in, describe(in, around));
  }
}

inline void expect_good_decode_linear8(int64_t rows, int64_t inner, int64_t width, at::ScalarType dtype,
                                       at::ScalarType format, at::Device device) {
  for (const Around around : kAround) {
    const DecodeLinearInput in = in_8_bits(decode_linear_input(rows, inner, width, around, dtype, device), format);
    expect_good(in, cat(format, " ", describe(in, around)));
  }
}

// Two products with a norm between them, (rows, inner) -> (rows, width) -> (rows, next). What the first one makes for
// the norm, if it makes it, lets the second one be as good as with a norm of its own.
struct DecodeChain {
  DecodeLinearInput first, second;  // the second one's x is the first one's result

  DecodedAhead run_first() const {
    return decode_linear_ahead({first.x, first.pairs}, first.stored(), *first.options.residual, *second.options.norm,
                               first.options.adapter);
  }
  PairedRows run_second_paired(const DecodedAhead& rows) const {
    DecodeLinearOptions options = second.options;
    options.ahead = rows.ahead;
    return decode_linear_paired(rows.y, second.stored(), options);
  }
  at::Tensor run_second(const DecodedAhead& rows) const { return run_second_paired(rows).rows; }
};

inline DecodeChain decode_chain(int64_t rows, int64_t inner, int64_t width, int64_t next, bool gated,
                                at::ScalarType dtype, at::Device device) {
  return {decode_linear_input(rows, inner, width, Around::residual, dtype, device),
          decode_linear_input(rows, width, next, gated ? Around::norm_and_gate : Around::norm, dtype, device, 11)};
}

inline void expect_good_decode_chain(const DecodeChain& c, bool makes_ahead, const std::string& what) {
  const DecodedAhead rows = c.run_first();
  expect_same_bits(rows.y, c.first.run(), what);
  ASSERT_EQ(rows.ahead.scaled.defined(), makes_ahead) << what;
  ASSERT_EQ(rows.ahead.squares.defined(), makes_ahead) << what;
  const at::Tensor y = rows.y.to(at::kDouble);
  if (makes_ahead) {
    const at::Tensor sums = rows.ahead.squares.sum(-1, /*keepdim=*/false, at::kDouble);
    const at::Tensor squares = y.square().sum(-1);
    EXPECT_LT(((sums - squares) / squares).abs().max().item<double>(), 1e-6) << what;
    expect_same_bits(rows.ahead.scaled, (rows.y.to(at::kFloat) * *c.second.options.norm).to(rows.y.scalar_type()),
                     what + ", scaled");
  }
  DecodeLinearInput plain = c.second;
  plain.x = rows.y;
  expect_as_good(c.run_second(rows), plain_decode_linear(plain), plain_decode_linear(in_float64(plain)),
                 what + ", second", 4);
}

inline void expect_decode_linear_to_name_bad_weights(at::Device device) {
  const at::Tensor x = normal({2, 8}, 1, at::kFloat, device), weight = normal({6, 8}, 2, at::kFloat, device);
  const Weight8 good = quantize_weight8(weight, at::kChar);
  const auto run = [&](const Weight8& w, const DecodeLinearOptions& options = {}) {
    return error_of([&] { decode_linear(x, DecodeWeight(w), options); });
  };
  expect_message(run({good.values, good.scales.narrow(0, 0, 5)}), {"scales", "[6, 8]", "[5]"});
  expect_message(run({weight, good.scales}), {"values", "Float"});
  expect_message(run({good.values.narrow(0, 0, 5), good.scales.narrow(0, 0, 5)}, {.gated = true}),
                 {"hrm::decode_linear", "even", "[5, 8]"});
  DecodeAdapter adapter{
      .u = normal({2, 4}, 3, at::kFloat, device), .B = normal({6, 4}, 4, at::kFloat, device), .slices = {{0, 0, 6}}};
  EXPECT_EQ(run(good, {.adapter = adapter}), "");
  adapter.slices[0].rows = 7;
  expect_message(run(good, {.adapter = adapter}), {"hrm::decode_linear", "0 to 7", "[6, 8]"});
  adapter.slices = {{0, 0, 3}, {3, 3, 3}};
  expect_message(run(good, {.adapter = adapter}), {"hrm::decode_linear", "[2, 4]", "2 slices"});
}

inline void expect_decode_linear_to_name_bad_input(at::Device device) {
  const at::Tensor x = normal({2, 8}, 1, at::kFloat, device), weight = normal({6, 8}, 2, at::kFloat, device);
  const at::Tensor norm = normal({7}, 3, at::kFloat, device), residual = normal({2, 5}, 4, at::kFloat, device);
  expect_message(error_of([&] { decode_linear(x, weight, {.norm = norm}); }),
                 {"hrm::weighted_rms_norm", "[2, 8]", "[7]"});
  expect_message(error_of([&] { decode_linear(x, weight.narrow(1, 0, 7)); }), {"hrm::linear", "[2, 8]", "[6, 7]"});
  expect_message(error_of([&] { decode_linear(x, weight.narrow(0, 0, 5), {.gated = true}); }),
                 {"hrm::linear_swiglu", "[5, 8]"});
  expect_message(error_of([&] { decode_linear(x, weight, {.residual = residual}); }),
                 {"hrm::decode_linear", "[2, 5]", "[6, 8]"});
  expect_message(error_of([&] { decode_linear(x, weight, {.residual = residual, .gated = true}); }),
                 {"hrm::decode_linear", "[2, 8]", "[6, 8]"});
  const at::Tensor fitting = normal({2, 6}, 5, at::kFloat, device), factors = normal({8}, 6, at::kFloat, device);
  expect_message(error_of([&] { decode_linear_ahead(x, weight, fitting, norm); }),
                 {"hrm::decode_linear_ahead", "[7]", "[6, 8]"});
  expect_message(error_of([&] { decode_linear_ahead(x, weight, residual, norm.narrow(0, 0, 6)); }),
                 {"hrm::decode_linear", "[2, 5]", "[6, 8]"});
  const at::Tensor squares = at::ones({2, 1}, norm.options());
  expect_message(error_of([&] { decode_linear(x, weight, {.ahead = {x, squares}}); }), {"hrm::decode_linear", "norm"});
  expect_message(error_of([&] {
                   decode_linear(x, weight, {.norm = factors, .ahead = {x, at::Tensor()}});
                 }),
                 {"hrm::decode_linear", "together"});
  expect_message(error_of([&] {
                   decode_linear(x, weight, {.norm = factors, .ahead = {fitting, squares}});
                 }),
                 {"hrm::decode_linear", "[2, 8]", "[2, 6]"});
  expect_message(error_of([&] {
                   decode_linear(x, weight, {.norm = factors, .ahead = {x, at::ones({3, 1})}});
                 }),
                 {"hrm::decode_linear", "[3, 1]"});
}

}  // namespace hrm::ops::testing
