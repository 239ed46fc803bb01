// The forms that a causal language model and its adapter are exported in.
#include <map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/nn/linear.h"
#include "hrm/tasks/causal_inference.h"
#include "tasks/causal/spec.h"
#include "tasks/hf_tokens.h"

namespace hrm::tasks {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

const std::vector<std::string> kExactOnCpu{"runtime.device=cpu", "precision.compute=fp32"};

// The whole model for transformers, an adapter merged into it.
void write_hf(CausalInference& loaded, const ExportRequest& request) {
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
  tokens.files = hf_files_beside_weights(loaded.config.hf);
  checkpoint::HfFormat format = hf_format(request);
  format.model_type = facts.model_type;
  checkpoint::export_hf(decoder, named, tokens, request.out, format);
}

// The adapter for PEFT; for transformers the whole model.
void write_causal(const StoredModel& stored, const ExportRequest& request, const ChosenWeights& chosen) {
  const NamedTensors& weights = chosen.values();
  if (request.to == "safetensors") return checkpoint::export_safetensors(weights, request.out, /*prefix=*/"");
  if (request.to == "pt") return checkpoint::export_pt(weights, request.out, /*prefix=*/"");
  require(request.to != "torchscript", ExitCode::usage,
          "models of transformers have no TorchScript form here; use --to hf, peft or safetensors");
  std::vector<std::string> overrides = kExactOnCpu;
  if (!request.base.empty()) overrides.push_back("hf.model=" + request.base);
  CausalInference loaded = open_causal_checkpoint(stored.folder, overrides, chosen.averaged ? "ema" : "raw");
  if (request.to == "peft") return checkpoint::write_peft(request.out, *loaded.lm.lora, loaded.config.hf.model);
  write_hf(loaded, request);
}

// An adapter of PEFT, merged into the model that it is for.
std::string export_adapter(const StoredModel& stored, const ExportRequest& request) {
  const std::string folder = stored.folder.string();
  require(request.to == "hf", ExitCode::usage, "'", folder,
          "' is an adapter of PEFT, which --to hf merges into its model; --to ", request.to, " is for checkpoints");
  require(request.weights != "ema", ExitCode::checkpoint, "'", folder,
          "' holds no averaged weights, as checkpoints may; leave --weights out");
  std::vector<std::string> overrides = kExactOnCpu;
  overrides.emplace_back("chat.template=plain");  // nothing is asked: no other one needs to be known
  if (!request.base.empty()) overrides.push_back("hf.model=" + request.base);
  CausalInference loaded = open_model_folder(stored.folder, overrides);
  write_hf(loaded, request);
  return cat("'", loaded.config.hf.model, "' with the adapter of ", folder, " merged into it");
}

}  // namespace

std::string export_causal(const StoredModel& stored, const ExportRequest& request) {
  require(request.to != "checkpoint", ExitCode::usage,
          "--to checkpoint is for puzzle and language models; give models of transformers on by --to hf or peft");
  if (stored.foreign) {
    require(checkpoint::is_peft_folder(stored.folder), ExitCode::usage, "'", stored.folder.string(),
            "' is a model of transformers already; export takes checkpoints, and adapters of PEFT");
    return export_adapter(stored, request);
  }
  const ChosenWeights chosen = choose_weights(stored.folder, request.weights);
  write_causal(stored, request, chosen);
  return exported_text(stored, chosen.averaged);
}

}  // namespace hrm::tasks
