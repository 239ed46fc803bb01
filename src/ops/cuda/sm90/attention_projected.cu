#include "ops/cuda/sm90/attention_projected.cuh"

#include "ops/cuda/sm90/attention.h"

namespace hrm::ops::cuda::sm90 {
namespace {

template <typename T>
cudaError_t start_by_length(const AttentionProjected& p, cudaStream_t stream) {
  const int pairs = multiprocessors() / 2;
  if (p.length <= 88)
    return start_projected<T, AttentionProjectedShape<88, 2, 1, 4, 1, 3, TurnedBy::attention>>(p, pairs, stream);
  return start_projected<T, AttentionProjectedShape<104, 2, 1, 3, 1, 4, TurnedBy::attention>>(p, pairs, stream);
}

}  // namespace

bool fits(const AttentionProjected& p) {
  return is_hopper() && p.inner == 512 && p.heads >= 1 && p.heads <= INT32_MAX / 512 && p.length >= 65 &&
         p.length <= 104 && p.batch >= 1 && p.batch <= INT32_MAX / 2 && p.element != Element::f32;
}

bool pays(const AttentionProjected& p) {
  const int64_t at_once = multiprocessors() / 2 * 2, rounds = (p.batch + at_once - 1) / at_once;
  return p.batch * 5 >= rounds * at_once * 4;
}

cudaError_t launch(const AttentionProjected& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_by_length<__half>(p, stream) : start_by_length<__nv_bfloat16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
