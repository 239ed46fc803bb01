#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/adapters/lora_impl.h"
#include "ops/common/op.h"

namespace hrm::ops {
namespace {

void check_layer(const LoraLayer& layer, const at::Tensor& like, int64_t rank) {
  const auto& [merged, weight, A, B, slices] = layer;
  const auto count = static_cast<int64_t>(slices.size());
  TORCH_CHECK(
      weight.dim() == 2 && merged.sizes() == weight.sizes() && A.dim() == 2 && B.dim() == 2 && B.size(1) == rank &&
          A.size(0) == count * rank && A.size(1) == weight.size(1),
      "hrm::lora_merge_: merged and weight (out, in), A (slices * rank, in) and B (rows, rank) do not fit, got ",
      merged.sizes(), ", ", weight.sizes(), ", ", A.sizes(), " and ", B.sizes(), " with ", count, " slices of rank ",
      rank);
  TORCH_CHECK(merged.is_contiguous() && weight.is_contiguous(),
              "hrm::lora_merge_: merged and weight must be contiguous, got strides ", merged.strides(), " and ",
              weight.strides());
  for (const at::Tensor& tensor : {merged, weight, A, B}) {
    TORCH_CHECK(at::isFloatingType(tensor.scalar_type()) && tensor.scalar_type() == like.scalar_type() &&
                    tensor.device() == like.device(),
                "hrm::lora_merge_: all tensors must have one floating-point dtype and device, got ",
                tensor.scalar_type(), " on ", tensor.device(), " beside ", like.scalar_type(), " on ", like.device());
  }
  int64_t end = 0;
  for (const LoraSlice& s : slices) {
    TORCH_CHECK(s.out >= end && s.first >= 0 && s.rows >= 1 && s.out + s.rows <= weight.size(0) &&
                    s.first + s.rows <= B.size(0),
                "hrm::lora_merge_: a slice has rows ", s.out, " to ", s.out + s.rows, " of the weight, ",
                weight.sizes(), ", behind row ", end, ", and rows ", s.first, " to ", s.first + s.rows, " of B, ",
                B.sizes());
    end = s.out + s.rows;
  }
}

}  // namespace

std::vector<LoraLayer> lora_layers(at::TensorList merged, at::TensorList weight, at::TensorList A, at::TensorList B,
                                   at::IntArrayRef flat) {
  TORCH_CHECK(merged.size() == weight.size() && A.size() == weight.size() && B.size() == weight.size(),
              "hrm::lora_merge_: there must be as many merged, weight, A and B, got ", merged.size(), ", ",
              weight.size(), ", ", A.size(), " and ", B.size());
  const std::vector<LoraSlice> slices = lora_slices(flat);
  std::vector<LoraLayer> layers;
  layers.reserve(weight.size());
  size_t next = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    TORCH_CHECK(A[i].dim() == 2 && B[i].dim() == 2 && B[i].size(1) >= 1,
                "hrm::lora_merge_: A (slices * rank, in) and B (rows, rank) do not fit, got ", A[i].sizes(), " and ",
                B[i].sizes());
    const size_t count = std::min(static_cast<size_t>(A[i].size(0) / B[i].size(1)), slices.size() - next);
    const auto begin = slices.begin() + static_cast<int64_t>(next);
    layers.push_back({merged[i], weight[i], A[i], B[i], {begin, begin + static_cast<int64_t>(count)}});
    next += count;
  }
  TORCH_CHECK(next == slices.size(), "hrm::lora_merge_: ", slices.size(), " slices, but A has rows for ", next);
  return layers;
}

void check_lora_merge(const std::vector<LoraLayer>& layers) {
  for (const LoraLayer& layer : layers) check_layer(layer, layers[0].weight, layers[0].B.size(1));
}

void lora_merge_(const std::vector<LoraLayer>& layers, double scale) {
  static const Op<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::IntArrayRef, double)> op(
      "hrm::lora_merge_");
  if (layers.empty()) return;
  std::vector<at::Tensor> merged, weight, A, B;
  std::vector<LoraSlice> slices;
  for (const LoraLayer& layer : layers) {
    merged.push_back(layer.merged);
    weight.push_back(layer.weight);
    A.push_back(layer.A);
    B.push_back(layer.B);
    slices.insert(slices.end(), layer.slices.begin(), layer.slices.end());
  }
  op(merged, weight, A, B, flat_slices(slices), scale);
}

namespace {

void lora_merge_cpu_(at::TensorList merged, at::TensorList weight, at::TensorList A, at::TensorList B,
                     at::IntArrayRef flat, double scale) {
  const std::vector<LoraLayer> layers = lora_layers(merged, weight, A, B, flat);
  check_lora_merge(layers);
  const at::NoGradGuard no_grad;
  for (const LoraLayer& layer : layers) reference::lora_merge_(layer, scale);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("lora_merge_(Tensor(a!)[] merged, Tensor[] weight, Tensor[] A, Tensor[] B, int[] slices, float scale) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("lora_merge_", &lora_merge_cpu_);
}

// Merged weights are for generating.
TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("lora_merge_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
