#pragma once
// Checks of the linear layers of a decoding step that hold on every device.

#include "hrm/ops/decode_linear.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct DecodeLinearInput {
  at::Tensor x, weight;
  DecodeLinearOptions options;

  at::Tensor run() const { return decode_linear(x, weight, options); }
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

// In the dtype of x, rounded where the op rounds; of float64 x exact.
inline at::Tensor plain_decode_linear(const DecodeLinearInput& in) {
  at::Tensor rows = in.x;
  if (in.options.norm) {
    const at::Tensor wide = in.x.scalar_type() == at::kDouble ? in.x : in.x.to(at::kFloat);
    rows = (wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + in.options.eps) * *in.options.norm)
               .to(in.x.scalar_type());
  }
  const at::Tensor product = at::linear(rows, in.weight);
  if (in.options.residual) return product + *in.options.residual;
  if (!in.options.gated) return product;
  const auto halves = product.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

inline void expect_good_decode_linear(int64_t rows, int64_t inner, int64_t width, at::ScalarType dtype,
                                      at::Device device) {
  for (const Around around : kAround) {
    const DecodeLinearInput in = decode_linear_input(rows, inner, width, around, dtype, device);
    DecodeLinearInput exact{in.x.to(at::kDouble), in.weight.to(at::kDouble), in.options};
    if (exact.options.norm) exact.options.norm = exact.options.norm->to(at::kDouble);
    if (exact.options.residual) exact.options.residual = exact.options.residual->to(at::kDouble);
    expect_as_good(in.run(), plain_decode_linear(in), plain_decode_linear(exact),
                   cat(dtype, " ", rows, " rows, ", inner, " -> ", width, ", around ", static_cast<int>(around)), 4);
  }
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
}

}  // namespace hrm::ops::testing
