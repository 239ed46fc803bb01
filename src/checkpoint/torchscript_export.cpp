// Builds the runnable module: objects with the weights, classes with the methods of torchscript_source.cpp.
#include <torch/csrc/jit/api/module.h>

#include <cmath>
#include <map>
#include <sstream>

#include "checkpoint/output_file.h"
#include "checkpoint/torchscript_source.h"
#include "hrm/base/file.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/official.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

using torch::jit::Module;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct Member {
  enum class Kind { parameter, buffer, module };
  std::string name;
  c10::IValue value;
  Kind kind = Kind::module;
};

class Exporter {
 public:
  Exporter(const config::ModelConfig& config, const models::PuzzleModelDims& dims, const NamedTensors& weights)
      : config_(config), dims_(dims), weights_(weights.begin(), weights.end()) {}

  Module model() {
    std::vector<Member> members = {
        child("embed_tokens",
              object("Embedding", {parameter("embedding_weight", "embed_tokens.embedding_weight")}, "")),
        child("L_level", level("L_level", config_.L_layers)),
        child("lm_head", linear("lm_head")),
        child("q_head", linear("q_head", /*bias=*/true)),
        buffer("H_init", weight("H_init")),
        buffer("L_init", weight("L_init")),
    };
    if (config_.arch == "hrm") members.push_back(child("H_level", level("H_level", config_.H_layers)));
    if (dims_.puzzle_emb_ndim > 0) {
      members.push_back(
          child("puzzle_emb", object("PuzzleEmbedding", {buffer("weights", weight("puzzle_emb.weights"))}, "")));
    }
    if (config_.pos_encodings == "learned") {
      members.push_back(
          child("embed_pos", object("Embedding", {parameter("embedding_weight", "embed_pos.embedding_weight")}, "")));
    }
    if (config_.pos_encodings == "rope") members.push_back(buffer("inv_freq", rotary_frequencies()));
    return object("PuzzleModel", members, model_source(config_, dims_));
  }

 private:
  // An object of the class, which its first object defines. Objects of one class have the same members.
  Module object(const std::string& class_name, const std::vector<Member>& members, const std::string& source) {
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

  at::Tensor weight(const std::string& name) const { return host_tensor(weights_.at(name)).to(at::kFloat); }

  static Member child(const std::string& name, const Module& module) {
    return {name, module._ivalue(), Member::Kind::module};
  }
  Member parameter(const std::string& name, const std::string& weight_name) const {
    return {name, weight(weight_name), Member::Kind::parameter};
  }
  static Member buffer(const std::string& name, const at::Tensor& tensor) {
    return {name, tensor, Member::Kind::buffer};
  }

  Module linear(const std::string& name, bool bias = false) {
    std::vector<Member> members = {parameter("weight", name + ".weight")};
    if (bias) members.push_back(parameter("bias", name + ".bias"));
    return object(bias ? "LinearWithBias" : "Linear", members, linear_source(bias));
  }

  Module swiglu(const std::string& name) {
    return object(
        "SwiGLU",
        {child("gate_up_proj", linear(name + ".gate_up_proj")), child("down_proj", linear(name + ".down_proj"))},
        swiglu_source());
  }

  Module attention(const std::string& name) {
    return object("Attention",
                  {child("qkv_proj", linear(name + ".qkv_proj")), child("o_proj", linear(name + ".o_proj"))},
                  attention_source(config_));
  }

  Module block(const std::string& name) {
    return object(
        "Block",
        {config_.mlp_t ? child("mlp_t", swiglu(name + ".mlp_t")) : child("self_attn", attention(name + ".self_attn")),
         child("mlp", swiglu(name + ".mlp"))},
        block_source(config_));
  }

  Module level(const std::string& name, int64_t layers) {
    std::vector<Member> members;
    for (int64_t i = 0; i < layers; ++i) {
      members.push_back(child(cat("layer", i), block(cat(name, ".layers.", i))));
    }
    return object(cat("ReasoningModule", layers), members, level_source(config_, layers));
  }

  // theta^(-2i/hd), in the float32 steps of nn::make_rotary_table.
  at::Tensor rotary_frequencies() const {
    const int64_t head_dim = config_.hidden_size / config_.num_heads;
    const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
    return at::pow(at::scalar_tensor(config_.rope_theta, at::kFloat), exponent).reciprocal();
  }

  const config::ModelConfig& config_;
  const models::PuzzleModelDims& dims_;
  std::map<std::string, at::Tensor> weights_;
  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
  std::map<std::string, c10::ClassTypePtr> classes_;
};

}  // namespace

void export_torchscript(const config::ModelConfig& config, const NamedTensors& weights,
                        const std::filesystem::path& file) {
  const models::PuzzleModelDims dims = check_weights(config, weights, "the checkpoint");
  std::ostringstream memory;
  Exporter(config, dims, weights).model().save(memory);
  const std::string bytes = std::move(memory).str();
  replace_file(file, as_bytes(bytes));
}

}  // namespace hrm::checkpoint
