// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

constexpr int64_t kRank = 16;

// Adapters of rank 16 beside gate and up.
BenchCall lora_add(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.rows(), 2 * s.inner}), random.activations({s.rows(), 2 * kRank}),
           random.weight(2 * s.inner, kRank), std::vector<int64_t>{0, 0, s.inner, s.inner, s.inner, s.inner}},
          product_flops(s.rows(), kRank, 2 * s.inner)};
}

BenchCall lora_gradients(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = lora_add(s, device, dtype);
  call.arguments.insert(call.arguments.begin() + 3, Random{device, dtype}.floats({2 * s.inner, kRank}));
  call.arguments.emplace_back(2.0);
  call.flops *= 2;
  return call;
}

// The same and one beside the projection down, in every block.
BenchCall lora_merge(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> merged, weight, A, B;
  std::vector<int64_t> slices;
  double flops = 0;
  const auto add = [&](int64_t out, int64_t in, int64_t count) {
    weight.push_back(random.weight(out, in));
    merged.push_back(at::empty_like(weight.back()));
    A.push_back(random.weight(count * kRank, in));
    B.push_back(random.weight(out, kRank));
    for (int64_t i = 0; i < count; ++i)
      slices.insert(slices.end(), {i * (out / count), i * (out / count), out / count});
    flops += product_flops(out, kRank, in);
  };
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    add(2 * s.inner, s.width, 2);
    add(s.width, s.inner, 1);
  }
  return {{merged, weight, A, B, slices, 2.0}, flops};
}

const KernelGroups kAdaptersGroups{
    {"LowRankGemm", "low-rank adapters"},
    {"LoraGradients", "low-rank adapters"},
    {"LoraMerge", "low-rank adapters"},
    {"hrm::lora_", "low-rank adapters"},
};

}  // namespace

std::vector<BenchOp> adapters_cases() {
  return {
      {"hrm::lora_add_", lora_add},
      {"hrm::lora_gradients", lora_gradients},
      {"hrm::lora_merge_", lora_merge},
  };
}

}  // namespace hrm::ops::bench
