#include "hrm/nn/parameter.h"

#include <ATen/ATen.h>

#include <unordered_map>
#include <unordered_set>

#include "hrm/base/error.h"

namespace hrm::nn {
namespace {

// The modules that read a compute copy, by the identity of their master.
void find_readers(torch::nn::Module& module, std::unordered_multimap<const void*, HasComputeWeight*>& readers) {
  if (auto* reader = dynamic_cast<HasComputeWeight*>(&module)) {
    readers.emplace(reader->master_weight().unsafeGetTensorImpl(), reader);
  }
  for (const auto& child : module.children()) find_readers(*child, readers);
}

}  // namespace

void ParameterSet::build(torch::nn::Module& module, at::ScalarType compute_dtype) {
  parameters_.clear();
  copies_.clear();
  copied_masters_.clear();
  count_ = 0;
  compute_dtype_ = compute_dtype;

  int64_t flat_size = 0;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& master = item.value();
    if (!seen.insert(master.unsafeGetTensorImpl()).second) continue;
    require(master.scalar_type() == at::kFloat && master.is_contiguous() && master.requires_grad(),
            ExitCode::unexpected, "parameter '", item.key(), "' must be contiguous float32 and require a gradient");
    require(parameters_.empty() || master.device() == parameters_.front().master.device(), ExitCode::unexpected,
            "parameter '", item.key(), "' is on ", master.device().str(), ", the others on ",
            parameters_.empty() ? "" : parameters_.front().master.device().str());
    parameters_.push_back({item.key(), master, master});
    count_ += master.numel();
    flat_size += (master.numel() + kGradAlignment - 1) / kGradAlignment * kGradAlignment;
  }
  require(!parameters_.empty(), ExitCode::unexpected, "a model without parameters cannot be trained");

  const at::NoGradGuard no_grad;
  flat_grad_ = at::zeros({flat_size}, parameters_.front().master.options().requires_grad(false));
  std::unordered_multimap<const void*, HasComputeWeight*> readers;
  find_readers(module, readers);
  int64_t offset = 0;
  for (Parameter& parameter : parameters_) {
    const at::Tensor& master = parameter.master;
    master.mutable_grad() = flat_grad_.narrow(0, offset, master.numel()).view(master.sizes());
    offset += (master.numel() + kGradAlignment - 1) / kGradAlignment * kGradAlignment;

    const auto [first, last] = readers.equal_range(master.unsafeGetTensorImpl());
    if (first != last && compute_dtype != at::kFloat) {
      parameter.compute = master.detach().to(compute_dtype);
      copies_.push_back(parameter.compute);
      copied_masters_.push_back(master);
    }
    for (auto reader = first; reader != last; ++reader) reader->second->set_compute_weight(parameter.compute);
  }
}

void ParameterSet::zero_grad() {
  flat_grad_.zero_();
}

void ParameterSet::refresh_compute() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(copies_, copied_masters_);
}

}  // namespace hrm::nn
