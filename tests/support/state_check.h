#pragma once
// Proves that an object's visit_state names all that its continuation depends on. An object is trained some steps, its
// registered state goes into a fresh object, and both go on: every entry must stay bit-identical. A member that changes
// during training and is not registered makes the two part.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "hrm/base/error.h"
#include "hrm/state/registry.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::test {

// Copies the registered state of one object into another of the same kind, through bytes, as a checkpoint does.
inline void copy_state(Stateful& from, Stateful& to) {
  class Loader final : public StateVisitor {
   public:
    explicit Loader(const StateListing& listing) {
      for (const TensorEntry& entry : listing.tensors) {
        const at::Tensor host = host_tensor(entry.tensor);
        tensors_[entry.name] = tensor_from_bytes(dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host));
      }
      integers_.insert(listing.integers.begin(), listing.integers.end());
      reals_.insert(listing.reals.begin(), listing.reals.end());
    }
    void tensor(const std::string& name, at::Tensor& tensor, StateRole, const StatePart&) override {
      tensor.detach().copy_(tensors_.at(name));
    }
    void integer(const std::string& name, int64_t& value) override { value = integers_.at(name); }
    void real(const std::string& name, double& value) override { value = reals_.at(name); }

   private:
    std::map<std::string, at::Tensor> tensors_;
    std::map<std::string, int64_t> integers_;
    std::map<std::string, double> reals_;
  };
  Loader loader(list_state(from));
  to.visit_state(loader);
}

// The first entry in which two objects differ, in words; empty when they are bit-identical.
inline std::string first_state_difference(Stateful& a, Stateful& b) {
  const StateListing left = list_state(a), right = list_state(b);
  if (left.tensors.size() != right.tensors.size() || left.integers.size() != right.integers.size() ||
      left.reals.size() != right.reals.size()) {
    return "the number of entries";
  }
  for (size_t i = 0; i < left.tensors.size(); ++i) {
    const TensorEntry &x = left.tensors[i], &y = right.tensors[i];
    if (x.name != y.name) return x.name + " against " + y.name;
    if (x.tensor.scalar_type() != y.tensor.scalar_type() || x.tensor.sizes() != y.tensor.sizes()) {
      return x.name + " (type or shape)";
    }
    const at::Tensor p = host_tensor(x.tensor), q = host_tensor(y.tensor);
    if (p.nbytes() != 0 && std::memcmp(p.const_data_ptr(), q.const_data_ptr(), p.nbytes()) != 0) return x.name;
  }
  for (size_t i = 0; i < left.integers.size(); ++i) {
    if (left.integers[i] != right.integers[i]) return left.integers[i].first;
  }
  for (size_t i = 0; i < left.reals.size(); ++i) {
    if (left.reals[i].first != right.reals[i].first ||
        std::memcmp(&left.reals[i].second, &right.reals[i].second, sizeof(double)) != 0) {
      return left.reals[i].first;
    }
  }
  return "";
}

// `trained` and `fresh` must be built in the same way. `step(object, i)` does training step i and must depend on
// nothing but the object and i. Trains `trained` for steps 0..before-1, transfers its state to `fresh`, then does steps
// before..before+after-1 on both. Returns what is wrong, in words; empty when nothing is.
template <class Object>
std::string unregistered_state(Object& trained, Object& fresh, const std::function<void(Object&, int)>& step,
                               int before = 3, int after = 3,
                               const std::function<void(Stateful&, Stateful&)>& transfer = copy_state) {
  const std::string at_start = digest_state(trained);
  for (int i = 0; i < before; ++i) step(trained, i);
  if (digest_state(trained) == at_start) return "training changes no registered entry";

  transfer(trained, fresh);
  std::string difference = first_state_difference(trained, fresh);
  if (!difference.empty()) return "after loading, this differs: " + difference;

  for (int i = before; i < before + after; ++i) {
    step(trained, i);
    step(fresh, i);
    difference = first_state_difference(trained, fresh);
    if (!difference.empty()) return cat("after step ", i, " this differs: ", difference);
  }
  return "";
}

template <class Object>
void expect_state_complete(Object& trained, Object& fresh, const std::function<void(Object&, int)>& step,
                           int before = 3, int after = 3) {
  EXPECT_EQ(unregistered_state<Object>(trained, fresh, step, before, after), "");
}

}  // namespace hrm::test
