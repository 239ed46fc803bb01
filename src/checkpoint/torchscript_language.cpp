// Builds the runnable module of a language model.
#include <ATen/ATen.h>

#include <map>

#include "checkpoint/torchscript_blocks.h"
#include "checkpoint/torchscript_decoder.h"
#include "checkpoint/torchscript_source.h"
#include "hrm/base/error.h"
#include "hrm/checkpoint/export.h"
#include "hrm/nn/classic_blocks.h"

namespace hrm::checkpoint {
namespace {

using torch::jit::Module;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Token types: 4 = int64, 6 = float32, 11 = bool.
class LanguageExporter : DecoderExporter {
 public:
  LanguageExporter(const config::Config& config, const models::LanguageSizes& sizes, const NamedTensors& weights)
      : DecoderExporter(models::plain_decoder_options(config, sizes), weights),
        config_(config),
        lm_(config.lm),
        sizes_(sizes) {}

  Module model() {
    if (!models::reads_prompts(lm_)) {
      return object("DecoderLM", {child("model", decoder("model", /*prefix=*/false, /*cross=*/false))},
                    "\ndef forward(self, ids: Tensor) -> Tensor:\n    return self.model.forward(ids)\n");
    }
    const bool prototype = models::is_prototype(lm_);
    return object("HrmLM",
                  {child("enc", prototype ? classic_encoder() : modern_encoder()), child("core", core()),
                   child("dec", prototype ? classic_decoder() : modern_answers()), child("prompt", linear("prompt")),
                   child("gate", linear("gate")), child("bridge", linear("bridge"))},
                  hrm_source());
  }

 private:
  // ---- parts of both styles ----

  Module layer_norm(const std::string& name) {
    return object("LayerNorm", {parameter("weight", name + ".weight"), parameter("bias", name + ".bias")},
                  layer_norm_source(lm_.hidden_size));
  }

  Module gelu(const std::string& name) {
    return object("Gelu", {child("up", linear(name + ".up")), child("down", linear(name + ".down"))}, gelu_source());
  }
  Module experts(const std::string& name) {
    const nn::MoeOptions options = models::expert_options(config_);
    const bool gated = options.activation == ops::ExpertActivation::swiglu;
    const std::string up = gated ? "gate_up" : "up", shared = name + ".shared";
    Members members{child("router", linear(name + ".router")), child(up, linear(cat(name, ".", up))),
                    child("down", linear(name + ".down"))};
    if (options.shared_experts > 0) members.push_back(child("shared", gated ? swiglu(shared) : gelu(shared)));
    if (options.bias_rate > 0) members.push_back(buffer("choice_bias", weight(name + ".choice_bias")));
    return object("Experts", members, experts_source(options, lm_.hidden_size));
  }
  Module feed_forward(const std::string& name) override { return has_experts(name) ? experts(name) : swiglu(name); }

  Module core() {
    const auto level = [&](const std::string& name, int64_t layers) {
      return models::is_prototype(lm_) ? classic_level(name, layers) : modern_level(name, layers);
    };
    const Module norm = models::is_prototype(lm_) ? layer_norm("core.out_norm") : rms_norm("core.out_norm");
    Members members{child("h_mod", level("core.h_mod", lm_.h_layers)),
                    child("l_mod", level("core.l_mod", lm_.l_layers)), child("out_norm", norm),
                    parameter("h_init", "core.h_init"), parameter("l_init", "core.l_init")};
    for (const char* name : {"inp_to_h", "inp_to_l", "topdown", "bottomup", "out"}) {
      members.push_back(child(name, linear(cat("core.", name))));
    }
    return object("Core", members, core_source());
  }

  // halt plays no part in the answer.
  std::string core_source() const {
    return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    to_h = self.inp_to_h.forward(x)
    to_l = self.inp_to_l.forward(x)
    H = self.h_init.expand([x.size(0), -1, -1])
    L = self.l_init.expand([x.size(0), -1, -1])
    for _c in range()",
               lm_.h_cycles, R"():
        extra_l = (self.topdown.forward(torch.mean(H, [1])) + to_l).unsqueeze(1)
        for _l in range()",
               lm_.l_steps, R"():
            L = self.l_mod.forward(L + extra_l)
        extra_h = (self.bottomup.forward(torch.mean(L, [1])) + to_h).unsqueeze(1)
        H = self.h_mod.forward(H + extra_h)
    return self.out.forward(self.out_norm.forward(torch.mean(H, [1])))
)");
  }

  std::string hrm_source() const {
    return cat(R"(
def forward(self, ids: Tensor, prompt_ids: Tensor, prompt_mask: Optional[Tensor] = None) -> Tensor:
    attended: Optional[Tensor] = None
    if prompt_mask is not None:
        tokens = prompt_mask.to(11)
        attended = torch.logical_or(tokens, torch.logical_not(torch.any(tokens, 1, True)))
    encoded = self.enc.forward(prompt_ids, attended)
    if prompt_mask is not None:
        share = prompt_mask.to(11).unsqueeze(-1).to(6)
        cls = torch.sum(encoded * share, [1]) / torch.clamp_min(torch.sum(share, [1]), 1)
    else:
        cls = torch.mean(encoded, [1])
    z = self.core.forward(self.prompt.forward(cls))
    gate = torch.clamp(torch.sigmoid(self.gate.forward(z)) * )",
               literal(lm_.gate_scale), " + ", literal(lm_.gate_bias), R"(, 0.0, 1.0)
    memory = gate.unsqueeze(-1) * self.bridge.forward(z).view([z.size(0), -1, )",
               lm_.hidden_size, R"(])
    return self.dec.forward(ids, memory)
)");
  }

  // ---- the modern style ----

  Module modern_level(const std::string& name, int64_t layers) {
    Members members{child("norm", rms_norm(name + ".norm")), parameter("pos", name + ".pos")};
    const std::string lines = add_blocks(members, name, layers, StackKind::memory, /*cross=*/false);
    return object(cat("Level", layers, "x", weight(name + ".pos").size(0)), members,
                  cat("\ndef forward(self, state: Tensor) -> Tensor:\n    h = state + self.pos\n", lines,
                      "    return self.norm.forward(h)\n"));
  }

  Module modern_encoder() {
    if (lm_.encoder == config::LmEncoder::mamba2) return mamba2_encoder();
    Members members{child("embed_tokens", embedding("enc.embed_tokens")), child("norm", rms_norm("enc.norm")),
                    frequencies()};
    const std::string lines = add_blocks(members, "enc", lm_.enc_layers, StackKind::encoder, /*cross=*/false);
    return object("Encoder", members,
                  cat("\ndef forward(self, ids: Tensor, attended: Optional[Tensor]) -> Tensor:\n    x = ", kEmbedTokens,
                      "\n", tables_source("x.size(1)"), R"(
    mask: Optional[Tensor] = None
    if attended is not None:
        mask = attended.unsqueeze(1).unsqueeze(1)
    h = x
)",
                      lines, "    return self.norm.forward(h)\n"));
  }

  Module mamba2_encoder() {
    const nn::Mamba2Options o = models::mamba2_options(lm_);
    Members members{child("embed_tokens", embedding("enc.embed_tokens")), child("norm", rms_norm("enc.norm"))};
    std::string lines;
    for (int64_t i = 0; i < lm_.enc_layers; ++i) {
      const std::string name = cat("enc.layers.", i), mixer = name + ".mixer.";
      const Module conv = object(
          "Conv1d", {parameter("weight", mixer + "conv1d.weight"), parameter("bias", mixer + "conv1d.bias")}, "");
      const Module gated = object("GatedNorm", {parameter("weight", mixer + "norm.weight")},
                                  grouped_rms_norm_source(o.eps, o.inner(), o.groups));
      members.push_back(child(
          cat("layer", i),
          object("Mamba2Block",
                 {child("norm",
                        object("Mamba2Norm", {parameter("weight", name + ".norm.weight")}, rms_norm_source(o.eps))),
                  child("mixer", object("Mamba2Mixer",
                                        {child("in_proj", linear(mixer + "in_proj")), child("conv1d", conv),
                                         child("norm", gated), child("out_proj", linear(mixer + "out_proj")),
                                         parameter("dt_bias", mixer + "dt_bias"), parameter("A_log", mixer + "A_log"),
                                         parameter("D", mixer + "D")},
                                        mamba2_mixer_source(o)))},
                 mamba2_block_source())));
      lines += cat("    h = self.layer", i, ".forward(h, attended)\n");
    }
    return object("Encoder", members,
                  cat("\ndef forward(self, ids: Tensor, attended: Optional[Tensor]) -> Tensor:\n    h = ", kEmbedTokens,
                      "\n", lines, "    return self.norm.forward(h)\n"));
  }

  Module modern_answers() {
    const bool prefix = lm_.bridge == config::LmBridge::prefix;
    return object("Answers", {child("model", decoder("dec.model", prefix, !prefix))},
                  "\ndef forward(self, ids: Tensor, memory: Tensor) -> Tensor:\n"
                  "    return self.model.forward(ids, memory)\n");
  }

  // ---- the prototype ----

  Module multihead(const std::string& name) {
    return object("MultiheadAttention",
                  {parameter("in_proj_weight", name + ".in_proj_weight"),
                   parameter("in_proj_bias", name + ".in_proj_bias"), child("out_proj", linear(name + ".out_proj"))},
                  multihead_source(lm_.hidden_size, lm_.num_heads));
  }

  // nn::ClassicEncoder.
  Module classic_blocks(const std::string& name, int64_t layers) {
    Members members{child("norm", layer_norm(name + ".norm"))};
    std::string lines, kinds;
    for (int64_t i = 0; i < layers; ++i) {
      const std::string of = cat(name, ".layers.", i);
      const bool mixture = has_experts(of + ".ffn");
      kinds += mixture ? "E" : "D";
      members.push_back(child(cat("layer", i),
                              object(mixture ? "ClassicExpertsBlock" : "ClassicBlock",
                                     {child("norm1", layer_norm(of + ".norm1")), child("attn", multihead(of + ".attn")),
                                      child("norm2", layer_norm(of + ".norm2")),
                                      child("ffn", mixture ? experts(of + ".ffn") : gelu(of + ".ffn"))},
                                     classic_encoder_block_source())));
      lines += cat("    h = self.layer", i, ".forward(h, mask)\n");
    }
    return object("ClassicEncoder" + kinds, members,
                  cat("\ndef forward(self, h: Tensor, mask: Optional[Tensor]) -> Tensor:\n", lines,
                      "    return self.norm.forward(h)\n"));
  }

  Module classic_level(const std::string& name, int64_t layers) {
    return object(cat("Level", layers, "x", weight(name + ".pos").size(0)),
                  {child("block", classic_blocks(name + ".block", layers)),
                   child("out_norm", layer_norm(name + ".out_norm")), parameter("pos", name + ".pos")},
                  "\ndef forward(self, state: Tensor) -> Tensor:\n"
                  "    return self.out_norm.forward(self.block.forward(state + self.pos, None))\n");
  }

  // Rows longer than the table of positions find no place, as in training.
  Member positions(int64_t rows) const {
    return buffer("positions", nn::sinusoidal_positions(rows, lm_.hidden_size, at::kCPU));
  }

  Module classic_encoder() {
    return object(
        "Encoder",
        {child("embed", embedding("enc.embed")), child("blocks", classic_blocks("enc.blocks", lm_.enc_layers)),
         positions(models::prompt_positions(lm_, sizes_))},
        R"(
def forward(self, ids: Tensor, attended: Optional[Tensor]) -> Tensor:
    mask: Optional[Tensor] = None
    if attended is not None:
        mask = attended.unsqueeze(1).unsqueeze(1)
    h = torch.embedding(self.embed.weight, ids.to(4)) + torch.narrow(self.positions, 0, 0, ids.size(1))
    return self.blocks.forward(h, mask)
)");
  }

  Module classic_decoder() {
    Members members{child("embed", embedding("dec.embed")), child("norm", layer_norm("dec.norm")),
                    child("head", linear("dec.head")), positions(models::decoder_positions(lm_, sizes_))};
    std::string lines;
    for (int64_t i = 0; i < lm_.layers; ++i) {
      const std::string name = cat("dec.layers.", i);
      Members parts{child("self_attn", multihead(name + ".self_attn")),
                    child("multihead_attn", multihead(name + ".multihead_attn")),
                    child("linear1", linear(name + ".linear1")), child("linear2", linear(name + ".linear2"))};
      for (const char* norm : {"norm1", "norm2", "norm3"})
        parts.push_back(child(norm, layer_norm(cat(name, ".", norm))));
      members.push_back(child(cat("layer", i), object("ClassicDecoderBlock", parts, classic_decoder_block_source())));
      lines += cat("    h = self.layer", i, ".forward(h, memory)\n");
    }
    return object("Decoder", members,
                  cat(R"(
def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
    h = torch.embedding(self.embed.weight, ids.to(4)) + torch.narrow(self.positions, 0, 0, ids.size(1))
)",
                      lines, "    return self.head.forward(self.norm.forward(h))\n"));
  }

  const config::Config& config_;
  const config::LmConfig& lm_;
  const models::LanguageSizes& sizes_;
};

// Names and shapes must be those of the configured model.
void check_language_weights(const config::Config& config, const models::LanguageSizes& sizes,
                            const NamedTensors& weights) {
  std::map<std::string, at::Tensor> given(weights.begin(), weights.end());
  const auto model = models::make_language_model_outline(config, sizes);
  for (const auto& item : model->named_parameters()) {
    const auto found = given.find(item.key());
    require(found != given.end(), ExitCode::checkpoint, "the checkpoint lacks the weights '", item.key(),
            "' of the model that its configuration describes");
    require(found->second.sizes() == item.value().sizes(), ExitCode::checkpoint, "the weights '", item.key(), "' are ",
            cat(found->second.sizes()), " in the checkpoint and ", cat(item.value().sizes()),
            " in the model that its configuration describes");
  }
}

}  // namespace

void export_language_torchscript(const config::Config& config, const models::LanguageSizes& sizes,
                                 const NamedTensors& weights, const std::filesystem::path& file) {
  check_language_weights(config, sizes, weights);
  save_torchscript(LanguageExporter(config, sizes, weights).model(), file);
}

}  // namespace hrm::checkpoint
