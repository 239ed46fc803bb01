#pragma once
// Checks of the attention of a decoding step that hold on every device.

#include "hrm/ops/decode_attention.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct DecodeCase {
  int64_t rows = 3, heads = 4, kv_heads = 2, head_dim = 64, capacity = 40, window = 0;
  bool norm = false;
  int64_t longest = 0;  // positions of the longest row, more than the capacity in a ring; 0: the capacity
};

struct DecodeInputs {
  at::Tensor qkv, keys, values, lengths, q_weight, k_weight;
  DecodeAttentionOptions options;

  at::Tensor run(const DecodeAttentionOptions& o) const { return decode_attention_(qkv, keys, values, lengths, o); }
  at::Tensor run() const { return run(options); }
};

// Lengths spread over the cache and what it has been overwritten with, both ends among them.
inline DecodeInputs decode_inputs(const DecodeCase& c, at::ScalarType dtype, at::Device device, uint64_t seed = 1) {
  DecodeInputs in;
  in.qkv = normal({c.rows, (c.heads + 2 * c.kv_heads) * c.head_dim}, seed, dtype, device);
  in.keys = normal({c.rows, c.kv_heads, c.capacity, c.head_dim}, seed + 1, dtype, device);
  in.values = normal({c.rows, c.kv_heads, c.capacity, c.head_dim}, seed + 2, dtype, device);
  const int64_t longest = std::max(c.longest, c.capacity);
  in.lengths = at::linspace(longest - 1, 0, c.rows, at::kDouble).to(device, at::kLong);
  const at::Tensor angles = normal({longest, c.head_dim / 2}, seed + 3, at::kFloat, device);
  in.options = {.cos = angles.cos(), .sin = angles.sin(), .eps = 1e-5, .window = c.window};
  if (c.norm) {
    in.options.q_weight = normal({c.head_dim}, seed + 4, at::kFloat, device);
    in.options.k_weight = normal({c.head_dim}, seed + 5, at::kFloat, device);
  }
  return in;
}

// One row and head at a time, in float64 from the rounded q and k.
inline at::Tensor plain_decode(const DecodeInputs& in) {
  const at::ScalarType dtype = in.qkv.scalar_type();
  const int64_t B = in.qkv.size(0), Hkv = in.keys.size(1), hd = in.keys.size(3), Hq = in.qkv.size(1) / hd - 2 * Hkv;
  at::Tensor out = at::zeros({B, Hq, hd}, in.qkv.options().dtype(at::kDouble));
  const at::Tensor heads = in.qkv.view({B, Hq + 2 * Hkv, hd});
  const auto prepared = [&](const at::Tensor& head, const std::optional<at::Tensor>& weight, int64_t place) {
    at::Tensor x = head.to(at::kDouble);
    if (weight) x = (x / (x.square().mean() + in.options.eps).sqrt() * *weight).to(dtype).to(at::kDouble);
    const at::Tensor a = x.narrow(0, 0, hd / 2), b = x.narrow(0, hd / 2, hd / 2), cos = in.options.cos[place],
                     sin = in.options.sin[place];
    return at::cat({a * cos - b * sin, b * cos + a * sin}).to(dtype).to(at::kDouble);
  };
  for (int64_t row = 0; row < B; ++row) {
    const auto place = in.lengths[row].item<int64_t>();
    const int64_t first = in.options.window > 0 ? std::max<int64_t>(0, place + 1 - in.options.window) : 0;
    for (int64_t head = 0; head < Hq; ++head) {
      const int64_t kv = head / (Hq / Hkv);
      const auto seen = [&](const at::Tensor& cache, const at::Tensor& newest) {
        const at::Tensor places = at::arange(first, place, in.lengths.options()).remainder(in.keys.size(2));
        return at::cat({cache[row][kv].index_select(0, places).to(at::kDouble), newest.unsqueeze(0)});
      };
      const at::Tensor q = prepared(heads[row][head], in.options.q_weight, place);
      const at::Tensor keys = seen(in.keys, prepared(heads[row][Hq + kv], in.options.k_weight, place));
      const at::Tensor values = seen(in.values, heads[row][Hq + Hkv + kv].to(at::kDouble));
      const at::Tensor weights = at::softmax(at::mv(keys, q) / std::sqrt(static_cast<double>(hd)), 0);
      out[row][head] = at::mv(values.t(), weights);
    }
  }
  return out.view({B, Hq * hd});
}

inline std::vector<DecodeCase> decode_cases() {
  return {
      {},
      {.norm = true},
      {.rows = 5, .heads = 3, .kv_heads = 3, .head_dim = 32, .capacity = 301},
      {.rows = 2, .heads = 8, .kv_heads = 1, .head_dim = 128, .capacity = 300, .norm = true},
      {.rows = 9, .heads = 4, .kv_heads = 2, .head_dim = 128, .capacity = 140, .window = 70, .norm = true},
      {.rows = 3, .heads = 9, .kv_heads = 1, .head_dim = 32, .capacity = 70, .norm = true},  // more than a block takes
      {.rows = 4, .window = 7, .norm = true},
      {.rows = 2, .capacity = 1},
      // Rings: as many places as the window, or more.
      {.rows = 7, .capacity = 40, .window = 40, .norm = true, .longest = 300},
      {.rows = 7, .heads = 9, .kv_heads = 1, .head_dim = 32, .capacity = 70, .window = 33, .longest = 1000},
      {.rows = 3, .heads = 8, .kv_heads = 1, .head_dim = 128, .capacity = 5, .window = 5, .longest = 23},
      {.rows = 3, .capacity = 1, .window = 1, .longest = 4},
      {.rows = 4, .heads = 2, .kv_heads = 1, .head_dim = 6, .capacity = 9, .window = 7, .longest = 50},
      {.rows = 3, .heads = 2, .kv_heads = 1, .head_dim = 6, .capacity = 9, .norm = true},  // no kernel is made for 6
      {.rows = 0}};
}

// The result, and what is written into the cache; nothing else there changes.
inline void expect_good_decode(const DecodeCase& c, at::ScalarType dtype, at::Device device) {
  const std::string what = cat(dtype, " ", c.rows, " rows, ", c.heads, "/", c.kv_heads, " heads of ", c.head_dim, ", ",
                               c.capacity, " places, window ", c.window, c.norm ? ", norm" : "", " up to ",
                               std::max(c.longest, c.capacity), " positions");
  const DecodeInputs in = decode_inputs(c, dtype, device);
  const at::Tensor exact = plain_decode(in), keys = in.keys.clone(), values = in.values.clone();
  const at::Tensor ours = in.run();
  DecodeInputs again = in;
  again.keys = keys.clone();
  again.values = values.clone();
  at::Tensor plain;
  {
    const WithReference reference;
    plain = again.run();
  }
  // On a CPU both are the reference.
  if (c.rows > 0) {
    EXPECT_LE(largest_difference(plain, exact), 8 * unit_roundoff(dtype) * exact.abs().max().item<double>()) << what;
  }
  expect_as_good(ours, plain, exact, what);
  if (c.rows > 0) {
    const double size = 2 * in.keys.abs().max().item<double>();
    expect_as_good(in.keys, again.keys, again.keys.to(at::kDouble), what + ", keys", size);
  }
  expect_same_bits(in.values, again.values, what + ", values");
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto place = in.lengths[row].item<int64_t>() % c.capacity;
    for (const auto& [now, before] : {std::pair{in.keys, keys}, std::pair{in.values, values}}) {
      expect_same_bits(now[row].narrow(1, 0, place), before[row].narrow(1, 0, place), what);
      expect_same_bits(now[row].narrow(1, place + 1, c.capacity - place - 1),
                       before[row].narrow(1, place + 1, c.capacity - place - 1), what);
      EXPECT_FALSE(at::equal(now[row].select(1, place), before[row].select(1, place))) << what;
    }
  }
}

// A ring gives what a cache of all positions gives with the window.
inline void expect_ring_to_do(at::ScalarType dtype, at::Device device, bool same_bits) {
  for (const int64_t rows : {3, 300}) {  // the second more than the kernel that loads ahead takes
    const DecodeInputs whole =
        decode_inputs({.rows = rows, .capacity = 200, .window = 37, .norm = true}, dtype, device);
    for (const int64_t places : {37, 50}) {
      DecodeInputs ring = whole;
      const at::Tensor place = at::arange(places, whole.lengths.options());
      const at::Tensor last = whole.lengths.unsqueeze(1) - 1;
      const at::Tensor held = (last - (last - place).remainder(places)).clamp_min(0);  // (rows, places)
      const at::Tensor index = held.view({rows, 1, places, 1}).expand({rows, 2, places, 64});
      ring.keys = whole.keys.gather(2, index);
      ring.values = whole.values.gather(2, index);
      const at::Tensor got = ring.run(), want = whole.run();
      const std::string what = cat(dtype, " ", rows, " rows, ring of ", places);
      if (same_bits) {
        expect_same_bits(got, want, what);
      } else {
        EXPECT_LE(largest_difference(got, want), 8 * unit_roundoff(dtype) * want.abs().max().item<double>()) << what;
      }
    }
  }
}

// A part of a larger cache, as generation uses it for fewer rows, gives the same bits.
inline void expect_views_to_do(at::ScalarType dtype, at::Device device) {
  const DecodeCase c{.rows = 2, .capacity = 20};
  const DecodeInputs in = decode_inputs(c, dtype, device);
  const at::Tensor large_keys = at::zeros({4, c.kv_heads, 33, c.head_dim}, in.keys.options());
  const at::Tensor large_values = at::zeros_like(large_keys);
  DecodeInputs view = in;
  view.keys = large_keys.narrow(0, 1, 2).narrow(2, 0, 20).copy_(in.keys);
  view.values = large_values.narrow(0, 1, 2).narrow(2, 0, 20).copy_(in.values);
  const at::Tensor mixed = view.run();
  expect_same_bits(mixed, in.run(), "views");
  expect_same_bits(view.keys, in.keys, "views");
  EXPECT_EQ(large_keys[0].abs().max().item<double>() + large_keys[3].abs().max().item<double>(), 0);
}

}  // namespace hrm::ops::testing
