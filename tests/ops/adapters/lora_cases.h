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

// Layers with slices of `rows` each, `gap` rows before each and behind the last.
struct MergedLayer {
  int64_t width = 0;
  std::vector<int64_t> rows;
  int64_t gap = 0;
};

inline std::vector<LoraLayer> lora_layers_of(const std::vector<MergedLayer>& sizes, int64_t rank, at::ScalarType dtype,
                                             at::Device device) {
  std::vector<LoraLayer> layers;
  uint64_t seed = 0;
  for (const auto& [width, rows, gap] : sizes) {
    LoraLayer layer;
    int64_t out = gap, B_rows = 0;
    for (const int64_t count : rows) {
      layer.slices.push_back({.out = out, .first = B_rows, .rows = count});
      out += count + gap;
      B_rows += count;
    }
    layer.weight = normal({out, width}, ++seed, dtype, device);
    layer.merged = at::full_like(layer.weight, 7);
    layer.A = normal({static_cast<int64_t>(rows.size()) * rank, width}, ++seed, dtype, device);
    layer.B = normal({B_rows, rank}, ++seed, dtype, device);
    layers.push_back(layer);
  }
  return layers;
}

constexpr double kMergeScale = 0.7;

// What lora_merge_ gives, of the weights themselves where `in_place`.
inline std::vector<at::Tensor> merged_of(std::vector<LoraLayer> layers, bool in_place = false) {
  std::vector<at::Tensor> results;
  for (LoraLayer& layer : layers) {
    if (in_place) layer.merged = layer.weight = layer.weight.clone();
    results.push_back(layer.merged);
  }
  lora_merge_(layers, kMergeScale);
  return results;
}

// By the formula, in `dtype`; each operation rounds.
inline at::Tensor plain_merged(const LoraLayer& layer, at::ScalarType dtype) {
  const at::Tensor merged = layer.weight.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  const int64_t rank = layer.B.size(1);
  for (size_t i = 0; i < layer.slices.size(); ++i) {
    const auto& [out, first, rows] = layer.slices[i];
    merged.narrow(0, out, rows)
        .add_(at::mm(layer.B.narrow(0, first, rows).to(dtype),
                     layer.A.narrow(0, static_cast<int64_t>(i) * rank, rank).to(dtype)) *
              kMergeScale);
  }
  return merged;
}

inline void expect_good_lora_merge(const std::vector<LoraLayer>& layers, const std::string& what) {
  const std::vector<at::Tensor> ours = merged_of(layers), in_place = merged_of(layers, /*in_place=*/true);
  for (size_t i = 0; i < layers.size(); ++i) {
    const LoraLayer& layer = layers[i];
    const std::string which = cat(what, ", layer ", i);
    const at::Tensor exact = plain_merged(layer, at::kDouble);
    expect_as_good(ours[i], plain_merged(layer, layer.weight.scalar_type()), exact, which,
                   static_cast<double>(layer.B.size(1)));
    // One rounding, and those of the sum in float32 (float64).
    const at::ScalarType dtype = layer.weight.scalar_type();
    if (dtype == at::kBFloat16 || dtype == at::kHalf) {
      const at::Tensor limit = exact.abs() * unit_roundoff(dtype) + 0x1p-18 * static_cast<double>(layer.B.size(1));
      EXPECT_TRUE(difference(ours[i], exact).le(limit).all().item<bool>()) << which << ": rounded more than once";
    }
    expect_same_bits(in_place[i], ours[i], which + ", in place");
    int64_t end = 0;
    for (const LoraSlice& s : layer.slices) {
      expect_same_bits(ours[i].narrow(0, end, s.out - end), layer.weight.narrow(0, end, s.out - end), which + ", kept");
      end = s.out + s.rows;
    }
  }
}

inline void expect_lora_merge_to_name_bad_input(at::Device device) {
  const std::vector<LoraLayer> good = lora_layers_of({{8, {4, 4}}, {16, {3}}}, 2, at::kFloat, device);
  const auto with = [&](const auto& change) {
    std::vector<LoraLayer> layers = good;
    change(layers);
    return error_of([&] { lora_merge_(layers, 1); });
  };
  EXPECT_EQ(with([](auto&) {}), "");
  expect_message(with([](auto& l) { l[1].A = l[0].A; }), {"hrm::lora_merge_", "[4, 8]", "[3, 16]"});
  expect_message(with([](auto& l) { l[1].slices.push_back({3, 3, 1}); }), {"hrm::lora_merge_", "4 slices", "for 3"});
  expect_message(with([](auto& l) { l[1].slices.clear(); }), {"hrm::lora_merge_", "[2, 16]", "0 slices"});
  expect_message(with([](auto& l) { l[1].slices[0].rows = 4; }), {"hrm::lora_merge_", "0 to 4", "[3, 16]", "[3, 2]"});
  expect_message(with([](auto& l) { l[0].slices[1].out = 3; }), {"hrm::lora_merge_", "3 to 7", "behind row 4"});
  expect_message(with([](auto& l) { l[1].merged = l[0].merged; }), {"hrm::lora_merge_", "[8, 8]", "[3, 16]"});
  expect_message(with([](auto& l) { l[1].weight = l[1].weight.t().contiguous().t(); }), {"contiguous", "[1, 3]"});
  expect_message(with([](auto& l) { l[1].B = l[1].B.to(at::kHalf); }), {"hrm::lora_merge_", "Half", "Float"});
  expect_message(with([](auto& l) {
                   l[1].A = l[1].A.repeat({2, 1});
                   l[1].B = l[1].B.repeat({1, 2});
                 }),
                 {"hrm::lora_merge_", "[4, 16]", "[3, 4]", "rank 2"});
}

}  // namespace hrm::ops::testing
