// One pass over memory, in place of the reference's many. Elements are independent and sums are made part by part, so
// the number of threads does not change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "ops/adam_impl.h"

namespace hrm::ops::cpu {
namespace {

constexpr int64_t kPart = 16384;  // elements that a thread does at a time

// Four floats: a vector register of every x86-64 and Arm machine, so that no result depends on the model of the CPU.
constexpr int64_t kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

void store(float* to, const Lanes& lanes) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

Lanes square_root(const Lanes& x) {
  Lanes root;
  for (int k = 0; k < kLanes; ++k) root[k] = __builtin_sqrtf(x[k]);
  return root;
}

// atan2(y, x) for x >= 0. The arctangent of t in 0..1 is pi/4 more than that of (t - 1) / (t + 1) where t is above
// tan(pi/8); below, the odd polynomial of Cephes' atanf is right to 2e-8.
Lanes atan2_of(const Lanes& y, const Lanes& x) {
  const Lanes size = y < 0 ? -y : y;
  const auto steep = size > x;
  const Lanes larger = steep ? size : x, smaller = steep ? x : size;
  const Lanes ratio = size == x ? (size == 0 ? Lanes{} : Lanes{} + 1) : smaller / larger;
  const auto above = ratio > 0.414213562373095f;
  const Lanes t = above ? (ratio - 1) / (ratio + 1) : ratio;
  const Lanes z = t * t;
  const Lanes tail = ((8.05374449538e-2f * z - 1.38776856032e-1f) * z + 1.99777106478e-1f) * z - 3.33329491539e-1f;
  Lanes angle = tail * z * t + t;
  angle = above ? angle + std::numbers::pi_v<float> / 4 : angle;
  angle = steep ? std::numbers::pi_v<float> / 2 - angle : angle;
  return y < 0 ? -angle : angle;
}

// What all elements of a tensor share.
struct Constants {
  float scale, keep, rate, correction2_sqrt, one_minus_beta1, beta2, one_minus_beta2, eps, one_minus_decay;
};

struct Pointers {
  float* p;
  const float* g;
  float* m;
  float* v;
  float* average;  // or null
};

struct Moved {
  double distance = 0, size = 0;
};

// Four elements; `distance` and `size` add up how far they moved and how large they were, both squared.
template <AdamRule rule>
void update(const Constants& c, const Pointers& at, Lanes& distance, Lanes& size) {
  const Lanes old = load(at.p), g = load(at.g) * c.scale;
  Lanes m = load(at.m), v = load(at.v);
  m += (g - m) * c.one_minus_beta1;
  v = c.beta2 * v + c.one_minus_beta2 * g * g;
  const Lanes root = square_root(v) / c.correction2_sqrt;
  const Lanes direction = rule == AdamRule::atan2 ? atan2_of(m, root) : m / (root + c.eps);
  const Lanes p = old * c.keep - c.rate * direction;
  distance += (p - old) * (p - old);
  size += old * old;
  store(at.p, p);
  store(at.m, m);
  store(at.v, v);
  if (at.average != nullptr) {
    const Lanes average = load(at.average);
    store(at.average, average + (p - average) * c.one_minus_decay);
  }
}

template <AdamRule rule>
Moved update_part(const Constants& c, const Pointers& at, int64_t count) {
  Moved moved;
  const auto add = [&moved](const Lanes& distance, const Lanes& size) {
    for (int k = 0; k < kLanes; ++k) {
      moved.distance += distance[k];
      moved.size += size[k];
    }
  };
  const int64_t whole = count / kLanes * kLanes;
  // Short sums in float32, long ones in float64.
  constexpr int64_t kRun = 1024;
  for (int64_t start = 0; start < whole; start += kRun) {
    Lanes distance{}, size{};
    for (int64_t i = start; i < std::min(start + kRun, whole); i += kLanes) {
      update<rule>(c, {at.p + i, at.g + i, at.m + i, at.v + i, at.average == nullptr ? nullptr : at.average + i},
                   distance, size);
    }
    add(distance, size);
  }
  if (whole == count) return moved;
  // The last one to three elements, in the first places of four.
  const auto rest = static_cast<size_t>(count - whole) * sizeof(float);
  float p[kLanes] = {}, g[kLanes] = {}, m[kLanes] = {}, v[kLanes] = {}, average[kLanes] = {};
  std::memcpy(p, at.p + whole, rest);
  std::memcpy(g, at.g + whole, rest);
  std::memcpy(m, at.m + whole, rest);
  std::memcpy(v, at.v + whole, rest);
  if (at.average != nullptr) std::memcpy(average, at.average + whole, rest);
  Lanes distance{}, size{};
  update<rule>(c, {p, g, m, v, average}, distance, size);
  std::memcpy(at.p + whole, p, rest);
  std::memcpy(at.m + whole, m, rest);
  std::memcpy(at.v + whole, v, rest);
  if (at.average != nullptr) std::memcpy(at.average + whole, average, rest);
  add(distance, size);
  return moved;
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
    if (args.update_ratio.defined()) *args.update_ratio.mutable_data_ptr<double>() = 0;
    return;
  }
  const float t = *args.step.mutable_data_ptr<float>() += 1;
  const float lr = args.lr.item<float>();
  Constants shared{};
  shared.scale = args.grad_scale.item<float>();
  // 1 - beta^t, exact where beta^t is close to 1.
  shared.rate = lr / static_cast<float>(-std::expm1(t * std::log(args.beta1)));
  shared.correction2_sqrt = static_cast<float>(std::sqrt(-std::expm1(t * std::log(args.beta2))));
  shared.one_minus_beta1 = static_cast<float>(1 - args.beta1);
  shared.beta2 = static_cast<float>(args.beta2);
  shared.one_minus_beta2 = static_cast<float>(1 - args.beta2);
  shared.eps = static_cast<float>(args.eps);
  shared.one_minus_decay = static_cast<float>(1 - args.average_decay);

  const std::vector<Part> parts = parts_of(args.params);
  std::vector<Moved> moved(parts.size());
  const auto run_part = args.rule == AdamRule::atan2 ? &update_part<AdamRule::atan2> : &update_part<AdamRule::adamw>;
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto k = static_cast<size_t>(begin); k < static_cast<size_t>(end); ++k) {
      const auto& [i, offset, size] = parts[k];
      Constants constants = shared;
      constants.keep = 1 - lr * static_cast<float>(args.weight_decay[i]);
      const auto data = [offset = offset](const at::Tensor& tensor) {
        return tensor.mutable_data_ptr<float>() + offset;
      };
      moved[k] = run_part(constants,
                          {data(args.params[i]), args.grads[i].const_data_ptr<float>() + offset, data(args.exp_avgs[i]),
                           data(args.exp_avg_sqs[i]), args.averages.empty() ? nullptr : data(args.averages[i])},
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
  *args.update_ratio.mutable_data_ptr<double>() = std::sqrt(total.distance / total.size);
}

}  // namespace hrm::ops::cpu
