#include "hrm/ops/without_memory.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace hrm::ops {
namespace {

// The kernels of the CPU call plain operations of ATen where the backend is `reference`.
void by_reference(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Sizes of the results of ATen's operations for which LibTorch has no rule without Python.
namespace sizes {

at::Tensor& sized(at::Tensor& out, at::IntArrayRef sizes) {
  out.resize_(sizes);
  return out;
}
at::Tensor& of_one(const at::Tensor& self, at::Tensor& out) {
  return sized(out, self.sizes());
}
at::Tensor& of_two(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return sized(out, at::infer_size(self.sizes(), other.sizes()));
}
at::Tensor to_one(const at::Tensor& self) {
  return at::empty({}, self.options());
}
at::Tensor flip(const at::Tensor& self, at::IntArrayRef /*dims*/) {
  return at::empty_like(self);
}

std::vector<int64_t> of_where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  return at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
}
at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  return at::empty(of_where(condition, self, other), self.options().dtype(at::result_type(self, other)));
}
at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return sized(out, of_where(condition, self, other));
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.at(static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))) = index.numel();
  return at::empty(sizes, self.options());
}
at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& /*indices*/, c10::SymInt entries,
                              c10::SymInt /*padding*/, bool /*scale*/) {
  return at::empty({entries.expect_int(), grad.size(-1)}, grad.options());
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& /*bias*/,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool /*transposed*/, c10::SymIntArrayRef /*output_padding*/, c10::SymInt /*groups*/) {
  std::vector<int64_t> sizes{input.size(0), weight.size(0)};
  for (size_t i = 0; i < stride.size(); ++i) {
    const int64_t d = static_cast<int64_t>(i) + 2;
    const int64_t kernel = dilation[i].expect_int() * (weight.size(d) - 1) + 1;
    sizes.push_back((input.size(d) + 2 * padding[i].expect_int() - kernel) / stride[i].expect_int() + 1);
  }
  return at::empty(sizes, input.options());
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef /*stride*/,
    c10::SymIntArrayRef /*padding*/, c10::SymIntArrayRef /*dilation*/, bool /*transposed*/,
    c10::SymIntArrayRef /*output_padding*/, c10::SymInt /*groups*/, std::array<bool, 3> /*wanted*/) {
  return {at::empty_like(input), at::empty_like(weight), at::empty({grad.size(1)}, grad.options())};
}

}  // namespace sizes

// Ops of ours whose reference formula reads values, or loops over positions.
at::Tensor sizes_of_dropout(const at::Tensor& x, const at::Tensor& /*step*/, double /*p*/, int64_t /*seed*/) {
  return at::empty_like(x);
}
void sizes_of_dropout_add(const at::Tensor& /*sum*/, const at::Tensor& /*x*/, const at::Tensor& /*step*/, double /*p*/,
                          int64_t /*seed*/) {}
std::tuple<at::Tensor, at::Tensor> scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& /*A*/,
                                        const at::Tensor& B, const at::Tensor& /*C*/, const at::Tensor& /*D*/,
                                        int64_t /*chunk*/, const std::optional<at::Tensor>& /*initial_state*/) {
  return {at::empty_like(x), at::empty({x.size(0), x.size(2), x.size(3), B.size(3)}, dt.options())};
}

std::unique_ptr<torch::Library> library_of_meta(const char* name) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, name, c10::DispatchKey::Meta, __FILE__,
                                          static_cast<uint32_t>(__LINE__));
}

std::unique_ptr<torch::Library> rules_of_aten() {
  auto library = library_of_meta("aten");
  library->impl("abs.out", &sizes::of_one);
  library->impl("logical_not.out", &sizes::of_one);
  library->impl("logical_or.out", &sizes::of_two);
  library->impl("logical_and.out", &sizes::of_two);
  library->impl("max", &sizes::to_one);
  library->impl("flip", &sizes::flip);
  library->impl("where.self", &sizes::where);
  library->impl("where.self_out", &sizes::where_out);
  library->impl("index_select", &sizes::index_select);
  library->impl("embedding_dense_backward", &sizes::embedding_backward);
  library->impl("convolution_overrideable", &sizes::convolution);
  library->impl("convolution_backward_overrideable", &sizes::convolution_backward);
  return library;
}

std::unique_ptr<torch::Library> rules_of_ours() {
  auto library = library_of_meta("hrm");
  library->impl("dropout", &sizes_of_dropout);
  library->impl("dropout_add_", &sizes_of_dropout_add);
  library->impl("ssd_scan", &scan);
  const std::set<std::string> done{"hrm::dropout", "hrm::dropout_add_", "hrm::ssd_scan"};
  for (const OpInfo& op : op_table()) {
    if (!op.cpu || done.contains(op.name)) continue;
    library->impl(op.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_reference>());
  }
  return library;
}

}  // namespace

WithoutMemory::WithoutMemory() : before_(backend()) {
  static const std::unique_ptr<torch::Library> of_aten = rules_of_aten(), of_ours = rules_of_ours();
  set_backend(Backend::reference);
}

WithoutMemory::~WithoutMemory() {
  set_backend(before_);
}

}  // namespace hrm::ops
