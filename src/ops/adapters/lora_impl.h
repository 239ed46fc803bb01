#pragma once
// What the files of the adapters' products share.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "hrm/ops/lora.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// Slices as the dispatcher takes them: out, first, rows of each in turn.
std::vector<int64_t> flat_slices(const std::vector<LoraSlice>& slices);
std::vector<LoraSlice> lora_slices(at::IntArrayRef flat);

// Layers as the dispatcher takes them: lists of their tensors, and the slices of one layer after those of the other.
std::vector<LoraLayer> lora_layers(at::TensorList merged, at::TensorList weight, at::TensorList A, at::TensorList B,
                                   at::IntArrayRef flat);

void check_lora_add(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B,
                    const std::vector<LoraSlice>& slices);
void check_lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                          const OptionalTensor& grad_B, const std::vector<LoraSlice>& slices);
void check_lora_merge(const std::vector<LoraLayer>& layers);

namespace reference {

// A product for each slice.
void lora_add_(const at::Tensor& y, const at::Tensor& u, const at::Tensor& B, const std::vector<LoraSlice>& slices);
at::Tensor lora_gradients(const at::Tensor& grad_y, const at::Tensor& u, const at::Tensor& B,
                          const OptionalTensor& grad_B, const std::vector<LoraSlice>& slices, double scale);
void lora_merge_(const LoraLayer& layer, double scale);

}  // namespace reference
}  // namespace hrm::ops
