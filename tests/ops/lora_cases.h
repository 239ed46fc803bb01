#pragma once
// Checks of the adapters' products that hold on every device.

#include "hrm/ops/lora.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct LoraProducts {
  at::Tensor y, u, B, grad_y, grad_B;
  std::vector<LoraSlice> slices;
  double scale = 0.75;

  // y after lora_add_, the gradient of v, grad_B after it.
  std::vector<at::Tensor> run() const {
    const at::Tensor sum = y.clone(), total = grad_B.defined() ? grad_B.clone() : at::Tensor();
    lora_add_(sum, u, B, slices);
    const at::Tensor grad_v = lora_gradients(grad_y, u, B, total, slices, scale);
    return total.defined() ? std::vector<at::Tensor>{sum, grad_v, total} : std::vector<at::Tensor>{sum, grad_v};
  }

  // The same by the formula, in `dtype`; grad_B in at least float32.
  std::vector<at::Tensor> plain(at::ScalarType dtype) const {
    const at::Tensor wide_u = u.to(dtype), wide_B = B.to(dtype), wide_grad = grad_y.to(dtype);
    const int64_t rank = B.size(1);
    at::Tensor sum = y.to(dtype, /*non_blocking=*/false, /*copy=*/true),
               grad_v = at::empty(u.sizes(), wide_u.options());
    at::Tensor total = grad_B.defined() ? grad_B.to(dtype == at::kDouble ? dtype : at::kFloat).clone() : at::Tensor();
    for (size_t i = 0; i < slices.size(); ++i) {
      const auto& [out, first, rows] = slices[i];
      const int64_t at_rank = static_cast<int64_t>(i) * rank;
      const at::Tensor part = wide_u.narrow(1, at_rank, rank), b = wide_B.narrow(0, first, rows),
                       grad = wide_grad.narrow(1, out, rows);
      sum.narrow(1, out, rows).add_(at::mm(part, b.t()));
      grad_v.narrow(1, at_rank, rank).copy_(at::mm(grad, b) * scale);
      if (total.defined()) {
        total.narrow(0, first, rows).add_(at::mm(grad.to(total.scalar_type()).t(), part.to(total.scalar_type())));
      }
    }
    return total.defined() ? std::vector<at::Tensor>{sum, grad_v, total} : std::vector<at::Tensor>{sum, grad_v};
  }
};

// Slices one after the other with `gap` columns before each.
inline LoraProducts lora_products(int64_t rows, int64_t rank, const std::vector<int64_t>& columns, int64_t gap,
                                  at::ScalarType dtype, at::Device device, bool trains = true) {
  LoraProducts in;
  int64_t width = 0, B_rows = 0;
  for (const int64_t count : columns) {
    in.slices.push_back({.out = width + gap, .first = B_rows, .rows = count});
    width += gap + count;
    B_rows += count;
  }
  const auto slices = static_cast<int64_t>(columns.size());
  in.y = normal({rows, width}, 1, dtype, device);
  in.u = normal({rows, slices * rank}, 2, dtype, device);
  in.B = normal({B_rows, rank}, 3, dtype, device);
  in.grad_y = normal({rows, width}, 4, dtype, device);
  if (trains) in.grad_B = normal({B_rows, rank}, 5, dtype == at::kDouble ? at::kDouble : at::kFloat, device);
  return in;
}

inline void expect_good_lora_products(const LoraProducts& in, const std::string& what) {
  const char* names[] = {", y", ", grad_v", ", grad_B"};
  const std::vector<at::Tensor> ours = in.run(), plain = in.plain(in.y.scalar_type()), exact = in.plain(at::kDouble);
  ASSERT_EQ(ours.size(), exact.size()) << what;
  const auto terms = static_cast<double>(std::max(in.y.size(1), in.y.size(0)));
  for (size_t i = 0; i < ours.size(); ++i) expect_as_good(ours[i], plain[i], exact[i], what + names[i], terms);
}

inline void expect_lora_to_name_bad_input(at::Device device) {
  const LoraProducts in = lora_products(3, 4, {8, 8}, 0, at::kFloat, device);
  const auto with = [&](std::vector<LoraSlice> slices) {
    return error_of([&] { lora_add_(in.y.clone(), in.u, in.B, slices); });
  };
  expect_message(with({in.slices[0]}), {"hrm::lora_add_", "[3, 8]", "[16, 4]", "1 slices"});
  expect_message(with({in.slices[0], {.out = 12, .first = 8, .rows = 8}}), {"hrm::lora_add_", "12 to 20", "[3, 16]"});
  expect_message(with({in.slices[0], {.out = 8, .first = 12, .rows = 8}}), {"hrm::lora_add_", "12 to 20", "[16, 4]"});
  expect_message(error_of([&] { lora_add_(in.y.t().contiguous().t(), in.u, in.B, in.slices); }),
                 {"hrm::lora_add_", "contiguous"});
  expect_message(error_of([&] { lora_add_(in.y, in.u.to(at::kHalf), in.B, in.slices); }), {"Float", "Half"});
  expect_message(error_of([&] { lora_gradients(in.grad_y, in.u, in.B, in.grad_B.narrow(0, 0, 9), in.slices, 1); }),
                 {"hrm::lora_gradients", "[16, 4]", "[9, 4]"});
  expect_message(error_of([&] { lora_gradients(in.grad_y.narrow(0, 0, 2), in.u, in.B, {}, in.slices, 1); }),
                 {"hrm::lora_gradients", "[2, 16]", "[3, 8]"});
}

}  // namespace hrm::ops::testing
