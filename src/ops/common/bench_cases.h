#pragma once
// What `hrm_train bench ops` times: each family lists its ops with arguments of the recipes' shapes, in
// src/ops/<family>/<family>_bench.cpp.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace hrm::ops {

// One recipe's shapes: B rows, P + S = L positions, D width, I inner width of the SwiGLU, V vocabulary.
struct BenchShape {
  std::string name;  // "HRM 384"
  int64_t batch = 0, prefix = 0, tokens = 0, width = 0, heads = 0, inner = 0, vocab = 0;
  int64_t layers = 0;         // blocks with weights of their own
  bool mixes_by_mlp = false;  // positions are mixed by an MLP, not by attention
  int64_t mix_inner = 0;      // inner width of that MLP
  // Of a mixture in place of the SwiGLU, with `inner` as the width of an expert.
  int64_t experts = 4, picks = 2;
  int64_t window = 0, document = 0;     // what attention sees of long rows: a window, or documents of that length
  std::string only = {};                // the beginning of the names of the ops that have a place in it; empty: all
  std::vector<std::string> named = {};  // those ops by their whole names; empty: all

  bool has(const std::string& op) const {
    return op.starts_with(only) && (named.empty() || std::find(named.begin(), named.end(), op) != named.end());
  }
  int64_t length() const { return prefix + tokens; }
  int64_t rows() const { return batch * length(); }
};

// The arguments of one call of an op.
struct BenchCall {
  std::vector<c10::IValue> arguments;
  double flops = 0;  // of its matrix products; 0 for ops that only move data
};

struct BenchOp {
  const char* name;  // "hrm::swiglu"
  // Fills random arguments on the device; an empty list where the op has no place in this recipe.
  BenchCall (*make)(const BenchShape& shape, at::Device device, at::ScalarType dtype);
};

// One entry for each op (a test compares with the registered ones), family by family.
const std::vector<BenchOp>& bench_ops();

// Calls the op through the dispatcher, without gradients; returns its results. Arguments at the end may be left out
// where the schema has defaults.
std::vector<c10::IValue> call_op(const std::string& op, const std::vector<c10::IValue>& arguments);

namespace bench {

// row(FAMILY) stands for FAMILY_cases() in src/ops/FAMILY/.
#define HRM_OP_FAMILIES(row)                                                                                        \
  row(norm) row(moe) row(memory) row(diversity) row(sequence) row(dropout) row(adapters) row(quantized) row(linear) \
      row(attention) row(decode) row(mixing) row(loss) row(act) row(embedding) row(optim) row(geometry)             \
          row(contrastive) row(field)

#define HRM_DECLARE_CASES(family) std::vector<BenchOp> family##_cases();
HRM_OP_FAMILIES(HRM_DECLARE_CASES)
#undef HRM_DECLARE_CASES

// What the cases are made with.

constexpr double kBenchEps = 1e-5;

// Random tensors of one recipe.
struct Random {
  at::Device device;
  at::ScalarType dtype;

  at::Tensor activations(at::IntArrayRef sizes) const { return at::randn(sizes, at::device(device)).to(dtype); }
  at::Tensor floats(at::IntArrayRef sizes) const { return at::randn(sizes, at::device(device)); }
  at::Tensor scalar(double value) const { return at::full({}, value, at::device(device).dtype(at::kFloat)); }
  at::Tensor weight(int64_t out, int64_t in) const {
    return (at::randn({out, in}, at::device(device)) / std::sqrt(static_cast<double>(in))).to(dtype);
  }
};

inline double product_flops(int64_t rows, int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}

// Of an op that has no place in a recipe.
inline BenchCall nothing() {
  return {};
}

// Tables of rotary positions, (L, D / heads / 2) float32.
struct RotaryInputs {
  at::Tensor cos, sin;
};
RotaryInputs rotary_inputs(const BenchShape& s, at::Device device);

struct AttentionInputs {
  at::Tensor qkv, cos, sin;
};
AttentionInputs attention_inputs(const BenchShape& s, at::Device device, at::ScalarType dtype);
double attention_flops(const BenchShape& s);

// (B, S) int32.
at::Tensor labels(const BenchShape& s, at::Device device);

// Of all matrices of a recipe.
std::vector<std::vector<int64_t>> weight_sizes(const BenchShape& s);

}  // namespace bench
}  // namespace hrm::ops
