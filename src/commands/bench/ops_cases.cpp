#include "commands/bench/ops_cases.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <tuple>
#include <unordered_set>

#include "hrm/nn/swiglu.h"

namespace hrm::commands {
namespace {

using c10::IValue;

// Calls `give` for the tensors in a value: itself, or those of a list.
template <class F>
void for_tensors(const IValue& value, F give) {
  if (value.isTensor()) give(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) give(tensor);
  }
}

}  // namespace

double least_bytes(const std::string& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
  const auto& schema = handle.schema().arguments();
  double bytes = 0;
  std::unordered_set<const void*> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !seen.insert(tensor.const_data_ptr()).second) return;
      bytes += (written ? 2.0 : 1.0) * static_cast<double>(tensor.nbytes());
    });
  }
  for (const IValue& result : results) {
    for_tensors(result, [&](const at::Tensor& tensor) {
      if (tensor.defined() && seen.insert(tensor.const_data_ptr()).second)
        bytes += static_cast<double>(tensor.nbytes());
    });
  }
  return bytes;
}

std::vector<ops::BenchShape> bench_shapes(bool on_cpu) {
  std::vector<ops::BenchShape> shapes{
      {"HRM 64", 64, 1, 81, 512, 8, 1536, 11, 8, false},
      {"HRM 384", 384, 1, 81, 512, 8, 1536, 11, 8, false},
      {"HRM 768", 768, 1, 81, 512, 8, 1536, 11, 8, false},
      {"TRM 768", 768, 16, 81, 512, 8, 1536, 11, 2, false},
      {"TRM-MLP 768", 768, 16, 81, 512, 8, 1536, 11, 2, true},
      {"HRM maze 128", 128, 1, 900, 512, 8, 1536, 6, 8, false},
      {"TRM maze 128", 128, 16, 900, 512, 8, 1536, 6, 2, false},
  };
  // One layer of experts of a large model: 16,384 tokens.
  shapes.push_back({"Qwen3-30B-A3B", 4, 0, 4096, 2048, 32, 768, 151936, 48, false});
  shapes.back().experts = 128;
  shapes.back().picks = 8;
  shapes.back().only = "hrm::moe_";
  // Long rows of a language model, for attention within windows and documents: 131,072 tokens.
  for (const bool documents : {false, true}) {
    shapes.push_back({documents ? "documents 512" : "window 1024", 16, 0, 8192, 768, 12, 2048, 32000, 12, false});
    shapes.back().only = "hrm::masked_attention";
    (documents ? shapes.back().document : shapes.back().window) = documents ? 512 : 1024;
  }
  // Frozen weights in 8 bits and 2,048 rows: the MLPs of Qwen3-8B and Qwen3-0.6B, beside the products of 16 bits.
  for (const auto& [name, width, inner] : {std::tuple<const char*, int64_t, int64_t>{"8B gate_up", 4096, 12288},
                                           {"8B down", 12288, 2048},
                                           {"0.6B gate_up", 1024, 3072},
                                           {"0.6B down", 3072, 512}}) {
    shapes.push_back({name, 1, 0, 2048, width, 16, inner, 32000, 1, false});
    shapes.back().named = {
        "hrm::linear",           "hrm::linear_grad_x_add", "hrm::linear_weight8", "hrm::linear_weight8_grad_x",
        "hrm::fp8_rows_product", "hrm::quantize_fp8_rows", "hrm::transpose_fp8_"};
  }
  for (ops::BenchShape& shape : shapes) shape.mix_inner = nn::swiglu_width(shape.length(), 4);
  if (!on_cpu) return shapes;
  std::vector<ops::BenchShape> small;
  for (ops::BenchShape shape : {shapes[1], shapes[3], shapes[4]}) {
    shape.name.replace(shape.name.rfind(' '), std::string::npos, " 4");
    shape.batch = 4;
    small.push_back(shape);
  }
  for (ops::BenchShape shape : shapes) {
    if (shape.window == 0 && shape.document == 0) continue;
    shape.batch = 1;
    shape.tokens /= 8;
    shape.window /= 8;
    shape.document /= 8;
    shape.width = 128;
    shape.heads = 2;
    shape.name.replace(shape.name.rfind(' '), std::string::npos, shape.window > 0 ? " 128" : " 64");
    small.push_back(shape);
  }
  return small;
}

}  // namespace hrm::commands
