#include "commands/bench/ops_cases.h"

#include <ATen/ATen.h>

#include "commands/bench/ops_inputs.h"
#include "hrm/nn/rotary.h"
#include "hrm/nn/swiglu.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/nf4.h"

namespace hrm::commands {
namespace {

using c10::IValue;
using Shape = BenchShape;
constexpr double kEps = 1e-5;

double attention_flops(const Shape& s) {
  return 2 * product_flops(s.batch * s.length(), s.length(), s.width);
}

// Norm.
BenchCall rms_norm_residual(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), kEps}};
}

BenchCall rms_norm_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), random.activations(sizes), random.floats({s.batch, s.length()}).abs(), IValue()}};
}

// Dropout.
BenchCall dropout(const Shape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor step = at::zeros({}, at::dtype(at::kLong).device(device));
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), step, 0.1, int64_t{7}}};
}

BenchCall dropout_add(const Shape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = dropout(s, device, dtype);
  call.arguments.insert(call.arguments.begin(), at::zeros_like(call.arguments[0].toTensor()));
  return call;
}

// NF4; of the gate_up projection's weight, the largest of a block.
BenchCall nf4_quantize(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.weight(2 * s.inner, s.width), true}};
}

BenchCall nf4_dequantize(const Shape& s, at::Device device, at::ScalarType dtype) {
  const at::Tensor weight = Random{device, dtype}.weight(2 * s.inner, s.width);
  const ops::Nf4Tensor nf4 = ops::nf4_quantize(weight);
  return {{at::zeros_like(weight), nf4.codes, nf4.absmax, nf4.scales, nf4.offset}};
}

// SwiGLU.
BenchCall swiglu(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.activations({s.batch, s.length(), 2 * s.inner})}};
}

BenchCall swiglu_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.inner}), random.activations({s.batch, s.length(), 2 * s.inner})}};
}

// Attention.
BenchCall attention(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin}, attention_flops(s)};
}

// With the projection to queries, keys and values before it.
BenchCall attention_projected(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const nn::RotaryTable table = nn::make_rotary_table(s.length(), s.width / s.heads, 10000, device);
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(3 * s.width, s.width), s.heads, table.cos,
           table.sin},
          attention_flops(s) + product_flops(s.rows(), s.width, 3 * s.width)};
}

// A training step has these two ops for short sequences alone; SDPA brings its own backward pass for longer ones.
constexpr int64_t kLongestOwnBackward = 128;

BenchCall attention_forward(const Shape& s, at::Device device, at::ScalarType dtype) {
  return s.length() > kLongestOwnBackward ? nothing() : attention(s, device, dtype);
}

BenchCall attention_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp || s.length() > kLongestOwnBackward) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const auto forward = call_op("hrm::attention_forward", {in.qkv, s.heads, in.cos, in.sin});
  const at::Tensor grad = Random{device, dtype}.activations({s.batch, s.length(), s.width});
  // Five products of the forward's size pair: scores again, and the four gradients.
  return {{grad, in.qkv, forward[0], forward[1], s.heads, in.cos, in.sin}, 2.5 * attention_flops(s)};
}

BenchCall rotate_qkv(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin}};
}

BenchCall rotate_qkv_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const AttentionInputs in = attention_inputs(s, device, dtype);
  const std::vector<int64_t> sizes{s.batch, s.heads, s.length(), s.width / s.heads};
  return {{random.activations(sizes), random.activations(sizes), random.activations(sizes), in.cos, in.sin}};
}

// Matrix products; the gate_up projection, the largest of a block.
BenchCall linear(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(2 * s.inner, s.width);
  // Without a gradient the master is not read, so the copy may stand for it.
  return {{random.activations({s.batch, s.length(), s.width}), weight, weight, IValue(), IValue(), IValue()},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// The projection behind attention.
BenchCall linear_add(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor weight = random.weight(s.width, s.width);
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  return {{random.activations(sizes), weight, weight, random.activations(sizes), IValue()},
          product_flops(s.rows(), s.width, s.width)};
}

BenchCall linear_accumulate(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.floats({2 * s.inner, s.width}), random.activations({s.rows(), 2 * s.inner}),
           random.activations({s.rows(), s.width})},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// The gradient of what the attention's output projection reads.
BenchCall linear_grad_x(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(s.width, s.width)},
          product_flops(s.rows(), s.width, s.width)};
}

// That of the gate_up projection's input, added to what goes past the MLP.
BenchCall linear_grad_x_add(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.activations({s.batch, s.length(), 2 * s.inner}),
           random.weight(2 * s.inner, s.width)},
          product_flops(s.rows(), 2 * s.inner, s.width)};
}

BenchCall linear_swiglu(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(2 * s.inner, s.width)},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

// One token of each row. In place of the recipes with long rows two narrow products of a language model of width 1,024,
// 28 layers, for 12 rows: behind attention, which is 2,048 wide, and behind its SwiGLU of 3,072.
BenchCall decode_linear(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  if (s.length() > 512) {
    constexpr int64_t kRows = 12, kWidth = 1024;
    const int64_t inner = s.layers > 2 ? 2048 : 3072;
    return {{random.activations({kRows, inner}), random.weight(kWidth, inner), IValue(), kEps,
             random.activations({kRows, kWidth}), /*gated=*/false, IValue(), IValue()},
            product_flops(kRows, inner, kWidth)};
  }
  return {{random.activations({s.batch, s.width}), random.weight(3 * s.width, s.width), random.floats({s.width}), kEps,
           IValue(), /*gated=*/false, IValue(), IValue()},
          product_flops(s.batch, s.width, 3 * s.width)};
}

// Of the same model, for 48 rows, the product behind its SwiGLU.
BenchCall decode_linear_ahead(const Shape&, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  constexpr int64_t kRows = 48, kInner = 3072, kWidth = 1024;
  return {{random.activations({kRows, kInner}), random.weight(kWidth, kInner), random.activations({kRows, kWidth}),
           random.floats({kWidth})},
          product_flops(kRows, kInner, kWidth)};
}

BenchCall linear_swiglu_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(s.width, s.inner),
           random.activations({s.batch, s.length(), 2 * s.inner})},
          product_flops(s.rows(), s.width, s.inner)};
}

// The down projection, the longer one of the two that end in a norm.
BenchCall linear_rms_norm(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.inner}), random.weight(s.width, s.inner),
           random.activations({s.batch, s.length(), s.width}), kEps},
          product_flops(s.rows(), s.inner, s.width)};
}

BenchCall linear_rms_norm_add(const Shape& s, at::Device device, at::ScalarType dtype) {
  BenchCall call = linear_rms_norm(s, device, dtype);
  call.arguments.emplace_back(Random{device, dtype}.activations({s.batch, s.length(), s.width}));
  return call;
}

// What the recursions without gradient run in 8 bits.
at::Tensor fp8_slot(at::Device device) {
  return ops::make_fp8_slots(1, device).select(0, 0);
}

at::Tensor in_fp8(const at::Tensor& values) {
  return ops::quantize_fp8(values, fp8_slot(values.device()));
}

BenchCall quantize_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {{Random{device, dtype}.activations({s.batch, s.length(), s.width}), fp8_slot(device)}};
}

BenchCall add_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const std::vector<int64_t> sizes{s.batch, s.length(), s.width};
  if (s.mixes_by_mlp) return nothing();
  return {{random.activations(sizes), random.activations(sizes), fp8_slot(device)}};
}

// The qkv projection.
BenchCall linear_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  return {{in_fp8(random.activations({s.batch, s.length(), s.width})), in_fp8(random.weight(3 * s.width, s.width)),
           fp8_slot(device), fp8_slot(device), dtype},
          product_flops(s.rows(), s.width, 3 * s.width)};
}

BenchCall linear_swiglu_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{in_fp8(random.activations({s.batch, s.length(), s.width})), in_fp8(random.weight(2 * s.inner, s.width)),
           fp8_slot(device), fp8_slot(device), fp8_slot(device), dtype},
          product_flops(s.rows(), s.width, 2 * s.inner)};
}

BenchCall linear_rms_norm_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {
      {in_fp8(random.activations({s.batch, s.length(), s.inner})), in_fp8(random.weight(s.width, s.inner)),
       fp8_slot(device), fp8_slot(device), random.activations({s.batch, s.length(), s.width}), kEps, fp8_slot(device)},
      product_flops(s.rows(), s.inner, s.width)};
}

BenchCall attention_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (s.mixes_by_mlp) return nothing();
  const AttentionInputs in = attention_inputs(s, device, dtype);
  return {{in.qkv, s.heads, in.cos, in.sin, fp8_slot(device)}, attention_flops(s)};
}

// The MLP over positions.
int64_t mix_inner(const Shape& s) {
  return nn::swiglu_width(s.length(), 4);
}

double mix_flops(const Shape& s) {
  return 3 * product_flops(s.batch * s.width, s.length(), mix_inner(s));
}

BenchCall mlp_mix(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (!s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.width}), random.weight(2 * mix_inner(s), s.length()),
           random.weight(s.length(), mix_inner(s)), kEps},
          mix_flops(s)};
}

BenchCall mlp_mix_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  if (!s.mixes_by_mlp) return nothing();
  const Random random{device, dtype};
  const at::Tensor h = random.activations({s.batch, s.length(), s.width});
  const at::Tensor up = random.weight(2 * mix_inner(s), s.length()), down = random.weight(s.length(), mix_inner(s));
  const auto forward = call_op("hrm::mlp_mix_forward", {h, up, down, kEps});
  // The gate's product again, and two products for each of the three weight matrices' parts.
  return {{random.activations(h.sizes()), h, forward[0], forward[1], up, down,
           at::zeros(up.sizes(), at::device(device).dtype(at::kFloat)),
           at::zeros(down.sizes(), at::device(device).dtype(at::kFloat))},
          mix_flops(s) * (2 + 2.0 / 3)};
}

// Loss. kind 0: stablemax; precision 0: f64.
at::Tensor labels(const Shape& s, at::Device device) {
  return at::randint(1, s.vocab, {s.batch, s.tokens}, at::device(device).dtype(at::kInt));
}

BenchCall token_loss(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.vocab}), labels(s, device), s.prefix, int64_t{0}, int64_t{0}}};
}

BenchCall token_loss_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{at::ones({s.batch}, at::device(device).dtype(at::kDouble)),
           random.activations({s.batch, s.length(), s.vocab}), labels(s, device), s.prefix, int64_t{0}, int64_t{0}}};
}

// What the loss of adaptive computation time takes: one number per slot, and the two Q values.
struct SlotInputs {
  at::Tensor loss, labelled, right, q, target, steps, halted;
};
SlotInputs slot_inputs(const Shape& s, at::Device device) {
  const Random random{device, at::kFloat};
  const auto ints = at::device(device).dtype(at::kInt);
  return {at::rand({s.batch}, at::device(device).dtype(at::kDouble)),
          at::full({s.batch}, s.tokens, ints),
          at::randint(0, s.tokens, {s.batch}, ints),
          random.floats({s.batch, 2}),
          at::rand({s.batch}, at::device(device)),
          at::randint(0, 16, {s.batch}, ints),
          at::randint(0, 2, {s.batch}, ints).to(at::kBool)};
}

BenchCall act_q_target(const Shape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{in.q, in.steps, int64_t{16}}};
}

BenchCall act_loss(const Shape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{in.loss, in.labelled, in.right, in.q, in.target, in.steps, in.halted}};
}

BenchCall act_loss_backward(const Shape& s, at::Device device, at::ScalarType) {
  const SlotInputs in = slot_inputs(s, device);
  return {{at::ones({}, in.loss.options()), in.loss, in.labelled, in.right, in.q, in.target}};
}

// ACT state; one slot in sixteen starts afresh, as when all halt after sixteen segments.
BenchCall act_begin(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const auto ints = at::device(device).dtype(at::kInt);
  const std::vector<int64_t> z{s.batch, s.length(), s.width};
  const at::Tensor halted = at::arange(s.batch, at::device(device)).remainder(16).eq(0);
  return {{random.activations(z), random.activations(z), at::zeros({s.batch}, ints), labels(s, device),
           labels(s, device), at::zeros({s.batch}, ints), halted, random.floats({s.width}), random.floats({s.width}),
           labels(s, device), labels(s, device), at::zeros({s.batch}, ints), IValue()}};
}

BenchCall act_end(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const SlotInputs in = slot_inputs(s, device);
  const std::vector<int64_t> z{s.batch, s.length(), s.width};
  return {{random.activations(z), random.activations(z), in.steps, in.halted, random.activations(z),
           random.activations(z), in.q, at::rand({s.batch}, at::device(device)), at::full_like(in.steps, 2),
           int64_t{16}, 0.1, true, false}};
}

// Rows of 1,000 puzzles; kind 1: Sudoku's symmetries, 2: those of a square.
BenchCall augment_rows(const Shape& s, at::Device device, at::ScalarType) {
  const auto ints = at::device(device).dtype(at::kInt);
  const at::Tensor table = at::randint(1, s.vocab, {1000, s.tokens}, ints);
  at::Tensor picks = at::randint(0, 1000, {s.batch, 3}, at::device(device).dtype(at::kLong));
  const bool sudoku = s.tokens == 81;
  return {{at::zeros({s.batch, s.tokens}, ints), at::zeros({s.batch, s.tokens}, ints), at::zeros({s.batch}, ints),
           table, table.clone(), picks, int64_t{sudoku ? 1 : 2}, int64_t{0}, int64_t{sudoku ? 3 : 0},
           int64_t{sudoku ? 3 : 0}}};
}

// The input of the recursion.
BenchCall embed(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {
      {labels(s, device), random.floats({s.vocab, s.width}), random.floats({s.batch, s.width}), s.prefix, 22.6, dtype}};
}

BenchCall embed_backward(const Shape& s, at::Device device, at::ScalarType dtype) {
  return {
      {Random{device, dtype}.activations({s.batch, s.length(), s.width}), labels(s, device), s.vocab, s.width, 22.6}};
}

// Optimizer.
std::vector<std::vector<int64_t>> weight_sizes(const Shape& s) {
  std::vector<std::vector<int64_t>> sizes{{s.vocab, s.width}, {s.vocab, s.width}};
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    if (s.mixes_by_mlp) {
      const int64_t inner = mix_inner(s);
      sizes.push_back({2 * inner, s.length()});
      sizes.push_back({s.length(), inner});
    } else {
      sizes.push_back({3 * s.width, s.width});
      sizes.push_back({s.width, s.width});
    }
    sizes.push_back({2 * s.inner, s.width});
    sizes.push_back({s.width, s.inner});
  }
  return sizes;
}

BenchCall adam(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> params, grads, m, v, averages, copies;
  std::vector<double> decay;
  for (const auto& sizes : weight_sizes(s)) {
    params.push_back(random.floats(sizes));
    grads.push_back(random.floats(sizes));
    m.push_back(random.floats(sizes));
    v.push_back(random.floats(sizes).square_());
    averages.push_back(random.floats(sizes));
    copies.push_back(dtype == at::kFloat ? params.back() : params.back().to(dtype));
    decay.push_back(0.1);
  }
  // rule 0: atan2.
  return {{int64_t{0}, params, grads, m, v, averages, copies, decay, std::vector<double>(), random.scalar(1),
           random.scalar(1e-4), random.scalar(1), random.scalar(0),
           at::zeros({}, at::device(device).dtype(at::kDouble)), 0.9, 0.95, 1e-8, 0.999}};
}

BenchCall quantize_weights_fp8(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  std::vector<at::Tensor> from, to;
  for (const auto& sizes : weight_sizes(s)) {
    from.push_back(random.weight(sizes[0], sizes[1]));
    to.push_back(at::empty(sizes, at::device(device).dtype(at::kFloat8_e4m3fn)));
  }
  return {{from, to, ops::make_fp8_slots(static_cast<int64_t>(from.size()), device)}};
}

BenchCall fp8_update_scales(const Shape& s, at::Device device, at::ScalarType) {
  const int64_t slots = (s.mixes_by_mlp ? 4 : 8) * s.layers;
  return {{ops::make_fp8_slots(slots, device), at::zeros({slots, 16}, at::device(device).dtype(at::kFloat)), 0.0}};
}

BenchCall grad_norm(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  int64_t count = 0;
  for (const auto& sizes : weight_sizes(s)) count += sizes[0] * sizes[1];
  return {{random.floats({count}), 1.0, 2.0, IValue(), random.scalar(0),
           at::zeros({3}, at::device(device).dtype(at::kDouble))}};
}

BenchCall sparse_sign_sgd(const Shape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const at::Tensor ids = at::zeros({s.batch}, at::device(device).dtype(at::kInt));
  return {{random.floats({1, s.width}), ids, random.floats({s.batch, s.width}), random.scalar(1e-4), 0.1,
           random.scalar(0)}};
}

}  // namespace

std::vector<BenchShape> bench_shapes(bool on_cpu) {
  std::vector<BenchShape> shapes{
      {"HRM 64", 64, 1, 81, 512, 8, 1536, 11, 8, false},
      {"HRM 384", 384, 1, 81, 512, 8, 1536, 11, 8, false},
      {"HRM 768", 768, 1, 81, 512, 8, 1536, 11, 8, false},
      {"TRM 768", 768, 16, 81, 512, 8, 1536, 11, 2, false},
      {"TRM-MLP 768", 768, 16, 81, 512, 8, 1536, 11, 2, true},
      {"HRM maze 128", 128, 1, 900, 512, 8, 1536, 6, 8, false},
      {"TRM maze 128", 128, 16, 900, 512, 8, 1536, 6, 2, false},
  };
  if (!on_cpu) return shapes;
  std::vector<BenchShape> small;
  for (BenchShape shape : {shapes[1], shapes[3], shapes[4]}) {
    shape.name.replace(shape.name.rfind(' '), std::string::npos, " 4");
    shape.batch = 4;
    small.push_back(shape);
  }
  return small;
}

const std::vector<BenchOp>& bench_ops() {
  static const std::vector<BenchOp> ops{
      {"hrm::rms_norm_residual", rms_norm_residual},
      {"hrm::rms_norm_residual_forward", rms_norm_residual},
      {"hrm::rms_norm_backward", rms_norm_backward},
      {"hrm::weighted_rms_norm", language_cases::weighted_rms_norm},
      {"hrm::weighted_rms_norm_forward", language_cases::weighted_rms_norm},
      {"hrm::weighted_rms_norm_backward", language_cases::weighted_rms_norm_backward},
      {"hrm::moe_router", language_cases::moe_router},
      {"hrm::moe_gate", language_cases::moe_gate},
      {"hrm::moe_jitter", language_cases::moe_jitter},
      {"hrm::moe_gate_backward", language_cases::moe_gate_backward},
      {"hrm::moe_plan", language_cases::moe_plan},
      {"hrm::moe_gather", language_cases::moe_gather},
      {"hrm::moe_up", language_cases::moe_up},
      {"hrm::moe_up_backward", language_cases::moe_up_backward},
      {"hrm::moe_linear", language_cases::moe_linear},
      {"hrm::moe_accumulate_", language_cases::moe_accumulate},
      {"hrm::moe_combine", language_cases::moe_combine},
      {"hrm::moe_combine_backward", language_cases::moe_combine_backward},
      {"hrm::moe_experts", language_cases::moe_experts},
      {"hrm::moe_load_loss_", language_cases::moe_load_loss},
      {"hrm::moe_loads_", language_cases::moe_loads},
      {"hrm::bridge_gate", language_cases::bridge_gate},
      {"hrm::bridge_gate_backward_", language_cases::bridge_gate_backward},
      {"hrm::halt_probabilities", language_cases::halt_probabilities},
      {"hrm::halt_probabilities_backward_", language_cases::halt_probabilities_backward},
      {"hrm::halting_loss", language_cases::halting_loss},
      {"hrm::semantic_diversity", language_cases::semantic_diversity},
      {"hrm::memory_blocks", language_cases::memory_blocks},
      {"hrm::memory_blocks_forward", language_cases::memory_blocks},
      {"hrm::ssd_scan", language_cases::ssd_scan},
      {"hrm::ssd_scan_backward", language_cases::ssd_scan_backward},
      {"hrm::dropout", dropout},
      {"hrm::dropout_add_", dropout_add},
      {"hrm::lora_add_", language_cases::lora_add},
      {"hrm::lora_gradients", language_cases::lora_gradients},
      {"hrm::lora_merge_", language_cases::lora_merge},
      {"hrm::nf4_quantize", nf4_quantize},
      {"hrm::nf4_dequantize_", nf4_dequantize},
      {"hrm::swiglu", swiglu},
      {"hrm::swiglu_backward", swiglu_backward},
      {"hrm::attention", attention},
      {"hrm::attention_projected", attention_projected},
      {"hrm::attention_forward", attention_forward},
      {"hrm::attention_backward", attention_backward},
      {"hrm::decode_attention_", language_cases::decode_attention},
      {"hrm::sample_tokens", language_cases::sample_tokens},
      {"hrm::next_tokens_", language_cases::next_tokens},
      {"hrm::rotate_qkv", rotate_qkv},
      {"hrm::rotate_qkv_", rotate_qkv},
      {"hrm::rotate_qkv_backward", rotate_qkv_backward},
      {"hrm::qkv_heads_product", language_cases::qkv_heads_product},
      {"hrm::qkv_heads_rotate_", language_cases::qkv_heads_rotate},
      {"hrm::qkv_heads_norm", language_cases::qkv_heads_norm},
      {"hrm::qkv_heads_backward", language_cases::qkv_heads_backward},
      {"hrm::linear", linear},
      {"hrm::linear_add", linear_add},
      {"hrm::linear_accumulate_", linear_accumulate},
      {"hrm::linear_grad_x", linear_grad_x},
      {"hrm::linear_grad_x_add_", linear_grad_x_add},
      {"hrm::linear_swiglu", linear_swiglu},
      {"hrm::linear_swiglu_forward", linear_swiglu},
      {"hrm::linear_swiglu_backward", linear_swiglu_backward},
      {"hrm::decode_linear", decode_linear},
      {"hrm::decode_linear_ahead", decode_linear_ahead},
      {"hrm::linear_rms_norm", linear_rms_norm},
      {"hrm::linear_rms_norm_add", linear_rms_norm_add},
      {"hrm::linear_rms_norm_forward", linear_rms_norm},
      {"hrm::quantize_fp8", quantize_fp8},
      {"hrm::quantize_fp8_", quantize_weights_fp8},
      {"hrm::add_fp8", add_fp8},
      {"hrm::linear_fp8", linear_fp8},
      {"hrm::linear_swiglu_fp8", linear_swiglu_fp8},
      {"hrm::linear_rms_norm_fp8", linear_rms_norm_fp8},
      {"hrm::attention_fp8", attention_fp8},
      {"hrm::fp8_update_scales_", fp8_update_scales},
      {"hrm::mlp_mix", mlp_mix},
      {"hrm::mlp_mix_forward", mlp_mix},
      {"hrm::mlp_mix_backward", mlp_mix_backward},
      {"hrm::token_loss", token_loss},
      {"hrm::token_loss_backward", token_loss_backward},
      {"hrm::softmax_loss_", language_cases::softmax_loss},
      {"hrm::act_q_target", act_q_target},
      {"hrm::act_loss", act_loss},
      {"hrm::act_loss_backward", act_loss_backward},
      {"hrm::act_begin_", act_begin},
      {"hrm::act_end_", act_end},
      {"hrm::augment_rows_", augment_rows},
      {"hrm::embed", embed},
      {"hrm::embed_backward", embed_backward},
      {"hrm::embed_tokens_backward_", language_cases::embed_tokens_backward},
      {"hrm::sum_rows", language_cases::sum_rows},
      {"hrm::adam_", adam},
      {"hrm::grad_norm", grad_norm},
      {"hrm::sparse_sign_sgd_", sparse_sign_sgd},
  };
  return ops;
}

}  // namespace hrm::commands
