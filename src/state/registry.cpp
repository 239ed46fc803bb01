#include "hrm/state/registry.h"

#include <bit>
#include <unordered_set>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm {
namespace {

class Lister final : public StateVisitor {
 public:
  void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) override {
    claim(name);
    require(tensor.defined(), ExitCode::unexpected, "the state entry '", name, "' has no tensor yet");
    listing.tensors.push_back({name, tensor, role, part});
  }
  void integer(const std::string& name, int64_t& value) override {
    claim(name);
    listing.integers.emplace_back(name, value);
  }
  void real(const std::string& name, double& value) override {
    claim(name);
    listing.reals.emplace_back(name, value);
  }

  StateListing listing;

 private:
  void claim(const std::string& name) {
    require(names_.insert(name).second, ExitCode::unexpected, "two state entries are called '", name, "'");
  }

  std::unordered_set<std::string> names_;
};

// Hashes a name or another piece of text with its length, so that neighbours cannot run into one another.
void hash_text(Hasher& hasher, const std::string& text) {
  hasher.update(cat(text.size(), ':'));
  hasher.update(text);
}

}  // namespace

StateListing list_state(Stateful& object) {
  Lister lister;
  object.visit_state(lister);
  return std::move(lister.listing);
}

std::string digest_state(Stateful& object) {
  const StateListing listing = list_state(object);
  Hasher hasher;
  for (const TensorEntry& entry : listing.tensors) {
    const at::Tensor host = host_tensor(entry.tensor);
    hash_text(hasher, entry.name);
    hash_text(hasher, cat(name(dtype_of(host.scalar_type())), shape_text(host.sizes().vec()), part_text(entry.part)));
    hasher.update(bytes_of(host));
  }
  for (const auto& [name, value] : listing.integers) {
    hash_text(hasher, name);
    hash_text(hasher, cat("int ", value));
  }
  for (const auto& [name, value] : listing.reals) {
    hash_text(hasher, name);
    hash_text(hasher, cat("real ", std::bit_cast<uint64_t>(value)));  // the bits: -0.0 and 0.0 differ
  }
  return hasher.hex();
}

}  // namespace hrm
