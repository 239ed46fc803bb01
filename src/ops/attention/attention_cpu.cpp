// Attention on the CPU, one head at a time. Keys are transposed and values copied into a buffer. Four queries at once
// then go against all keys: scores, softmax and the weighted sum of the values stay in registers of 16 floats. Every
// sum has a fixed order, so neither the number of threads nor the CPU's vector width changes the result.
#include "ops/attention/attention_cpu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/common/vector_loops.h"

namespace hrm::ops::cpu {
namespace {

constexpr int64_t kWide = 16;
constexpr int kQueries = 4;
using Wide = float __attribute__((vector_size(kWide * sizeof(float))));

// References, because CPUs differ in how they pass a vector by value.
HRM_INLINE void load(Wide& to, const float* from) {
  std::memcpy(&to, from, sizeof(to));
}

HRM_INLINE void store(float* to, const Wide& from) {
  std::memcpy(to, &from, sizeof(from));
}

HRM_INLINE float sum_of(const Wide& x) {
  float sum = 0;
  for (int i = 0; i < kWide; ++i) sum += x[i];
  return sum;
}

struct Head {
  const float* q;  // query l at q + l * row
  const float* k;
  const float* v;
  float* out;  // result l at out + l * out_row
  int64_t row, out_row, length, head_dim;
  float scale;
};

// Sizes are padded to whole vectors.
struct Scratch {
  Scratch(int64_t length, int64_t head_dim)
      : keys((length + kWide - 1) / kWide * kWide),
        width((head_dim + kWide - 1) / kWide * kWide),
        data(static_cast<size_t>(head_dim * keys + length * width + kQueries * (keys + head_dim))) {
    k_t = data.data();
    v = k_t + head_dim * keys;
    weights = v + length * width;
    q = weights + kQueries * keys;
  }

  int64_t keys, width;
  std::vector<float> data;
  float* k_t;      // (head_dim, keys)
  float* v;        // (length, width)
  float* weights;  // (kQueries, keys)
  float* q;        // (head_dim, kQueries), scaled
};

HRM_FOR_EACH_CPU void attend(const Head& head, const Scratch& scratch) {
  const int64_t keys = scratch.keys, length = head.length, head_dim = head.head_dim;
  for (int64_t l = 0; l < length; ++l) {
    for (int64_t d = 0; d < head_dim; ++d) scratch.k_t[d * keys + l] = head.k[l * head.row + d];
    std::memcpy(scratch.v + l * scratch.width, head.v + l * head.row, static_cast<size_t>(head_dim) * sizeof(float));
  }
  // In a last vector with missing keys, their weights become 1e-38, negligible next to the largest weight, 1.
  Wide no_key{};
  for (int64_t i = length % kWide; i > 0 && i < kWide; ++i) no_key[i] = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < length; first += kQueries) {
    const int64_t count = length - first < kQueries ? length - first : kQueries;
    for (int64_t d = 0; d < head_dim; ++d) {
      for (int r = 0; r < kQueries; ++r) {
        const int64_t l = r < count ? first + r : first;
        scratch.q[d * kQueries + r] = head.q[l * head.row + d] * head.scale;
      }
    }
    Wide largest[kQueries];
    for (int r = 0; r < kQueries; ++r) largest[r] = Wide{} - std::numeric_limits<float>::infinity();
    for (int64_t key = 0; key < keys; key += kWide) {
      Wide s0{}, s1{}, s2{}, s3{};
      for (int64_t d = 0; d < head_dim; ++d) {
        Wide k;
        load(k, scratch.k_t + d * keys + key);
        const float* q = scratch.q + d * kQueries;
        s0 += q[0] * k;
        s1 += q[1] * k;
        s2 += q[2] * k;
        s3 += q[3] * k;
      }
      Wide s[kQueries] = {s0, s1, s2, s3};
      for (int r = 0; r < kQueries; ++r) {
        if (key + kWide > length) s[r] += no_key;
        largest[r] = s[r] > largest[r] ? s[r] : largest[r];
        store(scratch.weights + r * keys + key, s[r]);
      }
    }
    float inverse[kQueries];
    for (int r = 0; r < kQueries; ++r) {
      float peak = largest[r][0];
      for (int i = 1; i < kWide; ++i) peak = largest[r][i] > peak ? largest[r][i] : peak;
      float* const weight = scratch.weights + r * keys;
      for (int64_t key = 0; key < keys; ++key) weight[key] = exp_of(weight[key] - peak);
      Wide sum{};
      for (int64_t key = 0; key < keys; key += kWide) {
        Wide part;
        load(part, weight + key);
        sum += part;
      }
      inverse[r] = 1.0f / sum_of(sum);
    }
    for (int64_t d = 0; d < scratch.width; d += kWide) {
      Wide o0{}, o1{}, o2{}, o3{};
      const float* weight = scratch.weights;
      for (int64_t l = 0; l < length; ++l) {
        Wide v;
        load(v, scratch.v + l * scratch.width + d);
        o0 += weight[l] * v;
        o1 += weight[keys + l] * v;
        o2 += weight[2 * keys + l] * v;
        o3 += weight[3 * keys + l] * v;
      }
      const Wide o[kQueries] = {o0 * inverse[0], o1 * inverse[1], o2 * inverse[2], o3 * inverse[3]};
      const int64_t columns = head_dim - d < kWide ? head_dim - d : kWide;
      for (int64_t r = 0; r < count; ++r) {
        std::memcpy(head.out + (first + r) * head.out_row + d, &o[r], static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, int64_t heads) {
  const int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3, head_dim = width / heads;
  at::Tensor out = at::empty({batch, length, width}, qkv.options());
  const auto* from = qkv.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  at::parallel_for(0, batch * heads, 1, [&](int64_t begin, int64_t end) {
    const Scratch scratch(length, head_dim);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / heads, h = item % heads;
      const float* q = from + b * length * 3 * width + h * head_dim;
      attend({q, q + width, q + 2 * width, to + b * length * width + h * head_dim, 3 * width, width, length, head_dim,
              scale},
             scratch);
    }
  });
  return out;
}

}  // namespace hrm::ops::cpu
