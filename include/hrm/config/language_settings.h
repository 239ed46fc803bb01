#pragma once
// Settings of the network of task=language: sections lm and moe.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

enum class LmArch { hrm, decoder };
template <>
struct EnumNames<LmArch> {
  static constexpr const char* kNames[] = {"hrm", "decoder"};
};

enum class LmStyle { modern, prototype };
template <>
struct EnumNames<LmStyle> {
  static constexpr const char* kNames[] = {"modern", "prototype"};
};

inline const ReadWhen kReasoningCore{
    "lm.arch", {"hrm"}, "has neither an encoder nor a reasoning core", "set lm.arch to hrm"};
inline const ReadWhen kMamba2{"lm.encoder", {"mamba2"}, "is no mamba2", "set lm.encoder to mamba2"};

enum class LmEncoder { transformer, mamba2 };
template <>
struct EnumNames<LmEncoder> {
  static constexpr const char* kNames[] = {"transformer", "mamba2"};
};

enum class LmBridge { prefix, cross_attention };
template <>
struct EnumNames<LmBridge> {
  static constexpr const char* kNames[] = {"prefix", "cross_attention"};
};

// Language models (task=language). Defaults of the modern style; the prototype's are in configs/language.
struct LmConfig {
  LmArch arch = LmArch::hrm;
  LmStyle style = LmStyle::modern;
  int64_t hidden_size = 512;
  int64_t num_heads = 8;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t inner = 0;
  int64_t layers = 6;
  int64_t positions = 0;
  int64_t window = 0;
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  bool qk_norm = false;
  bool tied = true;
  LmEncoder encoder = LmEncoder::transformer;
  int64_t enc_layers = 2;
  int64_t h_layers = 2;
  int64_t l_layers = 2;
  int64_t h_len = 8;
  int64_t l_len = 64;
  int64_t h_cycles = 4;
  int64_t l_steps = 8;
  int64_t gradient_cycles = 1;
  LmBridge bridge = LmBridge::prefix;
  int64_t prefix_len = 8;
  double gate_scale = 1;
  double gate_bias = 0;
  int64_t gate_warmup_steps = 0;
  int64_t mamba_expand = 2;
  int64_t mamba_head_dim = 64;
  int64_t mamba_state = 128;
  int64_t mamba_groups = 1;
  int64_t mamba_kernel = 4;
  int64_t mamba_chunk = 256;
  bool recompute = false;
  std::string freeze;

  // Whether an encoder and a reasoning core read a prompt; otherwise the model is a plain decoder.
  bool has_core() const { return arch == LmArch::hrm; }
  // Whether the blocks are those of the first HRM-LM: LayerNorm, sinusoidal positions, GELU.
  bool is_prototype() const { return style == LmStyle::prototype; }

  template <class F>
  static void describe(F&& f) {
    f("arch", &LmConfig::arch, Choice<LmArch>{}, "",
      "hrm = an encoder reads the prompt, a reasoning core works on it, a decoder writes the answer; decoder = only a "
      "causal decoder");
    f("style", &LmConfig::style, Choice<LmStyle>{}, "",
      "modern = uses RMSNorm, rotary positions and SwiGLU; prototype = uses LayerNorm, sinusoidal positions and GELU, "
      "as the first HRM-LM (only arch hrm)");
    f("hidden_size", &LmConfig::hidden_size, IntRange{2, 65536}, "", "width D that all blocks share");
    f("num_heads", &LmConfig::num_heads, IntRange{1, 1024}, "heads", "attention heads of queries");
    f("kv_heads", &LmConfig::kv_heads, IntRange{0, 1024}, "heads",
      "heads of keys and values, which must divide num_heads; 0 = as many (modern)");
    f("head_dim", &LmConfig::head_dim, IntRange{0, 65536}, "",
      "width that each head has; 0 = hidden_size / num_heads (modern)");
    f("inner", &LmConfig::inner, IntRange{0, 1 << 20}, "",
      "width that the SwiGLU has inside; 0 = 4 D * 2/3, rounded up to a multiple of 256 (modern)");
    f("layers", &LmConfig::layers, IntRange{1, 1024}, "blocks", "blocks of the decoder");
    f("positions", &LmConfig::positions, IntRange{0, 1 << 24}, "tokens",
      "longest row that the decoder supports; 0 = the length of training rows, but at least 1024");
    f("window", &LmConfig::window, IntRange{0, 1 << 24}, "tokens",
      "sliding window: a position attends to this many positions, itself included; 0 = to all before it (modern)");
    f("rope_theta", &LmConfig::rope_theta, RealRange{0, 1e12, true}, "",
      "base that the rotary frequencies are computed from (modern)");
    f("rms_norm_eps", &LmConfig::rms_norm_eps, RealRange{0, 1, true}, "",
      "epsilon that RMSNorm adds to the mean square (modern)");
    f("qk_norm", &LmConfig::qk_norm, Flag{}, "", "apply RMSNorm to queries and keys, as Qwen3 does (modern)");
    f("tied", &LmConfig::tied, Flag{}, "", "let the head use the embedding's weight (modern)");
    f("encoder", &LmConfig::encoder, Choice<LmEncoder>{}, "", "which network reads the prompt (arch hrm)",
      kReasoningCore);
    f("enc_layers", &LmConfig::enc_layers, IntRange{1, 1024}, "blocks", "blocks of the encoder", kReasoningCore);
    f("h_layers", &LmConfig::h_layers, IntRange{1, 1024}, "blocks", "blocks of the slow memory", kReasoningCore);
    f("l_layers", &LmConfig::l_layers, IntRange{1, 1024}, "blocks", "blocks of the fast memory", kReasoningCore);
    f("h_len", &LmConfig::h_len, IntRange{1, 65536}, "vectors", "length of the slow memory", kReasoningCore);
    f("l_len", &LmConfig::l_len, IntRange{1, 65536}, "vectors", "length of the fast memory", kReasoningCore);
    f("h_cycles", &LmConfig::h_cycles, IntRange{1, 1024}, "cycles", "cycles of the reasoning core", kReasoningCore);
    f("l_steps", &LmConfig::l_steps, IntRange{1, 1024}, "steps", "steps of the fast memory in each cycle",
      kReasoningCore);
    f("gradient_cycles", &LmConfig::gradient_cycles, IntRange{0, 1024}, "cycles",
      "number of last cycles that are differentiated; 1 = the one-step gradient, 0 = all", kReasoningCore);
    f("bridge", &LmConfig::bridge, Choice<LmBridge>{}, "",
      "how the core's result enters the decoder: prefix = as vectors in front of the answer; cross_attention = as one "
      "vector that every block attends to",
      kReasoningCore);
    f("prefix_len", &LmConfig::prefix_len, IntRange{1, 65536}, "vectors",
      "vectors that the prefix bridge puts in front of the answer", kReasoningCore,
      ReadWhen{"lm.bridge", {"prefix"}, "hands over one vector", "set lm.bridge to prefix"});
    f("gate_scale", &LmConfig::gate_scale, RealRange{0, 1e3}, "",
      "multiplies the core's result by clamp(gate_scale * sigmoid(gate) + gate_bias, 0, 1)", kReasoningCore);
    f("gate_bias", &LmConfig::gate_bias, RealRange{-1e3, 1e3}, "", "is added inside the clamp of gate_scale",
      kReasoningCore);
    f("gate_warmup_steps", &LmConfig::gate_warmup_steps, IntRange{0}, "steps",
      "steps with gate_scale 0, in which the decoder learns without the core", kReasoningCore,
      ReadWhen{.key = "lm.gate_scale",
               .values = {"0"},
               .why = "is what it is in the warm-up, too",
               .way_out = "set lm.gate_scale to 1",
               .unless = true});
    f("mamba_expand", &LmConfig::mamba_expand, IntRange{1, 64}, "",
      "sets the inner width of a mamba2 block to this multiple of D", kReasoningCore, kMamba2);
    f("mamba_head_dim", &LmConfig::mamba_head_dim, IntRange{1, 4096}, "", "channels that a mamba2 head has",
      kReasoningCore, kMamba2);
    f("mamba_state", &LmConfig::mamba_state, IntRange{1, 4096}, "", "size that the state of a mamba2 channel has",
      kReasoningCore, kMamba2);
    f("mamba_groups", &LmConfig::mamba_groups, IntRange{1, 1024}, "",
      "number of groups of mamba2 heads that share B and C", kReasoningCore, kMamba2);
    f("mamba_kernel", &LmConfig::mamba_kernel, IntRange{1, 64}, "tokens", "width of mamba2's convolution",
      kReasoningCore, kMamba2);
    f("mamba_chunk", &LmConfig::mamba_chunk, IntRange{1, 65536}, "tokens",
      "positions in one matrix product of mamba2's scan; changes only rounding", Resume::free, kReasoningCore, kMamba2);
    f("recompute", &LmConfig::recompute, Flag{}, "",
      "keep only each block's input and compute the rest again in the backward pass (activation checkpointing; modern)",
      Resume::free);
    f("freeze", &LmConfig::freeze, AnyText{}, "",
      "parts that are not trained, by name and separated by commas, e.g. enc,core.h_init");
  }
};

enum class MoePlace { automatic, encoder, decoder, both };
template <>
struct EnumNames<MoePlace> {
  static constexpr const char* kNames[] = {"auto", "encoder", "decoder", "both"};
};

enum class ExpertActivation { gelu, swiglu };
template <>
struct EnumNames<ExpertActivation> {
  static constexpr const char* kNames[] = {"gelu", "swiglu"};
};

enum class RouterScore { softmax, sigmoid };
template <>
struct EnumNames<RouterScore> {
  static constexpr const char* kNames[] = {"softmax", "sigmoid"};
};

// Mixtures of experts in language models.
struct MoeConfig {
  int64_t experts = 0;
  int64_t top_k = 2;
  int64_t inner = 0;
  ExpertActivation activation = ExpertActivation::gelu;
  MoePlace place = MoePlace::automatic;
  int64_t every = 1;
  RouterScore score = RouterScore::softmax;
  bool normalize = false;
  double capacity_factor = 0;
  double load_weight = 0.01;
  double z_weight = 0;
  double bias_rate = 0;
  double jitter = 0;
  int64_t shared_experts = 0;

  template <class F>
  static void describe(F&& f) {
    f("experts", &MoeConfig::experts, IntRange{0, 1024}, "experts",
      "experts that replace the feed-forward part of a block; 0 = all blocks are dense");
    f("top_k", &MoeConfig::top_k, IntRange{1, 32}, "experts", "experts that process each token");
    f("inner", &MoeConfig::inner, IntRange{0, 1 << 20}, "",
      "width that an expert has inside; 0 = 4 D with gelu, and 8/3 D rounded up to a multiple of 256 with swiglu, "
      "which "
      "has about as many weights");
    f("activation", &MoeConfig::activation, Choice<ExpertActivation>{}, "",
      "what an expert is, also a shared one: gelu = up, GELU, down; swiglu = gate and up, SwiGLU, down, as the experts "
      "of Qwen3-MoE, Mixtral and OLMoE are");
    f("place", &MoeConfig::place, Choice<MoePlace>{}, "",
      "which blocks may have experts; auto = the encoder for the prototype, otherwise all blocks that read tokens (a "
      "mamba2 encoder has none)");
    f("every", &MoeConfig::every, IntRange{1, 1024}, "blocks",
      "one of this many blocks has experts, the last of each such group");
    f("score", &MoeConfig::score, Choice<RouterScore>{}, "", "function that turns router logits into scores");
    f("normalize", &MoeConfig::normalize, Flag{}, "", "divide the weights of a token's experts by their sum");
    f("capacity_factor", &MoeConfig::capacity_factor, RealRange{0, 1e3}, "",
      "limit an expert to this multiple of its fair share of tokens and drop the rest; 0 = drop none");
    f("load_weight", &MoeConfig::load_weight, RealRange{0, 1e3}, "",
      "weight of the load-balancing loss (Switch Transformer); 0 = do not use it");
    f("z_weight", &MoeConfig::z_weight, RealRange{0, 1e3}, "",
      "weight of the router z-loss (ST-MoE); 0 = do not use it");
    f("bias_rate", &MoeConfig::bias_rate, RealRange{0, 1}, "",
      "balance loads without a loss: each step moves the selection bias of every expert by this much, up if its load "
      "is below the mean (DeepSeek-V3), e.g. 0.001; 0 = use no bias");
    f("jitter", &MoeConfig::jitter, RealRange{0, 1, false, true}, "",
      "multiply the router's input in training by random numbers in 1 - jitter .. 1 + jitter (Switch Transformer); 0 = "
      "do not");
    f("shared_experts", &MoeConfig::shared_experts, IntRange{0, 1024}, "experts",
      "experts that process every token, beside the routed ones");
  }
};

}  // namespace hrm::config
