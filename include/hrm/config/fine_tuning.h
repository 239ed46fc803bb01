#pragma once
// Sections of task=polychromic: a causal language model from a Hugging Face folder, its adapter, its data, and what is
// made of the answers that it writes. Names and defaults follow the trainers that they come from, where those have them
// (PEFT's LoraConfig, TRL's GRPOConfig, the polychromic trainer's diversity settings).

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

// The model.
struct HfConfig {
  std::string model = "";
  std::string weights = "load";
  std::string tokenizer = "";
  int64_t positions = 0;
  bool recompute = false;

  template <class F>
  static void describe(F&& f) {
    f("model", &HfConfig::model, AnyText{}, "",
      "folder of a causal language model as Hugging Face's transformers saves it (config.json, model.safetensors or "
      "its "
      "shards, tokenizer.json): Qwen3, Llama or Mistral");
    f("weights", &HfConfig::weights, OneOf{{"load", "random"}}, "",
      "random = the folder needs config.json alone, and weights are drawn by run.seed: for timing and for training "
      "from "
      "scratch");
    f("tokenizer", &HfConfig::tokenizer, AnyText{}, "", "folder with tokenizer.json; empty = hf.model");
    f("positions", &HfConfig::positions, IntRange{0, 1 << 20}, "tokens",
      "longest row that the model holds, prompt and answer; 0 = chat.max_length, or the prompt's part of it and "
      "polychromic.max_generation_length");
    f("recompute", &HfConfig::recompute, Flag{}, "",
      "activation checkpointing: keep each block's input alone for the backward pass");
  }
};

// The adapter.
struct LoraSection {
  int64_t r = 16;
  double alpha = 16;
  double dropout = 0;
  bool rslora = false;
  std::string targets = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj";
  std::string adapter = "";

  template <class F>
  static void describe(F&& f) {
    f("r", &LoraSection::r, IntRange{0, 4096}, "",
      "rank of the adapters; the model's own weights are frozen. 0 = no adapters: all weights are trained");
    f("alpha", &LoraSection::alpha, RealRange{0, 1e6}, "", "adapters are scaled by alpha / r");
    f("dropout", &LoraSection::dropout, RealRange{0, 1, false, true}, "",
      "share of an adapter's inputs that is dropped in training");
    f("rslora", &LoraSection::rslora, Flag{}, "", "scale by alpha / sqrt(r) in place of alpha / r");
    f("targets", &LoraSection::targets, AnyText{}, "",
      "layers that get an adapter, with commas between: some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
      "down_proj");
    f("adapter", &LoraSection::adapter, AnyText{}, "",
      "PEFT folder to begin with, of the same r and targets; empty = an adapter that does nothing yet");
  }
};

}  // namespace hrm::config
