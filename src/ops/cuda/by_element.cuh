#pragma once
// From the element type that a params struct names to the type that a kernel is made for. Host code.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// A type as an argument: run(TypeOf<float>{}).
template <typename T>
struct TypeOf {
  using type = T;
};
template <typename Tag>
using TypeIn = typename Tag::type;

template <class Run>
cudaError_t by_element(Element element, const Run& run) {
  switch (element) {
    case Element::f32:
      return run(TypeOf<float>{});
    case Element::bf16:
      return run(TypeOf<__nv_bfloat16>{});
    case Element::f16:
      return run(TypeOf<__half>{});
  }
  return cudaErrorInvalidValue;
}

// bf16 and f16 alone.
template <class Run>
cudaError_t by_half_element(Element element, const Run& run) {
  if (element == Element::bf16) return run(TypeOf<__nv_bfloat16>{});
  if (element == Element::f16) return run(TypeOf<__half>{});
  return cudaErrorInvalidValue;
}

}  // namespace hrm::ops::cuda
