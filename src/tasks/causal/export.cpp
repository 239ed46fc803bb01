// The forms that a causal language model and its adapter are exported in.
#include <map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/causal_inference.h"
#include "tasks/causal/spec.h"
#include "tasks/fake_quantized.h"
#include "tasks/hf_tokens.h"

namespace hrm::tasks {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

const std::vector<std::string> kExactOnCpu{"runtime.device=cpu", "precision.compute=fp32"};

// All weights by our names, an adapter merged into them, in float32.
NamedTensors whole_weights(CausalLm& lm) {
  if (lm.lora) lm.lora->merge();
  NamedTensors named;
  for (const auto& item : lm.model->named_parameters()) {
    if (item.key().find(".lora.") == std::string::npos) named.emplace_back(item.key(), item.value().detach());
  }
  std::map<std::string, const nn::Linear*> quantized;
  const std::vector<nn::QuantizedLayer> layers = nn::quantized_layers(*lm.model);
  for (const nn::QuantizedLayer& layer : layers) quantized[layer.weight] = layer.linear.get();
  for (auto& [name, tensor] : named) {
    const at::Tensor merged = lm.lora ? lm.lora->merged_weight(name) : at::Tensor();
    if (merged.defined()) {
      tensor = merged;
    } else if (const auto found = quantized.find(name); found != quantized.end()) {
      tensor = found->second->dequantized(at::kFloat);
    }
  }
  return named;
}

models::DecoderOptions options_of(const HfModelConfig& facts) {
  return checkpoint::decoder_options_of(facts, facts.max_position_embeddings);
}

// The same as a file of this request holds them.
NamedTensors exported_weights(CausalLm& lm, const config::Config& config, const ExportRequest& request) {
  NamedTensors named = whole_weights(lm);
  round_exported(named, *lm.model, config, request);
  return named;
}

// The whole model for torch.jit.load.
void write_torchscript(CausalLm& lm, const config::Config& config, const ExportRequest& request) {
  checkpoint::export_causal_torchscript(options_of(lm.facts), exported_weights(lm, config, request), request.out);
}

// The whole model for transformers.
void write_hf(CausalInference& loaded, const ExportRequest& request) {
  const NamedTensors named = exported_weights(loaded.lm, loaded.config, request);
  const HfModelConfig& facts = loaded.lm.facts;
  const std::filesystem::path tokenizer = data::tokenizer_folder(loaded.config.hf) / "tokenizer.json";
  std::error_code ignored;
  checkpoint::HfTokens tokens =
      hf_tokens(loaded.chat->encoder().meta, std::filesystem::exists(tokenizer, ignored) ? tokenizer : "");
  tokens.ends = facts.eos_ids;
  if (!tokens.ends.empty()) tokens.eos = tokens.ends.front();
  tokens.files = hf_files_beside_weights(loaded.config.hf);
  checkpoint::HfFormat format = hf_format(request);
  format.model_type = facts.model_type;
  checkpoint::export_hf(options_of(facts), named, tokens, request.out, format);
}

// The same for weights of a checkpoint.
void round_checkpoint(NamedTensors& weights, const StoredModel& stored, const ExportRequest& request) {
  if (stored.config.precision.fake_quantize == config::FakeQuantization::none) return;
  const CausalInference loaded = open_causal_checkpoint(stored.folder, kExactOnCpu, "auto");
  // Checkpoints leave out the name of the outermost module.
  const std::string outermost = "model.";
  for (auto& [name, tensor] : weights) name = outermost + name;
  round_exported(weights, *loaded.lm.model, loaded.config, request);
  for (auto& [name, tensor] : weights) name = name.substr(outermost.size());
}

// The adapter for PEFT; for transformers and TorchScript the whole model.
void write_causal(const StoredModel& stored, const ExportRequest& request, const ChosenWeights& chosen) {
  NamedTensors weights = chosen.values();
  if (request.to == "safetensors" || request.to == "pt") round_checkpoint(weights, stored, request);
  if (request.to == "safetensors") return checkpoint::export_safetensors(weights, request.out, /*prefix=*/"");
  if (request.to == "pt") return checkpoint::export_pt(weights, request.out, /*prefix=*/"");
  std::vector<std::string> overrides = kExactOnCpu;
  if (!request.base.empty()) overrides.push_back("hf.model=" + request.base);
  CausalInference loaded = open_causal_checkpoint(stored.folder, overrides, chosen.averaged ? "ema" : "raw");
  if (request.to == "peft") return checkpoint::write_peft(request.out, *loaded.lm.lora, loaded.config.hf.model);
  if (request.to == "torchscript") return write_torchscript(loaded.lm, loaded.config, request);
  write_hf(loaded, request);
}

// An adapter of PEFT, merged into the model that it is for, or a model of transformers.
std::string export_foreign(const StoredModel& stored, const ExportRequest& request) {
  const std::string folder = stored.folder.string();
  const bool adapter = checkpoint::is_peft_folder(stored.folder), script = request.to == "torchscript";
  const bool in_8_bits = request.to == "hf" && (request.dtype == "fp8" || request.dtype == "int8");
  require(adapter || script || in_8_bits, ExitCode::usage, "'", folder,
          "' is a model of transformers already, which --to torchscript exports; --to ", request.to,
          " is for checkpoints", request.to == "hf" ? ", and for adapters of PEFT" : "");
  require(request.to == "hf" || script, ExitCode::usage, "'", folder,
          "' is an adapter of PEFT, which --to hf and --to torchscript merge into its model; --to ", request.to,
          " is for checkpoints");
  require(request.weights != "ema", ExitCode::checkpoint, "'", folder,
          "' holds no averaged weights, as checkpoints may; leave --weights out");
  std::vector<std::string> overrides = kExactOnCpu;
  overrides.emplace_back("chat.template=plain");  // nothing is asked: no other one needs to be known
  if (!request.base.empty()) overrides.push_back("hf.model=" + request.base);
  std::string model;
  if (script) {
    // Without a tokenizer, which such a folder may lack.
    const config::Config config = model_folder_config(stored.folder, overrides);
    CausalLm lm = open_frozen_lm(config, ops::start_runtime_and_ops(config), /*positions=*/1);
    write_torchscript(lm, config, request);
    model = config.hf.model;
  } else {
    CausalInference loaded = open_model_folder(stored.folder, overrides);
    write_hf(loaded, request);
    model = loaded.config.hf.model;
  }
  if (!adapter) return cat("the model of '", folder, "'");
  return cat("'", model, "' with the adapter of ", folder, " merged into it");
}

}  // namespace

std::string export_causal(const StoredModel& stored, const ExportRequest& request) {
  require(request.to != "checkpoint", ExitCode::usage,
          "--to checkpoint is for puzzle and language models; give models of transformers on by --to hf or peft");
  if (stored.foreign) return export_foreign(stored, request);
  const ChosenWeights chosen = choose_weights(stored.folder, request.weights);
  write_causal(stored, request, chosen);
  return exported_text(stored, chosen.averaged);
}

}  // namespace hrm::tasks
