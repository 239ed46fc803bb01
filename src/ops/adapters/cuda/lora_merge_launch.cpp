#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/adapters/cuda/lora_merge.h"
#include "ops/adapters/lora_impl.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

using Spans = std::vector<cuda::LoraMergeSpan>;

bool has_kernel(const LoraLayer& layer) {
  return cuda::use_kernel(layer.weight) && layer.B.size(1) <= cuda::kMostMergeRank && layer.A.is_contiguous() &&
         layer.B.is_contiguous() && layer.weight.size(0) <= INT32_MAX && layer.weight.size(1) <= INT32_MAX;
}

// The layer's slices and, where merged is not the weight itself, the rows between them.
Spans spans_of(const LoraLayer& layer) {
  const int64_t width = layer.weight.size(1), rank = layer.B.size(1), size = layer.weight.element_size();
  auto* merged = static_cast<char*>(layer.merged.mutable_data_ptr());
  const auto* weight = static_cast<const char*>(layer.weight.const_data_ptr());
  const auto* A = static_cast<const char*>(layer.A.const_data_ptr());
  const auto* B = static_cast<const char*>(layer.B.const_data_ptr());
  Spans spans;
  const auto add = [&](int64_t from, int64_t to, const void* a, const void* b) {
    if (to == from || width == 0) return;
    spans.push_back({.merged = merged + from * width * size,
                     .weight = weight + from * width * size,
                     .A = a,
                     .B = b,
                     .rows = static_cast<int32_t>(to - from),
                     .width = static_cast<int32_t>(width)});
  };
  int64_t end = 0;
  const auto copy_until = [&](int64_t row) {
    if (merged != weight) add(end, row, nullptr, nullptr);
  };
  for (size_t i = 0; i < layer.slices.size(); ++i) {
    const auto& [out, first, rows] = layer.slices[i];
    copy_until(out);
    end = out + rows;
    add(out, end, A + static_cast<int64_t>(i) * rank * width * size, B + first * rank * size);
  }
  copy_until(layer.weight.size(0));
  return spans;
}

void launch_all(const Spans& spans, cuda::LoraMerge& p) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  for (size_t next = 0; next < spans.size(); next += cuda::kMostMergeSpans) {
    const size_t count = std::min<size_t>(spans.size() - next, cuda::kMostMergeSpans);
    std::copy_n(spans.begin() + static_cast<int64_t>(next), count, p.span);
    p.spans = static_cast<int32_t>(count);
    C10_CUDA_CHECK(cuda::launch(p, stream));
  }
}

void lora_merge_cuda_(at::TensorList merged, at::TensorList weight, at::TensorList A, at::TensorList B,
                      at::IntArrayRef flat, double scale) {
  const std::vector<LoraLayer> layers = lora_layers(merged, weight, A, B, flat);
  check_lora_merge(layers);
  const c10::cuda::CUDAGuard guard(layers[0].weight.device());
  const at::NoGradGuard no_grad;
  cuda::LoraMerge p{};
  p.rank = static_cast<int32_t>(layers[0].B.size(1));
  p.scale = static_cast<float>(scale);
  p.element = cuda::element_of(layers[0].weight);
  const bool has_tensor_cores = at::cuda::getCurrentDeviceProperties()->major >= 8;
  Spans by_products, plain;
  for (const LoraLayer& layer : layers) {
    if (!has_kernel(layer)) {
      reference::lora_merge_(layer, scale);
      continue;
    }
    for (const cuda::LoraMergeSpan& span : spans_of(layer)) {
      (has_tensor_cores && cuda::has_products(span, p.rank, p.element) ? by_products : plain).push_back(span);
    }
  }
  p.by_products = true;
  launch_all(by_products, p);
  p.by_products = false;
  launch_all(plain, p);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("lora_merge_", &lora_merge_cuda_);
}

}  // namespace hrm::ops
