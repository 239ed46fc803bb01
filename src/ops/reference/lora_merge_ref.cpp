// The merged weight of a layer in plain ATen: a copy, and a product for each slice. A product's sum is not rounded
// before the weight is added.
#include <ATen/ATen.h>

#include "ops/lora_impl.h"

namespace hrm::ops::reference {

void lora_merge_(const LoraLayer& layer, double scale) {
  if (!layer.merged.is_same(layer.weight)) layer.merged.copy_(layer.weight);
  const int64_t rank = layer.B.size(1);
  for (size_t i = 0; i < layer.slices.size(); ++i) {
    const auto& [out, first, rows] = layer.slices[i];
    layer.merged.narrow(0, out, rows)
        .addmm_(layer.B.narrow(0, first, rows), layer.A.narrow(0, static_cast<int64_t>(i) * rank, rank), 1, scale);
  }
}

}  // namespace hrm::ops::reference
