#pragma once
// What `hrm_train bench ops` measures: every op with the shapes that the recipes give it.

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace hrm::commands {

// One recipe's shapes: B rows, P + S = L positions, D width, I inner width of the SwiGLU, V vocabulary.
struct BenchShape {
  std::string name;  // "HRM 384"
  int64_t batch = 0, prefix = 0, tokens = 0, width = 0, heads = 0, inner = 0, vocab = 0;
  int64_t layers = 0;         // blocks with weights of their own
  bool mixes_by_mlp = false;  // positions are mixed by an MLP, not by attention

  int64_t length() const { return prefix + tokens; }
  int64_t rows() const { return batch * length(); }
};

// The recipes' shapes on a GPU; on the CPU the same with a batch that takes milliseconds.
std::vector<BenchShape> bench_shapes(bool on_cpu);

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

// One entry for each op (a test compares with the registered ones). A new op adds a line to ops_cases.cpp.
const std::vector<BenchOp>& bench_ops();

// Bytes that one call must move at least: its tensor arguments once, those that it writes once more, and its results.
double least_bytes(const std::string& op, const std::vector<c10::IValue>& arguments,
                   const std::vector<c10::IValue>& results);

// Calls the op through the dispatcher, without gradients; returns its results.
std::vector<c10::IValue> call_op(const std::string& op, const std::vector<c10::IValue>& arguments);

}  // namespace hrm::commands
