// The merged weight of a layer in plain ATen: a copy, and a product for each slice, in float32 (float64): products of
// 16 bits may be cut into parts whose sums are rounded.
#include <ATen/ATen.h>

#include "ops/adapters/lora_impl.h"
#include "ops/common/accumulate_type.h"

namespace hrm::ops::reference {

void lora_merge_(const LoraLayer& layer, double scale) {
  if (!layer.merged.is_same(layer.weight)) layer.merged.copy_(layer.weight);
  const at::ScalarType wide = accumulate_type(layer.weight);
  const int64_t rank = layer.B.size(1);
  for (size_t i = 0; i < layer.slices.size(); ++i) {
    const auto& [out, first, rows] = layer.slices[i];
    const at::Tensor merged = layer.merged.narrow(0, out, rows);
    const at::Tensor A = layer.A.narrow(0, static_cast<int64_t>(i) * rank, rank).to(wide);
    merged.copy_(at::addmm(merged.to(wide), layer.B.narrow(0, first, rows).to(wide), A, 1, scale));
  }
}

}  // namespace hrm::ops::reference
