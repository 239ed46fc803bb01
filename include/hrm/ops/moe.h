#pragma once
// Mixture of experts: a router picks K of E feed-forward networks for each token (Shazeer et al., arXiv 1701.06538;
// Fedus et al., "Switch Transformers", arXiv 2101.03961). Only the device knows how many tokens an expert gets. The
// host is not involved, so everything can be captured in a CUDA graph.
//
// Everything here runs on the current stream without synchronisation and is deterministic. Shapes: T tokens, K picks
// each, E experts, D model width, F inner width of an expert. Pick t * K + k is the k-th choice of token t.
//
// Picks are sorted by expert. Each expert's rows begin at a multiple of kMoeTile, so a tile of a matrix product belongs
// to one expert. Such a tensor has R = moe_rows(T, K, E) rows, the maximum. Rows between an expert's last one and the
// next expert's first are zero. Rows after all experts are neither written nor read.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace hrm::ops {

constexpr int64_t kMoeTile = 128;

// The picks plus the worst-case padding to whole tiles of each expert that can have one; a multiple of kMoeTile.
int64_t moe_rows(int64_t tokens, int64_t top_k, int64_t experts);

enum class MoeScore { softmax, sigmoid };

// The router's logits (T, E) float32 (float64 for float64 x) = x @ weight^T. They are not rounded to x's dtype, because
// the choice of experts depends on them. x: (T, D), weight: (E, D), of x's dtype. master: the float32 leaf behind
// weight, whose gradient is added in float32 to its buffer, as in ops::linear. In the backward pass, the logits'
// gradients are rounded to x's dtype.
at::Tensor moe_router(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master);

// Multiplicative noise on the router's input (Fedus et al., "Switch Transformers", section 2.4). Returns x times
// numbers drawn uniformly from [1 - amount, 1 + amount). The noise depends only on seed, step and place in x. x: any
// shape, float32, bfloat16, float16 (float64 on the CPU). step: 0-dim int64 on x's device. Differentiable in x; keeps
// only the step's value.
at::Tensor moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed);

struct MoeGate {
  at::Tensor ids;      // (T, K) int32, best first; of equal ones, the lower first
  at::Tensor weights;  // (T, K) float32
  at::Tensor scores;   // (T, E) float32
};

// The router's decisions. logits: (T, E) float32, E <= 1024, K <= min(E, 32). scores = softmax(logits), or sigmoid of
// each. Picks the K experts with the highest scores + bias. bias (E) float32 affects only the choice (loss-free
// balancing, Wang et al., arXiv 2408.15664). weights are the scores of the picks, divided by their sum with
// `normalize`. Differentiable in logits through weights and scores; the choice has no gradient. A NaN score is never
// picked before a number. Throws c10::Error that names what does not fit.
MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize,
                 const std::optional<at::Tensor>& bias = {});

// Applies a capacity: returns ids with -1 for the picks beyond it. An expert keeps the `capacity` picks with the
// highest weights, of equal ones the earlier. No gradient.
at::Tensor moe_drop(const at::Tensor& ids, const at::Tensor& weights, int64_t experts, int64_t capacity);

struct MoePlan {
  at::Tensor rows;          // (T, K) int32: the row of each pick; -1: dropped
  at::Tensor picks;         // (R) int32: the pick in each row; -1: none
  at::Tensor tile_experts;  // (R / kMoeTile) int32: the tile's expert; 0 after the last expert
  at::Tensor starts;        // (E + 1) int32: each expert's first row, then the total number of rows
  at::Tensor counts;        // (E) int32: the number of picks of each expert
};

// ids: (T, K) int32 in [-1, E); -1 is dropped. Picks of one expert keep their order.
MoePlan moe_plan(const at::Tensor& ids, int64_t experts);

// What an expert is. gelu: up (E, F, D), x -> gelu(x @ up[e]^T) @ down[e]^T with the exact (erf) GELU. swiglu: up is
// (E, 2F, D), x -> (silu(x @ gate^T) * (x @ up^T)) @ down[e]^T. Of an expert's 2F rows the first F are the gate and the
// others the up projection, as in ops::linear_swiglu.
enum class ExpertActivation { gelu, swiglu };

// out[t] = sum over k of weights[t, k] * expert(ids[t, k])(x[t]). Dropped picks add nothing.
//
//   x: (T, D), float32, bfloat16 or float16 (float64 on the CPU).
//   weights: (T, K) float32 (float64 with float64 x).
//   up: (E, F, D) or (E, 2F, D), down: (E, D, F), of x's dtype, which the products read.
//   up_master, down_master: the float32 leaves behind them, or the same tensors.
//   Returns (T, D) in x's dtype, summed in float32.
//
// Differentiable in x and weights. The gradients of the experts' weights are added in float32 to the masters' gradient
// buffers, as in ops::linear. Throws c10::Error that names the shapes.
//
// On a Hopper GPU, 16-bit inputs with D and F multiples of 256 use our own tile-aware products with the activation in
// the epilogue (src/ops/moe/cuda/sm90). Other GPUs and sizes multiply rows by at::_grouped_mm (bfloat16 on Hopper and
// Blackwell, D and F multiples of 8) or tile by tile, and each expert's own rows for the gradients of its weights
// (src/ops/moe/cuda/moe_gradient.cu). On the CPU each expert has its products.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master,
                       ExpertActivation activation = ExpertActivation::gelu);
// The same with explicit gradient buffers of up's and down's shapes; the masters may then have other shapes. stale: two
// bools on the CPU, for grad_up and grad_down; true while a buffer holds old values. The backward pass then overwrites
// the buffer, which moves half as many bytes, and sets the flag to false. See nn::HasStaleGradients.
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const MoePlan& plan, const at::Tensor& up,
                       const at::Tensor& up_master, const at::Tensor& down, const at::Tensor& down_master,
                       const std::optional<at::Tensor>& grad_up, const std::optional<at::Tensor>& grad_down,
                       const std::optional<at::Tensor>& stale = {},
                       ExpertActivation activation = ExpertActivation::gelu);

// Which of these ways moe_experts takes on a device, for logs: "tiles of a Hopper GPU", "portable kernels", ...
std::string moe_experts_way(at::Device device, at::ScalarType dtype, int64_t dim, int64_t inner);

// Load statistics of several layers. counts: for each layer (E + 1) float64, the picks of each expert before capacity,
// then the number of dropped picks. Writes loads, (layers, 3) float64, contiguous: entropy of the loads / log(E) (1 is
// uniform); largest load / mean load; dropped / all picks. A layer without picks gives 0, 0, 0. With one expert, the
// entropy is 1. On a GPU, one kernel for up to 64 layers. No gradient.
void moe_loads_(const at::Tensor& loads, at::TensorList counts);

// The load-balancing loss (Fedus et al., "Switch Transformers", arXiv 2101.03961): E / T^2 * sum over experts of (sum
// over tokens of scores) * wanted, 0-dim.
//
//   scores: (T, E) float32 (float64 for tests).
//   kept: (E) int32, the computed picks of each expert.
//   wanted: (E) int32, the picks before capacity dropped some. Undefined: kept.
//   totals: (E + 1) float64, contiguous. Adds wanted, and sum(wanted) - sum(kept), for moe_loads_.
//
// Differentiable in scores. Sums in a fixed order. On a GPU, two kernels.
at::Tensor moe_load_loss_(const at::Tensor& scores, const at::Tensor& kept, const at::Tensor& wanted,
                          const at::Tensor& totals);

// The formula, expert by expert over all tokens: the oracle. Autograd differentiates it in everything. Any device,
// without host synchronisation.
namespace reference {
at::Tensor moe_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& ids, const at::Tensor& up,
                       const at::Tensor& down, ExpertActivation activation = ExpertActivation::gelu);
MoeGate moe_gate(const at::Tensor& logits, int64_t top_k, MoeScore score, bool normalize,
                 const std::optional<at::Tensor>& bias);
}  // namespace reference

}  // namespace hrm::ops
