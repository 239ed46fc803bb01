// Builds the runnable module: objects with the weights, classes with the methods of torchscript_source.cpp.
#include "checkpoint/torchscript_builder.h"
#include "checkpoint/torchscript_source.h"
#include "hrm/base/error.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/official.h"
#include "hrm/nn/rotary.h"

namespace hrm::checkpoint {
namespace {

using torch::jit::Module;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class PuzzleExporter : TorchscriptBuilder {
 public:
  PuzzleExporter(const config::ModelConfig& config, const models::PuzzleModelDims& dims, const NamedTensors& weights)
      : TorchscriptBuilder(weights), config_(config), dims_(dims) {}

  Module model() {
    Members members = {
        child("embed_tokens",
              object("Embedding", {parameter("embedding_weight", "embed_tokens.embedding_weight")}, "")),
        child("lm_head", linear("lm_head")),
        child("q_head", linear("q_head")),
    };
    if (config_.facts().flat_names) {
      for (int64_t i = 0; i < config_.L_layers; ++i) {
        members.push_back(child(cat("layer", i), block(cat("layers.", i))));
      }
      members.push_back(buffer("init_hidden", weight("init_hidden")));
    } else {
      members.push_back(child("L_level", level("L_level", config_.L_layers)));
      members.push_back(buffer("H_init", weight("H_init")));
      members.push_back(buffer("L_init", weight("L_init")));
    }
    if (config_.facts().h_module) members.push_back(child("H_level", level("H_level", config_.H_layers)));
    if (dims_.puzzle_emb_ndim > 0) {
      members.push_back(
          child("puzzle_emb", object("PuzzleEmbedding", {buffer("weights", weight("puzzle_emb.weights"))}, "")));
    }
    if (config_.pos_encodings == config::PositionEncoding::learned) {
      members.push_back(
          child("embed_pos", object("Embedding", {parameter("embedding_weight", "embed_pos.embedding_weight")}, "")));
    }
    if (config_.pos_encodings == config::PositionEncoding::rope) {
      members.push_back(
          buffer("inv_freq", nn::rotary_frequencies(config_.hidden_size / config_.num_heads, config_.rope_theta)));
    }
    return object("PuzzleModel", members, model_source(config_, dims_));
  }

 private:
  Module attention(const std::string& name) {
    return object("Attention",
                  {child("qkv_proj", linear(name + ".qkv_proj")), child("o_proj", linear(name + ".o_proj"))},
                  attention_source(config_));
  }

  Module block(const std::string& name) {
    return object(
        "Block",
        {config_.mlp_t ? child("mlp_t", swiglu(name + ".mlp_t")) : child("self_attn", attention(name + ".self_attn")),
         child("mlp", config_.facts().convolution ? conv_swiglu(name + ".mlp") : swiglu(name + ".mlp"))},
        block_source(config_));
  }

  Module conv_swiglu(const std::string& name) {
    const std::string conv = name + ".dwconv";
    return object(
        "ConvSwiGLU",
        {child("gate_up_proj", linear(name + ".gate_up_proj")),
         child("dwconv",
               object("DepthwiseConv", {parameter("weight", conv + ".weight"), parameter("bias", conv + ".bias")}, "")),
         child("down_proj", linear(name + ".down_proj"))},
        swiglu_source(/*convolution=*/true));
  }

  Module level(const std::string& name, int64_t layers) {
    Members members;
    for (int64_t i = 0; i < layers; ++i) {
      members.push_back(child(cat("layer", i), block(cat(name, ".layers.", i))));
    }
    return object(cat("ReasoningModule", layers), members, level_source(config_, layers));
  }

  const config::ModelConfig& config_;
  const models::PuzzleModelDims& dims_;
};

}  // namespace

void export_torchscript(const config::ModelConfig& config, const NamedTensors& weights,
                        const std::filesystem::path& file) {
  const models::PuzzleModelDims dims = check_weights(config, weights, "the checkpoint");
  save_torchscript(PuzzleExporter(config, dims, weights).model(), file);
}

}  // namespace hrm::checkpoint
