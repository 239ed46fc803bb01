// The forms that a language model is exported in.
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/models/make_language_model.h"
#include "hrm/tasks/language.h"
#include "hrm/tasks/language_inference.h"
#include "tasks/fake_quantized.h"
#include "tasks/hf_tokens.h"
#include "tasks/language/spec.h"

namespace hrm::tasks {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void write_language(const StoredModel& stored, const ExportRequest& request, const NamedTensors& weights) {
  const config::Config& config = stored.config;
  const data::LanguageMeta meta = meta_from_signature(stored.meta.info, stored.folder.string());
  // As the model's own parameters are called: checkpoints leave out the name of the outermost module "model".
  const bool plain = !models::reads_prompts(config.lm);
  NamedTensors named;
  for (const auto& [name, tensor] : weights) named.emplace_back(plain ? "model." + name : name, tensor);
  const models::LanguageSizes sizes = models::language_sizes(config.data, meta.vocab_size);
  round_exported(named, *models::make_language_model_outline(config, sizes), config, request);
  if (request.to == "safetensors") return checkpoint::export_safetensors(named, request.out, /*prefix=*/"");
  if (request.to == "pt") return checkpoint::export_pt(named, request.out, /*prefix=*/"");
  if (request.to == "torchscript") return checkpoint::export_language_torchscript(config, sizes, named, request.out);
  models::DecoderOptions decoder;  // stays empty for a model that export_hf refuses
  if (plain) decoder = models::family_decoder_options(config, sizes);
  checkpoint::export_hf(decoder, named, hf_tokens(meta, tokenizer_of_checkpoint(meta, stored.folder)), request.out,
                        hf_format(request));
}

void write_checkpoint(const StoredModel& stored, const ExportRequest& request, const ChosenWeights& chosen) {
  const data::LanguageMeta meta = meta_from_signature(stored.meta.info, stored.folder.string());
  std::vector<std::filesystem::path> files;
  if (const auto tokenizer = tokenizer_of_checkpoint(meta, stored.folder); !tokenizer.empty()) {
    files.push_back(tokenizer);
  }
  export_checkpoint(stored, request, chosen, files);
}

}  // namespace

std::string export_language(const StoredModel& stored, const ExportRequest& request) {
  const ChosenWeights chosen = choose_weights(stored.folder, request.weights);
  if (request.to == "checkpoint") {
    write_checkpoint(stored, request, chosen);
  } else {
    write_language(stored, request, chosen.values());
  }
  return exported_text(stored, chosen.averaged);
}

}  // namespace hrm::tasks
