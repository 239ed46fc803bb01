#include "ops/attention/cuda/sm90/attention_projected.cuh"

#include "ops/attention/cuda/sm90/attention.h"

namespace hrm::ops::cuda::sm90 {
namespace {

using Upto88 = AttentionProjectedShape<88, 4>;
using Upto104 = AttentionProjectedShape<104, 3>;
constexpr int kCluster = Upto88::kCluster;

// How often the heads of a sample are halved between blocks, and the share of the multiprocessors' time that this keeps
// busy.
struct Split {
  int halvings = 0;
  double busy = 0;
};

Split best_split(const AttentionProjected& p) {
  const int64_t at_once = multiprocessors() / kCluster, groups = (p.batch + kCluster - 1) / kCluster;
  Split best;
  for (int halvings = 0; p.heads % (1 << halvings) == 0 && p.heads >> halvings > 0; ++halvings) {
    const int64_t rounds = ((groups << halvings) + at_once - 1) / at_once;
    const int64_t heads = rounds * (p.heads >> halvings);  // processed in sequence by the busiest block
    // The first head's product and the last head's attention overlap with nothing; each round reads h.
    const double time = static_cast<double>(heads) + 1 + 0.25 * static_cast<double>(rounds);
    const double busy = static_cast<double>(p.batch * p.heads) / (static_cast<double>(kCluster * at_once) * time);
    if (busy > best.busy) best = {halvings, busy};
  }
  return best;
}

template <typename T>
cudaError_t start_by_length(const AttentionProjected& p, cudaStream_t stream) {
  const int at_once = multiprocessors() / kCluster, halvings = best_split(p).halvings;
  return p.length <= 88 ? start_projected<T, Upto88>(p, halvings, at_once, stream)
                        : start_projected<T, Upto104>(p, halvings, at_once, stream);
}

}  // namespace

bool fits(const AttentionProjected& p) {
  return is_hopper() && p.inner == 512 && p.heads >= 1 && p.heads <= INT32_MAX / 512 && p.length >= 65 &&
         p.length <= 104 && p.batch >= 1 && p.batch <= INT32_MAX / 2 / p.heads && p.element != Element::f32;
}

bool pays(const AttentionProjected& p) {
  // Thresholds from timings on an H200: a head takes 4.0 us in this kernel, and a sample 0.31 us in the two kernels, up
  // to 88 positions; 4.9 and 0.35 us above. In a training step the two kernels take a tenth longer than in isolation.
  return best_split(p).busy >= (p.length <= Upto88::kN ? 0.72 : 0.8);
}

cudaError_t launch(const AttentionProjected& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  return p.element == Element::f16 ? start_by_length<__half>(p, stream) : start_by_length<__nv_bfloat16>(p, stream);
}

}  // namespace hrm::ops::cuda::sm90
