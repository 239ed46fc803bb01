#include "checkpoint/torchscript_builder.h"

#include <ATen/ATen.h>

#include <sstream>

#include "checkpoint/output_file.h"
#include "checkpoint/torchscript_source.h"
#include "hrm/base/file.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {

using torch::jit::Module;

Module TorchscriptBuilder::object(const std::string& class_name, const Members& members, const std::string& source) {
  const auto known = classes_.find(class_name);
  if (known != classes_.end()) {
    Module module(unit_, known->second);
    for (const Member& member : members) module.setattr(member.name, member.value);
    module.setattr("training", false);
    return module;
  }
  Module module(c10::QualifiedName("__torch__.hrm." + class_name), unit_);
  for (const Member& member : members) {
    if (member.kind == Member::Kind::module) {
      module.register_module(member.name, member.value.toModule());
    } else {
      module.register_parameter(member.name, member.value.toTensor(), member.kind == Member::Kind::buffer);
    }
  }
  // Python's .eval() and torch.jit.freeze look for it.
  module.register_attribute("training", c10::BoolType::get(), false);
  if (!source.empty()) module.define(source);
  classes_.emplace(class_name, module.type());
  return module;
}

at::Tensor TorchscriptBuilder::weight(const std::string& weight_name) const {
  return host_tensor(weights_.at(weight_name)).to(at::kFloat);
}

Module TorchscriptBuilder::linear(const std::string& name) {
  const bool bias = has(name + ".bias");
  Members members = {parameter("weight", name + ".weight")};
  if (bias) members.push_back(parameter("bias", name + ".bias"));
  return object(bias ? "LinearWithBias" : "Linear", members, linear_source(bias));
}

Module TorchscriptBuilder::swiglu(const std::string& name, Gate gate) {
  return object(
      gate == Gate::gelu ? "GeGLU" : "SwiGLU",
      {child("gate_up_proj", linear(name + ".gate_up_proj")), child("down_proj", linear(name + ".down_proj"))},
      swiglu_source(/*convolution=*/false, gate));
}

void save_torchscript(const Module& module, const std::filesystem::path& file) {
  std::ostringstream memory;
  module.save(memory);
  const std::string bytes = std::move(memory).str();
  replace_file(file, as_bytes(bytes));
}

}  // namespace hrm::checkpoint
