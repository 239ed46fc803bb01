#pragma once
// Checks of the mixture of experts that hold on every device.

#include <algorithm>
#include <vector>

#include "hrm/base/philox.h"
#include "hrm/ops/moe.h"
#include "ops/moe/moe_impl.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct MoeCase {
  at::Tensor x, logits, up, down, grad_out;  // logits float32 or float64; the rest of the compute dtype
  int64_t top_k = 1;
  ExpertActivation activation = ExpertActivation::gelu;
};

constexpr ExpertActivation kActivations[] = {ExpertActivation::gelu, ExpertActivation::swiglu};
inline const char* name_of(ExpertActivation activation) {
  return activation == ExpertActivation::swiglu ? "swiglu" : "gelu";
}

inline MoeCase make_moe(int64_t tokens, int64_t dim, int64_t width, int64_t experts, int64_t top_k,
                        at::ScalarType dtype, at::Device device, ExpertActivation activation = ExpertActivation::gelu) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  MoeCase c;
  c.x = normal({tokens, dim}, 1, dtype, device);
  c.logits = normal({tokens, experts}, 2, wide, device);
  const int64_t up_rows = activation == ExpertActivation::swiglu ? 2 * width : width;
  c.up = (normal({experts, up_rows, dim}, 3, wide, device) / std::sqrt(static_cast<double>(dim))).to(dtype);
  c.down = (normal({experts, dim, width}, 4, wide, device) / std::sqrt(static_cast<double>(width))).to(dtype);
  c.grad_out = normal({tokens, dim}, 5, dtype, device);
  c.top_k = top_k;
  c.activation = activation;
  return c;
}

// Sends every token to one expert, or none to the first.
inline void steer(MoeCase& c, int64_t favourite) {
  c.logits.select(1, favourite).add_(100);
}
inline void empty_expert(MoeCase& c, int64_t expert) {
  c.logits.select(1, expert).sub_(100);
}

struct MoeResult {
  at::Tensor out, grad_x, grad_logits, grad_up, grad_down;
};

// Ours: gradients of the weights are added to buffers that hold 0.5.
inline MoeResult run_moe(const MoeCase& c, bool normalize = false) {
  const at::ScalarType wide = c.logits.scalar_type();
  const at::Tensor x = c.x.detach().clone().requires_grad_(), logits = c.logits.detach().clone().requires_grad_();
  at::Tensor up = c.up.to(wide).detach().clone().requires_grad_(),
             down = c.down.to(wide).detach().clone().requires_grad_();
  up.mutable_grad() = at::full_like(up.detach(), 0.5);
  down.mutable_grad() = at::full_like(down.detach(), 0.5);
  const bool same = c.x.scalar_type() == wide;
  const MoeGate gate = moe_gate(logits, c.top_k, MoeScore::softmax, normalize);
  const MoePlan plan = moe_plan(gate.ids, c.up.size(0));
  const at::Tensor out =
      moe_experts(x, gate.weights, plan, same ? up : c.up, up, same ? down : c.down, down, c.activation);
  const auto grads = torch::autograd::grad({out}, {x, logits}, {c.grad_out});
  return {out.detach(), grads[0], grads[1], up.grad(), down.grad()};
}

// The formula in any dtype, by ATen's own differentiation. The choice is that of the case's own logits.
inline MoeResult run_plain_moe(const MoeCase& c, at::ScalarType dtype, bool normalize = false) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor x = c.x.to(dtype).detach().requires_grad_(), logits = c.logits.to(wide).detach().requires_grad_(),
                   up = c.up.to(dtype).detach().requires_grad_(), down = c.down.to(dtype).detach().requires_grad_();
  const MoeGate gate = reference::moe_gate(logits, c.top_k, MoeScore::softmax, normalize, {});
  const at::Tensor out = reference::moe_experts(x, gate.weights, gate.ids, up, down, c.activation);
  const auto grads = torch::autograd::grad({out}, {x, logits, up, down}, {c.grad_out.to(dtype)});
  return {out.detach(), grads[0], grads[1], grads[2] + 0.5, grads[3] + 0.5};
}

// The largest sum of magnitudes in a pick's product of its output with the gradient, which the gradients of the gate
// and the logits are made of. Its terms may cancel.
inline double largest_gate_terms(const MoeCase& c) {
  const at::Tensor ids = reference::moe_gate(c.logits, c.top_k, MoeScore::softmax, false, {}).ids;
  const at::Tensor one = at::ones({c.x.size(0), 1}, c.x.options().dtype(at::kDouble));
  double most = 0;
  for (int64_t k = 0; k < c.top_k; ++k) {
    const at::Tensor out = reference::moe_experts(c.x.to(at::kDouble), one, ids.narrow(1, k, 1), c.up.to(at::kDouble),
                                                  c.down.to(at::kDouble), c.activation);
    most = std::max(most, out.mul(c.grad_out).abs().sum(1).max().item<double>());
  }
  return most;
}

inline void expect_good_moe(const MoeCase& c, const std::string& what, bool normalize = false) {
  const MoeResult ours = run_moe(c, normalize), exact = run_plain_moe(c, at::kDouble, normalize),
                  plain = run_plain_moe(c, c.x.scalar_type(), normalize);
  // Float32 sums of as many terms as stand behind an element.
  const auto terms = [](const at::Tensor& t) { return t.numel() == 0 ? 0 : 8 * t.abs().max().item<double>(); };
  expect_as_good(ours.out, plain.out, exact.out, what + ", out", terms(exact.out));
  expect_as_good(ours.grad_x, plain.grad_x, exact.grad_x, what + ", gradient of x", terms(exact.grad_x));
  expect_as_good(ours.grad_logits, plain.grad_logits, exact.grad_logits, what + ", gradient of the logits",
                 c.x.size(0) == 0 ? 0 : largest_gate_terms(c));
  const auto wide = [&](const at::Tensor& t) { return t.to(ours.grad_up.scalar_type()); };
  expect_as_good(ours.grad_up, wide(plain.grad_up), exact.grad_up, what + ", gradient of up", terms(exact.grad_up));
  expect_as_good(ours.grad_down, wide(plain.grad_down), exact.grad_down, what + ", gradient of down",
                 terms(exact.grad_down));
}

// Picks that are dropped add nothing and get no gradient, whatever the activation. Leaves no expert without picks.
inline void expect_dropped_add_nothing(const MoeCase& c, int64_t capacity) {
  const int64_t experts = c.up.size(0);
  const MoeGate gate = moe_gate(c.logits, c.top_k, MoeScore::softmax, false);
  const at::Tensor kept = moe_drop(gate.ids, gate.weights, experts, capacity);
  EXPECT_GT(kept.lt(0).sum().item<int64_t>(), 0);
  const at::Tensor weights = gate.weights.clone().requires_grad_();
  const at::Tensor out = moe_experts(c.x, weights, moe_plan(kept, experts), c.up, c.up, c.down, c.down, c.activation);
  const at::Tensor want = reference::moe_experts(c.x, gate.weights, kept, c.up, c.down, c.activation);
  EXPECT_LE(largest_difference(out, want), 1e-5) << name_of(c.activation);
  const at::Tensor grad = torch::autograd::grad({out}, {weights}, {c.grad_out})[0];
  EXPECT_TRUE(at::equal(grad.ne(0), kept.ge(0))) << name_of(c.activation);
}

// Without gradients nothing is kept, and the result is the same to the bit.
inline void expect_same_without_gradients(const MoeCase& c) {
  const MoeResult with = run_moe(c);
  const at::NoGradGuard no_grad;
  const MoeGate gate = moe_gate(c.logits, c.top_k, MoeScore::softmax, false);
  const at::Tensor out =
      moe_experts(c.x, gate.weights, moe_plan(gate.ids, c.up.size(0)), c.up, c.up, c.down, c.down, c.activation);
  expect_same_bits(out, with.out, cat("without gradients, ", name_of(c.activation)));
}

// What moe.h says of a plan, of any ids.
inline void expect_good_plan(const at::Tensor& ids, int64_t experts) {
  const MoePlan plan = moe_plan(ids, experts);
  const auto list = [](const at::Tensor& t) {
    const at::Tensor flat = t.to(at::kCPU, at::kInt).contiguous().view(-1);
    return std::vector<int>(flat.const_data_ptr<int>(), flat.const_data_ptr<int>() + flat.numel());
  };
  const std::vector<int> id = list(ids), rows = list(plan.rows), picks = list(plan.picks),
                         owners = list(plan.tile_experts), starts = list(plan.starts), counts = list(plan.counts);
  ASSERT_EQ(static_cast<int64_t>(picks.size()), moe_rows(ids.size(0), ids.size(1), experts));
  std::vector<int> want_counts(static_cast<size_t>(experts)), want_picks(picks.size(), -1);
  for (const int e : id) {
    if (e >= 0) ++want_counts[static_cast<size_t>(e)];
  }
  EXPECT_EQ(counts, want_counts);
  int start = 0;
  for (int64_t e = 0; e < experts; ++e) {
    EXPECT_EQ(starts[static_cast<size_t>(e)], start) << e;
    int row = start;
    for (size_t pick = 0; pick < id.size(); ++pick) {
      if (id[pick] != e) continue;
      EXPECT_EQ(rows[pick], row) << "pick " << pick;
      want_picks[static_cast<size_t>(row++)] = static_cast<int>(pick);
    }
    const int padded = (row - start + 127) / 128 * 128;
    for (int tile = start / 128; tile < (start + padded) / 128; ++tile) EXPECT_EQ(owners[static_cast<size_t>(tile)], e);
    start += padded;
  }
  EXPECT_EQ(starts.back(), start);
  for (size_t tile = static_cast<size_t>(start) / 128; tile < owners.size(); ++tile) EXPECT_EQ(owners[tile], 0);
  EXPECT_EQ(picks, want_picks);
  for (size_t pick = 0; pick < id.size(); ++pick) {
    if (id[pick] < 0) {
      EXPECT_EQ(rows[pick], -1) << "pick " << pick;
    }
  }
}

inline void expect_good_gates(at::Device device) {
  for (const int64_t experts : {1, 4, 31, 64, 200, 1024}) {
    for (const bool sigmoid : {false, true}) {
      for (const bool normalize : {false, true}) {
        const int64_t top_k = std::min<int64_t>(experts, experts % 2 == 0 ? 4 : 3);
        const std::string what = cat(experts, " experts, sigmoid ", sigmoid, ", normalize ", normalize);
        const MoeScore score = sigmoid ? MoeScore::sigmoid : MoeScore::softmax;
        const at::Tensor logits = normal({37, experts}, 1, at::kFloat, device).requires_grad_();
        const at::Tensor bias = 0.3 * normal({experts}, 2, at::kFloat, device);
        const at::Tensor grad_weights = normal({37, top_k}, 3, at::kFloat, device),
                         grad_scores = normal({37, experts}, 4, at::kFloat, device);
        const MoeGate ours = moe_gate(logits, top_k, score, normalize, bias);
        const MoeGate want = reference::moe_gate(logits, top_k, score, normalize, bias);
        expect_same_bits(ours.ids, want.ids, what);
        EXPECT_LE(largest_difference(ours.weights, want.weights), 1e-6) << what;
        EXPECT_LE(largest_difference(ours.scores, want.scores), 1e-6) << what;
        const auto grad = [&](const MoeGate& gate) {
          return torch::autograd::grad({gate.weights, gate.scores}, {logits}, {grad_weights, grad_scores})[0];
        };
        EXPECT_LE(largest_difference(grad(ours), grad(want)), 5e-6) << what;
      }
    }
  }
  // Of equal scores the lower; a NaN last.
  const at::Tensor logits = at::zeros({1, 5}, at::device(device));
  EXPECT_TRUE(
      at::equal(moe_gate(logits, 3, MoeScore::sigmoid, false).ids.to(at::kCPU), at::arange(3, at::kInt).view({1, 3})));
  logits[0][0] = NAN;
  logits[0][2] = 1;
  const at::Tensor want = at::tensor({2, 1, 3}, at::kInt).view({1, 3});
  EXPECT_TRUE(at::equal(moe_gate(logits, 3, MoeScore::sigmoid, false).ids.to(at::kCPU), want));
}

// The values of a formula written again, whatever the device; and the gradient, which has the same factors.
inline void expect_good_jitter(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = normal({7, 13}, 3, dtype, device).requires_grad_();
    const at::Tensor step = at::full({}, 41, at::device(device).dtype(at::kLong));
    const at::Tensor y = moe_jitter(x, step, 0.25, 9);
    std::vector<float> want;
    CounterRng rng(9, Stream::jitter, 41);
    for (int i = 0; i < 7 * 13; ++i) want.push_back(1 + 0.25f * (2 * rng.uniform() - 1));
    const at::Tensor noise = at::tensor(want).view({7, 13}).to(device);
    expect_same_bits(y, (x.detach().to(at::kFloat) * noise).to(dtype), cat("jitter of ", dtype));
    const at::Tensor grad = normal({7, 13}, 4, dtype, device);
    expect_same_bits(torch::autograd::grad({y}, {x}, {grad})[0], (grad.to(at::kFloat) * noise).to(dtype),
                     cat("gradient of the jitter of ", dtype));
    EXPECT_FALSE(at::equal(y, moe_jitter(x, step + 1, 0.25, 9)));
    EXPECT_FALSE(at::equal(y, moe_jitter(x, step, 0.25, 10)));
    EXPECT_TRUE(at::equal(x, moe_jitter(x, step, 0, 9)));
  }
}

// Counts of `layers` layers, the first without any pick, the second with all of them at one expert.
inline std::vector<at::Tensor> make_loads(int64_t layers, int64_t experts, uint64_t seed, at::Device device) {
  std::vector<at::Tensor> counts;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor drawn =
        normal({experts + 1}, seed + static_cast<uint64_t>(layer), at::kDouble).mul(300).abs().floor();
    if (layer < 2) drawn.zero_();
    if (layer == 1) drawn[experts - 1] = 77;
    counts.push_back(drawn.to(device));
  }
  return counts;
}

inline at::Tensor loads_of(at::TensorList counts) {
  const at::Tensor loads = at::full({static_cast<int64_t>(counts.size()), 3}, -1, counts[0].options());
  moe_loads_(loads, counts);
  return loads;
}

// By a loop over the numbers on the host.
inline void expect_good_loads(at::Device device) {
  for (const int64_t experts : {1, 2, 5, 64, 1000}) {
    for (const int64_t layers : {1, 3, 70}) {  // 70: more than one launch takes
      const auto counts = make_loads(layers, experts, 5, device);
      const at::Tensor loads = loads_of(counts).cpu(), all = at::stack(counts).cpu();
      for (int64_t layer = 0; layer < layers; ++layer) {
        const auto* count = all.const_data_ptr<double>() + layer * (experts + 1);
        double sum = 0, largest = 0, entropy = 0;
        for (int64_t e = 0; e < experts; ++e) {
          sum += count[e];
          largest = std::max(largest, count[e]);
        }
        for (int64_t e = 0; e < experts; ++e) {
          if (count[e] > 0) entropy -= count[e] / sum * std::log(count[e] / sum);
        }
        const double picks = std::max(sum, 1.0), most = std::log(static_cast<double>(experts));
        const std::string what = cat(experts, " experts, layer ", layer, " of ", layers);
        EXPECT_NEAR(loads[layer][0].item<double>(), experts > 1 ? entropy / most : 1, 1e-13) << what;
        EXPECT_NEAR(loads[layer][1].item<double>(), largest / picks * static_cast<double>(experts), 1e-12) << what;
        EXPECT_NEAR(loads[layer][2].item<double>(), count[experts] / picks, 1e-13) << what;
      }
    }
  }
}

// Loss, totals and gradient against the formula, differentiated by ATen itself.
inline void expect_good_load_loss(at::Device device) {
  for (const int64_t experts : {1, 3, 8, 64, 300, 1000}) {
    for (const int64_t tokens : {1, 127, 129, 3000}) {
      const std::string what = cat(experts, " experts, ", tokens, " tokens");
      const at::Tensor scores = at::softmax(normal({tokens, experts}, 3, at::kFloat, device), -1).requires_grad_();
      const auto counts = [&](uint64_t seed) {
        return normal({experts}, seed, at::kDouble).mul(50).abs().to(at::kInt).to(device);
      };
      const at::Tensor wanted = counts(4) + counts(5), kept = counts(4);
      for (const bool drops : {false, true}) {
        const at::Tensor totals = at::full({experts + 1}, 3, kept.options().dtype(at::kDouble));
        const at::Tensor loss = moe_load_loss_(scores, drops ? kept : wanted, drops ? wanted : at::Tensor(), totals);
        const double scale = static_cast<double>(experts) / static_cast<double>(tokens * tokens);
        const at::Tensor wide = scores.detach().to(at::kDouble).requires_grad_(),
                         want = (wide.sum(0) * wanted.to(at::kDouble)).sum() * scale;
        EXPECT_NEAR(loss.item<double>(), want.item<double>(), 1e-5 * std::abs(want.item<double>())) << what;
        const at::Tensor grad = torch::autograd::grad({loss * 3}, {scores})[0],
                         want_grad = torch::autograd::grad({want * 3}, {wide})[0];
        EXPECT_LE(largest_difference(grad, want_grad), 1e-6 * want_grad.abs().max().item<double>()) << what;
        const at::Tensor want_totals =
            at::cat({wanted, (drops ? wanted.sum() - kept.sum() : 0 * kept.sum()).view({1})}).to(at::kDouble) + 3;
        expect_same_bits(totals, want_totals, what);
      }
    }
  }
}

// Stale buffers are overwritten once, by the bits that adding to zeros gives, and added to after that; also those of an
// expert without tokens.
inline void expect_stale_overwritten(at::Device device, at::ScalarType dtype, int64_t dim,
                                     ExpertActivation activation = ExpertActivation::gelu) {
  MoeCase c = make_moe(300, dim, 2 * dim, 5, 2, dtype, device, activation);
  empty_expert(c, 3);
  const MoeGate gate = moe_gate(c.logits, c.top_k, MoeScore::softmax, false);
  const auto run = [&](double start, const at::Tensor& stale, int passes) {
    const at::Tensor up = c.up.to(at::kFloat).requires_grad_(), down = c.down.to(at::kFloat).requires_grad_(),
                     x = c.x.detach().clone().requires_grad_();
    const at::Tensor grad_up = at::full_like(up.detach(), start), grad_down = at::full_like(down.detach(), start);
    const bool same = dtype == at::kFloat;
    for (int pass = 0; pass < passes; ++pass) {
      const at::Tensor out =
          moe_experts(x, gate.weights, moe_plan(gate.ids, 5), same ? up : c.up, up, same ? down : c.down, down, grad_up,
                      grad_down, stale.defined() ? std::optional(stale) : std::nullopt, activation);
      torch::autograd::grad({out}, {x}, {c.grad_out});
    }
    return std::vector<at::Tensor>{grad_up, grad_down};
  };
  for (const int passes : {1, 2}) {
    const at::Tensor stale = at::ones({2}, at::kBool);
    const auto found = run(NAN, stale, passes), want = run(0, {}, passes);
    EXPECT_FALSE(stale.any().item<bool>());
    for (size_t i = 0; i < found.size(); ++i) {
      expect_same_bits(found[i], want[i],
                       cat(dtype, " ", dim, " ", name_of(activation), ", passes ", passes, ", gradient ", i));
    }
    EXPECT_EQ(found[0][3].abs().max().item<float>(), 0);
  }
}

}  // namespace hrm::ops::testing
