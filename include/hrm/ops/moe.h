#pragma once
// Mixture of experts: each token goes through the K of E feed-forward networks that a router picks (Shazeer et al.,
// arXiv 1701.06538; Fedus et al., "Switch Transformers", arXiv 2101.03961). Only the device knows how many tokens an
// expert gets. The host is not involved, so all of it can be captured in a CUDA graph.
//
// Everything here works on the current stream, waits for nothing, and is deterministic. T tokens, K picks each, E
// experts, D model width, F inner width of an expert. A pick t * K + k is the k-th choice of token t.
//
// Picks are sorted by expert. Each expert's rows begin at a multiple of kMoeTile, so that a tile of a matrix product
// belongs to one expert. R, the rows of such a tensor, is the maximum: moe_rows(T, K, E). Rows between an expert's last
// and the next one's first are zero. Rows after all experts are neither written nor read.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

constexpr int64_t kMoeTile = 128;

// The picks, and for each expert what may be missing to a whole tile; a multiple of kMoeTile.
int64_t moe_rows(int64_t tokens, int64_t top_k, int64_t experts);

enum class MoeScore { softmax, sigmoid };

// The router's logits (T, E) float32 (float64 for float64 x) = x @ weight^T. They are not rounded to x's dtype, because
// a choice depends on them. x (T, D), weight (E, D) of x's dtype, master the float32 leaf behind it, whose gradient is
// added in float32 to its buffer, as in ops::linear. In the backward pass the logits' gradients are rounded to x's
// dtype.
at::Tensor moe_router(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master);

// Noise of the router's input (Fedus et al., "Switch Transformers", section 2.4): x times numbers drawn uniformly from
// [1 - amount, 1 + amount), a function of only seed, step and place in x. x: any shape, float32, bfloat16, float16
// (float64 on the CPU); step: 0-dim int64 on x's device. Differentiable in x; keeps only the step's value.
at::Tensor moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed);

struct MoeGate {
  at::Tensor ids;      // (T, K) int32, best first; of equal ones the lower first
  at::Tensor weights;  // (T, K) float32
  at::Tensor scores;   // (T, E) float32
};

// The router's decisions. logits: (T, E) float32, E <= 1024, K <= min(E, 32). scores = softmax(logits), or sigmoid of
// each. The K experts with the highest scores + bias are picked; bias (E) float32 affects only the choice (balancing
// without a loss, Wang et al., arXiv 2408.15664). weights are the scores of the picks; `normalize`: divided by their
// sum. Differentiable in logits through weights and scores; the choice has no gradient. NaN scores are never picked
// before numbers. Throws c10::Error naming what does not fit.
MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize,
                 const std::optional<at::Tensor>& bias = {});

// With a capacity: ids in which the picks that find no room are -1. An expert keeps the `capacity` picks with the
// highest weights, of equal ones the earlier. Without gradient.
at::Tensor moe_drop(const at::Tensor& ids, const at::Tensor& weights, int64_t experts, int64_t capacity);

struct MoePlan {
  at::Tensor rows;          // (T, K) int32: where a pick stands; -1: dropped
  at::Tensor picks;         // (R) int32: which pick is there; -1: none
  at::Tensor tile_experts;  // (R / kMoeTile) int32: whose tile it is; 0 behind the last
  at::Tensor starts;        // (E + 1) int32: each expert's first row; the last: how many rows there are in all
  at::Tensor counts;        // (E) int32: picks that an expert has
};

// ids: (T, K) int32 in [-1, E); -1 is dropped. Picks of one expert are in their own order.
MoePlan moe_plan(const at::Tensor& ids, int64_t experts);

// out[t] = sum over k of weights[t, k] * expert(ids[t, k])(x[t]), expert e: x -> gelu(x @ up[e]^T) @ down[e]^T with
// GELU by the error function; dropped picks add nothing.
//
// x: (T, D), float32, bfloat16 or float16 (float64 on the CPU). weights: (T, K) float32 (float64 with x). up: (E, F,
// D), down: (E, D, F), of x's dtype, which the products read; up_master, down_master: the float32 leaves behind them,
// or the same tensors. Returns (T, D) in x's dtype, summed in float32. Differentiable in x and weights. The gradients
// of the experts' weights are added in float32 to grad_up and grad_down, as in ops::linear.
//
// On a Hopper GPU, 16-bit inputs with D and F multiples of 256 use our own products, which know the tiles
// (src/ops/moe/cuda/sm90). Other bfloat16 inputs use at::_grouped_mm, and the rest one product for each tile or expert.
// Throws c10::Error naming the shapes.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master);
// The same with given gradient buffers, of up's and down's shapes; the masters may then have other shapes. stale: two
// bools on the CPU, for grad_up and grad_down: true while a buffer holds old values. The backward pass then overwrites
// it, which moves half of the bytes, and sets it to false; see nn::HasStaleGradients.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master,
                       const std::optional<at::Tensor>& grad_up, const std::optional<at::Tensor>& grad_down,
                       const std::optional<at::Tensor>& stale = {});

// How the picks of several layers are spread. counts: for each layer (E + 1) float64, the picks of each expert before
// capacity, then the number of dropped ones. Writes loads (layers, 3) float64, contiguous: entropy of the loads /
// log(E), 1 = uniform; largest load / mean load; dropped / all picks. A layer without picks gives 0, 0, 0; with one
// expert the entropy is 1. On a GPU one kernel for up to 64 layers. Without gradient.
void moe_loads_(const at::Tensor& loads, at::TensorList counts);

// The load-balancing loss (Fedus et al., "Switch Transformers", arXiv 2101.03961): E / T^2 * sum over experts of (sum
// over tokens of scores) * wanted, 0-dim. scores (T, E) float32 (float64 for tests); kept (E) int32, the computed picks
// of each expert; wanted (E) int32, those before capacity dropped some; undefined: kept. Adds to totals (E + 1)
// float64, contiguous, which moe_loads_ reads: wanted, and sum(wanted) - sum(kept). Differentiable in scores. Sums in a
// fixed order. On a GPU two kernels.
at::Tensor moe_load_loss_(const at::Tensor& scores, const at::Tensor& kept, const at::Tensor& wanted,
                          const at::Tensor& totals);

// The formula, one expert after the other over all tokens: the oracle. Differentiable in everything by autograd; any
// device, no word from the host.
namespace reference {
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& up,
                       const at::Tensor& down);
MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize,
                 const std::optional<at::Tensor>& bias);
}  // namespace reference

}  // namespace hrm::ops
