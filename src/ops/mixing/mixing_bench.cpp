// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

double mix_flops(const BenchShape& s) {
  return 3 * product_flops(s.batch * s.width, s.length(), s.mix_inner);
}

BenchCall mlp_mix(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (!s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(2 * s.mix_inner, s.length()),
           random.weight(s.length(), s.mix_inner), kBenchEps},
          mix_flops(s)};
}

BenchCall mlp_mix_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  if (!s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const at::Tensor h = random.activations({s.batch, s.length(), s.width});
  const at::Tensor up = random.weight(2 * s.mix_inner, s.length()), down = random.weight(s.length(), s.mix_inner);
  const auto forward = call_op("hrm::mlp_mix_forward", {h, up, down, kBenchEps});
  // The gate's product again, and two products for each of the three weight matrices' parts.
  return {{random.activations(h.sizes()), h, forward[0], forward[1], up, down,
           at::zeros(up.sizes(), at::device(device).dtype(at::kFloat)),
           at::zeros(down.sizes(), at::device(device).dtype(at::kFloat))},
          mix_flops(s) * (2 + 2.0 / 3)};
}

const KernelGroups kMixingGroups{
    {"MlpMix", "token mixing"},
    {"mlp_mix", "token mixing"},
};

}  // namespace

std::vector<BenchOp> mixing_cases() {
  return {
      {"hrm::mlp_mix", mlp_mix},
      {"hrm::mlp_mix_forward", mlp_mix},
      {"hrm::mlp_mix_backward", mlp_mix_backward},
  };
}

}  // namespace hrm::ops::bench
