#pragma once
// Objects of an exported TorchScript module: the weights, and classes whose methods are given as text.

#include <torch/csrc/jit/api/module.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/torchscript_source.h"

namespace hrm::checkpoint {

class TorchscriptBuilder {
 public:
  struct Member {
    enum class Kind { parameter, buffer, module };
    std::string name;
    c10::IValue value;
    Kind kind = Kind::module;
  };
  using Members = std::vector<Member>;

  explicit TorchscriptBuilder(const std::vector<std::pair<std::string, at::Tensor>>& weights)
      : weights_(weights.begin(), weights.end()) {}

  // An object of the class, which its first object defines; `source`: its methods, for Module::define. Objects of one
  // class have the same members.
  torch::jit::Module object(const std::string& class_name, const Members& members, const std::string& source);

  bool has(const std::string& weight_name) const { return weights_.contains(weight_name); }
  // float32 on the CPU.
  at::Tensor weight(const std::string& weight_name) const;

  static Member child(const std::string& name, const torch::jit::Module& module) {
    return {name, module._ivalue(), Member::Kind::module};
  }
  Member parameter(const std::string& name, const std::string& weight_name) const {
    return {name, weight(weight_name), Member::Kind::parameter};
  }
  static Member buffer(const std::string& name, const at::Tensor& tensor) {
    return {name, tensor, Member::Kind::buffer};
  }

  // With a bias where the weights have one.
  torch::jit::Module linear(const std::string& name);
  torch::jit::Module swiglu(const std::string& name, Gate gate = Gate::silu);  // gate_up_proj and down_proj

 private:
  std::map<std::string, at::Tensor> weights_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
  std::map<std::string, c10::ClassTypePtr> classes_;
};

// Serialised in memory first: torch's writer ends the process where its sink fails.
void save_torchscript(const torch::jit::Module& module, const std::filesystem::path& file);

}  // namespace hrm::checkpoint
