#include "hrm/tasks/causal_lm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/data/text_pattern.h"
#include "hrm/formats/peft_config.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/formats/tokenizer_folder.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/models/make_language_model.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/weight8.h"
#include "hrm/tasks/polychromic_plan.h"
#include "tasks/fake_quantized.h"

namespace hrm::tasks {

namespace fs = std::filesystem;

int64_t causal_positions(const config::Config& config, const HfModelConfig& facts) {
  const PolychromicPlan plan(config, 1);
  // A prompt is shorter than max_length, and an answer's last token is not read again.
  const int64_t needed = config.chat.max_length - 1 + plan.most_tokens();
  const int64_t positions = config.hf.positions > 0 ? config.hf.positions : needed;
  require(positions >= needed, ExitCode::usage, "hf.positions = ", positions,
          " is too short: prompts and responses of chat.max_length = ", config.chat.max_length,
          " tokens with sampled answers of up to ", plan.most_tokens(), " take ", needed, "; set it to 0 or to that");
  require(
      positions <= facts.max_position_embeddings, ExitCode::usage, "rows of ", positions,
      " positions are longer than the model of '", config.hf.model,
      "' was made for (max_position_embeddings = ", facts.max_position_embeddings,
      facts.rope.kind == RopeKind::dynamic ? ", beyond which a rotation of kind 'dynamic' changes with the length" : "",
      "); make chat.max_length or the longest answer smaller");
  return positions;
}

int64_t padded_causal_positions(const config::Config& config, const HfModelConfig& facts, const PolychromicPlan& plan) {
  const int64_t positions = causal_positions(config, facts), padded = plan.padded(positions);
  require(padded <= facts.max_position_embeddings, ExitCode::usage, "precision.blocks = fp8 pads rows of ", positions,
          " positions to ", padded, ", a multiple of ", plan.row_multiple, ", but the model of '", config.hf.model,
          "' was made for ", facts.max_position_embeddings,
          " (max_position_embeddings); make chat.max_length or the longest answer smaller by ",
          positions - facts.max_position_embeddings / plan.row_multiple * plan.row_multiple,
          ", or set precision.blocks to same");
  return padded;
}

namespace {

// Positions of the model's tables, enough for any number of ranks and micro-batches.
int64_t table_positions(const config::Config& config, const HfModelConfig& facts) {
  constexpr int64_t kMost = 16;  // PolychromicPlan::row_multiple
  const int64_t positions = causal_positions(config, facts);
  if (config.precision.blocks != config::BlockPrecision::fp8) return positions;
  return std::min((positions + kMost - 1) / kMost * kMost, std::max(positions, facts.max_position_embeddings));
}

// Whether training changes the embedding or the head alone, so that a tied model has two weights from then on.
bool unties(const config::LoraConfig& lora) {
  const std::vector<std::string> saved = split_list(lora.modules_to_save);
  return lora.r > 0 && std::any_of(saved.begin(), saved.end(), [](const std::string& name) {
           return name.ends_with("embed_tokens") || name.ends_with("lm_head");
         });
}

nn::WeightFormat weight_format(config::Quantization quantize) {
  using config::Quantization;
  switch (quantize) {
    case Quantization::nf4:
      return nn::WeightFormat::nf4;
    case Quantization::fp8:
      return nn::WeightFormat::fp8;
    case Quantization::int8:
      return nn::WeightFormat::int8;
    case Quantization::none:
      break;
  }
  return nn::WeightFormat::f32;
}

models::DecoderOptions configured_decoder(const config::Config& config, const HfModelConfig& facts, int64_t positions) {
  models::DecoderOptions options = checkpoint::decoder_options_of(facts, positions);
  options.recompute = config.hf.recompute;
  options.weights = weight_format(config.hf.quantize);
  require(config.precision.fake_quantize == config::FakeQuantization::none || options.experts.count == 0,
          ExitCode::usage, "precision.fake_quantize = ", config.precision.fake_quantize, " is for dense models, and '",
          config.hf.model, "' (", facts.model_type, ") has experts; set precision.fake_quantize to none");
  if (nn::is_quantized(options.weights)) {
    require(options.experts.count == 0, ExitCode::usage, "hf.quantize = ", config.hf.quantize,
            " is for dense models, and '", config.hf.model, "' (", facts.model_type,
            ") has experts, which are kept only in the compute dtype; leave hf.quantize out");
  }
  return options;
}

// Weights that training changes are not quantised.
void check_trained_weights(const config::Config& config) {
  require(config.hf.quantize == config::Quantization::none || config.lora.r > 0, ExitCode::usage,
          "hf.quantize = ", config.hf.quantize, " is for weights that are frozen, but lora.r = ", config.lora.r,
          " trains all of them; set lora.r to 16, or hf.quantize to none");
}

// trains: all weights, which an adapter leaves as they are.
CausalLm open_without_adapter(const config::Config& config, const Runtime& runtime, int64_t positions, bool trains,
                              std::shared_ptr<const nn::TensorAcross> across = nullptr, bool outline = false) {
  CausalLm lm;
  const fs::path folder(config.hf.model);
  lm.facts = read_hf_config(folder);
  const bool untie = lm.facts.tied && unties(config.lora);
  if (untie) lm.facts.tied = false;
  models::DecoderOptions options = configured_decoder(config, lm.facts, positions);
  if (!trains) options.expert_dtype = runtime.compute_dtype;
  options.across = std::move(across);
  {
    const nn::OutlineScope scope(outline);
    lm.model = std::make_shared<models::DecoderLm>(options, runtime.device);
  }
  if (config.hf.weights == config::HfWeights::random) {
    nn::init_parameters(*lm.model, static_cast<uint64_t>(config.run.seed));
    if (untie) {
      const at::NoGradGuard no_grad;
      const auto parameters = lm.model->named_parameters();
      const at::Tensor head = parameters["model.lm_head.weight"], embedding = parameters["model.embed_tokens.weight"];
      if (nn::HasComputeWeight* const owner = nn::OutlineOwners(*lm.model).of(head)) {
        owner->set_source([embedding](int64_t first, int64_t count) { return embedding.narrow(0, first, count); });
      } else {
        at::Tensor(head).copy_(embedding);
      }
    }
  }
  if (config.hf.weights == config::HfWeights::load)
    checkpoint::load_hf_weights(SafetensorsSet(folder), options, *lm.model, untie, lm.facts.stored);
  return lm;
}

nn::LoraOptions lora_options(const config::Config& config, const HfModelConfig& facts) {
  const config::LoraConfig& lora = config.lora;
  nn::LoraOptions options{.rank = lora.r,
                          .alpha = lora.alpha,
                          .dropout = lora.dropout,
                          .rslora = lora.rslora,
                          .targets = split_list(lora.targets),
                          .seed = config.run.seed,
                          .dora = lora.dora,
                          .modules_to_save = split_list(lora.modules_to_save)};
  options.targets = family_targets(facts.form, options.targets);
  std::string origin = "lora.targets";
  if (!lora.adapter.empty()) {
    // Where the targets are the adapter's own, its file is at fault for what is wrong with them.
    const PeftConfig theirs = checkpoint::read_peft_config(lora.adapter);
    std::vector<std::string> ours = options.targets;
    std::sort(ours.begin(), ours.end());
    if (lora.targets == theirs.target_list() || (theirs.pattern.empty() && ours == theirs.targets)) {
      options.origin = origin = (fs::path(lora.adapter) / "adapter_config.json").string();
    }
  }
  if (lora.targets.starts_with(kTargetPattern)) {
    const ExitCode code = options.origin.empty() ? ExitCode::usage : ExitCode::checkpoint;
    options.targets.clear();
    options.pattern = lora.targets.substr(std::string_view(kTargetPattern).size());
    options.wants =
        [=, pattern = std::make_shared<data::TextPattern>(options.pattern, origin, code)](const std::string& layer) {
          const data::TextPattern::Answer answer = pattern->matches(layer);
          require(answer != data::TextPattern::Answer::gave_up, code, origin, ": the pattern '",
                  printable_start(pattern->pattern()), "' takes too many steps to match '", layer, "'");
          return answer == data::TextPattern::Answer::yes;
        };
  }
  return options;
}

// In front of build_parameters: the adapter of lora.adapter, or one that does nothing yet.
void add_adapter(const config::Config& config, const Runtime& runtime, CausalLm& lm, bool trains) {
  lm.lora = std::make_unique<nn::LoraSet>(*lm.model, lora_options(config, lm.facts), runtime.device);
  lm.lora->initialise(static_cast<uint64_t>(config.run.seed));
  if (!config.lora.adapter.empty()) checkpoint::load_peft(config.lora.adapter, *lm.lora);
  nn::keep_frozen_as(*lm.model, runtime.compute_dtype);
  nn::share_quantized_workspace(*lm.model, runtime.compute_dtype);
  nn::set_fp8_products(*lm.model, config.hf.fp8_products, trains && config.hf.fp8_transposed);
}

}  // namespace

CausalLm open_causal_lm(const config::Config& config, const Runtime& runtime, int64_t positions,
                        std::shared_ptr<const nn::TensorAcross> across, bool outline) {
  check_trained_weights(config);
  const HfModelConfig facts = read_hf_config(config.hf.model);
  require(
      !facts.experts.load_loss, ExitCode::usage, "'", config.hf.model,
      "/config.json' sets output_router_logits, which adds a loss of the routers' load to training; this program has "
      "no such loss for models of transformers; set it to false there");
  const int64_t needed = table_positions(config, facts);
  CausalLm lm =
      open_without_adapter(config, runtime, std::max(needed, std::min(positions, facts.max_position_embeddings)),
                           /*trains=*/config.lora.r == 0, std::move(across), outline);
  if (config.lora.r > 0) add_adapter(config, runtime, lm, /*trains=*/true);
  lm.model->build_parameters(runtime.compute_dtype);
  models::fake_quantize(*lm.model, config.precision.fake_quantize);
  return lm;
}

CausalLm open_frozen_lm(const config::Config& config, const Runtime& runtime, int64_t positions,
                        std::shared_ptr<const nn::TensorAcross> across) {
  const config::FakeQuantization fake = config.precision.fake_quantize;
  require(fake == config::FakeQuantization::none, ExitCode::usage, "precision.fake_quantize = ", fake,
          " is for runs and their checkpoints; set hf.quantize to ", fake, " for the weights of '", config.hf.model,
          "'");
  CausalLm lm = open_without_adapter(config, runtime, positions, /*trains=*/false, std::move(across));
  if (config.lora.r == 0) {
    lm.model->build_frozen(runtime.compute_dtype);
    nn::share_quantized_workspace(*lm.model, runtime.compute_dtype);
    nn::set_fp8_products(*lm.model, config.hf.fp8_products);
  } else {
    add_adapter(config, runtime, lm, /*trains=*/false);
    lm.model->build_parameters(runtime.compute_dtype);
  }
  return lm;
}

CausalLm outline_causal_lm(const config::Config& config, std::shared_ptr<const nn::TensorAcross> across) {
  check_trained_weights(config);
  CausalLm lm{.facts = read_hf_config(config.hf.model), .model = nullptr, .lora = nullptr};
  const int64_t positions = causal_positions(config, lm.facts);
  if (unties(config.lora)) lm.facts.tied = false;
  models::DecoderOptions options = configured_decoder(config, lm.facts, positions);
  options.across = std::move(across);
  lm.model = std::make_shared<models::DecoderLm>(options, at::kMeta);
  if (config.lora.r > 0) {
    lm.lora = std::make_unique<nn::LoraSet>(*lm.model, lora_options(config, lm.facts), at::kMeta);
    // As on a GPU.
    using config::ComputePrecision;
    const ComputePrecision compute = config.precision.compute;
    const bool wide = compute == ComputePrecision::fp32 || compute == ComputePrecision::tf32;
    nn::keep_frozen_as(*lm.model, wide ? at::kFloat : compute == ComputePrecision::fp16 ? at::kHalf : at::kBFloat16);
  }
  return lm;
}

double matrix_elements(const CausalLm& lm) {
  const DecoderExperts& experts = lm.facts.experts;
  const double share = experts.count > 0 ? static_cast<double>(experts.top_k) / static_cast<double>(experts.count) : 1;
  double elements = 0;
  for (const auto& item : lm.model->named_parameters()) {
    const bool head = item.key().find("lm_head") != std::string::npos;
    const bool embedding = item.key().find("embed_tokens") != std::string::npos;
    if (item.value().dim() == 2 && (!embedding || lm.facts.tied) && !(head && lm.facts.tied)) {
      const bool expert =
          item.key().find(".mlp.gate_up.") != std::string::npos || item.key().find(".mlp.down.") != std::string::npos;
      elements += (expert ? share : 1) * static_cast<double>(item.value().numel());
    }
  }
  return elements;
}

namespace {

// Whether the frozen layers' products of many rows are done in 8 bits.
bool multiplies_in_8bit(const config::Config& config, const CausalLm& lm) {
  if (config.hf.quantize != config::Quantization::fp8 || !config.hf.fp8_products) return false;
  const nn::Linear& layer = *nn::quantized_layers(*lm.model).front().linear;
  return layer.frozen_weight().weight.element_size() == 2 && ops::has_fp8_products(layer.device());
}

}  // namespace

std::string describe_causal_lm(const config::Config& config, const CausalLm& lm) {
  std::string text = cat("model        ", lm.facts.model_type, " of ", config.hf.model, ", ", lm.facts.layers,
                         " layers, hidden ", lm.facts.hidden_size, ", vocabulary ", lm.facts.vocab_size,
                         config.hf.weights == config::HfWeights::random ? ", random weights" : "");
  if (!lm.lora) {
    return text + cat("\ntrained      all ", lm.model->parameter_set().count(), " parameters",
                      describe_fake_quantize(config, *lm.model));
  }
  text += cat("\nadapter      rank ", config.lora.r, ", ", lm.model->parameter_set().count(), " parameters, on ",
              config.lora.targets, config.lora.dora ? ", DoRA" : "",
              config.lora.modules_to_save.empty() ? "" : cat(", and all of ", config.lora.modules_to_save));
  if (const nn::QuantizedMemory held = nn::quantized_memory(*lm.model); held.elements > 0) {
    const auto mib = [](int64_t bytes) { return metrics::fixed(static_cast<double>(bytes) / 0x1p20, 1); };
    text += cat("\nbase         ", nn::name(weight_format(config.hf.quantize)), ", ", held.elements,
                " parameters of the blocks' linear layers in ", mib(held.bytes), " MiB (", mib(2 * held.elements),
                " in bf16), and ", mib(held.workspace), " MiB to dequantise one layer at a time",
                multiplies_in_8bit(config, lm) ? "; products of more than 32 rows in 8 bits" : "",
                multiplies_in_8bit(config, lm) && config.hf.fp8_transposed ? ", with transposed weights" : "");
  }
  return text;
}

data::ChatEncoder open_causal_tokenizer(const config::Config& config, const HfModelConfig& facts) {
  data::ChatEncoder encoder = data::open_chat_encoder(config);
  const int64_t vocabulary = encoder.encoder().meta.vocab_size;
  // Without a setting both are of one folder, and its files are at fault.
  const ExitCode code = config.hf.tokenizer.empty() ? ExitCode::checkpoint : ExitCode::usage;
  require(vocabulary <= facts.vocab_size, code, "the tokenizer of '", data::tokenizer_folder(config.hf).string(),
          "' has ", vocabulary, " tokens, but the model of '", config.hf.model, "' knows ", facts.vocab_size,
          "; give the model's own with hf.tokenizer");
  return encoder;
}

data::ChatSides open_chat_data(const config::Config& config, const data::ChatEncoder& encoder, bool need_response) {
  const config::ChatConfig& chat = config.chat;
  const double val = config.data.test.empty() ? chat.val_share : 0;
  const data::SplitOptions split{.shares = {1 - val - chat.test_share, val, chat.test_share},
                                 .seed = static_cast<uint64_t>(config.run.seed),
                                 .purpose = "split",
                                 .values = {}};
  return data::open_chat_sides(config.data.train, encoder, data::chat_data_options(config, need_response), split,
                               chat.stratify);
}

void TrainedWeights::visit_state(StateVisitor& visitor) {
  for (auto& item : lm_.model->named_parameters()) {
    if (item.value().requires_grad()) visitor.tensor(item.key(), item.value(), StateRole::weight);
  }
}

std::vector<fs::path> hf_files_beside_weights(const config::HfConfig& hf) {
  std::vector<fs::path> files{fs::path(hf.model) / "generation_config.json"};
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"}) {
    files.push_back(data::tokenizer_folder(hf) / name);
  }
  std::error_code ignored;
  std::erase_if(files, [&](const fs::path& file) { return !fs::exists(file, ignored); });
  const fs::path named = data::tokenizer_folder(hf) / data::kNamedTemplates;
  for (fs::directory_iterator at(named, ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (at->path().extension() == ".jinja") files.push_back(at->path());
  }
  return files;
}

void write_hf_files(const config::HfConfig& hf, const fs::path& folder) {
  fs::create_directories(folder);
  const auto copy = [&](const fs::path& from) {
    std::error_code ignored;
    const fs::path file = folder / data::place_beside_tokenizer(from);
    if (!fs::exists(from, ignored) || fs::equivalent(from, file, ignored)) return;
    fs::create_directories(file.parent_path());
    write_text_atomic(file, read_text(from, ExitCode::data));
  };
  copy(fs::path(hf.model) / "config.json");
  if (const fs::path from = data::tokenizer_folder(hf); has_tokenizer(from)) {
    const FolderTokenizer tokenizer = read_folder_tokenizer(from);
    std::error_code ignored;
    const bool itself = fs::equivalent(tokenizer.file, folder / "tokenizer.json", ignored);
    if (!itself) write_text_atomic(folder / "tokenizer.json", tokenizer.text);
  }
  for (const fs::path& file : hf_files_beside_weights(hf)) copy(file);
}

std::string base_digest(const config::Config& config) {
  if (config.lora.r == 0) return "";
  const std::string format = config.hf.quantize == config::Quantization::none ? "" : cat(", as ", config.hf.quantize);
  if (config.hf.weights == config::HfWeights::random) return cat("drawn by seed ", config.run.seed, format);
  return SafetensorsSet(config.hf.model).digest() + format;
}

}  // namespace hrm::tasks
