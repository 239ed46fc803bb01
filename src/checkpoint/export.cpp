#include "hrm/checkpoint/export.h"

#include "checkpoint/output_file.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Tensors on the CPU under prefixed names, and views of them in the formats' terms.
template <class Entry>
struct Listing {
  std::vector<at::Tensor> hosts;
  std::vector<Entry> entries;

  void add(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
    entries.push_back({name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
  }
};

at::Tensor official_type(const std::string& name, const at::Tensor& tensor) {
  if (name != "H_init" && name != "L_init" && name != "init_hidden") return tensor;
  const at::Tensor rounded = tensor.to(at::kBFloat16);
  return at::equal(rounded.to(tensor.scalar_type()), tensor) ? rounded : tensor;
}

}  // namespace

void export_safetensors(const NamedTensors& weights, const std::filesystem::path& file, const std::string& prefix) {
  Listing<SafetensorsEntry> listing;
  for (const auto& [name, tensor] : weights) listing.add(prefix + name, tensor);
  replace_file(file, build_safetensors(listing.entries, {{"format", "pt"}}));
}

void export_pt(const NamedTensors& weights, const std::filesystem::path& file, const std::string& prefix) {
  Listing<NamedTensor> listing;
  for (const auto& [name, tensor] : weights) listing.add(prefix + name, official_type(name, tensor));
  replace_file(file, build_torch_state_dict(listing.entries));
}

}  // namespace hrm::checkpoint
