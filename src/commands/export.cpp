// hrm_train export: the weights of a checkpoint as a file for other programs.
#include <iostream>
#include <map>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/data/tokenizer.h"
#include "hrm/models/make_language_model.h"
#include "hrm/nn/linear.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/language.h"
#include "hrm/tasks/language_inference.h"

namespace hrm::commands {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void export_puzzle(const ExportOptions& options, const config::Config& config, const NamedTensors& weights) {
  require(options.to != "hf", ExitCode::usage,
          "transformers has no architecture for puzzle models; use --to safetensors, pt or torchscript");
  if (options.to == "safetensors") {
    checkpoint::export_safetensors(weights, options.out);
  } else if (options.to == "pt") {
    checkpoint::export_pt(weights, options.out);
  } else {
    checkpoint::export_torchscript(config.model, weights, options.out);
  }
}

checkpoint::HfTokens hf_tokens(const data::LanguageMeta& meta, const std::filesystem::path& tokenizer_file) {
  checkpoint::HfTokens tokens{.bos = meta.bos_id, .eos = meta.eos_id, .pad = meta.pad_id, .tokenizer = tokenizer_file};
  if (tokenizer_file.empty()) return tokens;
  const auto tokenizer = data::Tokenizer::load(tokenizer_file, ExitCode::checkpoint);
  const auto special = [&](int64_t id) {
    return id >= 0 && id < tokenizer.vocab_size() && tokenizer.is_special(static_cast<int32_t>(id));
  };
  // Our rows may be padded with any token, EOS among them; transformers takes the token of padding out of training.
  if (!special(tokens.pad) || tokens.pad == tokens.eos) tokens.pad = -1;
  const auto text = [&](int64_t id) {
    return special(id) ? tokenizer.token_of(static_cast<int32_t>(id)) : std::string();
  };
  tokens.bos_text = text(tokens.bos);
  tokens.eos_text = text(tokens.eos);
  tokens.pad_text = text(tokens.pad);
  return tokens;
}

checkpoint::HfFormat hf_format(const ExportOptions& options) {
  return {.dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat};
}

void export_language(const ExportOptions& options, const config::Config& config,
                     const checkpoint::FoundCheckpoint& found, const NamedTensors& weights) {
  const data::LanguageMeta meta = tasks::meta_from_signature(found.meta.info, found.dir.string());
  // As the model's own parameters are called: checkpoints leave out the name of the outermost module "model".
  const bool plain = !models::reads_prompts(config.lm);
  NamedTensors named;
  for (const auto& [name, tensor] : weights) named.emplace_back(plain ? "model." + name : name, tensor);
  if (options.to == "safetensors") return checkpoint::export_safetensors(named, options.out, /*prefix=*/"");
  if (options.to == "pt") return checkpoint::export_pt(named, options.out, /*prefix=*/"");
  const models::LanguageSizes sizes = models::language_sizes(config.data, meta.vocab_size);
  if (options.to == "torchscript") return checkpoint::export_language_torchscript(config, sizes, named, options.out);
  models::DecoderOptions decoder;  // stays empty for a model that export_hf refuses
  if (plain) decoder = models::plain_decoder_options(config, sizes);
  checkpoint::export_hf(decoder, named, hf_tokens(meta, tasks::tokenizer_of_checkpoint(meta, found.dir)), options.out,
                        hf_format(options));
}

const std::vector<std::string> kExactOnCpu{"runtime.device=cpu", "precision.compute=fp32"};

// The whole model for transformers, an adapter merged into it.
void write_hf(tasks::CausalInference& loaded, const ExportOptions& options) {
  if (loaded.lm.lora) loaded.lm.lora->merge();
  NamedTensors named;
  for (const auto& item : loaded.lm.model->named_parameters()) {
    if (item.key().find(".lora.") == std::string::npos) named.emplace_back(item.key(), item.value().detach());
  }
  std::map<std::string, const nn::Linear*> quantized;
  const std::vector<nn::Nf4Layer> layers = nn::nf4_layers(*loaded.lm.model);
  for (const nn::Nf4Layer& layer : layers) quantized[layer.weight] = layer.linear.get();
  for (auto& [name, tensor] : named) {
    const at::Tensor merged = loaded.lm.lora ? loaded.lm.lora->merged_weight(name) : at::Tensor();
    if (merged.defined()) {
      tensor = merged;
    } else if (const auto found = quantized.find(name); found != quantized.end()) {
      tensor = ops::nf4_dequantize(found->second->nf4(), tensor.sizes(), at::kFloat);
    }
  }
  const HfModelConfig& facts = loaded.lm.facts;
  models::DecoderOptions decoder = checkpoint::decoder_options_of(facts, facts.max_position_embeddings);
  const std::filesystem::path tokenizer = data::tokenizer_folder(loaded.config.hf) / "tokenizer.json";
  std::error_code ignored;
  checkpoint::HfTokens tokens =
      hf_tokens(loaded.chat->encoder().meta, std::filesystem::exists(tokenizer, ignored) ? tokenizer : "");
  tokens.ends = facts.eos_ids;
  if (!tokens.ends.empty()) tokens.eos = tokens.ends.front();
  tokens.files = tasks::hf_files_beside_weights(loaded.config.hf);
  checkpoint::export_hf(decoder, named, tokens, options.out, hf_format(options));
}

// The adapter for PEFT; for transformers the whole model.
void export_causal(const ExportOptions& options, bool averaged, const NamedTensors& weights) {
  if (options.to == "safetensors") return checkpoint::export_safetensors(weights, options.out, /*prefix=*/"");
  if (options.to == "pt") return checkpoint::export_pt(weights, options.out, /*prefix=*/"");
  require(options.to != "torchscript", ExitCode::usage,
          "models of transformers have no TorchScript form here; use --to hf, peft or safetensors");
  std::vector<std::string> overrides = kExactOnCpu;
  if (!options.base.empty()) overrides.push_back("hf.model=" + options.base);
  tasks::CausalInference loaded =
      tasks::open_causal_checkpoint(options.checkpoint, overrides, averaged ? "ema" : "raw");
  if (options.to == "peft") return checkpoint::write_peft(options.out, *loaded.lm.lora, loaded.config.hf.model);
  write_hf(loaded, options);
}

// An adapter of PEFT, merged into the model that it is for.
void export_adapter(const ExportOptions& options) {
  require(options.to == "hf", ExitCode::usage, "'", options.checkpoint,
          "' is an adapter of PEFT, which --to hf merges into its model; --to ", options.to, " is for checkpoints");
  require(options.weights != "ema", ExitCode::checkpoint, "'", options.checkpoint,
          "' holds no averaged weights, as checkpoints may; leave --weights out");
  std::vector<std::string> overrides = kExactOnCpu;
  overrides.emplace_back("chat.template=plain");  // nothing is asked: no other one needs to be known
  if (!options.base.empty()) overrides.push_back("hf.model=" + options.base);
  tasks::CausalInference loaded = tasks::open_model_folder(options.checkpoint, overrides);
  write_hf(loaded, options);
  log::info("wrote '", loaded.config.hf.model, "' with the adapter of ", options.checkpoint, " merged into it to ",
            options.out);
}

}  // namespace

int run_export(const ExportOptions& options) {
  const bool known = options.to == "torchscript" || options.to == "safetensors" || options.to == "pt" ||
                     options.to == "hf" || options.to == "peft";
  require(known, ExitCode::usage, "'", options.to,
          "' is no export format; use torchscript, safetensors, pt, hf or peft");
  require(options.weights == "auto" || options.weights == "raw" || options.weights == "ema", ExitCode::usage, "'",
          options.weights, "' is no set of weights; use auto, raw or ema");
  require(options.dtype == "float32" || options.dtype == "bfloat16", ExitCode::usage, "'", options.dtype,
          "' is no dtype of weights; use float32 or bfloat16");
  require(options.dtype == "float32" || options.to == "hf", ExitCode::usage, "--dtype ", options.dtype,
          " is for --to hf alone; ", options.to, " has the dtype of the checkpoint");
  require(!options.out.empty(), ExitCode::usage, "--out needs the file or folder to write");

  if (checkpoint::is_peft_folder(options.checkpoint)) {
    export_adapter(options);
    std::cout << options.out << "\n";
    return static_cast<int>(ExitCode::done);
  }
  require(!tasks::is_hf_folder(options.checkpoint), ExitCode::usage, "'", options.checkpoint,
          "' is a model of transformers already; export takes checkpoints, and adapters of PEFT");
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(options.checkpoint);
  const checkpoint::ModelWeights weights = checkpoint::load_weights(found.dir);
  require(options.weights != "ema" || !weights.ema.empty(), ExitCode::checkpoint, "the checkpoint ", found.dir,
          " holds no averaged weights; use --weights raw");
  const bool averaged = options.weights != "raw" && !weights.ema.empty();
  const auto& chosen = averaged ? weights.ema : weights.raw;
  const config::Config config =
      config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string()).config;
  require(options.to != "peft" || (config.task == "polychromic" && config.lora.r > 0), ExitCode::usage,
          "PEFT's folders hold adapters, and this model has none; use --to safetensors or hf");
  tasks::check_base(options.base, found.dir, config);
  if (config.task == "polychromic") {
    export_causal(options, averaged, chosen);
  } else if (config.task == "language") {
    export_language(options, config, found, chosen);
  } else {
    export_puzzle(options, config, chosen);
  }
  log::info("wrote the ", averaged ? "averaged" : "raw", " weights of step ", found.meta.step, " to ", options.out);
  std::cout << options.out << "\n";
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
