#include "ops/common/matmul_cpu.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

#include "ops/common/sizes.h"

namespace hrm::ops::cpu {
namespace {

using Signature = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                             std::string_view function, c10::List<std::optional<at::Scalar>> scalars,
                             std::optional<std::string_view> algorithm);
using LinearPointwise = c10::TypedOperatorHandle<Signature>;

// oneDNN's product for ordinary tensors: the operator that torch.compile emits. Absent in a LibTorch without oneDNN.
std::optional<LinearPointwise> find_onednn() {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
  return op->typed<Signature>();
}

// Below these numbers of multiply-adds the time to start a primitive (about 10 us) is more than what it saves; adding
// to an existing matrix costs oneDNN a pass that MKL's product does on the way.
constexpr int64_t kSmallest = 1 << 21;
constexpr int64_t kSmallestSum = 1 << 25;

const LinearPointwise* onednn(const at::Tensor& a, const at::Tensor& b, int64_t smallest) {
  static const std::optional<LinearPointwise> op = find_onednn();
  const bool suits = op && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.is_cpu() && b.is_cpu() &&
                     a.size(0) * a.size(1) * b.size(1) >= smallest && at::globalContext().userEnabledMkldnn();
  return suits ? &*op : nullptr;
}

at::Tensor product(const LinearPointwise& op, const at::Tensor& a, const at::Tensor& b,
                   const OptionalTensor& bias = {}) {
  return op.call(a, b.t(), bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b) {
  const LinearPointwise* op = onednn(a, b, kSmallest);
  return op != nullptr ? product(*op, a, b) : at::mm(a, b);
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  const at::Tensor rows = x.reshape({-1, weight.size(1)});
  const LinearPointwise* op = onednn(rows, weight.t(), kSmallest);
  if (op == nullptr) return at::linear(x, weight, bias);
  return product(*op, rows, weight.t(), bias).view(with_last_size(x, weight.size(0)));
}

void add_mm_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (const LinearPointwise* op = onednn(a, b, kSmallestSum); op != nullptr) {
    sum.add_(product(*op, a, b));
  } else {
    sum.addmm_(a, b);
  }
}

}  // namespace hrm::ops::cpu
