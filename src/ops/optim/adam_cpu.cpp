// One pass over memory, instead of the reference's many. Elements are independent and sums are made part by part, so
// the number of threads does not change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numbers>

#include "ops/common/vector_loops.h"
#include "ops/optim/adam_impl.h"

namespace hrm::ops::cpu {
namespace {

constexpr int64_t kPart = 16384;  // elements that a thread does at a time
constexpr int64_t kRun = 512;     // elements whose squares are added in float32

// What all elements of a tensor share.
struct Constants {
  float scale, keep, decay, rate, correction2_sqrt, beta1, one_minus_beta1, beta2, one_minus_beta2, eps,
      one_minus_decay;
};

struct Pointers {
  float* p;
  const float* g;
  float* m;        // or null
  float* v;        // or null
  float* average;  // or null
};

struct Moved {
  double distance = 0, size = 0;
};

// atan2(y, x) for x >= 0. The arctangent of t in 0..1 is pi/4 more than that of (t - 1) / (t + 1) where t is above
// tan(pi/8); below, the odd polynomial of Cephes' atanf is right to 2e-8.
HRM_INLINE float atan2_of(float y, float x) {
  const float size = y < 0 ? -y : y;
  const bool steep = size > x;
  const float larger = steep ? size : x, smaller = steep ? x : size;
  const float quotient = smaller / (larger == 0 ? 1.0f : larger);
  const float ratio = smaller == larger && larger != 0 ? 1.0f : quotient;
  const bool above = ratio > 0.414213562373095f;
  const float shifted = (ratio - 1) / (ratio + 1);
  const float t = above ? shifted : ratio;
  const float z = t * t;
  const float tail = ((8.05374449538e-2f * z - 1.38776856032e-1f) * z + 1.99777106478e-1f) * z - 3.33329491539e-1f;
  float angle = tail * z * t + t;
  angle = angle + (above ? std::numbers::pi_v<float> / 4 : 0.0f);
  angle = steep ? std::numbers::pi_v<float> / 2 - angle : angle;
  return y < 0 ? -angle : angle;
}

// `moved` and `old`: the change of each element and what it was.
template <AdamRule rule>
HRM_INLINE void update_run(const Constants& c, float* __restrict p, const float* __restrict g, float* __restrict m,
                           float* __restrict v, float* __restrict moved, float* __restrict old, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float new_p = 0;
    if constexpr (has_second_moment(rule)) {
      const float grad = g[i] * c.scale;
      const float new_m = m[i] + (grad - m[i]) * c.one_minus_beta1;
      const float new_v = c.beta2 * v[i] + c.one_minus_beta2 * grad * grad;
      const float root = __builtin_sqrtf(new_v) / c.correction2_sqrt;
      const float direction = rule == AdamRule::atan2 ? atan2_of(new_m, root) : new_m / (root + c.eps);
      new_p = p[i] * c.keep - c.rate * direction;
      m[i] = new_m;
      v[i] = new_v;
    } else if constexpr (rule == AdamRule::lion) {
      const float grad = g[i] * c.scale;
      const float blend = c.beta1 * m[i] + c.one_minus_beta1 * grad;
      const float sign = (blend > 0 ? 1.0f : 0.0f) - (blend < 0 ? 1.0f : 0.0f);
      new_p = p[i] * c.keep - c.rate * sign;
      m[i] = m[i] + (grad - m[i]) * c.one_minus_beta2;
    } else if constexpr (rule == AdamRule::sgd) {
      const float grad = g[i] * c.scale + c.decay * p[i];
      const float new_m = c.beta1 * m[i] + grad;
      new_p = p[i] - c.rate * (grad + c.beta1 * new_m);
      m[i] = new_m;
    } else if constexpr (rule == AdamRule::muon_direction) {
      const float grad = g[i] * c.scale;
      const float new_m = m[i] + (grad - m[i]) * c.one_minus_beta1;
      new_p = grad + (new_m - grad) * c.beta1;
      m[i] = new_m;
    } else {
      static_assert(rule == AdamRule::muon_apply);
      new_p = p[i] * c.keep - c.rate * g[i];
    }
    moved[i] = new_p - p[i];
    old[i] = p[i];
    p[i] = new_p;
  }
}

HRM_INLINE void average_run(float one_minus_decay, float* __restrict average, const float* __restrict p,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) average[i] += (p[i] - average[i]) * one_minus_decay;
}

// Sixteen sums side by side, then their sum; always in this order.
HRM_INLINE double square_sum(const float* __restrict values) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  for (int64_t i = 0; i < kRun; i += kSums) {
    for (int64_t k = 0; k < kSums; ++k) sums[k] += values[i + k] * values[i + k];
  }
  double total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

template <AdamRule rule>
HRM_INLINE Moved update_all(const Constants& c, const Pointers& at, int64_t count) {
  Moved sums;
  float moved[kRun], old[kRun];
  for (int64_t start = 0; start < count; start += kRun) {
    const int64_t size = std::min(kRun, count - start);
    for (int64_t i = size; i < kRun; ++i) moved[i] = old[i] = 0;
    update_run<rule>(c, at.p + start, at.g + start, has_first_moment(rule) ? at.m + start : nullptr,
                     has_second_moment(rule) ? at.v + start : nullptr, moved, old, size);
    if (at.average != nullptr) average_run(c.one_minus_decay, at.average + start, at.p + start, size);
    sums.distance += square_sum(moved);
    sums.size += square_sum(old);
  }
  return sums;
}

HRM_FOR_EACH_CPU Moved atan2_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::atan2>(c, at, count);
}

HRM_FOR_EACH_CPU Moved adamw_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::adamw>(c, at, count);
}

HRM_FOR_EACH_CPU Moved lion_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::lion>(c, at, count);
}

HRM_FOR_EACH_CPU Moved sgd_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::sgd>(c, at, count);
}

HRM_FOR_EACH_CPU Moved muon_direction_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::muon_direction>(c, at, count);
}

HRM_FOR_EACH_CPU Moved muon_apply_part(const Constants& c, const Pointers& at, int64_t count) {
  return update_all<AdamRule::muon_apply>(c, at, count);
}

using RunPart = Moved (*)(const Constants&, const Pointers&, int64_t);

RunPart part_of(AdamRule rule) {
  switch (rule) {
    case AdamRule::atan2:
      return &atan2_part;
    case AdamRule::adamw:
      return &adamw_part;
    case AdamRule::lion:
      return &lion_part;
    case AdamRule::sgd:
      return &sgd_part;
    case AdamRule::muon_direction:
      return &muon_direction_part;
    case AdamRule::muon_apply:
      return &muon_apply_part;
  }
  return nullptr;  // check_adam knows all rules
}

struct Part {
  size_t member;
  int64_t offset, size;
};

std::vector<Part> parts_of(at::TensorList params) {
  std::vector<Part> parts;
  for (size_t i = 0; i < params.size(); ++i) {
    for (int64_t offset = 0; offset < params[i].numel(); offset += kPart) {
      parts.push_back({i, offset, std::min(kPart, params[i].numel() - offset)});
    }
  }
  return parts;
}

}  // namespace

void adam_(const AdamArgs& args) {
  const at::NoGradGuard no_grad;
  if (args.skip.item<float>() != 0) {
    if (args.update_ratio.defined()) args.update_ratio.zero_();
    return;
  }
  const float t = *args.step.mutable_data_ptr<float>() += 1;
  const float base_lr = args.lr.item<float>();
  Constants shared{};
  shared.scale = args.grad_scale.item<float>();
  // 1 - beta^t, exact where beta^t is close to 1.
  float correction1 = 1;
  if (has_second_moment(args.rule)) {
    correction1 = static_cast<float>(-std::expm1(t * std::log(args.beta1)));
    shared.correction2_sqrt = static_cast<float>(std::sqrt(-std::expm1(t * std::log(args.beta2))));
  }
  shared.beta1 = static_cast<float>(args.beta1);
  shared.one_minus_beta1 = static_cast<float>(1 - args.beta1);
  shared.beta2 = static_cast<float>(args.beta2);
  shared.one_minus_beta2 = static_cast<float>(1 - args.beta2);
  shared.eps = static_cast<float>(args.eps);
  shared.one_minus_decay = static_cast<float>(1 - args.average_decay);

  const std::vector<Part> parts = parts_of(args.params);
  std::vector<Moved> moved(parts.size());
  const RunPart run_part = part_of(args.rule);
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto k = static_cast<size_t>(begin); k < static_cast<size_t>(end); ++k) {
      const auto& [i, offset, size] = parts[k];
      const float lr = base_lr * static_cast<float>(lr_factor(args, i));
      Constants constants = shared;
      constants.decay = static_cast<float>(args.weight_decay[i]);
      constants.keep = 1 - lr * constants.decay;
      constants.rate = lr / correction1;
      const auto data = [i = i, offset = offset](at::TensorList list) {
        return list.empty() ? nullptr : list[i].mutable_data_ptr<float>() + offset;
      };
      moved[k] = run_part(constants,
                          {data(args.params), args.grads[i].const_data_ptr<float>() + offset, data(args.exp_avgs),
                           data(args.exp_avg_sqs), data(args.averages)},
                          size);
    }
  });
  for (size_t i = 0; i < args.copies.size(); ++i) {
    if (has_copy(args, i)) args.copies[i].copy_(args.params[i]);
  }
  if (!args.update_ratio.defined()) return;
  Moved total;
  for (const Moved& part : moved) {
    total.distance += part.distance;
    total.size += part.size;
  }
  auto* ratio = args.update_ratio.mutable_data_ptr<double>();
  if (args.update_ratio.dim() == 0) {
    *ratio = std::sqrt(total.distance / total.size);
  } else {
    ratio[0] = total.distance;
    ratio[1] = total.size;
  }
}

}  // namespace hrm::ops::cpu
